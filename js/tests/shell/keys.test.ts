// @vitest-environment jsdom
/** Keys stay in the widget, and those that do something in a view are the ones that `?` lists. */

import { describe, expect, test } from "vitest";
import type { Facts } from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import { pressOn, type Shown, settle, show } from "../helpers/page.ts";
import { CAUSAL, factsOf, python, stateOf } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

async function draw(changes: Partial<Traits> = {}, facts: Partial<Facts> = {}): Promise<Shown> {
  const state = stateOf(CAUSAL, { ...changes, facts: factsOf(CAUSAL, facts) });
  return show(
    state,
    python(state, () => CAUSAL),
  );
}

/** The keys that the list shows, a line each; it is closed again. */
async function listed({ view }: Shown): Promise<string[]> {
  expect(await view.press("?")).toEqual({ prevented: true, escaped: false });
  await settle();
  await pressOn(view.find("[role=dialog][aria-label=Tour]"), "?");
  await settle();
  const card = view.find("[role=dialog][aria-label='Keyboard shortcuts']");
  expect(document.activeElement).toBe(card);
  const lines = view.all("[role=dialog] dt").map((line) => line.textContent ?? "");
  await pressOn(card, "Escape");
  await settle();
  expect(view.all("[role=dialog]")).toHaveLength(0);
  return lines;
}

describe("the list of keys", () => {
  test("has those of the heatmap, and brackets only where there are other heads and layers", async () => {
    const all = await draw({ query: 1, key: 1 });
    const zoom = ["+ − 0", "w", "Ctrl + scroll"];
    const anywhere = ["/", "?"];
    const moves = ["← ↑ → ↓", "Home End", "Enter"];
    expect(await listed(all)).toEqual([...moves, "Esc", "[ ]", "{ }", ...zoom, ...anywhere]);
    expect(document.activeElement).toBe(all.view.canvas);
    const alone = await draw({}, { heads: 1, layers: ["0"] });
    expect(await listed(alone)).toEqual([...moves, ...zoom, ...anywhere]);
  });

  test("of another view has that view's", async () => {
    expect(await listed(await draw({ view: "graph" }))).toEqual(["↑ ↓", "← →", "Home End", "[ ]", "{ }", "/", "?"]);
    const text = await draw({ view: "text" });
    expect(await listed(text)).toEqual(["← ↑ → ↓", "Home End", "Enter", "[ ]", "{ }", "/", "?"]);
  });

  test.each(["heatmap", "graph", "text"] as const)("in %s lists every key that means something", async (view) => {
    const shown = await draw({ view, query: 1, key: view === "heatmap" ? 1 : null });
    const names: Record<string, string> = { Esc: "Escape", "←": "ArrowLeft", "−": "-", "↑": "ArrowUp" };
    Object.assign(names, { "→": "ArrowRight", "↓": "ArrowDown" });
    const lines = (await listed(shown)).filter((line) => line !== "Ctrl + scroll");
    const known = new Set(lines.flatMap((line) => line.split(" ")).map((key) => names[key] ?? key));
    const same: Record<string, string> = { " ": "Enter", "=": "+", "−": "-" };
    const printable = Array.from({ length: 95 }, (_, at) => String.fromCharCode(32 + at));
    const others = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "Enter", "Delete", "PageUp"];
    for (const key of [...printable, ...others, "−"]) {
      const { prevented, escaped } = await shown.view.press(key);
      await settle();
      const open = shown.view.all("[role=dialog]")[0];
      if (open) await pressOn(document.activeElement as HTMLElement, "Escape");
      await settle();
      expect([key, prevented, escaped]).toEqual([key, known.has(same[key] ?? key), false]);
    }
  });

  test("is opened from the menu too, and closed by a second ?, by a click outside and by another view", async () => {
    const shown = await draw();
    const { view } = shown;
    const isOpen = () => view.all("[role=dialog]").length === 1;
    view.button("More").click();
    await settle();
    view
      .all("[role=menuitem]")
      .find((item) => item.textContent?.startsWith("keyboard shortcuts"))!
      .click();
    await settle();
    expect(isOpen()).toBe(true);
    expect(view.all("[role=menu]")).toHaveLength(0);
    await pressOn(view.find("[role=dialog]"), "?");
    await settle();
    expect(isOpen()).toBe(false);
    await view.press("?"); // the tour, and then the list
    await settle();
    await pressOn(view.find("[role=dialog]"), "?");
    await settle();
    expect(view.find("[role=dialog]").getAttribute("aria-label")).toBe("Keyboard shortcuts");
    await pressOn(view.find("[role=dialog]"), "?");
    await settle();
    expect(isOpen()).toBe(false);
    await view.press("?");
    await settle();
    document.body.dispatchEvent(new Event("pointerdown", { bubbles: true, composed: true }));
    await settle();
    expect(isOpen()).toBe(false);
    await view.press("?");
    await settle();
    view.button("Graph").click();
    await settle();
    expect(isOpen()).toBe(false);
  });
});

describe("the tour", () => {
  test.each(["heatmap", "graph", "text", "heads"] as const)("of %s has four steps", async (view) => {
    const shown = await draw({ view, query: 1, key: view === "heatmap" ? 1 : null });
    await shown.view.press("?");
    await settle();
    const next = () => shown.view.find<HTMLButtonElement>(".aw-tour [data-aw=next]");
    expect(document.activeElement).toBe(next());
    const titles: string[] = [];
    for (let step = 1; step <= 4; step++) {
      const [title, place] = shown.view.find(".aw-tour h4").childNodes;
      titles.push(title?.textContent ?? "");
      expect(shown.view.find(".aw-tour h4 .aw-muted").textContent).toBe(`${step} of 4`);
      expect(place).toBeDefined();
      next().click();
      await settle();
    }
    expect(new Set(titles).size).toBe(4);
    expect(shown.view.all("[role=dialog], .aw-toured")).toHaveLength(0);
  });

  test("goes back, and leads to the keys", async () => {
    const { view } = await draw();
    await view.press("?");
    await settle();
    const press = async (name: string) => {
      view
        .all<HTMLButtonElement>(".aw-tour button")
        .find((button) => button.textContent === name)!
        .click();
      await settle();
    };
    await press("Next");
    await press("Back");
    expect(view.find(".aw-tour h4").textContent).toContain("1 of 4");
    await press("keyboard shortcuts");
    expect(view.find("[role=dialog]").getAttribute("aria-label")).toBe("Keyboard shortcuts");
  });
});

describe("keys of the host", () => {
  const kept = (element: Element) => element.getAttribute("data-lm-suppress-shortcuts");

  test("are told by each element that takes the focus", async () => {
    const { view } = await draw();
    const elements = view.all("button, input, [tabindex]").filter((element) => !element.hasAttribute("disabled"));
    expect(elements.length).toBeGreaterThan(20);
    for (const element of elements) {
      element.focus();
      if (document.activeElement === element) expect(kept(element)).toBe("true");
    }
  });

  test("to save is the notebook's, with Ctrl and with ⌘; nothing else is", async () => {
    const { view } = await draw();
    view.canvas.focus();
    for (const init of [{ ctrlKey: true }, { metaKey: true }]) {
      await view.press("s", init);
      expect(kept(view.canvas)).toBeNull();
      await view.press("Enter", init);
      expect(kept(view.canvas)).toBe("true");
    }
    await view.press("s");
    expect(kept(view.canvas)).toBe("true");
  });

  test("a click on what cannot have the focus gives it to the picture, unless text is selected", async () => {
    const { view } = await draw();
    (document.activeElement as HTMLElement | null)?.blur();
    const status = view.find("[data-aw=status]");
    document.getSelection()?.selectAllChildren(status);
    status.click();
    expect(document.activeElement).toBe(document.body);
    document.getSelection()?.removeAllRanges();
    status.click();
    expect(document.activeElement).toBe(view.canvas);
  });
});
