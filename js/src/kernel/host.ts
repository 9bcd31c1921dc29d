/**
 * A model without Jupyter, for tests and for pages that show a saved widget without a kernel.
 *
 * `mount` runs a widget's module on it, as anywidget 0.11 does.
 */
import type { Model, TraitName, Traits } from "../contract/traits";

/** A request as Python receives it. */
export interface HostRequest {
  id: string;
  kind: string;
  [field: string]: unknown;
}

export interface HostOptions {
  /**
   * Answers a request with the body of its reply; an exception becomes the reply's error. Envelopes carry their bytes
   * in `data`, which travel as buffers. Without this function there is no kernel: sending throws.
   */
  answer?: (request: HostRequest) => object | null | undefined | Promise<object | null | undefined>;
  /** Receives saved traits; returns what Python sets in turn. */
  take?: (changes: Partial<Traits>) => Partial<Traits> | undefined | Promise<Partial<Traits> | undefined>;
  /** Milliseconds until an answer arrives. */
  delay?: number;
  /** As after a restart of the kernel: sending throws. */
  dead?: boolean;
  /** As on a saved page: sending does nothing, and nobody answers. */
  silent?: boolean;
}

export interface Host extends Model {
  /** May change at any time; answers that are due do not arrive while it is true. */
  dead: boolean;
  silent: boolean;
  /** What each `save_changes` sent. */
  readonly saved: Partial<Traits>[];
  /** The content of each message sent. */
  readonly sent: unknown[];
  /** Sets traits, as the kernel does. */
  fromPython(changes: Partial<Traits>): void;
  /** Sends an unrequested message from the kernel; envelopes carry their bytes, as in an answer. */
  tell(message: object): void;
  /** A separate model on the same state, as anywidget gives one to `initialize` and to each `render`. */
  proxy(): Model;
}

type Listener = (...values: unknown[]) => void;

interface Subscription {
  event: string;
  listener: Listener;
  owner: object;
}

/** Return a model with these traits, without Jupyter. */
export function createHost(initial: Partial<Traits>, options: HostOptions = {}): Host {
  const traits: Partial<Traits> = { ...initial };
  const saved: Partial<Traits>[] = [];
  const sent: unknown[] = [];
  let changed: Partial<Traits> = {};
  /** For each trait, the number of `save_changes` calls when it was last saved. */
  const savedAt: Partial<Record<TraitName, number>> = {};
  let subscriptions: Subscription[] = [];

  function emit(event: string, ...values: unknown[]): void {
    for (const subscription of [...subscriptions]) {
      if (subscription.event === event) subscription.listener(...values);
    }
  }

  function write<K extends TraitName>(name: K, value: Traits[K]): boolean {
    if (same(traits[name], value)) return false;
    traits[name] = value;
    return true;
  }

  async function take(changes: Partial<Traits>): Promise<void> {
    const own = saved.length;
    const answered = await options.take?.(changes);
    if (!answered || host.dead || host.silent) return;
    // As in Jupyter: a trait that was set again since is not reverted.
    const isCurrent = (name: TraitName) => !(name in changed) && (savedAt[name] ?? 0) <= own;
    const names = (Object.keys(answered) as TraitName[]).filter(isCurrent);
    host.fromPython(Object.fromEntries(names.map((name) => [name, answered[name]])));
  }

  async function reply(requests: readonly HostRequest[]): Promise<void> {
    const buffers: DataView[] = [];
    const [replies] = await Promise.all([
      Promise.all(requests.map((request) => answerTo(request, options.answer, buffers))),
      new Promise((resolve) => setTimeout(resolve, options.delay ?? 0)),
    ]);
    if (!host.dead) emit("msg:custom", { replies }, buffers);
  }

  function facade(owner: object): Model {
    // The listeners differ in their arguments; here they are only called.
    const on = (event: string, listener: Listener) => {
      subscriptions = [...subscriptions, { event, listener, owner }];
    };
    const off = (event?: string | null, listener?: Listener | null) => {
      subscriptions = subscriptions.filter(
        (subscription) =>
          subscription.owner !== owner ||
          (event != null && subscription.event !== event) ||
          (listener != null && subscription.listener !== listener),
      );
    };
    return {
      get: (name) => traits[name] as Traits[typeof name],
      set(name, value) {
        if (!write(name, value)) return;
        changed[name] = value;
        emit(`change:${name}`, undefined, value);
      },
      save_changes() {
        if (Object.keys(changed).length === 0) return;
        saved.push(changed);
        for (const name of Object.keys(changed) as TraitName[]) savedAt[name] = saved.length;
        void take(changed);
        changed = {};
      },
      send(content) {
        if (!host.silent && (host.dead || !options.answer)) throw new Error("Cannot send");
        const message: unknown = JSON.parse(JSON.stringify(content));
        sent.push(message);
        if (host.silent) return;
        if (hasRules(message)) void take(message);
        void reply(requestsIn(message));
      },
      on: on as Model["on"],
      off: off as Model["off"],
    };
  }

  const host: Host = {
    ...facade({}),
    dead: options.dead ?? false,
    silent: options.silent ?? false,
    saved,
    sent,
    fromPython(changes) {
      const writeOne = <K extends TraitName>(name: K) => write(name, changes[name] as Traits[K]);
      const names = (Object.keys(changes) as TraitName[]).filter((name) => writeOne(name));
      for (const name of names) emit(`change:${name}`, undefined, traits[name]);
    },
    tell(message) {
      const buffers: DataView[] = [];
      const content = toBuffers(message, buffers);
      if (!host.dead) emit("msg:custom", content, buffers);
    },
    proxy: () => facade({}),
  };
  return host;
}

function hasRules(message: unknown): message is Pick<Traits, "what_if"> {
  return typeof message === "object" && message !== null && "what_if" in message;
}

type Cleanup = () => unknown;
type Returned = unknown | Cleanup | Promise<unknown | Cleanup>;

/** A widget in the form that anywidget takes. */
export interface WidgetDefinition {
  initialize?(context: { model: Model; signal: AbortSignal; experimental: object }): Returned;
  render?(context: { model: Model; el: HTMLElement; signal: AbortSignal; experimental: object }): Returned;
}
type WidgetSource = WidgetDefinition | (() => WidgetDefinition | Promise<WidgetDefinition>);
/** The module, its default export, or a function that makes it. */
export type WidgetModule =
  | WidgetSource
  | { default: WidgetSource; paintFirst?: (model: Model, el: HTMLElement) => Promise<void> };

export interface Mounted {
  host: Host;
  /** Adds a view of the same model; returns a function that removes it. */
  render(el: HTMLElement): Promise<() => Promise<void>>;
  /** Removes all views and the model. */
  unmount(): Promise<void>;
}

/** Run a widget in `el`, on a new host with this state or on an existing host. */
export async function mount(
  module: WidgetModule,
  el: HTMLElement,
  state: Partial<Traits> | Host,
  options: HostOptions = {},
): Promise<Mounted> {
  const host = isHost(state) ? state : createHost(state, options);
  if ("paintFirst" in module) await module.paintFirst?.(host.proxy(), el).catch(() => {});
  const source = "default" in module ? module.default : module;
  const widget = typeof source === "function" ? await source() : source;
  const whole = new AbortController();
  const model = host.proxy();
  const cleanup = await widget.initialize?.({ model, signal: whole.signal, experimental: {} });
  const views = new Set<() => Promise<void>>();

  async function render(into: HTMLElement): Promise<() => Promise<void>> {
    const controller = new AbortController();
    const viewModel = host.proxy();
    const viewCleanup = await widget.render?.({
      model: viewModel,
      el: into,
      signal: controller.signal,
      experimental: {},
    });
    const remove = async () => {
      if (!views.delete(remove)) return;
      controller.abort();
      viewModel.off();
      await runCleanup(viewCleanup);
    };
    views.add(remove);
    return remove;
  }

  await render(el);
  return {
    host,
    render,
    async unmount() {
      await Promise.all([...views].map((remove) => remove()));
      if (whole.signal.aborted) return;
      whole.abort();
      model.off();
      await runCleanup(cleanup);
    },
  };
}

/** Return state as a page carries it: JSON in which bytes are `{"$bytes": base64}`, turned into `DataView`s. */
export function reviveState(json: string | object): Partial<Traits> {
  const parsed: unknown = typeof json === "string" ? JSON.parse(json) : json;
  return revive(parsed) as Partial<Traits>;
}

function revive(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(revive);
  if (typeof value !== "object" || value === null) return value;
  if ("$bytes" in value && typeof value.$bytes === "string") {
    const text = atob(value.$bytes);
    return new DataView(Uint8Array.from(text, (character) => character.charCodeAt(0)).buffer);
  }
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, revive(inner)]));
}

async function answerTo(request: HostRequest, answer: HostOptions["answer"], buffers: DataView[]): Promise<object> {
  const { id } = request;
  try {
    const body = await answer?.(request);
    return { ...(toBuffers(body ?? {}, buffers) as object), id, ok: true };
  } catch (error) {
    return { id, ok: false, error: error instanceof Error ? error.message : String(error) };
  }
}

/** A copy in which each envelope's bytes are the index of a buffer. */
function toBuffers(value: unknown, buffers: DataView[]): unknown {
  if (ArrayBuffer.isView(value)) {
    return buffers.push(new DataView(value.buffer, value.byteOffset, value.byteLength)) - 1;
  }
  if (Array.isArray(value)) return value.map((inner) => toBuffers(inner, buffers));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, toBuffers(inner, buffers)]));
}

function requestsIn(message: unknown): HostRequest[] {
  const { requests } = message as { requests?: HostRequest[] };
  return requests ?? [];
}

function isHost(state: Partial<Traits> | Host): state is Host {
  return "fromPython" in state;
}

async function runCleanup(cleanup: unknown): Promise<void> {
  if (typeof cleanup === "function") await cleanup();
}

/** Setting an equal value is not a change: lists of numbers are compared by value. */
function same(one: unknown, other: unknown): boolean {
  if (Object.is(one, other)) return true;
  return (
    Array.isArray(one) &&
    Array.isArray(other) &&
    one.length === other.length &&
    one.every((value, index) => Object.is(value, other[index]))
  );
}
