/** The thumbnail of a head, with its own color range. */

import { Component, createRef } from "preact";
import type { Grid } from "../contract/decode";
import { drawRaster } from "../draw/cells";
import { ownRange, type Paints } from "../draw/color-mapper";

interface ThumbnailProps {
  readonly grid: Grid | null;
  readonly paints: Paints | null;
  readonly share?: number;
  readonly signed?: boolean;
}

/** Draw a thumbnail of a head; nothing while there is none. */
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
    const { grid, paints, share = 1, signed = false } = this.props;
    if (this.canvas.current && grid && paints) drawRaster(this.canvas.current, grid, ownRange(signed, share), paints);
  }

  override render() {
    return <canvas ref={this.canvas} width={1} height={1} />;
  }
}
