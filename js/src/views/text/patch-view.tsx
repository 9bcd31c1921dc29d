/** The image of a passage with its weights: a frame at a time for a video, and what is drawn over it. */

import type { Signal } from "@preact/signals-core";
import { RadioWords } from "../../components/radio-words";
import { NAN, NUMBER } from "../../contract/decode";
import type { Overlay } from "../../contract/values";
import { cellAt, frameOf, type Patches } from "../../geometry/patches";
import type { Ui } from "../../state/ui";
import { PatchPicture, type Ring, type Smooth } from "./image";
import { hoveredIn, tokenLooksOf, weightsOn } from "./looks";
import type { Passage, TextModel } from "./model";

/** The width of a frame in the strip of all frames. */
const THUMBNAIL = 64;
/** More frames have no strip, only the slider. */
const MOST_THUMBNAILS = 64;
const OVERLAYS: Readonly<Record<Overlay, string>> = { patches: "patches", smooth: "smooth" };

interface Props {
  readonly ui: Ui;
  readonly model: TextModel;
  /** The opacity before the image was shown alone. */
  readonly before: Signal<number>;
  readonly passage: Passage;
}

/** Draw the image of a passage, with its controls. */
export function PatchView({ ui, model, before, passage }: Props) {
  const patches = passage.patches;
  if (patches === null) return null;
  const { rows, columns, frames } = patches;
  const { store } = ui;
  const known = weightsOn(model, passage);
  const bitmap = model.image.value;
  const opacity = store.opacity.value ?? 0.55;
  const frame = Math.min(model.frame.value, frames - 1);
  const painted = paintedOf(ui, model, passage, patches);
  const rings = ringsOf(ui, model, passage, patches);
  const shared = {
    ...{ rows, columns, bitmap, frames },
    message: store.image.value ?? null,
    opacity: known === null ? 0 : opacity,
    ink: ui.paints.value?.sequential.ink ?? "",
    unit: ui.unit.value,
    dpr: ui.dpr.value,
  };
  const show = (change: { overlay?: Overlay; opacity?: number }) => store.show(change);
  return (
    <>
      <PatchPicture
        {...shared}
        {...painted(frame)}
        frame={frame}
        rings={rings.filter(({ at }) => at === frame)}
        room={model.room.value}
      />
      {frames > 1 && (
        <div class="aw-frames">
          <label>
            frame <b>{frame}</b> of {frames}
            <input
              type="range"
              min={0}
              max={frames - 1}
              value={frame}
              aria-label="Frame"
              onInput={(event) => {
                model.frame.value = Number(event.currentTarget.value);
              }}
            />
          </label>
          {frames <= MOST_THUMBNAILS && (
            <div class="aw-strip">
              {Array.from({ length: frames }, (_, at) => (
                <button
                  type="button"
                  key={at}
                  aria-label={`Frame ${at}`}
                  aria-pressed={at === frame}
                  onClick={() => {
                    model.frame.value = at;
                  }}
                >
                  <PatchPicture {...shared} {...painted(at)} frame={at} rings={[]} room={THUMBNAIL * ui.unit.value} />
                </button>
              ))}
            </div>
          )}
        </div>
      )}
      {known !== null && (
        <div class="aw-overlay">
          <RadioWords
            name="How weights are drawn over the image"
            words={OVERLAYS}
            chosen={store.overlay.value ?? "patches"}
            choose={(overlay) => show({ overlay })}
          />
          {bitmap !== null && (
            <>
              <label>
                opacity
                <input
                  type="range"
                  min={0}
                  max={1}
                  step={0.05}
                  value={opacity}
                  aria-label="Opacity of the weights"
                  onInput={(event) => show({ opacity: Number(event.currentTarget.value) })}
                />
              </label>
              <button
                type="button"
                class="aw-toggle"
                aria-pressed={opacity === 0}
                onClick={() => {
                  if (opacity > 0) before.value = opacity;
                  show({ opacity: opacity > 0 ? 0 : before.value });
                }}
              >
                {opacity > 0 ? "show the image alone" : "show weights over the image"}
              </button>
            </>
          )}
        </div>
      )}
    </>
  );
}

interface Painted {
  readonly colors: readonly (string | null)[];
  readonly smooth: Smooth | null;
}

/** Return a function that gives the colors of a frame's patches; all frames share one pass over the weights. */
function paintedOf({ store, paints: { value: both } }: Ui, model: TextModel, passage: Passage, patches: Patches) {
  const known = weightsOn(model, passage);
  const mapper = model.mapper.value;
  const paints = mapper === null || both === null ? null : mapper.signed ? both.diverging : both.sequential;
  const of = [known, mapper, paints, model.image.value === null, store.overlay.value, patches] as const;
  const last = lastPainted.get(model);
  if (last?.of.every((value, at) => value === of[at])) return last.painted;
  const each = patches.rows * patches.columns;
  const plate = model.image.value === null ? (both?.sequential.css[0] ?? "") : "";
  const colors: (string | null)[] = Array(patches.frames * each).fill(patches.cells === null ? plate : null);
  const values = new Float32Array(patches.frames * each).fill(Number.NaN);
  for (let patch = 0; patch < patches.many; patch++) {
    const cell = cellAt(patches, patches.start + patch);
    if (cell === null) continue;
    colors[cell] = plate;
    if (known === null || mapper === null || paints === null) continue;
    const at = patches.start + patch - known.start;
    const [kind, value] = [known.kinds[at], known.values[at] as number];
    colors[cell] = kind === NUMBER ? (paints.css[mapper.index(value, 0)] ?? "") : kind === NAN ? paints.bad : "";
    if (kind === NUMBER) values[cell] = value;
  }
  const isSmooth = store.overlay.value === "smooth" && known !== null && mapper !== null && paints !== null;
  const frames = Array.from({ length: patches.frames }, (_, frame): Painted => {
    const span = [frame * each, (frame + 1) * each] as const;
    const packed = (value: number) => paints!.packed[mapper!.index(value, 0)] as number;
    return { colors: colors.slice(...span), smooth: isSmooth ? { values: values.subarray(...span), packed } : null };
  });
  const painted = (frame: number) => frames[frame] as Painted;
  lastPainted.set(model, { of, painted });
  return painted;
}

const lastPainted = new WeakMap<TextModel, { of: readonly unknown[]; painted: (frame: number) => Painted }>();

/** Return the rings around the pinned and pointed patches, with their frames. */
function ringsOf(ui: Ui, model: TextModel, passage: Passage, patches: Patches): (Ring & { at: number })[] {
  const looks = tokenLooksOf(ui, model, passage);
  const hovered = hoveredIn(ui, passage);
  const ring = (positions: Iterable<number>, kind: Ring["kind"]) =>
    [...positions].flatMap((position) => {
      const cell = cellAt(patches, position);
      if (cell === null) return [];
      const at = frameOf(patches, cell);
      return [{ cell: cell - at * patches.rows * patches.columns, kind, at }];
    });
  return [
    ...ring(hovered === null ? [] : [hovered], "hovered"),
    ...ring(looks.further, "further"),
    ...ring(looks.pinned, "pinned"),
  ];
}
