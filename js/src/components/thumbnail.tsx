/** A small picture of a head, on its own range. */

import { Component, createRef } from "preact";
import type { Grid } from "../contract/decode";
import { drawRaster } from "../draw/cells";
import type { ColorMapper, Paints } from "../draw/color-mapper";

/** A thumbnail is from 0 to 1 on its own range, of which it has a `share` of another one's colors. */
const rangeOf = (share: number): ColorMapper => ({
  signed: false,
  log: false,
  domain: { low: 0, high: 1 },
  index: (value) => Math.round(255 * value * share),
  position: (value) => value * share,
  clips: () => false,
  share: (value) => value * share,
});

interface ThumbnailProps {
  readonly grid: Grid | null;
  readonly paints: Paints | null;
  readonly share?: number;
}

/** Draw a small picture of a head; nothing while there is none. */
export class Thumbnail extends Component<ThumbnailProps> {
  private canvas = createRef<HTMLCanvasElement>();

  override shouldComponentUpdate(next: ThumbnailProps) {
    const { grid, paints, share = 1 } = this.props;
    return next.grid !== grid || next.paints !== paints || next.share !== share;
  }

  override componentDidMount() {
    this.draw();
  }

  override componentDidUpdate() {
    this.draw();
  }

  private draw() {
    const { grid, paints, share = 1 } = this.props;
    if (this.canvas.current && grid && paints) drawRaster(this.canvas.current, grid, rangeOf(share), paints);
  }

  override render() {
    return <canvas ref={this.canvas} width={1} height={1} />;
  }
}
