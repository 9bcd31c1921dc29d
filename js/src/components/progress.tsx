/** The progress of the exact pass over a long head, and what is already exact. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import type { Picture } from "../contract/decode";
import type { Progress } from "../contract/messages";
import type { Ui } from "../state/ui";
import { count, percent } from "../text/format";

/** A pass over the selected head. */
export interface Pass {
  readonly progress: Progress;
  /** How many rows the first picture was made from; null if it was not sampled. */
  readonly rows: number | null;
  /** Whether it has ended. */
  readonly over: boolean;
}

/** Return the exact pass over the selected head, also after its end, until another selection. */
export function passOf(ui: Ui): ReadonlySignal<Pass | null> {
  const { store, stop } = ui;
  const own = computed<Pass | null>(() => {
    const progress = store.progress.value;
    if (progress === null || progress.what !== undefined) return null;
    const names = ["layer", "batch", "head", "stage", "pool"] as const;
    if (names.some((name) => progress[name] !== store[name].value)) return null;
    const picture = store.picture.value;
    return { progress, rows: picture?.sampled ? (picture.grid?.rows ?? null) : null, over: false };
  });
  const left = signal<Pass | null>(null);
  let last = "";
  const end = effect(() => {
    const { layer, batch, head, stage, pool } = store;
    const now = [layer, batch, head, stage, pool, ui.target].map(({ value }) => value);
    const place = JSON.stringify(now);
    if (own.value !== null) left.value = { ...own.value, over: true };
    else if (place !== last) left.value = null;
    last = place;
  });
  stop.addEventListener("abort", end, { once: true });
  return computed(() => own.value ?? left.value);
}

/** What is already exact. */
function about(ui: Ui, { rows }: Pass): string {
  const { queries } = ui.store.facts.value;
  const first = rows === null ? "" : `First picture: ${count(rows)} of ${count(queries)} query rows, each exact. `;
  return `Computing the exact picture. ${first}What you zoom into is exact already.`;
}

/** The progress of the exact pass, with a button to stop it. */
export function PassSlot({ ui, pass }: { ui: Ui; pass: Pass | null }) {
  return (
    <>
      <div class="aw-visually-hidden" aria-live="polite">
        {spoken(pass, ui.store.picture.value)}
      </div>
      {/* Its room is kept: nothing moves when it begins and when it ends. */}
      <div class="aw-progress" data-aw="progress" title={pass === null || pass.over ? undefined : about(ui, pass)}>
        {pass !== null && !pass.over && <Running ui={ui} {...pass} />}
      </div>
    </>
  );
}

/** A share from 0 to 1 as a bar; `text` is read aloud instead of the number. */
export function ProgressBar({ label, share, text }: { label: string; share: number; text?: string }) {
  return (
    <div
      class="aw-progress-bar"
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.floor(100 * share)}
      aria-valuetext={text}
    >
      <i style={{ width: `${100 * share}%` }} />
    </div>
  );
}

function Running({ ui, progress }: { ui: Ui } & Pass) {
  const { layer, batch, head, stage, state, share } = progress;
  const stopped = state === "stopped";
  const done = Math.floor(100 * share);
  const { workers } = progress;
  const by = workers == null ? "" : `${workers} worker${workers === 1 ? "" : "s"}`;
  const left = stopped ? "" : [by, timeLeft(progress.seconds_left)].filter(Boolean).join(" · ");
  const action = stopped ? "resume" : "stop";
  const ask = () => void ui.kernel.request("pass", { layer, batch, head, stage, action }).catch(() => {});
  return (
    <>
      <ProgressBar
        label="Exact picture"
        share={share}
        text={[`${done} %`, stopped ? "stopped" : left].filter(Boolean).join(", ")}
      />
      <div class="aw-progress-line">
        <span>
          {stopped ? (
            <>
              Stopped: <b>{percent(done / 100)}</b> of the picture is exact
            </>
          ) : (
            <>
              <b>{percent(done / 100)}</b> exact{left && `, ${left}`}
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

/** Return `about 4 s left`. */
export function timeLeft(seconds: number | null): string {
  if (seconds === null) return "";
  if (seconds < 1) return "less than 1 s left";
  if (seconds < 90) return `about ${Math.round(seconds)} s left`;
  return seconds < 5400 ? `about ${Math.round(seconds / 60)} min left` : `about ${Math.round(seconds / 3600)} h left`;
}

/** Announced only when it begins, stops and ends. */
function spoken(pass: Pass | null, picture: Picture | null): string {
  if (pass === null) return "";
  if (pass.over) return picture?.sampled === null ? "The picture is exact" : "";
  return pass.progress.state === "stopped"
    ? `Stopped at ${Math.floor(100 * pass.progress.share)} %`
    : "Computing the exact picture. Zoomed parts are exact already.";
}
