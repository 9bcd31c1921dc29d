/** Go to a token by its number or its text. */

import { Component, createRef } from "preact";
import { KernelError, KernelGone } from "../kernel/kernel";
import type { Ui } from "../state/ui";
import { count } from "../text/format";
import type { Labels } from "../text/labels";
import { type Found, readWanted, stepped } from "../text/search";
import { focusPicture } from "./keyboard";
import { showsCells } from "./phrases";

const AT_ONCE = 20; // places per request to Python

/** The field to type a position, a pair of positions or a text. */
export class GoTo extends Component<{ ui: Ui }, { said: string; empty: boolean }> {
  override state = { said: "", empty: true };
  private input = createRef<HTMLInputElement>();
  private found: Found | null = null;
  private among: Labels | null = null;
  private asking: AbortController | null = null;

  override componentWillUnmount() {
    this.asking?.abort();
  }

  private say(said: string) {
    this.setState({ said });
  }

  private async go(by: 1 | -1) {
    const { store } = this.props.ui;
    const { queries, keys } = store.facts.value;
    const wanted = readWanted(this.input.current?.value ?? "", queries, keys);
    this.asking?.abort();
    if (wanted === null) return;
    if ("query" in wanted) {
      this.found = null;
      this.say("");
      goToPlace(this.props.ui, wanted.query, wanted.key);
    } else if ("beyond" in wanted) {
      this.say(`they end at ${count(wanted.total - 1)}`);
    } else {
      this.asking = new AbortController();
      const { signal } = this.asking;
      try {
        const found = await this.search(wanted.text, by, signal);
        if (signal.aborted) return;
        this.found = found.total > 0 ? found : null;
        this.say(found.total === 0 ? "no such token" : `${count(found.at + 1)} of ${count(found.total)}`);
        if (found.total > 0) goToPlace(this.props.ui, found.positions[found.at] as number, null);
      } catch (error) {
        if (error instanceof KernelGone) this.say("the kernel is gone");
        else if (error instanceof KernelError) this.say(error.message);
        else if (!signal.aborted) throw error;
      }
    }
  }

  /** The first place of a text, or the next one of the last text found. */
  private async search(text: string, by: 1 | -1, signal: AbortSignal): Promise<Found> {
    const { store, kernel } = this.props.ui;
    const labels = store.queryLabels.value;
    const last = this.found?.text === text && this.among === labels ? this.found : null;
    const next = last && stepped(last, by);
    if (next) return next;
    if (last !== null && by < 0) return { ...last, at: last.positions.length - 1 };
    this.among = labels;
    const here = labels.find(text);
    if (here !== null) return { text, positions: here, total: here.length, at: 0 };
    const from = last?.positions ?? [];
    const body = { layer: store.layer.value, batch: store.batch.value, side: "query", text, count: AT_ONCE };
    const reply = await kernel.request("find", { ...body, start: (from.at(-1) ?? -1) + 1 }, { signal });
    const fresh = reply.positions.filter((position) => !from.includes(position));
    const positions = [...from, ...fresh];
    if (last === null) return { text, positions, total: reply.total, at: 0 };
    if (fresh.length === 0) return { ...last, at: 0 }; // wrap around to the first
    return { text, positions, total: last.total, at: from.length };
  }

  private onKeyDown = (event: KeyboardEvent) => {
    event.stopPropagation(); // the notebook has single-letter shortcuts
    if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      void this.go(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      event.preventDefault();
      focusPicture(this.props.ui.root);
    }
  };

  private stopHere = (event: Event) => event.stopPropagation();

  private onInput = () => {
    this.asking?.abort();
    this.found = null;
    this.setState({ said: "", empty: this.input.current?.value === "" });
  };

  override render(_: { ui: Ui }, { said, empty }: { said: string; empty: boolean }) {
    return (
      <div class="aw-goto">
        <div class="aw-goto-head">
          <span class="aw-heading">Go to</span>
          <span aria-live="polite">{said}</span>
        </div>
        <div class="aw-goto-field">
          <input
            ref={this.input}
            data-aw="goto"
            type="text"
            autocomplete="off"
            maxLength={200}
            spellcheck={false}
            placeholder="Token number or text"
            aria-label="Go to a token: its number, a pair of numbers, or its text"
            onInput={this.onInput}
            onKeyDown={this.onKeyDown}
            onKeyUp={this.stopHere}
            onKeyPress={this.stopHere}
          />
          {said === "" && (
            <span class="aw-key-hint" aria-hidden="true">
              {empty ? "/" : "Enter"}
            </span>
          )}
        </div>
      </div>
    );
  }
}

/** Pin a place and bring it into view, close enough to read its cells. */
export function goToPlace(ui: Ui, query: number, key: number | null): void {
  ui.store.select({ query, key });
  ui.destination.value = { query, key: key ?? keyBeside(ui, query), close: true };
}

/** The keys to show for a query alone: those in view if cells are shown, else its own token and those around it. */
function keyBeside(ui: Ui, query: number): number | null {
  const { queries, keys, is_causal } = ui.store.facts.value;
  const shown = ui.window.value;
  const mayAttend = !is_causal || (shown !== null && shown.keys.start <= query);
  return queries !== keys || (showsCells(ui) && mayAttend) ? null : query;
}
