/** The menus of each view, their contents, and which of them fit into the toolbar. */

import type { Section } from "../components/menu";
import { showsCells } from "../components/phrases";
import { isSigned, linkedStage, targetName } from "../contract/stages";
import type {
  ColorRange,
  ColorScaleName,
  Palette,
  Pool,
  Side,
  Stage,
  ThemePreference,
  ViewName,
} from "../contract/values";
import { ORDERS } from "../data/effects";
import { MEASURE_WORDS, measureOf } from "../data/segments";
import type { Mode } from "../geometry/layout";
import { axisSegments } from "../state/segment-axes";
import type { Ui } from "../state/ui";
import { legendNumber, listNumber } from "../text/format";
import {
  barName,
  barSection,
  canCombine,
  combineName,
  headSections,
  orderName,
  orderSection,
} from "../views/heads/menus";

import {
  asideName,
  asideSection,
  askingSection,
  editSection,
  editWord,
  effectOrderSection,
  measureSection,
  showSection as showSegmentsSection,
  showsEffect,
  targetSection,
  targetWord,
} from "../views/segments/words/menus";
import { savingSections } from "./saving";

const COMPARE = { value: "compare", name: "Compare" } as const;
const VIEWS = [
  { value: "heatmap", name: "Heatmap" },
  { value: "graph", name: "Graph" },
  { value: "text", name: "Text" },
  { value: "heads", name: "Heads" },
  { value: "segments", name: "Segments" },
  { value: "stages", name: "Stages" },
  { value: "why", name: "Why" },
] as const;
const IMAGE = { value: "image", name: "Image" } as const;

/** Return the available views, in the order of their tabs. */
export function viewsOf({ store }: Ui) {
  const compared = (store.sides.value?.length ?? 0) > 0;
  return [
    ...(compared ? [COMPARE] : []),
    ...VIEWS.slice(0, 3),
    ...(store.grid.value || store.boxes.value ? [IMAGE] : []),
    ...VIEWS.slice(3).filter(
      ({ value }) =>
        (value !== "segments" || !compared || store.segments.value !== null) &&
        (value !== "why" || (store.facts.value.why === true && !compared) || store.view.value === "why"),
    ),
  ];
}

/** The room in the toolbar; menus that need more stand under `⋯`. */
export interface ToolbarRoom {
  /** Whether the views are tabs rather than a menu. */
  readonly tabs: boolean;
  /** Which needs of menus are met. */
  readonly fits: Readonly<Record<Need, boolean>>;
}

/** When a menu stands in the toolbar: always, if any menu does, with few views and menus, with much room, or never. */
type Need = "nothing" | "menus" | "few" | "much" | "more than there is";

/** Each step of `folded` moves more under `⋯`: first menus by need, then the tabs. */
export const MOST_FOLDED = 4;

/** Return the room at this width after so much has been folded. */
export function roomOf(mode: Mode, views: number, folded: number): ToolbarRoom {
  const narrow = mode === "narrow";
  return {
    tabs: !narrow && folded < MOST_FOLDED,
    fits: {
      nothing: true,
      menus: !narrow && folded < 3,
      few: !narrow && !(mode === "under" && views > 5) && folded < 2,
      much: (mode === "beside" || mode === "wide") && folded === 0,
      "more than there is": false,
    },
  };
}

export type MenuName =
  | "against"
  | "aside"
  | "asking"
  | "bar"
  | "color"
  | "edit"
  | "effectOrder"
  | "heads"
  | "keep"
  | "labels"
  | "linked"
  | "measure"
  | "order"
  | "pool"
  | "read"
  | "show"
  | "shown"
  | "target"
  | "whatIf";

/** What the segments view shows and how to read it: in the toolbar, or above the view if the toolbar has no room. */
export const ABOVE: readonly MenuName[] = ["shown", "measure", "target", "edit"];

/** The menus of each view from left to right, and what each needs. */
const MENUS: Readonly<Record<ViewName, readonly (readonly [MenuName, Need])[]>> = {
  heatmap: [
    ["labels", "menus"],
    ["heads", "much"],
    ["whatIf", "nothing"],
    ["show", "menus"],
    ["color", "much"],
    ["pool", "much"],
    ["aside", "more than there is"], // of a pinned block, whose mass is a share of the rest
  ],
  why: [],
  compare: [
    ["against", "nothing"],
    ["whatIf", "nothing"],
    ["show", "menus"],
    ["color", "much"],
    ["pool", "much"],
  ],
  graph: [
    ["heads", "much"],
    ["read", "menus"],
    ["keep", "menus"],
    ["whatIf", "nothing"],
    ["linked", "much"],
  ],
  text: [
    ["heads", "much"],
    ["whatIf", "nothing"],
    ["show", "much"],
    ["read", "few"],
    ["color", "more than there is"],
  ],
  image: [
    ["heads", "much"],
    ["whatIf", "nothing"],
    ["show", "much"],
    ["read", "few"],
    ["color", "more than there is"],
  ],
  heads: [
    ["bar", "menus"],
    ["order", "menus"],
    ["linked", "much"],
  ],
  segments: [
    ["shown", "more than there is"],
    ["heads", "much"],
    ["linked", "much"],
    ["measure", "much"],
    ["aside", "menus"],
    ["asking", "more than there is"],
    ["whatIf", "nothing"],
  ],
  stages: [], // its own rules stand below the pictures
};

/** The same with a model: both things that the view can show are words in the toolbar. */
const WITH_MODEL: typeof MENUS.segments = [
  ["shown", "menus"],
  ["heads", "more than there is"],
  ...MENUS.segments.slice(2),
];
const EFFECT: typeof MENUS.segments = [
  ["shown", "menus"],
  ["target", "few"],
  ["edit", "few"],
  ["effectOrder", "much"],
  ["aside", "more than there is"],
];

const hasSegments = ({ store }: Ui) => (store.mass.value?.keys.length ?? 0) > 0;

/** Whether a menu has a choice; menus not named here always do. */
const IS_THERE: Readonly<Partial<Record<MenuName, (ui: Ui) => boolean>>> = {
  labels: isNamed,
  linked: ({ store }) => store.facts.value.stages.some((stage) => stage !== "weights" && linkedStage(stage) === stage),
  against: ({ store }) => (store.sides.value?.length ?? 0) > 2,
  heads: canCombine,
  measure: hasSegments,
  aside: hasSegments,
  asking: hasSegments,
  shown: hasSegments,
  target: ({ store }) => (store.effects.value?.targets.length ?? 0) > 0,
  whatIf: ({ store }) =>
    Object.keys(store.what_if.value).length > 0 &&
    store.facts.value.stages.includes("masked") &&
    !store.facts.value.saved,
  pool({ store }) {
    const picture = store.picture.value;
    return picture !== null && picture.queryBin * picture.keyBin > 1;
  },
};

/** Return the menus in the toolbar, and those under `⋯`. */
export function menusOf(ui: Ui, { fits }: ToolbarRoom): { shown: readonly MenuName[]; folded: readonly MenuName[] } {
  const view = ui.store.view.value;
  const hasModel = view === "segments" && ui.store.effects.value;
  const menus = hasModel ? (showsEffect(ui) ? EFFECT : WITH_MODEL) : (MENUS[view] ?? MENUS.heatmap);
  const there = menus.filter(([menu]) => IS_THERE[menu]?.(ui) ?? true);
  // That heads can be combined is under `⋯` until some are.
  const isFolded = (menu: MenuName, need: Need) => !fits[need] || (menu === "heads" && combineName(ui) === "one");
  const names = (isShown: boolean) =>
    there.filter(([menu, need]) => isFolded(menu, need) !== isShown).map(([menu]) => menu);
  const folded = names(false);
  return { shown: names(true), folded: view === "graph" ? folded.reverse() : folded }; // the graph's own menus first
}

interface MenuText {
  readonly name: string;
  /** The current choice, in a word or two. */
  value(ui: Ui): string;
  sections(ui: Ui): Section[];
}

/** All menus except "What if", which is `WhatIfMenu`. */
export const MENU: Readonly<Record<Exclude<MenuName, "whatIf">, MenuText>> = {
  labels: { name: "Labels", value: (ui) => ui.shownNames.value ?? "tokens", sections: (ui) => [labelsSection(ui)] },
  measure: {
    name: "Measure",
    value({ store }) {
      const stage = store.linkedStage.value;
      const measure = measureOf(store.measure.value, stage);
      return stage !== "weights" && measure === "mass" ? "sum" : MEASURE_WORDS[measure];
    },
    sections: (ui) => [measureSection(ui)],
  },
  aside: { name: "Exclude", value: asideName, sections: (ui) => [asideSection(ui)] },
  asking: {
    name: "Asking",
    value: ({ store }) => store.mass.value?.asking ?? "",
    sections: (ui) => [askingSection(ui)],
  },
  shown: {
    name: "Show",
    value: ({ store }) => store.segments_show.value ?? "attention",
    sections: (ui) => [showSegmentsSection(ui)],
  },
  target: {
    name: "Target",
    value: targetWord,
    sections: (ui) => [targetSection(ui)],
  },
  edit: {
    name: "Edit",
    value: editWord,
    sections: (ui) => [editSection(ui)],
  },
  effectOrder: {
    name: "Order",
    value: (ui) => ORDERS[ui.effectOrder.value],
    sections: (ui) => [effectOrderSection(ui)],
  },
  against: { name: "Against", value: ({ store }) => store.against.value ?? "", sections: (ui) => [againstSection(ui)] },
  bar: { name: "Bar", value: barName, sections: (ui) => [barSection(ui)] },
  order: { name: "Order", value: orderName, sections: (ui) => [orderSection(ui)] },
  heads: { name: "Heads", value: combineName, sections: (ui) => headSections(ui) },
  read: {
    name: "Read",
    value: ({ store }) => (store.direction.value === "query" ? "what it attends to" : "what attends to it"),
    sections: (ui) => [readSection(ui)],
  },
  keep: { name: "Keep", value: keepName, sections: (ui) => [keepSection(ui)] },
  show: { name: "Show", value: shownName, sections: (ui) => [showSection(ui), ...logitSections(ui)] },
  linked: {
    name: "Of",
    value: (ui) => shownName(ui, ui.store.linkedStage.value),
    sections: (ui) => [linkedSection(ui), ...logitSections(ui)],
  },
  color: { name: "Color", value: colorName, sections: colorSections },
  pool: {
    name: "Pool",
    value: (ui) => (showsCells(ui) ? "not needed" : poolName(ui.store.pool.value)),
    sections: (ui) => [poolSection(ui)],
  },
};

/** Return the sections under `⋯`: the menus that did not fit, then the looks of tokens and widget. */
export function moreSections(ui: Ui, folded: readonly MenuName[]): Section[] {
  const titled = folded.flatMap((menu) => {
    if (menu === "whatIf") return [];
    const { name, sections } = MENU[menu];
    return sections(ui).map((section) => ({ title: name, ...section }));
  });
  const pieces = ui.store.facts.value.has_pieces ? [piecesSection(ui)] : [];
  return [...titled, ...pieces, ...savingSections(ui), ...lookSections(ui)];
}

function piecesSection({ store }: Ui): Section {
  return {
    title: "Tokens",
    value: store.pieces.value ?? "pieces",
    choices: [
      { value: "pieces", name: "pieces", note: "as the tokenizer splits them" },
      { value: "words", name: "words", note: "keys summed, queries averaged" },
    ],
    choose: (pieces) => store.show({ pieces: pieces as "pieces" | "words" }),
  };
}

/** Whether one side has segments that fit the picture. */
function isNamed({ store }: Ui): boolean {
  return axisSegments(store, "query") !== null || axisSegments(store, "key") !== null;
}

function labelsSection(ui: Ui): Section {
  return {
    value: ui.shownNames.value ?? "tokens",
    choices: [
      { value: "tokens", name: "tokens" },
      { value: "segments", name: "segments", note: "tokens when there is room" },
    ],
    choose(names) {
      ui.axisNames.value = names as "tokens" | "segments";
    },
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

function keepSection({ store }: Ui): Section {
  const top = store.top_k.value;
  return {
    value: top === null ? `${store.threshold.value}` : `top ${top}`,
    choices: [
      ...TOPS.map((k) => ({ value: `top ${k}`, name: `top ${k}` })),
      ...THRESHOLDS.map((threshold) => ({
        ...{ value: `${threshold}`, name: thresholdName(threshold) },
        ...(threshold > 0 && store.linkedStage.value !== "weights" ? { note: "of the largest" } : {}),
      })),
    ],
    choose: (value) =>
      value.startsWith("top ")
        ? store.show({ top_k: Number(value.slice(4)), threshold: 0 })
        : store.show({ top_k: null, threshold: Number(value) }),
  };
}

function readSection({ store }: Ui): Section {
  return {
    value: store.direction.value,
    choices: [
      { value: "query", name: "what it attends to" },
      { value: "key", name: "what attends to it" },
    ],
    choose: (direction) => store.show({ direction: direction as Side }),
  };
}

const poolName = (pool: string) => (pool === "max" ? "maximum" : "mean");

const stageName = (stage: Stage) => stage.replace("_", " ");
const targetOf = ({ store }: Ui) => store.facts.value.targets?.[store.batch.value];

function shownName(ui: Ui, stage = ui.store.stage.value): string {
  const target = stage === "logit" ? targetOf(ui) : undefined;
  return target ? `logit of ${targetName(target)}` : stageName(stage);
}

/** The tokens whose logits can be shown, if known. */
function logitSections(ui: Ui): Section[] {
  const { store } = ui;
  const { token, choices = [] } = targetOf(ui) ?? {};
  if (store.stage.value !== "logit" || choices.length === 0 || store.facts.value.saved) return [];
  return [
    {
      title: "Logit of",
      value: `${token}`,
      choices: choices.map(([id, text]) => ({ value: `${id}`, name: `“${text}”` })),
      choose: (id) => store.show({ target: Number(id) }),
    },
  ];
}

function showSection({ store }: Ui): Section {
  return {
    value: store.stage.value,
    choices: store.facts.value.stages.map((stage) => ({ value: stage, name: stageName(stage) })),
    choose: (stage) => store.show({ stage: stage as Stage }),
  };
}

/** The stages that links, thumbnails and sums by segment can show; the others are disabled. */
function linkedSection({ store }: Ui): Section {
  const elsewhere = "in the heatmap, the text and the stages";
  return {
    value: store.linkedStage.value,
    choices: store.facts.value.stages.map((stage) => {
      const fits = linkedStage(stage) === stage;
      return { value: stage, name: stageName(stage), ...(fits ? {} : { note: elsewhere, disabled: true }) };
    }),
    choose: (stage) => store.show({ stage: stage as Stage }),
  };
}

function poolSection({ store }: Ui): Section {
  return {
    value: store.pool.value,
    choices: [
      { value: "max", name: "maximum" },
      { value: "mean", name: "mean" },
    ],
    choose: (pool) => store.show({ pool: pool as Pool }),
  };
}

/** The scale, and its range unless it is the head's own: "linear, 0 to 1". */
function colorName({ store }: Ui): string {
  const range = store.color_range.value;
  const signed = isSigned(store.stage.value);
  const scale = signed ? "linear" : store.color_scale.value;
  if (range === "head") return scale;
  if (Array.isArray(range)) return `${scale}, ${range.map((end) => legendNumber(end, store.stage.value)).join(" to ")}`;
  return `${scale}, ${range === "unit" ? unitName(signed) : range}`;
}

const unitName = (signed: boolean) => (signed ? "−1 to 1" : "0 to 1");

function colorSections({ store }: Ui): Section[] {
  const range = store.color_range.value;
  const signed = isSigned(store.stage.value);
  const scale: Section = {
    title: "Color",
    value: signed ? "linear" : store.color_scale.value,
    choices: signed
      ? [{ value: "linear", name: "linear" }]
      : [
          { value: "linear", name: "linear" },
          { value: "log", name: "log", note: "from maximum ÷ 1,000" },
        ],
    choose: (color_scale) => store.show({ color_scale: color_scale as ColorScaleName }),
  };
  const ranges: Section = {
    title: "Range",
    value: Array.isArray(range) ? "own" : range,
    choices: [
      { value: "head", name: "head", note: "its own maximum" },
      { value: "row", name: "row", note: "separate for each row" },
      ...(store.view.value === "heatmap" ? [{ value: "view", name: "view", note: "what is in view" }] : []),
      ...(store.view.value === "heatmap" && store.stage.value === "weights" && store.facts.value.heads > 1
        ? [{ value: "layer", name: "layer", note: "shared by its heads" }]
        : []),
      { value: "unit", name: unitName(signed) },
    ],
    choose: (color_range) => store.show({ color_range: color_range as ColorRange }),
  };
  return [scale, ranges];
}

function lookSections({ store }: Ui): Section[] {
  const palette = store.palette.value;
  const own = typeof palette === "object" ? palette.name : null;
  return [
    {
      title: "Palette",
      value: own ?? (palette as string),
      choices: [
        { value: "attnwidget", name: "zero is the background" },
        { value: "viridis", name: "viridis" },
        ...(own === null ? [] : [{ value: own, name: own }]),
      ],
      choose: (chosen) => {
        if (chosen !== own) store.show({ palette: chosen as Palette });
      },
    },
    {
      title: "Theme",
      value: store.theme.value,
      choices: [
        { value: "auto", name: store.facts.value.saved ? "like the system" : "like the notebook" },
        { value: "light", name: "light" },
        { value: "dark", name: "dark" },
        { value: "contrast", name: "high contrast" },
      ],
      choose: (theme) => store.show({ theme: theme as ThemePreference }),
    },
  ];
}
