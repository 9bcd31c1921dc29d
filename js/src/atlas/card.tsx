/** The card of a head. */

import { useEffect, useState } from "preact/hooks";
import { Curve, Histogram } from "./charts";
import { brief, type Card, type HeadAt, type Index, percent, type Side, type Source, share } from "./contents";
import { HeadLinks } from "./links";
import { shade } from "./tile";

export interface CardProps {
  readonly source: Source;
  readonly side: number;
  readonly of: Side;
  readonly head: HeadAt;
  readonly metric: string;
  readonly aside: boolean;
  onChoose(layer: number, head: number): void;
  readonly onClose: (() => void) | null;
}

export function HeadCard({ source, side, of, head, metric, aside, onChoose, onClose }: CardProps) {
  const [card, setCard] = useState<Card | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let left = false;
    setProblem("");
    source.card(side, head.layer, head.head).then(
      (found) => !left && setCard(found),
      (error: Error) => !left && setProblem(error.message),
    );
    return () => {
      left = true;
    };
  }, [source, side, head]);
  const { index } = source;
  const { open } = source;
  const onAside = of.aside[head.at] ?? null;
  return (
    <article class="aw-atlas-card" aria-label={`Layer ${head.layer}, head ${head.head}`} aria-busy={card === null}>
      <header>
        <h3>
          Layer {head.layer}, head {head.head}
          {index.other !== null && <span class="aw-muted"> in {of.title}</span>}
        </h3>
        {onClose !== null && (
          <button type="button" onClick={onClose}>
            Close
          </button>
        )}
      </header>
      <p class="aw-atlas-sentence">{of.sentences[head.at]}</p>
      {onAside !== null && (
        <p class="aw-muted">
          {percent(onAside)} of its weight is on {index.setAside}.
        </p>
      )}
      {problem !== "" && <p role="alert">This head could not be read. {problem}</p>}
      {card !== null && (
        <>
          <div class="aw-atlas-charts">
            <Curve
              title="Weight by distance"
              about="The mean weight of a text's pairs at a distance, over the texts that have any; key before query on the right"
              values={aside ? card.contentByDistance : card.byDistance}
              names={card.distances}
            />
            <Curve
              title="Weight by the key's position"
              about="The mean weight that a key receives from a query that may attend to it, over the texts that have such a key"
              values={aside ? card.contentByPosition : card.byPosition}
              names={card.positions}
            />
            {card.metrics[metric] !== undefined && (
              <Histogram name={labelOf(index, metric)} of={card.metrics[metric]} />
            )}
          </div>
          <div class="aw-atlas-body">
            <HeadLinks
              key={`${side}-${head.at}`}
              card={card}
              aside={aside}
              open={open && side === 0 ? (link) => open(link.text, head.layer, head.head, link.query, link.key) : null}
            />
            <div class="aw-atlas-more-facts">
              <Kinds index={index} card={card} />
              <Facts index={index} card={card} metric={metric} />
              <Similar index={index} card={card} onChoose={onChoose} />
            </div>
          </div>
        </>
      )}
    </article>
  );
}

const texts = (count: number) => `${count.toLocaleString("en")} text${count === 1 ? "" : "s"}`;
const labelOf = (index: Index, metric: string) => index.metrics.find((one) => one.name === metric)?.label ?? metric;

function Kinds({ index, card }: { readonly index: Index; readonly card: Card }) {
  return (
    <section>
      <h4>Weight between kinds of tokens</h4>
      <p class="aw-muted">Means over the texts that have such queries. A text without such keys counts as 0.</p>
      <table>
        <thead>
          <tr>
            <th scope="col">query ↓ key →</th>
            {index.kinds.map((kind) => (
              <th key={kind} scope="col">
                {kind}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {card.byKind.map((row, at) => (
            <tr key={index.kinds[at]}>
              <th scope="row">{index.kinds[at]}</th>
              {row.map((value, column) => (
                <td key={index.kinds[column]} style={{ background: shade(value, 1, false) }}>
                  {share(value)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Facts({ index, card, metric }: { readonly index: Index; readonly card: Card; readonly metric: string }) {
  const [hits, links] = card.copied ?? [0, 0];
  return (
    <section>
      <h4>Mean over texts</h4>
      <dl>
        {index.metrics.map(({ name, label, about }) => {
          const found = card.metrics[name];
          if (found === undefined) return null;
          return (
            <div key={name} title={about} data-chosen={name === metric || undefined}>
              <dt>{label}</dt>
              <dd>
                {brief(found.mean)}{" "}
                <span class="aw-muted">
                  {found.std === null ? "" : `± ${brief(found.std)}`}
                  {found.n < index.texts ? ` in ${found.n.toLocaleString("en")} of ${texts(index.texts)}` : ""}
                </span>
              </dd>
            </div>
          );
        })}
      </dl>
      <h4>What it writes</h4>
      {card.unwritten !== null ? (
        <p class="aw-muted">Unknown: {card.unwritten}</p>
      ) : (
        <p>
          Its mean output raises{" "}
          {card.writes
            .slice(0, 6)
            .map((one) => one.trim())
            .join(", ")}{" "}
          most.
          {links > 0 &&
            ` In ${hits} of ${links} ordinary links the key's own token is among the ten tokens raised most.`}
        </p>
      )}
    </section>
  );
}

function Similar({
  index,
  card,
  onChoose,
}: Pick<CardProps, "onChoose"> & { readonly index: Index; readonly card: Card }) {
  const heads = index.counts.map((_, layer) => index.counts.slice(0, layer).reduce((sum, one) => sum + one, 0));
  return (
    <section>
      <h4>Similar heads</h4>
      <ul>
        {card.similar.map(([layer, head]) => (
          <li key={`${layer}-${head}`}>
            <button type="button" onClick={() => onChoose(layer, head)}>
              {layer}·{head}
            </button>{" "}
            <span class="aw-muted">{index.sentences[(heads[layer] ?? 0) + head]}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
