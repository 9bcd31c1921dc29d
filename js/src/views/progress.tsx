/** How far the exact pass over a long head has come, and what is exact already. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { count, percent } from "../format";
import type { Progress } from "../model";
import type { Ui } from "../ui";
import type { Picture } from "../wire";

/** `null` where there is nothing to show; "over" where it has ended and only its room is kept. */
export type Pass = ReadonlySignal<Progress | "over" | null>;

/** The pass over the selected head. What it leaves behind stays free until something else moves anyway. */
export function passOf(ui: Ui): Pass {
  const { store, stop } = ui;
  const own = computed(() => {
    const progress = store.progress.value;
    if (progress === null) return null;
    const names = ["layer", "batch", "head", "stage", "pool"] as const;
    return names.every((name) => progress[name] === store[name].value) ? progress : null;
  });
  const room = signal(false);
  let last = "";
  const end = effect(() => {
    const { layer, batch, head, stage, pool } = store;
    const now = [layer, batch, head, stage, pool, ui.target].map(({ value }) => value);
    const place = JSON.stringify(now);
    if (own.value !== null) room.value = true;
    else if (place !== last) room.value = false;
    last = place;
  });
  stop.addEventListener("abort", end, { once: true });
  return computed(() => own.value ?? (room.value ? "over" : null));
}

export function PassSlot({ ui, pass }: { ui: Ui; pass: Progress | "over" | null }) {
  const picture = ui.store.picture.value;
  return (
    <>
      <div class="aw-visually-hidden" aria-live="polite">
        {spoken(pass, picture)}
      </div>
      {pass !== null && (
        <div class="aw-progress" data-aw="progress">
          {pass !== "over" && <Running ui={ui} progress={pass} picture={picture} />}
        </div>
      )}
    </>
  );
}

function Running({ ui, progress, picture }: { ui: Ui; progress: Progress; picture: Picture | null }) {
  const { layer, batch, head, stage, state, share } = progress;
  const stopped = state === "stopped";
  const done = Math.floor(100 * share);
  const left = stopped ? "" : timeLeft(progress.seconds_left);
  const action = stopped ? "resume" : "stop";
  const ask = () => void ui.kernel.request("pass", { layer, batch, head, stage, action }).catch(() => {});
  return (
    <>
      <div class="aw-heading">{stopped ? "The exact picture" : "Computing the exact picture"}</div>
      <p>
        {firstPicture(picture)}
        {firstPicture(picture) && <br />}
        What you zoom into is exact already.
      </p>
      <div
        class="aw-progress-bar"
        role="progressbar"
        aria-label="Exact picture"
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={done}
        aria-valuetext={[`${done} %`, stopped ? "stopped" : left].filter(Boolean).join(", ")}
      >
        <i style={{ width: `${100 * share}%` }} />
      </div>
      <div class="aw-progress-line">
        <span>
          {stopped ? (
            <>
              Stopped at <b>{percent(done / 100)}</b>
            </>
          ) : (
            <>
              <b>{percent(done / 100)}</b> {left}
            </>
          )}
        </span>
        <button type="button" class="aw-action" onClick={ask}>
          {stopped ? "Resume" : "Stop"}
        </button>
      </div>
    </>
  );
}

/** Of how many rows the picture was made that came first. */
function firstPicture(picture: Picture | null): string {
  if (picture?.sampled == null) return "";
  const { first, every } = picture.sampled;
  const rows = Math.ceil((picture.queries - first) / every);
  return `First picture: ${count(rows)} of ${count(picture.queries)} query rows, each exact.`;
}

/** `about 4 s left` */
export function timeLeft(seconds: number | null): string {
  if (seconds === null) return "";
  if (seconds < 1) return "less than 1 s left";
  if (seconds < 90) return `about ${Math.round(seconds)} s left`;
  return seconds < 5400 ? `about ${Math.round(seconds / 60)} min left` : `about ${Math.round(seconds / 3600)} h left`;
}

/** Said when it begins, stops and ends, and not in between. */
function spoken(pass: Progress | "over" | null, picture: Picture | null): string {
  if (pass === null) return "";
  if (pass === "over") return picture?.sampled === null ? "The picture is exact" : "";
  return pass.state === "stopped"
    ? `Stopped at ${Math.floor(100 * pass.share)} %`
    : "Computing the exact picture. What you zoom into is exact already.";
}
