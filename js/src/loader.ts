/**
 * The script in every widget in place of the front-end, which is sent once per kernel. It takes the front-end from the
 * page or from the model that holds it for all widgets, or asks Python for it, and then starts it.
 *
 * `initialize` does not wait: anywidget gives it only two seconds (kernel/hearing.ts).
 */

import { hearPython } from "./kernel/hearing";

/** Inserted by the build: a page may hold several versions. */
declare const DIGEST: string;

/** The front-end: the core script (`widget.js`), its other parts, packed, by name, and the style sheet. */
interface FrontEnd {
  readonly code: string;
  readonly parts: Readonly<Record<string, string>>;
  readonly style: string;
}

interface LoaderModel {
  get(name: "_front_end" | "uid"): unknown;
  send(content: unknown): unknown;
  on(event: "msg:custom", listener: (content: unknown) => void): void;
  readonly widget_manager?: { get_model?(id: string): Promise<SharedModel | undefined> | undefined } | undefined;
}

interface SharedModel {
  get(name: keyof FrontEnd): unknown;
}

/** The core script, before it is unpacked. */
interface Core {
  readonly default: Widget | (() => Promise<Widget>);
  readonly paintFirst?: Painter;
}

/** Draws a widget's first picture, until the core is there. */
type Painter = (model: LoaderModel, el: HTMLElement) => Promise<void>;

interface Context {
  readonly model: LoaderModel;
  readonly signal?: AbortSignal;
  readonly el: HTMLElement;
}

interface Widget {
  initialize?(context: Context): unknown;
  render?(context: Context): unknown;
}

/** What all widgets of this version share on a page. */
interface Page {
  readonly widget: Promise<Widget>;
  readonly painter: Promise<Painter | undefined>;
  /** First pictures that are being drawn; null once the core is there. */
  drawing: Promise<void>[] | null;
  style: string;
  isFound: boolean;
  found(frontEnd: FrontEnd): void;
}

const REFERENCE = "IPY_MODEL_";
/** Milliseconds between attempts to find the model, which may be restored after this one. */
const LOOKS = [0, 50, 150, 300, 500];
/** Milliseconds until the reader gets a message. */
const PATIENCE = 3000;
const WAITING = "Waiting for the script of this widget. If no cell is running, run this one again.";

function pageOf(): Page {
  const name = Symbol.for(`attnwidget front-end ${DIGEST}`);
  const known = globalThis as unknown as Record<symbol, Page | undefined>;
  known[name] ??= createPage();
  return known[name];
}

function createPage(): Page {
  let load: (frontEnd: FrontEnd) => void = () => {};
  let painting: (painter?: Painter) => void = () => {};
  const painter = new Promise<Painter | undefined>((resolve) => {
    painting = resolve;
  });
  const widget = new Promise<Widget>((resolve, reject) => {
    load = ({ code, parts }) => {
      const name = Symbol.for(`attnwidget parts ${DIGEST}`); // where the core finds them
      const there = globalThis as unknown as Record<symbol, object | undefined>;
      there[name] = Object.assign(there[name] ?? {}, parts);
      const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
      import(/* webpackIgnore: true */ url)
        .then(async (module: Core) => {
          painting(module.paintFirst);
          await painter.then(() => Promise.all(page.drawing ?? []));
          return typeof module.default === "function" ? module.default() : module.default;
        })
        .finally(() => {
          page.drawing = null;
          URL.revokeObjectURL(url);
        })
        .then(resolve, reject);
    };
  });
  const page: Page = {
    widget,
    painter,
    drawing: [],
    style: "",
    isFound: false,
    found(frontEnd) {
      if (this.isFound) return;
      this.isFound = true;
      this.style = frontEnd.style;
      styleIn(document.head, frontEnd.style);
      load(frontEnd);
    },
  };
  return page;
}

function styleIn(place: ParentNode & Node, style: string): void {
  const id = `attnwidget-${DIGEST}`;
  if (place.querySelector(`#${id}`) !== null) return;
  const sheet = document.createElement("style");
  sheet.id = id;
  sheet.textContent = style;
  place.append(sheet);
}

function isFrontEnd(value: unknown): value is FrontEnd {
  const { code, parts, style } = (value ?? {}) as Partial<Record<keyof FrontEnd, unknown>>;
  const isWhole = typeof parts === "object" && parts !== null && typeof style === "string";
  return isWhole && typeof code === "string" && code !== "";
}

/** Find the front-end in the model that holds it; null if there is none, as in hosts without such models. */
async function inModel(model: LoaderModel, page: Page): Promise<FrontEnd | null> {
  const reference = model.get("_front_end");
  const manager = model.widget_manager;
  if (typeof reference !== "string" || !reference.startsWith(REFERENCE) || !manager?.get_model) return null;
  for (const wait of LOOKS) {
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    if (page.isFound) return null;
    try {
      const shared = await manager.get_model(reference.slice(REFERENCE.length));
      const found = { code: shared?.get("code"), parts: shared?.get("parts"), style: shared?.get("style") };
      if (isFrontEnd(found)) return found;
    } catch {
      // not there yet, or never
    }
  }
  return null;
}

async function find(model: LoaderModel, page: Page): Promise<void> {
  const found = page.isFound ? null : await inModel(model, page);
  if (found !== null) page.found(found);
  if (page.isFound) return;
  model.on("msg:custom", (content) => {
    const { script } = (content ?? {}) as { script?: unknown };
    if (isFrontEnd(script)) page.found(script);
  });
  try {
    await model.send({ script: DIGEST });
  } catch {
    // no kernel to ask; another widget of the page may bring it
  }
}

function initialize(context: Context): () => void {
  const page = pageOf();
  let cleanup: unknown;
  let isOver = false;
  hearPython(context.model).catch(() => {}); // no kernel to hear: the front-end reports it
  void find(context.model, page);
  page.widget.then(
    (widget) => {
      if (!isOver && !context.signal?.aborted) cleanup = widget.initialize?.(context);
    },
    () => {}, // `render` reports it
  );
  return () => {
    isOver = true;
    if (typeof cleanup === "function") cleanup();
  };
}

async function render(context: Context): Promise<unknown> {
  const page = pageOf();
  const { el, signal } = context;
  const said = document.createElement("p");
  said.textContent = WAITING;
  const patience = setTimeout(() => el.append(said), PATIENCE);
  const draw = async () => {
    const paint = await page.painter;
    if (signal?.aborted) return;
    const root = el.getRootNode();
    if (root instanceof ShadowRoot) styleIn(root, page.style);
    await paint?.(context.model, el);
  };
  page.drawing?.push(draw().catch(() => {}));
  const widget = await page.widget.finally(() => {
    clearTimeout(patience);
    said.remove();
  });
  if (signal?.aborted) {
    el.querySelector(".attnwidget[data-first]")?.remove();
    return undefined;
  }
  const root = el.getRootNode();
  if (root instanceof ShadowRoot) styleIn(root, page.style);
  return widget.render?.(context);
}

export default { initialize, render };
