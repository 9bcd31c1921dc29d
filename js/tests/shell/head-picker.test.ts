// @vitest-environment jsdom
/** Heads of a part of a model: counted from 0 in what is shown, with the numbers that they have in the model. */

import { expect, test } from "vitest";
import { headWords, inModel } from "../../src/components/phrases";
import type { Facts } from "../../src/contract/messages";
import { settle, show } from "../helpers/page.ts";
import { CAUSAL, factsOf, python, stateOf } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

const PART = { heads: 4, head_numbers: [1, 5, 7, 11] };

async function draw(facts: Partial<Facts>) {
  const state = stateOf(CAUSAL, { facts: factsOf(CAUSAL, facts) });
  return show(
    state,
    python(state, () => CAUSAL),
    { width: 900 },
  );
}

test("the picker, the status and the picture name the model's own numbers", async () => {
  const { view } = await draw(PART);
  const named = view.all("[data-aw=picker] [aria-label^='head ']").map((one) => one.getAttribute("aria-label"));
  expect(named.filter((one) => one?.includes("model"))).toEqual(
    PART.head_numbers.map((number, head) => `head ${head} (${number} in the model)`),
  );
  expect(view.text("[data-aw=picker] [aria-label^='head 2 ']")).toContain("2 (7)");
  expect(view.find<HTMLElement>("[aria-label='head 2 (7 in the model)']").title).toContain("head 2 (7 in the model)");
  expect(view.text("[data-aw=status]")).toMatch(/head \d \(\d+ in the model\)/);
  expect(view.canvas.getAttribute("aria-label")).toMatch(/head \d \(\d+ in the model\)/);
});

test("the stepper of a narrow widget says it beside", async () => {
  const state = stateOf(CAUSAL, { facts: factsOf(CAUSAL, PART) });
  const { view } = await show(
    state,
    python(state, () => CAUSAL),
    { width: 330 },
  );
  expect(view.text(".aw-group:has([aria-label^='head, '])")).toContain("(1)");
  expect(view.find<HTMLElement>("[title='head 0 (1 in the model)'].aw-muted").textContent).toBe("(1)");
});

test("what is typed into a stepper stays while something else is drawn anew", async () => {
  const state = stateOf(CAUSAL);
  const { view, host } = await show(
    state,
    python(state, () => CAUSAL),
    { width: 330 },
  );
  const field = view.find<HTMLInputElement>("input[aria-label^='head, ']");
  field.value = "2";
  host.fromPython({ facts: { ...host.get("facts"), device: "cuda" } });
  await settle();
  expect(field.value).toBe("2");
  field.dispatchEvent(new Event("change", { bubbles: true }));
  await settle();
  expect(host.get("head")).toBe(2);
  expect(field.value).toBe("2");
  field.value = "77";
  field.dispatchEvent(new Event("change", { bubbles: true }));
  expect(field.value).toBe("2"); // there is no such head
});

test("one head that was kept alone is named too", async () => {
  const { view } = await draw({ heads: 1, groups: 1, head_numbers: [9] });
  expect(view.text("[data-aw=status]")).toContain("head 0 (9 in the model)");
});

test("of a whole layer nothing more is said", async () => {
  const { view } = await draw({ heads: 4, head_numbers: null });
  expect(view.text("[data-aw=status]")).not.toContain("in the model");
  expect(view.find<HTMLElement>("[aria-label='head 2']").title).not.toContain("in the model");
});

test("several heads as one have all their numbers", () => {
  const facts = factsOf(CAUSAL, PART);
  expect(headWords("mean 0 3", facts)).toBe("mean of heads 0, 3 (1, 11 in the model)");
  expect(inModel([0, 3], factsOf(CAUSAL, {}))).toBe("");
});
