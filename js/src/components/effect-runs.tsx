/** The progress of running the model without each segment and each head. */

import { askRuns } from "../state/effects";
import type { Ui } from "../state/ui";
import { count } from "../text/format";
import { sentence } from "./phrases";
import { ProgressBar, timeLeft } from "./progress";

const ACTIONS = {
  running: ["stop", "Stop"],
  stopped: ["resume", "Resume"],
  failed: ["run", "Try again"],
  idle: ["run", "Run"],
} as const;
const SAID = {
  ...{
    running: "The model runs without each segment and each head.",
    stopped: "Stopped.",
    failed: "Failed.",
    idle: "",
  },
  done: "All runs are done.",
};

/** The progress of the runs, with a button to stop; its room stays afterwards, so that nothing moves. */
export function EffectRuns({ ui }: { ui: Ui }) {
  const { effects, facts } = ui.store;
  const now = effects.value;
  if (!now) return null;
  const { done, total, seconds_left, run_seconds } = now;
  const away = ui.kernel.away.value || Boolean(facts.value.saved);
  const state = away && now.state === "running" ? "stopped" : now.state; // a saved run does not continue
  const { key, text } = ui.effectProblem.value ?? { key: "", text: "" };
  const problem = now.error ?? (key in { run: 0, stop: 0, resume: 0 } ? text : "");
  const runs = `${count(done)} of ${count(total)} runs`;
  const left = state === "running" ? timeLeft(seconds_left) : "";
  const each = left && run_seconds && run_seconds > 1 ? `one takes ${Math.round(run_seconds)} s` : "";
  return (
    <>
      <div class="aw-visually-hidden" aria-live="polite">
        {SAID[state]}
      </div>
      {state !== "done" && total > 0 && (
        <ProgressBar label="Runs of the model" share={done / total} text={`${runs}, ${left || state}`} />
      )}
      {now.left_out && <p class="aw-progress-line">{sentence(now.left_out)}</p>}
      {(state !== "done" || problem !== "") && (
        <div class="aw-progress-line">
          <span>
            {state === "stopped" && "Stopped: "}
            {state !== "done" && total > 0 && <b>{runs}</b>}
            {[left, each].filter(Boolean).map((words) => `, ${words}`)}
            {problem && ` ${sentence(problem)}`}
          </span>
          {!away && state !== "done" && (
            <button type="button" class="aw-action" onClick={() => askRuns(ui, ACTIONS[state][0])}>
              {ACTIONS[state][1]}
            </button>
          )}
        </div>
      )}
    </>
  );
}
