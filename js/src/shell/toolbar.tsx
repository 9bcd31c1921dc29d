/** The toolbar: views on the left, menus on the right. */

import { effect, signal } from "@preact/signals-core";
import { Component, render } from "preact";
import { part, rove, type View } from "../components/dom";
import { FindingsBadge } from "../components/findings";
import { Menu } from "../components/menu";
import { NumberField, typedIn } from "../components/number-field";
import { WhatIfMenu } from "../components/what-if";
import type { ColorRange, ViewName } from "../contract/values";
import type { CardName, Ui } from "../state/ui";
import { MeasureWords, ShowWords } from "../views/segments/words/measure";
import { HeadStepper, LayerStepper } from "./head-picker";
import { ABOVE, MENU, type MenuName, MOST_FOLDED, menusOf, moreSections, roomOf, viewsOf } from "./toolbar-menus";

/** Return the toolbar, folded until it fits into the width. */
export function toolbar(ui: Ui): View {
  const node = part("aw-toolbar", "toolbar");
  let folded = 0;
  let before = "";
  const isPlaced = signal(false); // nothing can be measured before it is in the page
  queueMicrotask(() => {
    isPlaced.value = true;
  });
  const fit = () => {
    while (folded <= MOST_FOLDED && node.offsetWidth > Math.ceil(ui.width.peek())) {
      render(<Toolbar ui={ui} folded={++folded} />, node);
    }
    ui.inToolbar.value = placed(ui, foldedMenus(folded));
  };
  // A host may set its theme before its fonts: what grows out of the width afterwards is folded too.
  const observer = new ResizeObserver(fit);
  observer.observe(node);
  const end = effect(() => {
    void isPlaced.value;
    // Fonts and themes differ in width: fold what does not fit, until the page or the view changes.
    const { width, unit, mode, theme, font, store } = ui;
    const now = [width.value, unit.value, mode.value, theme.value, font.value, store.view.value].join();
    if (now !== before) folded = 0;
    before = now;
    ui.root.dataset.mode = mode.value; // set before measuring
    render(<Toolbar ui={ui} folded={folded} />, node);
    fit();
  });
  return {
    node,
    dispose() {
      observer.disconnect();
      end();
      render(null, node);
    },
  };
}

/** The first step shortens the badge; all others fold menus. */
const foldedMenus = (folded: number) => Math.max(0, folded - 1);

/** The menus that fit here; else they stand above the view. */
function placed(ui: Ui, folded: number): string {
  const { shown } = menusOf(ui, roomOf(ui.mode.value, viewsOf(ui).length, folded));
  return ABOVE.filter((menu) => shown.includes(menu)).join(" ");
}

function Toolbar({ ui, folded }: { ui: Ui; folded: number }) {
  const views = viewsOf(ui);
  const room = roomOf(ui.mode.value, views.length, foldedMenus(folded));
  const menus = menusOf(ui, room);
  const isHeads = ui.store.view.value === "heads";
  return (
    <>
      {room.tabs ? <ViewTabs ui={ui} views={views} /> : <ViewMenu ui={ui} views={views} />}
      <div class="aw-controls">
        {!isHeads && <FindingsBadge ui={ui} isFolded={folded > 0} />}
        {ui.mode.value === "narrow" && !isHeads && (
          <>
            <LayerStepper ui={ui} />
            <HeadStepper ui={ui} />
          </>
        )}
        {menus.shown.map((menu) => (
          <ToolbarMenu key={menu} ui={ui} menu={menu} />
        ))}
        <Menu name="More" sections={moreSections(ui, menus.folded)}>
          <HelpItems ui={ui} />
        </Menu>
      </div>
    </>
  );
}

interface ViewsProps {
  readonly ui: Ui;
  readonly views: ReturnType<typeof viewsOf>;
}

function ViewMenu({ ui: { store }, views }: ViewsProps) {
  return (
    <Menu
      name="View"
      value={views.find((view) => view.value === store.view.value)?.name ?? ""}
      side="left"
      sections={[{ value: store.view.value, choices: views, choose: (view) => store.show({ view: view as ViewName }) }]}
    />
  );
}

function ViewTabs({ ui: { store }, views }: ViewsProps) {
  return (
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
  );
}

function ToolbarMenu({ ui, menu }: { ui: Ui; menu: MenuName }) {
  if (menu === "whatIf") return <WhatIfMenu ui={ui} />;
  if (menu === "measure") return <MeasureWords ui={ui} />;
  if (menu === "shown") return <ShowWords ui={ui} />;
  const { name, value, sections } = MENU[menu];
  return (
    <Menu name={name} label={name} value={value(ui)} sections={sections(ui)}>
      {menu === "color" && <OwnRange range={ui.store.color_range.value} ui={ui} />}
    </Menu>
  );
}

interface Ends {
  readonly numbers: readonly (number | undefined)[];
  /** The numbers as shown. */
  readonly texts: readonly [low: string, high: string];
}

/** Two numbers that set a custom color range. */
class OwnRange extends Component<{ range: ColorRange; ui: Ui }, { error: string; of: string }> {
  override state = { error: "", of: "" };

  private submit = (event: Event) => {
    event.preventDefault();
    const { numbers, texts } = this.inForce();
    const [low, high] = ["low", "high"].map((name, at) => {
      const typed = typedIn(event.currentTarget, name);
      return typed === texts[at] ? numbers[at] : Number((typed || "x").replace("−", "-")); // keeps all digits
    }) as [number, number];
    const say = (error: string) => this.setState({ error, of: texts.join() });
    if (!Number.isFinite(low) || !Number.isFinite(high)) say("Enter two numbers");
    else if (low >= high) say("The first must be smaller");
    else {
      say("");
      this.props.ui.store.show({ color_range: [low, high] });
    }
  };

  private inForce(): Ends {
    const { range, ui } = this.props;
    const domain = ui.mapper.value?.domain;
    const numbers = Array.isArray(range) ? range : [domain?.low, domain?.high];
    const text = (end: number | undefined) => (end === undefined ? "" : String(Number(end.toPrecision(3))));
    return { numbers, texts: [text(numbers[0]), text(numbers[1])] };
  }

  override render({ range }: { range: ColorRange; ui: Ui }, { error, of }: { error: string; of: string }) {
    const { texts } = this.inForce();
    return (
      <>
        <h4>Custom range{Array.isArray(range) ? ", in use" : ""}</h4>
        <form onSubmit={this.submit}>
          <NumberField name="low" label="Low end of the colors" text={texts[0]} />
          <span class="aw-muted">to</span>
          <NumberField name="high" label="High end of the colors" text={texts[1]} />
          <button type="submit" class="aw-set">
            Set
          </button>
        </form>
        <div class="aw-form-error" role="alert">
          {of === texts.join() && error}
        </div>
      </>
    );
  }
}

const HELP = [
  { card: "tour", name: "tour in four steps", key: "?" },
  { card: "keys", name: "keyboard shortcuts", key: "? ?" },
] as const;

/** Menu items that open the same cards as `?`. */
function HelpItems({ ui }: { ui: Ui }) {
  const show = (card: CardName) => () => {
    ui.card.value = card;
  };
  return (
    <div role="menu" aria-label="Help">
      <h4 role="presentation">Help</h4>
      {HELP.map(({ card, name, key }) => (
        <button type="button" role="menuitem" key={card} onClick={show(card)}>
          <span />
          <span>{name}</span>
          <span class="aw-note">{key}</span>
        </button>
      ))}
    </div>
  );
}
