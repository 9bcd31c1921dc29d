/** The picture of the head under the pointer, or of the selected one. */

import { Component } from "preact";
import { Thumbnail } from "../../components/thumbnail";
import type { Grid } from "../../contract/decode";
import { picturesOf } from "../../data/survey";
import type { Ui } from "../../state/ui";

interface Props {
  readonly ui: Ui;
  readonly layer: number;
  readonly head: number;
}

/** Show a head's picture and its name; its place is kept while the picture is fetched. */
export class HeadPreview extends Component<Props, { pictures: ReadonlyMap<string, Grid> }> {
  override state = { pictures: new Map<string, Grid>() };
  private readonly asked = new Set<string>();

  override componentDidMount() {
    void this.fetch();
  }

  override componentDidUpdate() {
    void this.fetch();
  }

  /** The head with its tensors, as a text. */
  private get of(): string {
    const { ui, layer, head } = this.props;
    return [ui.store.facts.peek().version, ui.store.batch.peek(), layer, head].join(" ");
  }

  private async fetch() {
    const { ui, layer, head } = this.props;
    const { of } = this;
    if (this.asked.has(of)) return;
    this.asked.add(of);
    const batch = ui.store.batch.peek();
    try {
      const body = { layer, batch, heads: [head, head + 1], stage: "weights" };
      const reply = await ui.kernel.request("thumbnails", body, { signal: ui.stop });
      const [picture] = await picturesOf(reply.values, layer, batch, reply.buffers);
      if (picture !== undefined) this.setState(({ pictures }) => ({ pictures: new Map(pictures).set(of, picture) }));
    } catch {
      // The name stays: a saved file has the pictures of its own heads only.
    }
  }

  override render({ ui, layer, head }: Props) {
    const paints = ui.paints.value?.sequential ?? null;
    return (
      <div class="aw-why-preview" aria-hidden="true">
        <Thumbnail grid={this.state.pictures.get(this.of) ?? null} paints={paints} />
        <span>
          {layer}·{head}
        </span>
      </div>
    );
  }
}
