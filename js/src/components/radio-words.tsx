/** A few choices as words, the chosen one underlined. */

import { rove } from "./dom";

interface Props<T extends string> {
  readonly name: string;
  /** The label before the choices; omitted if obvious. */
  readonly label?: string;
  readonly class?: string;
  readonly words: Readonly<Record<T, string>>;
  /** A note after each choice. */
  readonly notes?: Readonly<Partial<Record<T, string>>>;
  readonly chosen: T | null;
  choose(value: T): void;
}

/** Choose one of a few words; one Tab stop. */
export function RadioWords<T extends string>({ name, label, words, notes, chosen, choose, ...more }: Props<T>) {
  const values = Object.keys(words) as T[];
  const first = chosen ?? values[0];
  return (
    <div class={more.class ?? "aw-measure"} role="radiogroup" aria-label={name}>
      {label && <span class="aw-muted">{label}</span>}
      <div>
        {values.map((value, index) => (
          <button
            type="button"
            role="radio"
            key={value}
            aria-checked={value === chosen}
            tabIndex={value === first ? 0 : -1}
            onClick={() => choose(value)}
            onKeyDown={(event) => rove(event, index, values.length, (at) => choose(values[at]!))}
          >
            {words[value]}
            {notes?.[value] && <span class="aw-muted"> {notes[value]}</span>}
          </button>
        ))}
      </div>
    </div>
  );
}
