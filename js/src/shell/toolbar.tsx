/** The views as words on the left, how they are shown as menus on the right. */

import { effect } from "@preact/signals-core";
import { Component, createRef, Fragment, render } from "preact";
import { part, rove, type View } from "../components/dom";
import { FindingsBadge } from "../components/findings";
import { SHORTCUTS } from "../components/keyboard";
import { Menu, type Section } from "../components/menu";
import { showsCells } from "../components/phrases";
import { WhatIfMenu } from "../components/what-if";
import { isSigned } from "../contract/stages";
import type { ColorRange, Side, ViewName } from "../contract/values";
import type { Ui } from "../state/ui";
import { listNumber } from "../text/format";
import { barSection, canCombine, combineName, combineSection, HeadsMenus, orderSection } from "../views/heads/menus";
import { HeadStepper, LayerStepper } from "./head-picker";

const COMPARE = { value: "compare", name: "Compare" } as const;
const VIEWS = [
  { value: "heatmap", name: "Heatmap" },
  { value: "graph", name: "Graph" },
  { value: "text", name: "Text" },
  { value: "heads", name: "Heads" },
  { value: "stages", name: "Stages" },
] as const;
const IMAGE = { value: "image", name: "Image" } as const;

/** How much goes into `⋯`, one after the other: what a roomy page has, what is read and kept, the views as words. */
const MOST_FOLDED = 3;

export function toolbar(ui: Ui): View {
  const node = part("aw-toolbar", "toolbar");
  let folded = 0;
  let before = "";
  const end = effect(() => {
    // Fonts differ in width: what does not fit is folded, until the page or the view is another.
    const now = [ui.width.value, ui.unit.value, ui.mode.value, ui.store.view.value].join();
    if (now !== before) folded = 0;
    before = now;
    render(<Toolbar ui={ui} folded={folded} />, node);
    while (folded < MOST_FOLDED && node.offsetWidth > ui.width.value) {
      render(<Toolbar ui={ui} folded={++folded} />, node);
    }
  });
  return {
    node,
    dispose() {
      end();
      render(null, node);
    },
  };
}

function Toolbar({ ui, folded }: { ui: Ui; folded: number }) {
  const { store } = ui;
  const mode = ui.mode.value;
  const picture = store.picture.value;
  const pooled = picture !== null && picture.queryBin * picture.keyBin > 1;
  const sides = store.sides.value ?? [];
  const views = [
    ...(sides.length > 0 ? [COMPARE] : []),
    ...VIEWS.slice(0, 3),
    ...(store.grid.value ? [IMAGE] : []),
    ...VIEWS.slice(3),
  ];
  const crowded = mode === "narrow" || (mode === "under" && views.length > 5) || folded > 1;
  const roomy = (mode === "beside" || mode === "wide") && folded === 0;
  const menus = mode !== "narrow" && folded < 2;
  const isGraph = store.view.value === "graph";
  const isStages = store.view.value === "stages";
  const isRead = store.view.value === "text" || store.view.value === "image";
  const isCompare = store.view.value === "compare";
  const isHeads = store.view.value === "heads";
  const togetherMenu = canCombine(ui);
  const changed = Object.keys(store.what_if.value).length > 0;
  const show = showSection(ui);
  const colour = colourSections(ui);
  const pool = poolSection(ui);
  const range = store.color_range.value;
  return (
    <>
      {mode === "narrow" || folded > 2 ? (
        <Menu
          name="View"
          value={views.find((view) => view.value === store.view.value)?.name ?? ""}
          side="left"
          sections={[
            { value: store.view.value, choices: views, choose: (view) => store.show({ view: view as ViewName }) },
          ]}
        />
      ) : (
        <div class="aw-tabs" role="tablist" aria-label="View">
          {views.map((view, index) => (
            <button
              type="button"
              role="tab"
              key={view.value}
              aria-selected={store.view.value === view.value}
              tabIndex={store.view.value === view.value ? 0 : -1}
              onKeyDown={(event) =>
                rove(event, index, views.length, (at) => store.show({ view: views[at]?.value ?? "heatmap" }))
              }
              onClick={() => store.show({ view: view.value })}
            >
              {view.name}
            </button>
          ))}
        </div>
      )}
      <div class="aw-controls">
        {!isHeads && <FindingsBadge ui={ui} />}
        {mode === "narrow" && !isHeads && (
          <>
            <LayerStepper ui={ui} />
            <HeadStepper ui={ui} />
          </>
        )}
        {isCompare && sides.length > 2 && (
          <Menu name="Against" label="Against" value={store.against.value ?? ""} sections={[againstSection(ui)]} />
        )}
        {isHeads && menus && <HeadsMenus ui={ui} />}
        {togetherMenu && roomy && (
          <Menu name="Heads" label="Heads" value={combineName(ui)} sections={[combineSection(ui)]} />
        )}
        {isGraph && menus && <GraphMenus ui={ui} />}
        {(isStages || changed) && !isHeads && store.facts.value.stages.length > 2 && !store.facts.value.saved && (
          <WhatIfMenu ui={ui} />
        )}
        {(isRead ? roomy : menus) && !isGraph && !isStages && !isHeads && (
          <Menu name="Show" label="Show" value={store.stage.value} sections={[show]} />
        )}
        {isRead && !crowded && <ReadMenu ui={ui} />}
        {roomy && !isGraph && !isStages && !isHeads && !isRead && (
          <Menu name="Colour" label="Colour" value={store.color_scale.value} sections={colour}>
            <OwnRange range={range} ui={ui} />
          </Menu>
        )}
        {roomy && pooled && !isGraph && !isStages && !isHeads && !isRead && (
          <Menu
            name="Pool"
            label="Pool"
            value={showsCells(ui) ? "none needed" : poolName(store.pool.value)}
            sections={[pool]}
          />
        )}
        <Menu
          name="More"
          sections={[
            ...(isGraph && !menus ? [keepSection(ui, "Keep"), readSection(ui, "Read")] : []),
            ...(isHeads && !menus ? [barSection(ui, "Bar"), orderSection(ui, "Order")] : []),
            ...(togetherMenu && !roomy ? [combineSection(ui, "Heads")] : []),
            ...(isGraph || isStages || isHeads || (isRead ? roomy : menus) ? [] : [{ ...show, title: "Show" }]),
            ...(isRead && crowded ? [readSection(ui, "Read")] : []),
            ...(isGraph || isStages || isHeads || (roomy && !isRead) ? [] : colour),
            ...(isGraph || isStages || isHeads || isRead || roomy || !pooled ? [] : [{ ...pool, title: "Pool" }]),
            ...(store.facts.value.has_pieces ? [piecesSection(ui)] : []),
            ...lookSections(ui),
          ]}
        >
          <Shortcuts />
        </Menu>
      </div>
    </>
  );
}

/** What of the links is drawn, and whose. */
function GraphMenus({ ui }: { ui: Ui }) {
  return (
    <>
      <ReadMenu ui={ui} />
      <Menu name="Keep" label="Keep" value={keepName(ui)} sections={[keepSection(ui)]} />
    </>
  );
}

function ReadMenu({ ui }: { ui: Ui }) {
  return (
    <Menu
      name="Read"
      label="Read"
      value={ui.store.direction.value === "query" ? "what it attends to" : "who attends to it"}
      sections={[readSection(ui)]}
    />
  );
}

function piecesSection({ store }: Ui): Section {
  return {
    title: "Tokens",
    value: store.pieces.value ?? "pieces",
    choices: [
      { value: "pieces", name: "pieces", note: "as the tokenizer cuts them" },
      { value: "words", name: "words", note: "to one summed, from one averaged" },
    ],
    choose: (pieces) => store.show({ pieces: pieces as "pieces" | "words" }),
  };
}

function againstSection({ store }: Ui): Section {
  return {
    value: store.against.value ?? "",
    choices: (store.sides.value ?? []).slice(1).map((name) => ({ value: name, name })),
    choose: (against) => store.show({ against }),
  };
}

const THRESHOLDS = [0, 0.01, 0.02, 0.05, 0.1];
const TOPS = [1, 3, 5, 10];

const thresholdName = (threshold: number) =>
  threshold === 0 ? "all" : `≥ ${listNumber(threshold, "weights").replace(/0+$/, "")}`;

function keepName({ store }: Ui): string {
  return store.top_k.value === null ? thresholdName(store.threshold.value) : `top ${store.top_k.value}`;
}

function keepSection({ store }: Ui, title?: string): Section {
  const top = store.top_k.value;
  return {
    ...(title ? { title } : {}),
    value: top === null ? `${store.threshold.value}` : `top ${top}`,
    choices: [
      ...TOPS.map((k) => ({ value: `top ${k}`, name: `top ${k}` })),
      ...THRESHOLDS.map((threshold) => ({ value: `${threshold}`, name: thresholdName(threshold) })),
    ],
    choose: (value) =>
      value.startsWith("top ")
        ? store.show({ top_k: Number(value.slice(4)), threshold: 0 })
        : store.show({ top_k: null, threshold: Number(value) }),
  };
}

function readSection({ store }: Ui, title?: string): Section {
  return {
    ...(title ? { title } : {}),
    value: store.direction.value,
    choices: [
      { value: "query", name: "what it attends to" },
      { value: "key", name: "who attends to it" },
    ],
    choose: (direction) => store.show({ direction: direction as Side }),
  };
}

const poolName = (pool: string) => (pool === "max" ? "maximum" : "mean");

function showSection({ store }: Ui): Section {
  return {
    value: store.stage.value,
    choices: store.facts.value.stages.map((stage) => ({ value: stage, name: stage })),
    choose: (stage) => store.show({ stage: stage as never }),
  };
}

function poolSection({ store }: Ui): Section {
  return {
    value: store.pool.value,
    choices: [
      { value: "max", name: "maximum" },
      { value: "mean", name: "mean" },
    ],
    choose: (pool) => store.show({ pool: pool as never }),
  };
}

function colourSections({ store }: Ui): Section[] {
  const range = store.color_range.value;
  const signed = isSigned(store.stage.value);
  const scale: Section = {
    title: "Colour",
    value: signed ? "linear" : store.color_scale.value,
    choices: signed
      ? [{ value: "linear", name: "linear" }]
      : [
          { value: "linear", name: "linear" },
          { value: "log", name: "log", note: "from maximum ÷ 1,000" },
        ],
    choose: (color_scale) => store.show({ color_scale: color_scale as never }),
  };
  const ranges: Section = {
    title: "Range",
    value: Array.isArray(range) ? "own" : range,
    choices: [
      { value: "head", name: "head", note: "its own maximum" },
      { value: "row", name: "row", note: "each row its own" },
      { value: "unit", name: signed ? "−1 to 1" : "0 to 1" },
    ],
    choose: (color_range) => store.show({ color_range: color_range as never }),
  };
  return [scale, ranges];
}

function lookSections({ store }: Ui): Section[] {
  return [
    {
      title: "Palette",
      value: store.palette.value,
      choices: [
        { value: "attnwidget", name: "zero is paper" },
        { value: "viridis", name: "viridis" },
      ],
      choose: (palette) => store.show({ palette: palette as never }),
    },
    {
      title: "Theme",
      value: store.theme.value,
      choices: [
        { value: "auto", name: store.facts.value.saved ? "as the system" : "as the notebook" },
        { value: "light", name: "light" },
        { value: "dark", name: "dark" },
        { value: "contrast", name: "high contrast" },
      ],
      choose: (theme) => store.show({ theme: theme as never }),
    },
  ];
}

/** Two numbers of one's own for the ends of the colours. */
class OwnRange extends Component<{ range: ColorRange; ui: Ui }, { error: string }> {
  override state = { error: "" };
  private low = createRef<HTMLInputElement>();
  private high = createRef<HTMLInputElement>();

  private submit = (event: Event) => {
    event.preventDefault();
    const [low, high] = [this.low, this.high].map((input) => Number((input.current?.value || "x").replace("−", "-")));
    if (!Number.isFinite(low) || !Number.isFinite(high)) this.setState({ error: "Give two numbers" });
    else if ((low as number) >= (high as number)) this.setState({ error: "The first must be less" });
    else {
      this.setState({ error: "" });
      this.props.ui.store.show({ color_range: [low as number, high as number] });
    }
  };

  override render({ range, ui }: { range: ColorRange; ui: Ui }, { error }: { error: string }) {
    const domain = ui.mapper.value?.domain;
    const own = Array.isArray(range);
    const text = (value: number | undefined) => (value === undefined ? "" : String(Number(value.toPrecision(3))));
    return (
      <>
        <h4>Own range{own ? ", in force" : ""}</h4>
        <form onSubmit={this.submit}>
          <input
            ref={this.low}
            inputMode="decimal"
            aria-label="Low end of the colours"
            defaultValue={text(own ? range[0] : domain?.low)}
          />
          <span class="aw-muted">to</span>
          <input
            ref={this.high}
            inputMode="decimal"
            aria-label="High end of the colours"
            defaultValue={text(own ? range[1] : domain?.high)}
          />
          <button type="submit" class="aw-set">
            Set
          </button>
        </form>
        <div class="aw-form-error" role="alert">
          {error}
        </div>
      </>
    );
  }
}

function Shortcuts() {
  return (
    <>
      <h4>Keys, with the picture in focus</h4>
      <div class="aw-keys-help">
        {SHORTCUTS.map(([keys, does]) => (
          <Fragment key={keys}>
            <span>{keys}</span>
            <span class="aw-muted">{does}</span>
          </Fragment>
        ))}
      </div>
    </>
  );
}
