/** The limits on shown heads: a range of layers, and a minimum of the metric. */

import { NumberField } from "../../components/number-field";
import { type HeadFilter, type HeadMetric, isShown, type Survey } from "../../data/survey";
import type { Ui } from "../../state/ui";
import { count } from "../../text/format";

interface Props {
  readonly ui: Ui;
  readonly survey: Survey;
  readonly metric: HeadMetric | null;
}

/** Fields for the first and last layer, and the minimum; an empty one means no limit. */
export function Only({ ui, survey, metric }: Props) {
  if (survey.heads.length < 2) return null;
  const only = ui.onlyHeads.value;
  const put = (part: Partial<HeadFilter>) => {
    const { from, to, above } = { from: null, to: null, above: null, ...only, ...part };
    const limits = [from, to, above] as const;
    ui.store.show({ only_heads: limits.every((limit) => limit === null) ? null : limits });
  };
  const field = (name: keyof HeadFilter, label: string, own: string) => (
    <NumberField
      type="number"
      min={0}
      step={name === "above" ? "any" : 1}
      label={label}
      placeholder={own}
      text={String(only?.[name] ?? "")}
      onChange={({ currentTarget: { value } }) => put({ [name]: value === "" ? null : Number(value) })}
      onKeyDown={(event) => event.stopPropagation()}
    />
  );
  const last = survey.layers.length - 1;
  const shown = survey.heads.filter((_, place) => isShown(survey, place, only, metric)).length;
  return (
    <span class="aw-only" role="group" aria-label="Shown heads">
      {last > 0 && (
        <>
          Layers {field("from", "First layer", "0")} to {field("to", "Last layer", String(last))}
        </>
      )}
      {metric !== null && (
        <>
          {" "}
          {metric.word.toLowerCase()} above {field("above", `${metric.word} above`, "any")}
        </>
      )}
      {only !== null && (
        <>
          {" "}
          {count(shown)} of {count(survey.heads.length)} heads{" "}
          <button type="button" class="aw-link" onClick={() => put({ from: null, to: null, above: null })}>
            Show all
          </button>
        </>
      )}
    </span>
  );
}
