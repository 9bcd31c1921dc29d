/** A tour of the widget in four steps, each beside the part that it explains. */

import { Component } from "preact";
import type { ViewName } from "../contract/values";
import type { Ui } from "../state/ui";

interface Step {
  readonly title: string;
  readonly text: string;
  /** Selectors of the part that the step explains; the first that is visible counts. */
  readonly parts: readonly string[];
}

/** How to read the picture of each view, and what a click does. */
const PICTURES: Readonly<Record<ViewName, string>> = {
  heatmap:
    "Rows are queries, columns are keys. A row shows how one token shares its attention. Click a cell to pin it.",
  compare: "One picture for each side, and their difference. Click a cell: it is pinned in all of them.",
  graph: "A curve leads from a query to a key. The wider it is, the larger is the weight. Click a token to follow it.",
  text: "The color of a token is its weight for the pinned token. Click another token to pin it.",
  image: "The color of a patch is its weight for the pinned patch or token. Click another one to pin it.",
  heads: "Each small picture is one head, each row is one layer. Click a head to open it.",
  segments: "Each cell is the attention from one part of the text to another. Click a cell to open it.",
  stages: "From left to right: how q and k become scores, weights and the output. Click a cell to follow its numbers.",
  why: "What each earlier part of the model adds to the score of the pinned pair. Click a part to go there.",
};

function stepsOf({ store }: Ui): readonly Step[] {
  return [
    { title: "Read the picture", text: PICTURES[store.view.value], parts: ["[data-aw=picture]", ".aw-stage"] },
    {
      title: "Read exact numbers",
      text: "Point at a cell and read its number here. What is pinned is also in Python: w.query, w.key, w.weights(w.query).",
      parts: [".aw-panel", ".aw-status"],
    },
    {
      title: "Choose a layer and a head",
      text: "The number that is marked is the one you see. The keys [ and ] step through heads, { and } through layers.",
      parts: ["[data-aw=picker]", ".aw-stepper", "[data-aw=toolbar]"],
    },
    {
      title: "Look at it in another way",
      text: "All views share the pinned token. The three dots have more: save a file, copy the Python line, colors.",
      parts: ["[data-aw=toolbar]"],
    },
  ];
}

/** Return the part that a step explains. */
function partOf(ui: Ui, step: number): Element | null {
  const found = (stepsOf(ui)[step]?.parts ?? []).map((part) => ui.root.querySelector(part));
  return found.find((part) => part !== null && part.getClientRects().length > 0) ?? null;
}

interface TourProps {
  readonly ui: Ui;
  /** Told which part a step explains. */
  readonly at: (part: Element | null) => void;
  readonly close: () => void;
}

/** The text of a step, and the way to the next one. */
export class Tour extends Component<TourProps, { step: number }> {
  override state = { step: 0 };
  private marked: Element | null = null;

  override componentDidMount() {
    this.point();
  }

  override componentDidUpdate() {
    this.point();
  }

  override componentWillUnmount() {
    this.marked?.classList.remove("aw-toured");
  }

  private point() {
    this.marked?.classList.remove("aw-toured");
    this.marked = partOf(this.props.ui, this.state.step);
    this.marked?.classList.add("aw-toured");
    this.props.at(this.marked);
  }

  override render({ ui, close }: TourProps, { step }: { step: number }) {
    const steps = stepsOf(ui);
    const { title, text } = steps[step] as Step;
    const isLast = step === steps.length - 1;
    const keys = () => {
      ui.card.value = "keys";
    };
    return (
      <div class="aw-tour">
        <div aria-live="polite">
          <h4>
            {title} <span class="aw-muted">{`${step + 1} of ${steps.length}`}</span>
          </h4>
          <p>{text}</p>
        </div>
        <div class="aw-tour-ways">
          <button type="button" class="aw-tour-keys" onClick={keys}>
            keyboard shortcuts
          </button>
          {step > 0 && (
            <button type="button" class="aw-set" onClick={() => this.setState({ step: step - 1 })}>
              Back
            </button>
          )}
          <button
            type="button"
            class="aw-set"
            data-aw="next"
            onClick={() => (isLast ? close() : this.setState({ step: step + 1 }))}
          >
            {isLast ? "Done" : "Next"}
          </button>
        </div>
      </div>
    );
  }
}
