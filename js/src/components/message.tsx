/** A message in place of the picture or the status line: a sign, a line, a reason, at most two actions. */

import type { ComponentChildren } from "preact";

export type Sign = "waiting" | "gone" | "error" | "empty";

const SIGNS: Record<Sign, { color: string; drawing: ComponentChildren }> = {
  waiting: {
    color: "var(--aw-ink3)",
    drawing: (
      <>
        <circle cx="8" cy="8" r="6.5" stroke="var(--aw-track)" />
        <path d="M8 1.5A6.5 6.5 0 0 1 14.5 8" stroke="var(--aw-ink2)" />
      </>
    ),
  },
  gone: {
    color: "var(--aw-warn)",
    drawing: (
      <>
        <circle cx="8" cy="8" r="6.5" />
        <path d="m3.5 3.5 9 9" />
      </>
    ),
  },
  error: {
    color: "var(--aw-bad)",
    drawing: (
      <>
        <circle cx="8" cy="8" r="6.5" />
        <path d="M8 4.5v4.3M8 11v.6" />
      </>
    ),
  },
  empty: { color: "var(--aw-ink3)", drawing: <circle cx="8" cy="8" r="6.5" stroke-dasharray="2 2.2" /> },
};

export interface Action {
  readonly name: string;
  run(): void;
}

/** The sign alone. */
export function Mark({ sign }: { sign: Sign }) {
  const { color, drawing } = SIGNS[sign];
  return (
    <svg viewBox="0 0 16 16" stroke={color} aria-hidden="true">
      {drawing}
    </svg>
  );
}

export function Message(props: { sign: Sign; title: string; text: string; actions?: readonly Action[] }) {
  return (
    <div class="aw-message" role={props.sign === "error" ? "alert" : "status"}>
      <Mark sign={props.sign} />
      <b>{props.title}</b>
      <p>{props.text}</p>
      {props.actions && (
        <p class="aw-actions">
          {props.actions.map((action) => (
            <button type="button" key={action.name} onClick={action.run}>
              {action.name}
            </button>
          ))}
        </p>
      )}
    </div>
  );
}
