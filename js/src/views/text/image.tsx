/** The pinned token's weights over the image whose patches are its keys or queries. */

import { Component, createRef } from "preact";
import { px } from "../../components/dom";
import type { ImageMessage } from "../../contract/messages";
import { type Patches, sizeOf } from "./patches";

/** The opacity of the colors over an image, which stays recognizable. */
const OVER = 0.55;
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
  readonly patch: number;
  readonly kind: "pinned" | "further" | "hovered";
}

interface Props {
  readonly patches: Patches;
  readonly message: ImageMessage | null;
  readonly bitmap: ImageBitmap | null;
  /** The color of each patch; "" for a masked one. */
  readonly colors: readonly string[];
  /** Whether the colors cover the image. */
  readonly colored: boolean;
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
    const { patches, message, room, unit } = this.props;
    return sizeOf(patches, message, room, unit);
  }

  private draw() {
    const { bitmap, colors, dpr, patches } = this.props;
    const { width, height } = this.size();
    const now = [bitmap, colors, dpr, width, height, patches];
    if (now.every((value, at) => value === this.drawn[at])) return;
    this.drawn = now;
    const [w, h] = [Math.round(width * dpr), Math.round(height * dpr)];
    for (const canvas of [this.picture.current, this.over.current]) {
      if (canvas !== null) Object.assign(canvas, { width: w, height: h });
    }
    const below = this.picture.current?.getContext("2d");
    if (below && bitmap !== null) {
      below.imageSmoothingEnabled = w < PIXELS_FROM * bitmap.width; // a small image shows its pixels
      below.imageSmoothingQuality = "high";
      below.drawImage(bitmap, 0, 0, w, h);
    }
    const context = this.over.current?.getContext("2d");
    if (!context) return;
    const { rows, columns } = patches;
    const gap = bitmap === null && Math.min(w / columns, h / rows) >= GAP_FROM * dpr ? Math.round(dpr) : 0;
    for (let row = 0; row < rows; row++) {
      const [top, bottom] = [Math.round((row * h) / rows), Math.round(((row + 1) * h) / rows)];
      for (let column = 0; column < columns; column++) {
        const color = colors[row * columns + column];
        const [left, right] = [Math.round((column * w) / columns), Math.round(((column + 1) * w) / columns)];
        if (color) {
          context.fillStyle = color;
          context.fillRect(left, top, right - left - gap, bottom - top - gap);
        } else if (bitmap === null && right - left >= SLASH_FROM * dpr) {
          slash(context, (left + right) / 2, (top + bottom) / 2, 2.5 * dpr, this.props.ink, dpr);
        }
      }
    }
  }

  override render({ patches, bitmap, colored, rings }: Props) {
    const { width, height } = this.size();
    const { rows, columns } = patches;
    const covered = colored || bitmap === null; // without weights the image is unchanged
    return (
      <div class="aw-patches" data-plain={!covered || undefined} style={{ width: px(width), height: px(height) }}>
        <canvas ref={this.picture} />
        <canvas ref={this.over} style={{ opacity: covered ? (bitmap === null ? 1 : OVER) : 0 }} />
        <svg viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
          {rings.map(({ patch, kind }) => {
            const [row, column] = [Math.floor(patch / columns), patch % columns];
            const box = {
              x: (column * width) / columns,
              y: (row * height) / rows,
              width: width / columns,
              height: height / rows,
              rx: 2.5,
            };
            return (
              <g key={`${kind} ${patch}`} class={`aw-patch-${kind}`}>
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
