/** One image, or one frame of a video, under the weights of its patches. */

import { Component, createRef } from "preact";
import { px } from "../../components/dom";
import type { ImageMessage } from "../../contract/messages";
import { cellUnder } from "../../geometry/patches";
import { sizeOf } from "./picture-size";

const GAP_FROM = 12; // pixels of a patch
const SLASH_FROM = 10;
const PIXELS_FROM = 4; // device pixels per pixel of the image

/** A masked patch is a missing tile with a mark. */
function slash(context: CanvasRenderingContext2D, x: number, y: number, half: number, ink: string, dpr: number): void {
  context.globalAlpha = 0.2;
  context.strokeStyle = ink;
  context.lineWidth = 0.75 * dpr;
  context.beginPath();
  context.moveTo(x - half, y + half);
  context.lineTo(x + half, y - half);
  context.stroke();
  context.globalAlpha = 1;
}

/** A ring around a patch. */
export interface Ring {
  /** In its frame, row by row. */
  readonly cell: number;
  readonly kind: "pinned" | "further" | "hovered";
}

/** The weights of the patches of one frame: NaN for none, as for masked patches and those of another window. */
export interface Smooth {
  readonly values: Float32Array;
  packed(value: number): number;
}

interface Props {
  readonly rows: number;
  readonly columns: number;
  readonly frame: number;
  /** Of the video; 1 for an image. */
  readonly frames: number;
  readonly message: ImageMessage | null;
  readonly bitmap: ImageBitmap | null;
  /** The color of each cell; "" for a masked patch, null where the sample has none. */
  readonly colors: readonly (string | null)[];
  /** Set to draw the weights interpolated between the centers of patches. */
  readonly smooth: Smooth | null;
  /** Of the colors over the image; 0 shows the image alone. */
  readonly opacity: number;
  readonly ink: string;
  readonly rings: readonly Ring[];
  readonly room: number;
  readonly unit: number;
  readonly dpr: number;
}

/** Draw the image with tinted patches, and rings around pinned ones. */
export class PatchPicture extends Component<Props> {
  private picture = createRef<HTMLCanvasElement>();
  private over = createRef<HTMLCanvasElement>();
  private drawn: readonly unknown[] = [];

  override componentDidMount() {
    this.draw();
  }

  override componentDidUpdate() {
    this.draw();
  }

  private size() {
    const { rows, columns, message, room, unit } = this.props;
    return sizeOf({ rows, columns }, message, room, unit);
  }

  private draw() {
    const { bitmap, colors, dpr, rows, columns, frame, frames, smooth, message } = this.props;
    const { width, height } = this.size();
    const now = [bitmap, colors, dpr, width, height, rows, columns, frame, smooth];
    if (now.every((value, at) => value === this.drawn[at])) return;
    this.drawn = now;
    const [w, h] = [Math.round(width * dpr), Math.round(height * dpr)];
    for (const canvas of [this.picture.current, this.over.current]) {
      if (canvas !== null) Object.assign(canvas, { width: w, height: h });
    }
    const below = this.picture.current?.getContext("2d");
    if (below && bitmap !== null) drawFrame(below, bitmap, [frame, frames], message?.across ?? 1, w, h);
    const context = this.over.current?.getContext("2d");
    if (!context) return;
    if (smooth !== null) drawSmooth(context, smooth, rows, columns, w, h);
    else this.drawPatches(context, w, h);
  }

  private drawPatches(context: CanvasRenderingContext2D, w: number, h: number) {
    const { rows, columns, colors, bitmap, dpr, ink } = this.props;
    const gap = bitmap === null && Math.min(w / columns, h / rows) >= GAP_FROM * dpr ? Math.round(dpr) : 0;
    for (let row = 0; row < rows; row++) {
      const [top, bottom] = [Math.round((row * h) / rows), Math.round(((row + 1) * h) / rows)];
      for (let column = 0; column < columns; column++) {
        const color = colors[row * columns + column];
        const [left, right] = [Math.round((column * w) / columns), Math.round(((column + 1) * w) / columns)];
        if (color) {
          context.fillStyle = color;
          context.fillRect(left, top, right - left - gap, bottom - top - gap);
        } else if (color === "" && bitmap === null && right - left >= SLASH_FROM * dpr) {
          slash(context, (left + right) / 2, (top + bottom) / 2, 2.5 * dpr, ink, dpr);
        }
      }
    }
  }

  override render({ rows, columns, bitmap, opacity, rings, frame }: Props) {
    const { width, height } = this.size();
    const shown = bitmap === null ? 1 : opacity;
    return (
      <div
        class="aw-patches"
        data-plain={shown === 0 || undefined}
        data-frame={frame}
        style={{ width: px(width), height: px(height) }}
      >
        <canvas ref={this.picture} />
        <canvas ref={this.over} style={{ opacity: shown }} />
        <svg viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
          {rings.map(({ cell, kind }) => {
            const [row, column] = [Math.floor(cell / columns), cell % columns];
            const box = {
              x: (column * width) / columns,
              y: (row * height) / rows,
              width: width / columns,
              height: height / rows,
              rx: 2.5,
            };
            return (
              <g key={`${kind} ${cell}`} class={`aw-patch-${kind}`}>
                <rect {...box} />
                <rect {...box} />
              </g>
            );
          })}
        </svg>
      </div>
    );
  }
}

/** Draw one frame of a picture that may hold several. */
function drawFrame(
  context: CanvasRenderingContext2D,
  bitmap: ImageBitmap,
  [frame, frames]: readonly [number, number],
  across: number,
  w: number,
  h: number,
): void {
  const down = across === 1 ? 1 : Math.ceil(frames / across);
  const [width, height] = [bitmap.width / across, bitmap.height / down];
  const [x, y] = [(frame % across) * width, across === 1 ? 0 : Math.floor(frame / across) * height];
  context.imageSmoothingEnabled = w < PIXELS_FROM * width; // a small image shows its pixels
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, x, y, width, height, 0, 0, w, h);
}

/** Draw the weights, interpolated bilinearly between the centers of patches; patches without a weight stay clear. */
function drawSmooth(
  context: CanvasRenderingContext2D,
  { values, packed }: Smooth,
  rows: number,
  columns: number,
  w: number,
  h: number,
): void {
  const image = context.createImageData(w, h);
  const pixels = new Uint32Array(image.data.buffer);
  const across = Array.from({ length: w }, (_, x) => between(x, w, columns));
  for (let y = 0; y < h; y++) {
    const [top, bottom, down] = between(y, h, rows);
    for (let x = 0; x < w; x++) {
      const cell = cellUnder({ rows, columns }, (x + 0.5) / w, (y + 0.5) / h);
      if (cell === null || Number.isNaN(values[cell])) continue;
      const [left, right, over] = across[x]!;
      let [sum, total] = [0, 0];
      for (const [row, share] of [
        [top, 1 - down],
        [bottom, down],
      ] as const) {
        for (const [column, part] of [
          [left, 1 - over],
          [right, over],
        ] as const) {
          const value = values[row * columns + column]!;
          if (Number.isNaN(value)) continue;
          sum += value * share * part;
          total += share * part;
        }
      }
      pixels[y * w + x] = packed(total > 0 ? sum / total : values[cell]!);
    }
  }
  context.putImageData(image, 0, 0);
}

/** Return the two patches whose centers a pixel lies between, and how far it is on the way to the second. */
function between(at: number, pixels: number, patches: number): readonly [number, number, number] {
  const place = Math.min(patches - 1, Math.max(0, ((at + 0.5) * patches) / pixels - 0.5));
  const first = Math.floor(place);
  return [first, Math.min(patches - 1, first + 1), place - first];
}
