/** Boxes on the image, such as the objects that a detector has found: each is a query or a key. */

import { px } from "../../components/dom";
import { NUMBER } from "../../contract/decode";
import type { Ui } from "../../state/ui";
import { PatchPicture } from "./image";
import { hoveredIn, tokenLooksOf, weightsOn } from "./looks";
import type { Passage, TextModel } from "./model";
import { sizeOf } from "./picture-size";

const FILLED = 0.6; // the opacity of a box
const NAMED_FROM = 24; // pixels of a box

/** Draw the image with its boxes: filled by weight, with a ring around the pinned ones. */
export function BoxesView({ ui, model, passage }: { ui: Ui; model: TextModel; passage: Passage }) {
  const { boxes, labels } = passage;
  const message = ui.store.image.value ?? null;
  if (boxes === null || message === null) return null;
  const room = model.room.value;
  const { width, height } = sizeOf({ rows: message.height, columns: message.width }, message, room, ui.unit.value);
  const known = weightsOn(model, passage);
  const mapper = model.mapper.value;
  const both = ui.paints.value;
  const paints = mapper === null || both === null ? null : mapper.signed ? both.diverging : both.sequential;
  const { pinned, further } = tokenLooksOf(ui, model, passage);
  const hovered = hoveredIn(ui, passage);
  const fillOf = (position: number) => {
    const at = position - (known?.start ?? 0);
    if (known === null || mapper === null || paints === null || known.kinds[at] !== NUMBER) return null;
    const value = known.values[at] as number;
    return paints.css[mapper.index(value, 0)] as string;
  };
  // Small boxes lie above those around them, so that each can be clicked.
  const area = ([left, top, right, bottom]: readonly number[]) => (right! - left!) * (bottom! - top!);
  const order = boxes.map((_, at) => at).sort((a, b) => area(boxes[b]!) - area(boxes[a]!));
  return (
    <div class="aw-boxes" style={{ width: px(width), height: px(height) }}>
      <PatchPicture
        {...{ rows: 1, columns: 1, frame: 0, frames: 1, message, bitmap: model.image.value, room }}
        colors={[null]}
        smooth={null}
        opacity={known === null ? 0 : 1} // with weights the image is gray
        ink=""
        rings={[]}
        unit={ui.unit.value}
        dpr={ui.dpr.value}
      />
      {order.map((at) => {
        const [left, top, right, bottom] = boxes[at] as [number, number, number, number];
        const fill = fillOf(at);
        const [wide, tall] = [(right - left) * width, (bottom - top) * height];
        return (
          <span
            key={at}
            class="aw-box"
            data-at={at}
            data-pinned={pinned.has(at) || undefined}
            data-further={further.has(at) || undefined}
            data-hovered={hovered === at || undefined}
            title={labels.at(at).text}
            style={{ left: px(left * width), top: px(top * height), width: px(wide), height: px(tall) }}
          >
            {fill !== null && <i style={{ background: fill, opacity: FILLED }} />}
            {Math.min(wide, tall) >= NAMED_FROM && <b>{labels.at(at).text}</b>}
          </span>
        );
      })}
    </div>
  );
}
