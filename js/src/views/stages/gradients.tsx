/** How a loss reaches weights, scores, q, k and v, and how a row's weights respond to its scores. */

import { px, Token } from "../../components/dom";
import { Raster, SmallRamp, sizeOf } from "../../components/small-matrix";
import { Asked, headOf } from "../../components/unfold";
import { decodeGrid } from "../../contract/decode";
import type { Bytes } from "../../contract/messages";
import type { Reply, SmallMatrix } from "../../contract/requests";
import type { SmallPicture } from "../../data/stage-data";
import type { Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";

const SIDE = 112;
const ORDER = [
  ["v", "dL/dV", "Aᵀ · dL/dO"],
  ["weights", "dL/dA", "dL/dO · Vᵀ"],
  ["scores", "dL/dS", "through the softmax and the scale"],
  ["q", "dL/dQ", "dL/dS · K"],
  ["k", "dL/dK", "dL/dSᵀ · Q"],
] as const;

interface Drawn {
  readonly small: SmallPicture;
  readonly rows: number;
  readonly columns: number;
}

async function drawn(matrix: SmallMatrix, buffers: readonly Bytes[]): Promise<Drawn> {
  const { low, high, rows, columns } = matrix;
  const grid = await decodeGrid(matrix.values, matrix.blocked, buffers);
  const bins = { queryBin: matrix.row_bin, keyBin: matrix.column_bin };
  return { small: { stage: "scores", grid, ...bins, low, high, every: 1 }, rows, columns };
}

type Found = ReadonlyMap<string, Drawn>;

async function readGradients({ pictures, buffers }: Reply<"gradients">): Promise<Found> {
  const found = new Map<string, Drawn>();
  for (const [name] of ORDER) {
    const matrix = pictures[name];
    if (matrix !== null) found.set(name, await drawn(matrix, buffers));
  }
  return found;
}

/** Show how the output changes with v, weights, scores, q and k. */
export function Gradients({ ui }: { ui: Ui }) {
  const { body, key } = headOf(ui);
  const { store } = ui;
  const query = store.query.value;
  return (
    <>
      <p class="aw-muted">
        L is the sum of all numbers of the output O, so dL/dO is 1 everywhere. A: weights, S: scores, before the scale.
      </p>
      <Asked
        ui={ui}
        kind="gradients"
        body={body}
        of={key}
        read={readGradients}
        tall={180}
        draw={(found) => (
          <div class="aw-gradients">
            {ORDER.map(([name, symbol, how]) => {
              const one = found.get(name);
              return one && <Matrix key={name} ui={ui} one={one} name={symbol} note={how} />;
            })}
          </div>
        )}
      />
      {query === null ? (
        <p class="aw-muted">Pin a query to see the Jacobian of its softmax.</p>
      ) : (
        <Asked
          ui={ui}
          kind="jacobian"
          body={{ ...body, query }}
          of={`${key},${query}`}
          read={async ({ picture, buffers }) => drawn(picture, buffers)}
          tall={180}
          draw={(one) => (
            <div class="aw-gradients">
              <Matrix ui={ui} one={one} name="Jacobian" note="∂p ÷ ∂s" />
              <p>
                How the weights p of{" "}
                <b>
                  <Token labels={store.queryLabels.value} index={query} subscript />
                </b>{" "}
                respond to its masked scores s: diag(p) − p pᵀ. Row: a weight; column: the score that is raised. On the
                diagonal p(1 − p), at most ¼; a row sums to 0
                {store.facts.value.has_sinks ? " with the learned sink, which is not shown" : ""}, because what one key
                gains the others lose.
              </p>
            </div>
          )}
        />
      )}
    </>
  );
}

function Matrix({ ui, one, name, note }: { ui: Ui; one: Drawn; name: string; note: string }) {
  const paints = ui.paints.value;
  if (paints === null) return null;
  const { small, rows, columns } = one;
  const of = headOf(ui).body;
  const { width, height } = sizeOf(small, SIDE);
  const range =
    small.low === null || small.high === null
      ? "NaN"
      : `${listNumber(small.low, "scores")} to ${listNumber(small.high, "scores")}`;
  return (
    <figure class="aw-small" style={{ width: px(SIDE) }}>
      <figcaption class="aw-small-head">
        <b>{name}</b>
        <span class="aw-muted">
          {count(rows)} × {count(columns)}
        </span>
      </figcaption>
      <div
        class="aw-small-picture"
        style={{ width: px(width), height: px(height) }}
        role="img"
        aria-label={`${name}, ${count(rows)} by ${count(columns)}, ${range}`}
        title={`${name} = ${note}: ${range}`}
      >
        <Raster small={small} of={of} paints={paints} />
      </div>
      <SmallRamp small={small} of={of} paints={paints} width={width} />
      <div class="aw-small-note">{note}</div>
      <div class="aw-small-note">{range}</div>
    </figure>
  );
}
