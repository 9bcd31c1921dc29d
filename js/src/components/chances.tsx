/** Next-token probabilities before (hollow) and after (filled) a removal, and the loss. */

import type { EffectDetail } from "../contract/messages";
import { chancesOf } from "../data/effects";
import { numberIn } from "../data/matrix";
import { largest, roundUp } from "../data/segments";
import { count, listNumber } from "../text/format";
import { tokenName } from "../text/tokens";

const share = (value: number, end: number) => `${(100 * value) / end}%`;
const number = (value: number) => listNumber(value, "weights");
const loss = (value: number) => listNumber(value, "scores");

/** Show some tokens with both probabilities, the sum of all others, the loss and the divergences. */
export function Chances({ detail, unit, most = 8 }: { detail: EffectDetail; unit: string; most?: number }) {
  const { rows, rest } = chancesOf(detail, most);
  const end = roundUp(largest(rows.flatMap(({ before, after }) => [before, after])));
  const lines = [0, 0.5, 1].map((at) => <s key={at} style={{ left: `${100 * at}%` }} />);
  const { kl, kl_answer } = detail;
  return (
    <>
      {rows.length > 0 && (
        <ol class="aw-chances" aria-label="Next token, probability before and after">
          <li class="aw-chance aw-chance-head" aria-hidden="true">
            <span />
            <span style={{ height: "100%" }}>
              {[0, 0.5, 1].map((at) => (
                <i key={at} style={{ left: `${100 * at}%` }}>
                  {number(at * end)
                    .replace(/(\.\d*?)0+$/, "$1")
                    .replace(/\.$/, "")}
                </i>
              ))}
            </span>
            <span>before</span>
            <span>after</span>
          </li>
          {rows.map(({ text, before, after }, index) => (
            <li class="aw-chance" key={text} aria-current={index === 0 || undefined}>
              <span title={text}>
                <bdi>{tokenName(text)}</bdi>
              </span>
              <span class="aw-chance-plot">
                {lines}
                <i
                  data-less={after < before || undefined}
                  style={{ left: share(Math.min(before, after), end), width: share(Math.abs(after - before), end) }}
                />
                <u style={{ left: share(before, end) }} />
                <b style={{ left: share(after, end) }} />
              </span>
              <span class="aw-number aw-muted">{number(before)}</span>
              <span class="aw-number">{number(after)}</span>
            </li>
          ))}
          <li class="aw-chance aw-muted">
            <span>{count(rest.count)} more tokens</span>
            <span class="aw-number">{number(rest.before)}</span>
            <span class="aw-number">{number(rest.after)}</span>
          </li>
        </ol>
      )}
      {rows.length > 0 && (
        <p class="aw-chance-key">
          <u /> before <b /> after
        </p>
      )}
      <div class="aw-seg-sums">
        <LossSum text={detail.target} value={lostBy(detail)} unit={unit} />
        {kl !== null && <Sum name="KL, this token" value={loss(numberIn(kl))} />}
        {kl_answer !== null && <Sum name="KL, answer" value={loss(numberIn(kl_answer))} />}
      </div>
    </>
  );
}

interface LossProps {
  /** The token whose log-probability is meant. */
  readonly text: string;
  readonly value: number;
  readonly unit: string;
}

/** Show the loss when nothing more is known. */
export function Loss(props: LossProps) {
  return (
    <div class="aw-seg-sums">
      <LossSum {...props} />
    </div>
  );
}

const LossSum = ({ text, value, unit }: LossProps) => (
  <Sum name={text ? `Lost, “${tokenName(text)}”` : "Lost"} value={`${loss(value)} ${unit}`} />
);

function Sum({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <span>{name}</span>
      <b>{value}</b>
    </div>
  );
}

/** Return how much log-probability the target loses. */
export const lostBy = ({ before, after }: EffectDetail) => numberIn(before) - numberIn(after);
