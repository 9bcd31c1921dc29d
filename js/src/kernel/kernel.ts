/**
 * Questions to Python: collected per animation frame, one message pending at a time, and every question settles.
 *
 * `state` is the kernel's state for the reader: "idle" (nothing to report), "waiting" (an answer is due for more than
 * 400 ms), "gone" (nothing can be sent), "orphan" (the host has this widget only from a file) or "silent" (nothing was
 * ever received, and two pings went unanswered: a saved page, or a kernel that does not know this widget). A dead connection shows only in sending; on a page without any
 * connection, sending does nothing. A kernel that answers later counts as alive again.
 */

import { computed, type ReadonlySignal, signal as state } from "@preact/signals-core";
import type { Bytes } from "../contract/messages";
import type { Reply, RequestKind } from "../contract/requests";
import type { MessageListener, Model } from "../contract/traits";
import { isOrphan } from "./hearing";

export type KernelState = "idle" | "waiting" | "gone" | "silent" | "orphan";

/** Return whether no kernel computes now. */
export const isAway = (state: KernelState): boolean => state === "gone" || hasNone(state);

/** Whether no kernel is known to have this widget. */
export const hasNone = (state: KernelState): boolean => state === "silent" || state === "orphan";

export interface Kernel {
  readonly state: ReadonlySignal<KernelState>;
  /**
   * Whether no kernel computes now. Code that asks questions depends on this and not on `state`, which changes while an
   * answer is slow: a question asked again each time would never be answered.
   */
  readonly away: ReadonlySignal<boolean>;
  /** Rejects with `KernelError` (Python's sentence), `KernelGone` or an `AbortError`. */
  request<K extends RequestKind>(
    kind: K,
    body?: object,
    options?: { signal?: AbortSignal | undefined },
  ): Promise<Reply<K>>;
  /** Sends a request that is answered by its effects, not by a reply. */
  tell(content: object): void;
  /**
   * Something else is due from Python, such as a picture after a trait change, until the returned function is called.
   */
  expect(): () => void;
  /** Python has sent something on its own: it is alive. */
  heard(): void;
  /** Asks whether a lost kernel is back. True if the kernel can be used. */
  probe(): boolean;
  /** Runs a function that writes to Python. True if that worked; an exception means that the kernel is gone. */
  guard(write: () => void): boolean;
}

/** Python could not answer; the message is its own sentence. */
export class KernelError extends Error {
  override name = "KernelError";
}

/** No kernel answers. */
export class KernelGone extends Error {
  override name = "KernelGone";
}

const PATIENCE = 400;
const PING_EVERY = 5000;
/** The same while nothing was ever received. */
const FIRST_PINGS_EVERY = 3000;
/** So many unanswered pings from a kernel that never answered mean that none exists. */
const UNANSWERED = 2;
/** A host's words for a kernel that may still answer later. */
const AT_WORK: readonly unknown[] = ["busy", "starting", "restarting", "autorestarting", "connecting"];
/** A frame that is later than this does not come: the tab is hidden. */
const FRAME = 100;
/** Python answers in order: a question still open after so many later pings were answered was lost. */
const LOST_AFTER = 2;

interface Question {
  message: { id: string; kind: RequestKind };
  resolve(reply: object): void;
  reject(error: unknown): void;
}

interface Answer {
  id: string;
  ok: boolean;
  error?: unknown;
}

/** Return the functions to ask a model's Python side. */
export function createKernel(model: Model, { signal }: { signal: AbortSignal }): Kernel {
  const exchange = new Exchange(model, signal);
  return {
    state: exchange.state,
    away: computed(() => isAway(exchange.state.value)),
    request: (kind, body = {}, options = {}) => exchange.request(kind, body, options.signal),
    expect: () => exchange.expect(),
    tell: (content) => void exchange.send(content),
    heard: () => exchange.heard(),
    probe: () => exchange.probe(),
    guard: (write) => exchange.guard(write),
  };
}

/** All unsettled questions in order; the clock runs while an answer is due. */
class Exchange {
  readonly state = state<KernelState>("idle");
  readonly #model: Model;
  readonly #signal: AbortSignal;
  readonly #prefix = Math.random().toString(36).slice(2, 10);
  #asked = 0;
  /** All unsettled questions in order; those in `onTheWay` have been sent. */
  readonly #open = new Map<string, Question>();
  /** Ids in the pending message that are not answered yet, including aborted ones. */
  #onTheWay = new Set<string>();
  readonly #pings = new Set<string>();
  #pingsAnswered = 0;
  /** Pings since the first question, while nothing was ever received; null afterwards. */
  #unanswered: number | null = 0;
  #lastProbe = 0;
  #askedHost = false;
  #expected = new Set<symbol>();
  #cancelFrame: (() => void) | null = null;
  #watch: ReturnType<typeof setTimeout> | undefined;

  constructor(model: Model, signal: AbortSignal) {
    this.#model = model;
    this.#signal = signal;
    const onMessage: MessageListener = (content, buffers = []) => this.#hear(content, buffers);
    model.on("msg:custom", onMessage);
    signal.addEventListener(
      "abort",
      () => {
        model.off("msg:custom", onMessage);
        const left = [...this.#open.values()];
        this.#forget();
        for (const question of left) question.reject(aborted());
      },
      { once: true },
    );
  }

  // --- what others ask of it ----------------------------------------------------------------------------------------

  request<K extends RequestKind>(kind: K, body: object, caller?: AbortSignal): Promise<Reply<K>> {
    return new Promise<Reply<K>>((resolve, reject) => {
      if (this.#signal.aborted || caller?.aborted) return reject(aborted());
      if (hasNone(this.state.peek())) {
        this.probe();
        return reject(new KernelGone("no kernel answers"));
      }
      const id = this.#newId();
      const onAbort = () => {
        this.#open.delete(id);
        reject(aborted());
        if (!this.#isDue()) this.#relax();
      };
      const released =
        <V>(done: (value: V) => void) =>
        (value: V) => {
          caller?.removeEventListener("abort", onAbort);
          done(value);
        };
      caller?.addEventListener("abort", onAbort, { once: true });
      const resolveReply = resolve as (reply: object) => void;
      this.#open.set(id, {
        message: { ...body, id, kind },
        resolve: released(resolveReply),
        reject: released(reject),
      });
      this.#scheduleFlush();
      this.#startWatch();
    });
  }

  expect(): () => void {
    const token = Symbol("expected");
    if (hasNone(this.state.peek())) this.probe();
    else if (!this.#signal.aborted) this.#expected.add(token);
    this.#startWatch();
    return () => {
      if (this.#expected.delete(token)) this.#relax();
    };
  }

  guard(write: () => void): boolean {
    try {
      write();
      return true;
    } catch (cause) {
      this.#gone(cause);
      return false;
    }
  }

  /** Something arrived: the kernel is alive. */
  heard(): void {
    const first = this.#unanswered !== null;
    this.#unanswered = null;
    if (first && this.state.peek() === "waiting") {
      this.#stopWatch();
      this.#startWatch(PING_EVERY);
    }
    if (isAway(this.state.peek())) this.#setState("idle");
  }

  probe(): boolean {
    const state = this.state.peek();
    const now = Date.now();
    if (state === "gone" || (hasNone(state) && now - this.#lastProbe > FIRST_PINGS_EVERY)) {
      this.#lastProbe = now;
      this.#ping();
    }
    return !isAway(this.state.peek());
  }

  /** Send, or find that the kernel is gone. */
  send(content: object): boolean {
    try {
      // Jupyter throws at once if it cannot send; marimo returns a promise that rejects.
      const sent: unknown = this.#model.send(content);
      if (sent instanceof Promise) sent.catch((cause) => this.#gone(cause));
    } catch (cause) {
      this.#gone(cause);
      return false;
    }
    if (this.state.peek() === "gone") this.#setState("idle");
    return true;
  }

  // --- sending and settling -----------------------------------------------------------------------------------------

  #newId(): string {
    return `${this.#prefix}-${++this.#asked}`;
  }

  #scheduleFlush(): void {
    if (this.#cancelFrame || this.#onTheWay.size > 0 || this.#open.size === 0) return;
    this.#cancelFrame = onNextFrame(() => {
      this.#cancelFrame = null;
      this.#flush();
    });
  }

  #flush(): void {
    if (this.#open.size === 0) return;
    const batch = [...this.#open.values()].map(({ message }) => message);
    this.#onTheWay = new Set(batch.map(({ id }) => id));
    this.#pings.clear();
    this.#pingsAnswered = 0;
    if (this.send({ requests: batch })) this.#startWatch();
  }

  #hear(content: unknown, buffers: readonly Bytes[]): void {
    let alive = false;
    this.heard();
    for (const answer of answersIn(content)) {
      const isPing = this.#pings.delete(answer.id);
      const isOurs = isPing || this.#onTheWay.has(answer.id);
      if (isPing) this.#countPing();
      else this.#settle(answer, buffers);
      alive ||= isOurs && !isPing;
    }
    if (alive || !this.#isDue()) this.#relax();
    this.#scheduleFlush();
  }

  #settle(answer: Answer, buffers: readonly Bytes[]): void {
    const question = this.#open.get(answer.id);
    this.#open.delete(answer.id);
    this.#onTheWay.delete(answer.id);
    if (!question) return;
    if (answer.ok) question.resolve({ ...answer, buffers });
    else question.reject(new KernelError(String(answer.error ?? "Python could not answer")));
  }

  #gone(cause: unknown): void {
    this.#giveUp("gone", new KernelGone("the kernel is gone", { cause }));
  }

  #giveUp(state: "gone" | "silent" | "orphan", why: KernelGone): void {
    const lost = [...this.#open.values()];
    this.#forget();
    this.#setState(state);
    for (const question of lost) question.reject(why);
  }

  #forget(): void {
    this.#stopWatch();
    this.#cancelFrame?.();
    this.#cancelFrame = null;
    this.#open.clear();
    this.#onTheWay = new Set();
    this.#pings.clear();
    this.#pingsAnswered = 0;
    if (this.#unanswered !== null) this.#unanswered = 0;
    this.#expected = new Set();
  }

  // --- the clock ----------------------------------------------------------------------------------------------------

  #isDue(): boolean {
    return this.#onTheWay.size > 0 || this.#open.size > 0 || this.#expected.size > 0;
  }

  #setState(next: KernelState): void {
    if (!this.#signal.aborted) this.state.value = next;
  }

  /** Before anything was received: ask the host whether any kernel has this widget. */
  #askHost(): void {
    if (this.#askedHost) return;
    this.#askedHost = true;
    void isOrphan(this.#model).then((orphan) => {
      if (orphan && this.#unanswered !== null && !this.#signal.aborted) {
        this.#giveUp("orphan", new KernelGone("the kernel does not know this widget"));
      }
    });
  }

  /** Start the clock if an answer is due and it is not running. */
  #startWatch(delay = PATIENCE): void {
    if (this.#watch !== undefined || !this.#isDue() || this.#signal.aborted) return;
    if (this.#unanswered !== null) this.#askHost();
    this.#watch = setTimeout(() => {
      this.#watch = undefined;
      if (this.#isSilent()) return this.#giveUp("silent", new KernelGone("no kernel answers"));
      if (!this.#ping()) return;
      this.#setState("waiting");
      this.#startWatch(this.#unanswered === null ? PING_EVERY : FIRST_PINGS_EVERY);
    }, delay);
  }

  /** Whether no kernel exists: nothing was ever received, pings went unanswered, and the host gives no reason. */
  #isSilent(): boolean {
    return this.#unanswered !== null && this.#unanswered >= UNANSWERED && !AT_WORK.includes(hostStatus(this.#model));
  }

  #stopWatch(): void {
    clearTimeout(this.#watch);
    this.#watch = undefined;
  }

  /** Python has answered, or nothing is due: start the clock anew. */
  #relax(): void {
    this.#stopWatch();
    if (this.state.peek() === "waiting") this.#setState("idle");
    this.#startWatch();
  }

  #ping(): boolean {
    const id = this.#newId();
    this.#pings.add(id);
    const sent = this.send({ requests: [{ id, kind: "ping" }] });
    if (sent && this.#unanswered !== null) this.#unanswered++;
    return sent;
  }

  /** A later ping was answered but the pending message was not. */
  #countPing(): void {
    if (this.#onTheWay.size === 0 || ++this.#pingsAnswered < LOST_AFTER) return;
    for (const id of [...this.#onTheWay]) this.#settle({ id, ok: false, error: "the answer was lost" }, []);
  }
}

/** The host's state of its kernel, if it tells (JupyterLab and Notebook do). */
function hostStatus(model: Model): unknown {
  try {
    return model.widget_manager?.kernel?.status;
  } catch {
    return undefined;
  }
}

function aborted(): DOMException {
  return new DOMException("the request was aborted", "AbortError");
}

function answersIn(content: unknown): Answer[] {
  if (typeof content !== "object" || content === null || !("replies" in content)) return [];
  const { replies } = content;
  return Array.isArray(replies) ? replies.filter(isAnswer) : [];
}

function isAnswer(value: unknown): value is Answer {
  return typeof value === "object" && value !== null && "id" in value && typeof value.id === "string" && "ok" in value;
}

/** Call once, in the next frame or soon after if there are no frames; returns a function to cancel. */
function onNextFrame(fn: () => void): () => void {
  let frame: number | undefined;
  const hasFrames = typeof requestAnimationFrame === "function";
  const cancel = () => {
    clearTimeout(timer);
    if (frame !== undefined) cancelAnimationFrame(frame);
  };
  const run = () => {
    cancel();
    fn();
  };
  const timer = setTimeout(run, hasFrames ? FRAME : 16);
  if (hasFrames) frame = requestAnimationFrame(run);
  return cancel;
}
