/** Runs of the model without each segment and each head: how far they have come. */

import { isAway } from "../kernel/kernel";
import { askRuns } from "../state/effects";
import type { Ui } from "../state/ui";
import { count } from "../text/format";
import { sentence } from "./phrases";
import { ProgressBar, timeLeft } from "./progress";

/** How far the runs have come, and how to stop them; once they are done its room stays, so that nothing moves. */
export function EffectRuns({ ui }: { ui: Ui }) {
  const now = ui.store.effects.value;
  if (!now) return null;
  const { state, done, total, seconds_left, error, run_seconds } = now;
  const { key, text } = ui.effectProblem.value ?? { key: "", text: "" };
  const problem = error ?? (["run", "stop", "resume"].includes(key) ? text : "");
  if (state === "done" && problem === "") return null;
  const running = state === "running";
  const action = running ? "stop" : state === "stopped" ? "resume" : "run";
  const runs = `${count(done)} of ${count(total)} runs`;
  const left = running ? timeLeft(seconds_left) : "";
  const each = running && run_seconds && run_seconds > 1 ? `one takes ${Math.round(run_seconds)} s` : "";
  const away = isAway(ui.kernel.state.value);
  return (
    <>
      {total > 0 && <ProgressBar label="Runs of the model" share={done / total} text={`${runs}, ${left || state}`} />}
      <div class="aw-progress-line">
        <span>
          {state === "stopped" && "Stopped: "}
          {total > 0 && <b>{runs}</b>}
          {[left, each].filter(Boolean).map((words) => `, ${words}`)}
          {problem && ` ${sentence(problem)}`}
        </span>
        {!away && (
          <button type="button" class="aw-action" onClick={() => askRuns(ui, action)}>
            {{ stop: "Stop", resume: "Resume", run: state === "failed" ? "Try again" : "Run" }[action]}
          </button>
        )}
      </div>
    </>
  );
}
