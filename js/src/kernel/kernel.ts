/**
 * Questions to Python: gathered per animation frame, one message on its way at a time, and every one of them settles.
 *
 * `state` is what the reader should know about the kernel: "idle" (nothing to say), "waiting" (an answer is due for more
 * than 400 ms) or "gone" (nothing can be sent). While waiting, a ping tells a kernel that is busy from one that is gone:
 * a dead connection shows only in sending.
 */

import { type ReadonlySignal, signal as state } from "@preact/signals-core";
import type { Bytes } from "../contract/messages";
import type { Reply, RequestKind } from "../contract/requests";
import type { Model } from "../contract/traits";

export type KernelState = "idle" | "waiting" | "gone";

export interface Kernel {
  readonly state: ReadonlySignal<KernelState>;
  /** Rejects with `KernelError` (Python's sentence), `KernelGone` or an `AbortError`. */
  request<K extends RequestKind>(
    kind: K,
    body?: object,
    options?: { signal?: AbortSignal | undefined },
  ): Promise<Reply<K>>;
  /** Sends what is not answered by a reply but by what it changes. */
  tell(content: object): void;
  /** Something else is due from Python, as a new picture is after a trait was set: until the returned function is called. */
  expect(): () => void;
  /** Python has sent something of its own accord: it is there. */
  heard(): void;
  /** Runs what writes to Python. True if that worked; a throw means that the kernel is gone. */
  guard(write: () => void): boolean;
}

/** Python could not answer; the message is its own sentence. */
export class KernelError extends Error {
  override name = "KernelError";
}

/** There is no kernel to answer. */
export class KernelGone extends Error {
  override name = "KernelGone";
}

const PATIENCE = 400;
const PING_EVERY = 5000;
/** A frame that has not come by then does not come: the tab is hidden. */
const FRAME = 100;
/** Python answers in order: what is still open after so many answered later pings was lost on the way. */
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

export function createKernel(model: Model, { signal }: { signal: AbortSignal }): Kernel {
  const current = state<KernelState>("idle");
  const prefix = Math.random().toString(36).slice(2, 10);
  let asked = 0;
  const newId = () => `${prefix}-${++asked}`;

  /** All that have not settled, in order; those of them in `onTheWay` have been sent. */
  const open = new Map<string, Question>();
  /** Ids of the one message on its way that are not answered yet, aborted ones included. */
  let onTheWay = new Set<string>();
  const pings = new Set<string>();
  let pingsAnswered = 0;
  let expected = new Set<symbol>();
  let cancelFrame: (() => void) | null = null;
  let watch: ReturnType<typeof setTimeout> | undefined;

  const isDue = () => onTheWay.size > 0 || open.size > 0 || expected.size > 0;

  function setState(next: KernelState): void {
    if (!signal.aborted) current.value = next;
  }

  /** Starts to watch the clock if an answer is due and no watch is running. */
  function startWatch(delay = PATIENCE): void {
    if (watch !== undefined || !isDue() || signal.aborted) return;
    watch = setTimeout(() => {
      watch = undefined;
      if (!ping()) return;
      setState("waiting");
      startWatch(PING_EVERY);
    }, delay);
  }

  function stopWatch(): void {
    clearTimeout(watch);
    watch = undefined;
  }

  /** Python has answered something, or nobody waits any more: patience starts anew. */
  function relax(): void {
    stopWatch();
    if (current.peek() === "waiting") setState("idle");
    startWatch();
  }

  /** Sends, or finds that the kernel is gone. */
  function send(content: object): boolean {
    try {
      // Jupyter throws at once where it cannot send; marimo returns a promise that fails.
      const sent: unknown = model.send(content);
      if (sent instanceof Promise) sent.catch(gone);
    } catch (cause) {
      gone(cause);
      return false;
    }
    if (current.peek() === "gone") setState("idle");
    return true;
  }

  function gone(cause: unknown): void {
    const lost = [...open.values()];
    forget();
    setState("gone");
    for (const question of lost) question.reject(new KernelGone("the kernel is gone", { cause }));
  }

  function forget(): void {
    stopWatch();
    cancelFrame?.();
    cancelFrame = null;
    open.clear();
    onTheWay = new Set();
    pings.clear();
    pingsAnswered = 0;
    expected = new Set();
  }

  function ping(): boolean {
    const id = newId();
    pings.add(id);
    return send({ requests: [{ id, kind: "ping" }] });
  }

  function scheduleFlush(): void {
    if (cancelFrame || onTheWay.size > 0 || open.size === 0) return;
    cancelFrame = onNextFrame(() => {
      cancelFrame = null;
      flush();
    });
  }

  function flush(): void {
    if (open.size === 0) return;
    const batch = [...open.values()].map(({ message }) => message);
    onTheWay = new Set(batch.map(({ id }) => id));
    pings.clear();
    pingsAnswered = 0;
    if (send({ requests: batch })) startWatch();
  }

  function settle(answer: Answer, buffers: readonly Bytes[]): void {
    const question = open.get(answer.id);
    open.delete(answer.id);
    onTheWay.delete(answer.id);
    if (!question) return;
    if (answer.ok) question.resolve({ ...answer, buffers });
    else question.reject(new KernelError(String(answer.error ?? "Python could not answer")));
  }

  /** A ping sent later was answered and the message on its way was not. */
  function countPing(): void {
    if (onTheWay.size === 0 || ++pingsAnswered < LOST_AFTER) return;
    for (const id of [...onTheWay]) settle({ id, ok: false, error: "the answer was lost" }, []);
  }

  function onMessage(content: unknown, buffers: readonly Bytes[] = []): void {
    const answers = answersIn(content);
    let alive = false;
    for (const answer of answers) {
      const isPing = pings.delete(answer.id);
      const isOurs = isPing || onTheWay.has(answer.id);
      if (isPing) countPing();
      else settle(answer, buffers);
      alive ||= isOurs && !isPing;
    }
    if (alive || !isDue()) relax();
    scheduleFlush();
  }

  model.on("msg:custom", onMessage);
  signal.addEventListener(
    "abort",
    () => {
      model.off("msg:custom", onMessage);
      const left = [...open.values()];
      forget();
      for (const question of left) question.reject(aborted());
    },
    { once: true },
  );

  return {
    state: current,

    request<K extends RequestKind>(kind: K, body: object = {}, options: { signal?: AbortSignal | undefined } = {}) {
      const caller = options.signal;
      return new Promise<Reply<K>>((resolve, reject) => {
        if (signal.aborted || caller?.aborted) return reject(aborted());
        const id = newId();
        const onAbort = () => {
          open.delete(id);
          reject(aborted());
          if (!isDue()) relax();
        };
        const released =
          <V>(done: (value: V) => void) =>
          (value: V) => {
            caller?.removeEventListener("abort", onAbort);
            done(value);
          };
        caller?.addEventListener("abort", onAbort, { once: true });
        const resolveReply = resolve as (reply: object) => void;
        open.set(id, {
          message: { ...body, id, kind },
          resolve: released(resolveReply),
          reject: released(reject),
        });
        scheduleFlush();
        startWatch();
      });
    },

    expect() {
      const token = Symbol("expected");
      if (!signal.aborted) expected.add(token);
      startWatch();
      return () => {
        if (expected.delete(token)) relax();
      };
    },

    tell: send,

    heard() {
      if (current.peek() === "gone") setState("idle");
    },

    guard(write) {
      try {
        write();
        return true;
      } catch (cause) {
        gone(cause);
        return false;
      }
    },
  };
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

/** Calls once, in the next frame or, where frames do not come, soon after; returns how to cancel. */
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
