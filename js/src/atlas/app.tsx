/** An atlas: the map, the plane, search, and the cards of the heads that are chosen. */

import { useMemo, useState } from "preact/hooks";
import { HeadCard } from "./card";
import { type HeadAt, headsOf, matches, rangeOf, type Source } from "./contents";
import { HeadMap } from "./map";
import { HeadPlane } from "./plane";
import { shade } from "./tile";

export function AtlasApp({ source }: { readonly source: Source }) {
  const { index } = source;
  const heads = useMemo(() => headsOf(index), [index]);
  const at = (layer: number, head: number) => heads.find((one) => one.layer === layer && one.head === head) ?? null;
  const [words, setWords] = useState("");
  const [metric, setMetric] = useState(index.metrics[0]?.name ?? "");
  const [sorted, setSorted] = useState(false);
  const [aside, setAside] = useState(false);
  const [side, setSide] = useState<"first" | "other" | "change">("first");
  const [chosen, setChosen] = useState<HeadAt | null>(source.chosen && at(...source.chosen));
  const [beside, setBeside] = useState<HeadAt | null>(null);
  const { other } = index;
  const shown = side === "other" && other !== null ? other : index;
  const own = index.values[metric] ?? [];
  const theirs = other?.values[metric] ?? [];
  const values =
    side === "change" ? own.map((value, i) => difference(theirs[i] ?? null, value)) : (shown.values[metric] ?? []);
  const { most, signed } = rangeOf(values);
  const found = useMemo(
    () => new Set(heads.filter((head) => matches(index, head, words)).map((head) => head.at)),
    [index, heads, words],
  );
  const choose = (head: HeadAt, second: boolean) => {
    if (second && chosen !== null && chosen.at !== head.at) setBeside(head);
    else {
      setChosen(head);
      setBeside(null);
      source.choose(head.layer, head.head);
    }
  };
  const name = index.metrics.find((one) => one.name === metric);
  const to = (layer: number, head: number) => {
    const there = at(layer, head);
    if (there !== null) choose(there, false);
  };
  const card = (head: HeadAt, of: number, close: (() => void) | null) => (
    <HeadCard
      key={`${of}-${head.at}`}
      source={source}
      side={of}
      of={of === 1 && other !== null ? other : index}
      head={head}
      metric={metric}
      aside={aside}
      onChoose={to}
      onClose={close}
    />
  );
  return (
    <div class="aw-atlas">
      <header>
        <h2>{index.title}</h2>
        <p class="aw-muted">{index.facts.join(" · ")}</p>
      </header>
      <div class="aw-atlas-tools" data-aw="toolbar">
        <label>
          Search{" "}
          <input
            type="search"
            value={words}
            placeholder="previous token, sink, copies"
            onInput={(event) => setWords(event.currentTarget.value)}
          />
        </label>
        <label>
          Shade{" "}
          <select value={metric} onChange={(event) => setMetric(event.currentTarget.value)}>
            {index.metrics.map((one) => (
              <option key={one.name} value={one.name}>
                {one.label}
              </option>
            ))}
          </select>
        </label>
        <label>
          <input type="checkbox" checked={sorted} onChange={() => setSorted(!sorted)} /> Largest first
        </label>
        <label>
          <input type="checkbox" checked={aside} onChange={() => setAside(!aside)} /> Without first and special tokens
        </label>
        {other !== null && (
          <div class="aw-atlas-choices" role="group" aria-label="Which model">
            {(["first", "other", "change"] as const).map((one) => (
              <button key={one} type="button" aria-pressed={side === one} onClick={() => setSide(one)}>
                {one === "first" ? index.title : one === "other" ? other.title : "Change"}
              </button>
            ))}
          </div>
        )}
      </div>
      <p class="aw-atlas-legend" role="status">
        {words.trim() === "" ? "" : `${found.size} of ${heads.length} heads. `}
        Shade and number: {name?.about} {side === "change" ? `(${other?.title} − ${index.title})` : ""} Curve: mean
        weight by distance, {aside ? "between content tokens, " : ""}keys before the query on the right.
      </p>
      <div class="aw-atlas-overview">
        <HeadMap
          index={index}
          heads={heads}
          values={values}
          most={most}
          signed={signed}
          curves={aside ? shown.contentCurves : shown.curves}
          name={name?.label ?? metric}
          found={found}
          sorted={sorted}
          chosen={chosen}
          beside={beside}
          onChoose={choose}
        />
        <HeadPlane
          index={index}
          heads={heads}
          fills={heads.map((head) => shade(values[head.at] ?? null, most, signed))}
          found={found}
          chosen={chosen}
          beside={beside}
          onChoose={choose}
        />
      </div>
      {chosen === null ? (
        <p class="aw-prompt">Click a head to read its card. Shift-click a second one to compare.</p>
      ) : (
        <div class="aw-atlas-cards">
          {card(chosen, side === "other" ? 1 : 0, null)}
          {beside !== null && card(beside, side === "other" ? 1 : 0, () => setBeside(null))}
          {beside === null && side === "change" && card(chosen, 1, null)}
        </div>
      )}
      {index.notes.map((note) => (
        <p key={note} class="aw-muted">
          {note}
        </p>
      ))}
    </div>
  );
}

const difference = (after: number | null, before: number | null) =>
  after === null || before === null ? null : after - before;
