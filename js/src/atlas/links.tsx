/** Links of a head in their texts: the query, the key, and the weights of the query on the words around them. */

import { useState } from "preact/hooks";
import { endsWord, type Join, joinOf, type Piece, pieceOf, styleOf } from "../text/tokens";
import { brief, type Card, type LinkInText, type LinkList } from "./contents";

const SHOWN = 5;
const HOW: Record<LinkList, string> = {
  strongest: "The largest weights over all texts, at most two of one text.",
  ordinary: "Drawn at random: a random query of a random text, and its strongest key.",
  "strongest content":
    "The largest weights between tokens that are neither first nor special, at most two of one text.",
  "ordinary content": "Drawn at random: a query that is neither first nor special, and the strongest of such keys.",
};

const CHOICE = "Only of queries that may attend to eight keys; in a shorter text, to as many as any.";

export interface LinksProps {
  readonly card: Card;
  readonly aside: boolean;
  readonly open: ((link: LinkInText) => Promise<string>) | null;
}

export function HeadLinks({ card, aside, open }: LinksProps) {
  const [ordinary, setOrdinary] = useState(false);
  const [all, setAll] = useState(false);
  const list = `${ordinary ? "ordinary" : "strongest"}${aside ? " content" : ""}` as LinkList;
  const links = card.links[list];
  return (
    <section class="aw-atlas-links">
      <div class="aw-atlas-choices" role="group" aria-label="Which links">
        {[false, true].map((one) => (
          <button key={String(one)} type="button" aria-pressed={ordinary === one} onClick={() => setOrdinary(one)}>
            {one ? "Ordinary links" : "Strongest links"}
          </button>
        ))}
      </div>
      <p class="aw-muted">
        {HOW[list]} {CHOICE}
      </p>
      {links.length === 0 && <p>No text has such a link.</p>}
      <ol>
        {links.slice(0, all ? links.length : SHOWN).map((link, at) => (
          <LinkLine key={`${list}-${at}`} link={link} open={open} />
        ))}
      </ol>
      {links.length > SHOWN && (
        <button type="button" class="aw-atlas-more" onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show all ${links.length}`}
        </button>
      )}
    </section>
  );
}

function LinkLine({ link, open }: { readonly link: LinkInText; readonly open: LinksProps["open"] }) {
  const [said, setSaid] = useState("");
  const style = styleOf(link.tokens);
  const join = joinOf(link.tokens, style);
  const most = Math.max(1e-12, ...link.weights);
  const about = `Text ${link.text.toLocaleString("en")}: query ${link.query}, key ${link.key}, weight ${brief(link.weight)}`;
  return (
    <li>
      <p class="aw-atlas-text" title={about}>
        {link.tokens.map((token, at) => {
          const place = link.places[at] ?? 0;
          const piece = pieceOf(token, style, join);
          const gap = at > 0 && place !== (link.places[at - 1] ?? 0) + 1;
          const mark =
            place === link.query ? (place === link.key ? "both" : "query") : place === link.key ? "key" : undefined;
          const weight = link.weights[at] ?? 0;
          const tint = `color-mix(in oklab, var(--aw-data) ${Math.round((45 * weight) / most)}%, transparent)`;
          return (
            <>
              {gap && <span class="aw-muted"> … </span>}
              {!gap && spaced(piece, link.tokens[at - 1], join) ? " " : ""}
              <bdi
                class="aw-atlas-token"
                data-mark={mark}
                title={`${piece.text} (${place.toLocaleString("en")}): ${brief(weight)}`}
                style={mark === "query" || mark === "both" ? undefined : { background: tint }}
              >
                {piece.text}
              </bdi>
            </>
          );
        })}
      </p>
      <p class="aw-atlas-about">
        <b>{brief(link.weight)}</b> text {link.text.toLocaleString("en")}
        {link.writes.length > 0 && (
          <>
            {" "}
            · writes{" "}
            {link.writes
              .slice(0, 3)
              .map((one) => one.trim())
              .join(", ")}
          </>
        )}
        {open !== null && (
          <button
            type="button"
            onClick={() => {
              setSaid("Opening …");
              open(link).then(setSaid, (error: Error) => setSaid(error.message));
            }}
          >
            Open in the widget
          </button>
        )}
        {said !== "" && <span role="status"> {said}</span>}
      </p>
    </li>
  );
}

/** Whether a space stands before a token; where tokens do not tell, before all but closing punctuation. */
function spaced(piece: Piece, before: string | undefined, join: Join): boolean {
  if (before === undefined) return false;
  if (join === "ends") return endsWord(before);
  return piece.space ?? !/^[.,;:!?)\]}]/.test(piece.text);
}
