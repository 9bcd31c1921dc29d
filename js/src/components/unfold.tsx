/** Sections of the stages view that unfold; their contents are requested only once opened. */

import type { Signal } from "@preact/signals-core";
import { Component, type ComponentChildren } from "preact";
import type { Reply, RequestKind } from "../contract/requests";
import { KernelError, KernelGone } from "../kernel/kernel";
import type { Ui } from "../state/ui";
import { percent } from "../text/format";
import { Chevron } from "./dom";
import { ProgressBar } from "./progress";

const PATIENCE = 250; // milliseconds to wait after a change, as while a scale is dragged, before asking again

interface UnfoldProps {
  readonly name: string;
  /** The contents, in a few words. */
  readonly note: string;
  readonly open: Signal<ReadonlySet<string>>;
  readonly children: () => ComponentChildren;
}

/** A section that its heading opens and closes. */
export function Unfold({ name, note, open, children }: UnfoldProps) {
  const isOpen = open.value.has(name);
  const toggle = () => {
    const others = [...open.value].filter((other) => other !== name);
    open.value = new Set(isOpen ? others : [...others, name]);
  };
  return (
    <section class="aw-unfold" data-aw={`section-${name.toLowerCase()}`} aria-label={name}>
      <h4>
        <button type="button" aria-expanded={isOpen} onClick={toggle}>
          <Chevron />
          {name}
          <span class="aw-muted">{note}</span>
        </button>
      </h4>
      {isOpen && children()}
    </section>
  );
}

/** Return the selected head with the current tensors and rules, as fields of a request and as a text key. */
export function headOf({ store }: Ui) {
  const body = { layer: store.layer.value, batch: store.batch.value, head: store.head.value };
  return { body, key: Object.values({ ...body, version: store.facts.value.version }).join() };
}

interface AskedProps<K extends RequestKind, T> {
  readonly ui: Ui;
  readonly kind: K;
  readonly body: object;
  /** Changing it asks again. */
  readonly of: string;
  readonly read: (reply: Reply<K>) => Promise<T>;
  readonly draw: (found: T) => ComponentChildren;
  readonly tall?: number;
}

interface AskedState<T> {
  found: T | null;
  error: string;
  /** The computed share of the answer: below 1, ask again and draw a first version. */
  share: number;
}

/** Ask the kernel and draw its answer; the last one stays until the next arrives. A long one comes in parts. */
export class Asked<K extends RequestKind, T> extends Component<AskedProps<K, T>, AskedState<T>> {
  override state: AskedState<T> = { found: null, error: "", share: 1 };
  private asking: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;

  override componentDidMount() {
    this.ask(0);
  }

  override componentDidUpdate(before: AskedProps<K, T>) {
    if (before.of !== this.props.of) this.ask(PATIENCE);
  }

  override componentWillUnmount() {
    this.stop();
  }

  private stop() {
    this.asking?.abort();
    clearTimeout(this.timer);
  }

  private ask(after: number) {
    this.stop();
    const asking = new AbortController();
    this.asking = asking;
    this.timer = setTimeout(async () => {
      const { ui, kind, body, read } = this.props;
      try {
        for (let share = 0; share < 1; ) {
          const reply = await ui.kernel.request(kind, body, { signal: asking.signal });
          const found = await read(reply);
          if (asking.signal.aborted) return;
          share = shareOf(reply);
          this.setState({ found, error: "", share });
        }
      } catch (error) {
        if (!asking.signal.aborted) this.setState({ error: sentence(error) });
      }
    }, after);
  }

  override render({ ui, draw, tall = 80 }: AskedProps<K, T>, { found, error, share }: AskedState<T>) {
    const isFinal = error !== "" && ui.store.facts.value.saved !== undefined; // a file has no other answer
    return (
      <div class="aw-asked" style={{ minHeight: isFinal ? undefined : `calc(${tall} * var(--aw-u))` }}>
        {error !== "" && (
          <p class="aw-muted" role="alert">
            {error}
          </p>
        )}
        {found !== null && error === "" && draw(found)}
        {share < 1 && error === "" && <Slices share={share} />}
      </div>
    );
  }
}

/** The computed share of an answer; 1 if Python does not tell. */
function shareOf(reply: object): number {
  const share = "share" in reply ? reply.share : 1;
  return typeof share === "number" && share < 1 ? share : 1;
}

/** Show the progress of a slow answer. */
function Slices({ share }: { share: number }) {
  return (
    <div class="aw-progress" data-aw="slices">
      <ProgressBar label="Computing" share={share} />
      <div class="aw-progress-line">
        <span>
          Computing: <b>{percent(Math.floor(100 * share) / 100)}</b>
        </span>
      </div>
    </div>
  );
}

export function sentence(error: unknown): string {
  if (error instanceof KernelGone) return "The kernel is gone: run the cell again to compute this.";
  if (error instanceof KernelError) return error.message;
  return `This could not be read: ${(error as Error).message}`;
}
