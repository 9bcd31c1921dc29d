/** Small pictures: a matrix as one canvas, with its ramp below. */

import { Component, createRef } from "preact";
import { isSigned } from "../contract/stages";
import { asPicture, type SmallPicture, type Stages } from "../data/stage-data";
import { drawRaster } from "../draw/cells";
import { type ColorMapper, makeColorMapper, type Paints } from "../draw/color-mapper";
import { legendTicks } from "../text/format";
import { px } from "./dom";

const LEAST = 14; // of the shorter side, in pixels
const LEAST_RAMP = 64;

export interface SmallProps {
  readonly small: SmallPicture;
  readonly of: Stages["of"];
  readonly paints: { sequential: Paints; diverging: Paints };
}

/** Return the size of a small picture: as large as fits, with square cells unless that gives a hairline. */
export function sizeOf({ grid }: SmallPicture, side: number): { width: number; height: number } {
  const most = Math.max(grid.rows, grid.columns);
  return {
    width: Math.max(LEAST, Math.round((side * grid.columns) / most)),
    height: Math.max(LEAST, Math.round((side * grid.rows) / most)),
  };
}

function mapperOf(small: SmallPicture, of: Stages["of"]): ColorMapper {
  return makeColorMapper(asPicture(small, of), small.grid, isSigned(small.stage), "linear", "head");
}

interface RasterProps extends SmallProps {
  /** For a picture that takes the focus and keys. */
  readonly label?: string;
}

/** Draw a small picture, one pixel per cell. */
export class Raster extends Component<RasterProps> {
  private canvas = createRef<HTMLCanvasElement>();

  override shouldComponentUpdate(next: RasterProps) {
    return next.small !== this.props.small || next.paints !== this.props.paints;
  }

  override componentDidMount() {
    const canvas = this.canvas.current;
    if (canvas !== null && this.props.label !== undefined) {
      canvas.tabIndex = 0;
      canvas.setAttribute("role", "application");
      canvas.setAttribute("aria-roledescription", "heatmap");
      canvas.setAttribute("aria-label", this.props.label);
    }
    this.draw();
  }

  override componentDidUpdate() {
    this.draw();
  }

  private draw() {
    const { small, of, paints } = this.props;
    const mapper = mapperOf(small, of);
    if (this.canvas.current !== null) {
      drawRaster(this.canvas.current, small.grid, mapper, mapper.signed ? paints.diverging : paints.sequential);
    }
  }

  override render() {
    return <canvas ref={this.canvas} />;
  }
}

interface RampProps extends SmallProps {
  readonly width: number;
}

/** Draw a ramp four pixels tall, with its ends. */
export class SmallRamp extends Component<RampProps> {
  private canvas = createRef<HTMLCanvasElement>();

  override shouldComponentUpdate(next: RampProps) {
    const { small, paints, width } = this.props;
    return next.small !== small || next.paints !== paints || next.width !== width;
  }

  override componentDidMount() {
    this.draw();
  }

  override componentDidUpdate(before: RampProps) {
    if (before.paints !== this.props.paints) this.draw();
  }

  private draw() {
    const { small, paints } = this.props;
    const context = this.canvas.current?.getContext("2d");
    if (!context) return;
    const image = context.createImageData(256, 1);
    const packed = (isSigned(small.stage) ? paints.diverging : paints.sequential).packed;
    new Uint32Array(image.data.buffer).set(packed);
    context.putImageData(image, 0, 0);
  }

  override render({ small, of, width }: RampProps) {
    const domain = mapperOf(small, of).domain;
    const ends = domain === null ? [] : legendTicks(domain.low, domain.high, "linear", small.stage);
    const [first, last] = [ends[0], ends.at(-1)];
    return (
      <div class="aw-small-ramp" style={{ width: px(Math.max(LEAST_RAMP, width)) }}>
        <canvas ref={this.canvas} width={256} height={1} />
        <span>{first?.text}</span>
        <span>{last !== first ? last?.text : ""}</span>
      </div>
    );
  }
}
