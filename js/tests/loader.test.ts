// @vitest-environment jsdom
/** What every widget carries: where it finds the front-end, and that it hands over to it. */

import { afterEach, beforeEach, expect, test, vi } from "vitest";

const WIDGET = `
const events = (globalThis.events ??= []);
export default async () => ({
  initialize: ({ model }) => { events.push("initialize " + model.name); return () => events.push("cleanup " + model.name); },
  render: ({ model, el }) => { events.push("render " + model.name); el.textContent = "drawn"; },
});`;
const FRONT_END = { code: WIDGET, parts: { graph: "1:!!" }, style: ".attnwidget { color: red }" };

type Manager = { get_model(id: string): Promise<{ get(name: string): unknown }> };
type Loader = typeof import("../src/loader").default;

const events = () => (globalThis as unknown as { events: string[] }).events;
let digest = 0;
let loader: Loader;

/** A model of a host: with a manager of models, or with a kernel that answers, or with neither. */
function modelOf(name: string, { manager, answers }: { manager?: Manager; answers?: boolean } = {}) {
  const listeners: ((content: unknown) => void)[] = [];
  const sent: unknown[] = [];
  const reply = () => {
    for (const listener of listeners) listener({ script: FRONT_END });
  };
  return {
    name,
    sent,
    widget_manager: manager,
    get: () => "IPY_MODEL_shared",
    on: (_: string, listener: (content: unknown) => void) => void listeners.push(listener),
    send(content: unknown) {
      sent.push(content);
      if (answers) setTimeout(() => reply(), 100);
    },
  };
}

const holding = (known = true): Manager => ({
  get_model: (id) =>
    known && id === "shared"
      ? Promise.resolve({ get: (name) => FRONT_END[name as keyof typeof FRONT_END] })
      : Promise.reject(new Error("widget model not found")),
});

type Shown = { el: HTMLElement; end: () => void; drawn: Promise<unknown> };

function show(model: ReturnType<typeof modelOf>): Shown {
  const context = { model, el: document.createElement("div") };
  const end = loader.initialize(context);
  return { el: context.el, end, drawn: loader.render(context) };
}

beforeEach(async () => {
  (globalThis as unknown as { events: string[] }).events = [];
  vi.stubGlobal("DIGEST", `d${++digest}`); // each test has a page of its own
  // jsdom has no object URLs: a module's text as an address says the same.
  const address = (blob: Blob) => `data:text/javascript,${encodeURIComponent(text.get(blob) ?? "")}#${digest}`;
  const text = new Map<Blob, string>();
  vi.stubGlobal(
    "Blob",
    class extends Blob {
      constructor(parts: string[], options: BlobPropertyBag) {
        super(parts, options);
        text.set(this, parts.join(""));
      }
    },
  );
  Object.assign(URL, { createObjectURL: address, revokeObjectURL: () => {} });
  loader = (await import("../src/loader")).default;
});
afterEach(() => {
  vi.unstubAllGlobals();
  document.head.replaceChildren();
});

test("takes it from the model that holds it, asks nobody, and puts the style into the page once", async () => {
  const models = [modelOf("a", { manager: holding() }), modelOf("b", { manager: holding() })];
  const shown = models.map(show);
  await Promise.all(shown.map(({ drawn }) => drawn));
  expect(shown.map(({ el }) => el.textContent)).toEqual(["drawn", "drawn"]);
  expect(events()).toEqual(["initialize a", "initialize b", "render a", "render b"]);
  expect(models.flatMap(({ sent }) => sent)).toEqual([]);
  expect(document.head.querySelectorAll("style")).toHaveLength(1);
  shown[0]!.end();
  expect(events().at(-1)).toBe("cleanup a");
});

test("asks Python where the model is not there", async () => {
  const model = modelOf("a", { manager: holding(false), answers: true });
  const { drawn, el } = show(model);
  await drawn;
  expect(model.sent).toEqual([{ script: `d${digest}` }]);
  expect(el.textContent).toBe("drawn");
});

test("asks Python where the host has no models", async () => {
  const model = modelOf("a", { answers: true });
  await show(model).drawn;
  expect(model.sent).toHaveLength(1);
});

test("one that nobody answers is drawn once another widget of the page has it", async () => {
  const alone = show(modelOf("a"));
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(alone.el.textContent).toBe("");
  await show(modelOf("b", { manager: holding() })).drawn;
  await alone.drawn;
  expect(alone.el.textContent).toBe("drawn");
});

test("says after a while what it waits for, and a widget that was closed meanwhile never starts", async () => {
  vi.useFakeTimers();
  const alone = show(modelOf("a"));
  await vi.advanceTimersByTimeAsync(4000);
  expect(alone.el.textContent).toContain("Waiting for the script of this widget");
  alone.end();
  vi.useRealTimers();
  await show(modelOf("b", { manager: holding() })).drawn;
  await alone.drawn;
  expect(events()).not.toContain("initialize a");
});

test("two versions on a page keep their own", async () => {
  await show(modelOf("a", { manager: holding() })).drawn;
  vi.stubGlobal("DIGEST", `d${++digest}`);
  await show(modelOf("b", { manager: holding() })).drawn;
  expect(document.head.querySelectorAll("style")).toHaveLength(2);
});

test("the first picture of each widget is drawn before the core is unpacked, and of none afterwards", async () => {
  const code = `${WIDGET.replace("async () => ({", 'async () => (events.push("core"), {')}
export const paintFirst = async ({ name }, el) => { events.push("paint " + name); el.textContent = "first"; };`;
  const get = (name: string) => ({ ...FRONT_END, code })[name as keyof typeof FRONT_END];
  const manager: Manager = { get_model: () => Promise.resolve({ get }) };
  const shown = [show(modelOf("a", { manager })), show(modelOf("b", { manager }))];
  await Promise.all(shown.map(({ drawn }) => drawn));
  expect(events().slice(0, 3)).toEqual(["paint a", "paint b", "core"]);
  await show(modelOf("c", { manager })).drawn;
  expect(events()).not.toContain("paint c");
});

test("a first picture that cannot be drawn changes nothing", async () => {
  const code = `${WIDGET}\nexport const paintFirst = async () => { throw new Error("no canvas"); };`;
  const get = (name: string) => ({ ...FRONT_END, code })[name as keyof typeof FRONT_END];
  const { el, drawn } = show(modelOf("a", { manager: { get_model: () => Promise.resolve({ get }) } }));
  await drawn;
  expect(el.textContent).toBe("drawn");
});
