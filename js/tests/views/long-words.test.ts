// @vitest-environment jsdom
/** What toolbar and status line say of a part of a long head, whatever brought it into view. */

import { expect, test } from "vitest";
import type { Traits } from "../../src/contract/traits";
import { createHost } from "../../src/kernel/host";
import { createKernel } from "../../src/kernel/kernel";
import { status } from "../../src/shell/status/status";
import { toolbar } from "../../src/shell/toolbar";
import { createStore } from "../../src/state/store";
import { createUi, type Ui } from "../../src/state/ui";
import { longAnswers, longState } from "../helpers/long.ts";
import { settle } from "../helpers/page.ts";
import { resize } from "../helpers/setup.ts";
import { CAUSAL, python, stateOf } from "../helpers/states.ts";
import { endOfTest } from "../helpers/timers.ts";

const end = endOfTest();

async function start(
  state: Partial<Traits>,
  answer = longAnswers(),
): Promise<{ ui: Ui; tools: HTMLElement; line: HTMLElement }> {
  const model = createHost(state, { answer }).proxy();
  const kernel = createKernel(model, { signal: end.signal });
  const root = document.createElement("div");
  document.body.append(root);
  const ui = createUi(createStore(model, kernel, end.signal), kernel, root, end.signal);
  resize(root, 900);
  await settle();
  return { ui, tools: toolbar(ui).node, line: status(ui).node };
}

const shown = (cell: number) => ({
  queries: { start: 12_296, stop: 12_314 },
  keys: { start: 4104, stop: 4122 },
  cellWidth: cell,
  cellHeight: cell,
});
const pool = (tools: HTMLElement) => tools.querySelector("[aria-label=Pool] > button")!.getAttribute("aria-label");

test("single cells need no pooling and are exact, however little of the whole is", async () => {
  const { ui, tools, line } = await start(longState({ share: 0.38 }));
  expect(pool(tools)).toBe("Pool maximum");
  expect(line.textContent).toContain("cuda:0 · sampled: 1 of 32 rows");
  ui.window.value = shown(26);
  expect(pool(tools)).toBe("Pool not needed");
  expect(line.textContent).toMatch(/16,384 × 16,384 · exact$/);
  ui.window.value = shown(0.25);
  expect(pool(tools)).toBe("Pool maximum");
  expect(line.textContent).toMatch(/cuda:0$/);
});

test("a row that stands for several says so, and where its greatest number is", async () => {
  const { ui, line } = await start(longState({ share: 0.38 }));
  ui.hover.value = {
    bin: { queries: { start: 14_592, stop: 14_593 }, keys: { start: 0, stop: 32 }, standsFor: 256 },
  };
  await settle();
  expect(line.textContent).toMatch(/^row 14,592 stands for 256 → keys 0–31 maximum 0\.\d{6} at key 0/);
});

test("a head whose cells are all drawn is never pooled, zoomed or not", async () => {
  const state = stateOf(CAUSAL);
  const { ui, tools, line } = await start(state, python(state, () => CAUSAL).answer);
  ui.window.value = { ...shown(40), queries: { start: 0, stop: 2 }, keys: { start: 0, stop: 2 } };
  expect(tools.querySelector("[aria-label=Pool]")).toBeNull();
  expect(line.textContent).toMatch(/cpu$/);
});
