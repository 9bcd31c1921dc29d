// @vitest-environment jsdom
/** Which of several stacks and forward passes: chosen, named by what Python has sent, and fixed where none can come. */

import { expect, test } from "vitest";
import type { Facts } from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import { settle, show } from "../helpers/page.ts";
import { CAUSAL, factsOf, python, stateOf } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

const PLACE = { stack: "decoder", stacks: ["encoder", "decoder"], forward: 2, forwards: 50 };

async function draw(facts: Partial<Facts>, changes: Partial<Traits> = {}, width = 900) {
  const { stack = "", forward = 0 } = facts;
  const state = stateOf(CAUSAL, { stack, forward, ...changes, facts: factsOf(CAUSAL, facts) });
  return show(
    state,
    python(state, () => CAUSAL),
    { width },
  );
}

test("one stack of one forward pass has nothing to choose", async () => {
  const { view } = await draw({ stack: "", stacks: [""], forward: 0, forwards: 1 });
  expect(view.text("[data-aw=picker]")).toBe("Layer 0 1 Head 0 1 2 3");
  expect(view.text("[data-aw=status]")).not.toContain("forward");
});

test("each is there only where there are several", async () => {
  const stacks = await draw({ stack: "encoder", stacks: ["encoder", "decoder"] });
  expect(stacks.view.all("[data-aw=stack]")).toHaveLength(1);
  expect(stacks.view.all("[data-aw=forward]")).toHaveLength(0);
  const forwards = await draw({ stack: "", stacks: [""], forward: 1, forwards: 3 });
  expect(forwards.view.all("[data-aw=stack]")).toHaveLength(0);
  expect(forwards.view.all("[data-aw=forward]")).toHaveLength(1);
});

test("a forward pass is stepped to, typed, or walked to by arrows, and is the number of cap[i]", async () => {
  const { view, host } = await draw(PLACE);
  expect(view.text("[data-aw=forward]")).toContain("of 50");
  expect(view.find<HTMLElement>("[data-aw=forward]").title).toBe("cap[2]");
  view.button("next forward").click();
  await settle();
  const input = view.find<HTMLInputElement>("[data-aw=forward] input");
  input.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
  await settle();
  input.value = "49";
  input.dispatchEvent(new Event("change", { bubbles: true }));
  await settle();
  expect(host.saved).toEqual([{ forward: 3 }, { forward: 2 }, { forward: 49 }]);
  expect(view.button("next forward").disabled).toBe(true);
});

test("a request of an engine is called by its id, once it has come", async () => {
  const { view, host } = await draw({ ...PLACE, request: "chat-7" });
  expect(view.text("[data-aw=forward]")).toMatch(/^Request .*of 50 id chat-7$/);
  expect(view.text("[data-aw=status]")).toContain("request chat-7 · decoder");
  view.button("next forward").click();
  await settle();
  expect(view.text("[data-aw=forward]")).not.toContain("chat-7");
  host.fromPython({ forward: 3, facts: factsOf(CAUSAL, { ...PLACE, forward: 3, request: "chat-8" }) });
  await settle();
  expect(view.text("[data-aw=forward]")).toContain("id chat-8");
});

test("a stack is chosen from a menu, and the status names the one shown until the other has come", async () => {
  const { view, host } = await draw(PLACE);
  view.button("Stack decoder").click();
  await settle();
  view.find<HTMLElement>("[role=menuitemradio][aria-checked=false]").click();
  await settle();
  expect(host.saved).toEqual([{ stack: "encoder" }]);
  expect(view.text("[data-aw=status]")).toContain("forward 2 · decoder");
  expect(view.canvas.getAttribute("aria-label")).toContain("forward 2, decoder, layer 0");
  host.fromPython({ facts: factsOf(CAUSAL, { ...PLACE, stack: "encoder" }) });
  await settle();
  expect(view.text("[data-aw=status]")).toContain("forward 2 · encoder");
});

test("in a saved file nothing can be chosen, and the reason is said", async () => {
  const saved = { layers: [0, 1], heads: [0, 1, 2, 3], samples: [0] };
  const { view, host } = await draw({ ...PLACE, saved });
  const buttons = [view.button("previous forward"), view.button("next forward"), view.button("Stack decoder")];
  expect(buttons.map((button) => button.disabled)).toEqual([true, true, true]);
  expect(view.button("Stack decoder").title).toContain("Open the notebook");
  expect(host.saved).toEqual([]);
});
