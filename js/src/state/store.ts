/** The widget's state as signals. Traits enter only here, and only `select` and `show` write them back. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { decodeLinks, decodeThumbnails, type Links, type Picture, type Thumbnails } from "../contract/decode";
import type { WhatIf } from "../contract/messages";
import { linkedStage } from "../contract/stages";
import {
  type Model,
  TRAIT_NAMES,
  type TraitName,
  type Traits,
  type TraitsThatAre,
  traitsThatAre,
} from "../contract/traits";
import type { HeadName, Pin, Stage } from "../contract/values";
import { type Changes, type Comparison, decodeChanges, decodeComparison } from "../data/comparison";
import { decodeRecall, type Recall } from "../data/recall";
import {
  decodeHeadMass,
  decodeMass,
  decodeSegments,
  type HeadMass,
  type Mass,
  type Segments,
} from "../data/segment-data";
import { headsInForce, pinsInForce, withHeadToggled, withPinToggled } from "../data/selection";
import { decodePair, decodeStages, type ExplainedPair, type Stages } from "../data/stage-data";
import { decodeStageHeads, decodeSurvey, type Survey } from "../data/survey";
import { hasNone, type Kernel } from "../kernel/kernel";
import type { Labels } from "../text/labels";
import { createRecovery, type Recovery } from "./recovery";
import { storeAbsent } from "./store-absent";
import { labelsOfSide, readTokens } from "./store-labels";
import { storePictures } from "./store-pictures";
import type { TileCache } from "./tile-cache";
import { listenTo, type Mirrored, mirrorTraits, traitDecoder } from "./traits";

export type Selection = Pick<Traits, TraitsThatAre<"selection">>;
/** What is drawn, and how. */
export type Looks = Pick<Traits, TraitsThatAre<"look" | "numbers">>;

/** The traits that take time to decode; all others are mirrored as they are. */
const ENCODED = [
  "picture",
  "thumbnails",
  "links",
  "survey",
  "stage_heads",
  "tokens",
  "key_tokens",
  "stages",
  "pair",
  "comparison",
  "changes",
  "segments",
  "key_segments",
  "mass",
  "head_mass",
  "recall",
] as const satisfies readonly TraitName[];
type Plain = Exclude<TraitName, (typeof ENCODED)[number]>;
const PLAIN = TRAIT_NAMES.filter((name): name is Plain => !(ENCODED as readonly TraitName[]).includes(name));

/** What cannot change without Python: without a kernel it returns to what is drawn. */
const NEEDS_PYTHON: ReadonlySet<string> = new Set([...traitsThatAre("numbers"), "layer", "batch", "head", "heads"]);
const isFree = (name: TraitName) => !NEEDS_PYTHON.has(name);
/** What Python sends after it has accepted such a change. */
const TAKEN = [
  "facts",
  "picture",
  "links",
  "survey",
  "stages",
  "comparison",
  "mass",
  "effects",
] as const satisfies readonly TraitName[];

export interface Store extends Readonly<{ [K in Plain]: ReadonlySignal<Traits[K]> }> {
  /** The last picture that could be drawn; it may be of another head while the selected one is computed. */
  readonly picture: ReadonlySignal<Picture | null>;
  /** Finer tiles of all pictures that were viewed. */
  readonly tiles: TileCache;
  /** Python's sentence if the selected head could not be computed. */
  readonly problem: ReadonlySignal<string | null>;
  readonly thumbnails: ReadonlySignal<Thumbnails | null>;
  readonly links: ReadonlySignal<Links | null>;
  /** All heads of all layers; null in other views. */
  readonly survey: ReadonlySignal<Survey | null>;
  /** All stages of the selected head, and the steps of the pinned pair; null in other views. */
  readonly stages: ReadonlySignal<Stages | null>;
  readonly pair: ReadonlySignal<ExplainedPair | null>;
  /** A, B, their difference, and the changes at the pin; null in other views. */
  readonly comparison: ReadonlySignal<Comparison | null>;
  readonly changes: ReadonlySignal<Changes | null>;
  /** The named parts of the queries' text and of the keys'; null if none were given. */
  readonly segments: ReadonlySignal<Segments | null>;
  readonly keySegments: ReadonlySignal<Segments | null>;
  /** The attention between segments in the selected head and in all heads; null in other views. */
  readonly mass: ReadonlySignal<Mass | null>;
  readonly headMass: ReadonlySignal<HeadMass | null>;
  /** The recall of the drawn head; null for another head, or without a cache. */
  readonly recall: ReadonlySignal<Recall | null>;
  readonly queryLabels: ReadonlySignal<Labels>;
  readonly keyLabels: ReadonlySignal<Labels>;
  /** A sentence about what the view cannot draw, for pages without a kernel; null if nothing is missing. */
  readonly missing: ReadonlySignal<string | null>;
  /** Whether the current state could be drawn. */
  readonly recovery: Recovery;
  /** Why Python reverted the last change made here. */
  readonly refused: ReadonlySignal<string | null>;
  /** The heads and pins in force. `head` is one of `heads` and (`query`, `key`) the last of `pins`: where only those were
   *  set, here or by a linked widget, the lists follow, as Python makes them do. */
  readonly shownHeads: ReadonlySignal<readonly number[]>;
  readonly shownPins: ReadonlySignal<readonly Pin[]>;
  /** The wanted picture: of the selected head, or of several as one. */
  readonly pictured: ReadonlySignal<HeadName>;
  /** The heads that the graph draws: the chosen ones, or all of them as one. */
  readonly drawnHeads: ReadonlySignal<readonly HeadName[]>;
  /** The stage of links, thumbnails and sums by segment: the chosen one, or weights if it has none. */
  readonly linkedStage: ReadonlySignal<Stage>;
  select(change: Partial<Selection>): void;
  /** Add a pin, or remove it if it exists. */
  addPin(query: number | null, key: number | null): void;
  /** Add a head to the others, or remove it; the last one stays. */
  toggleHead(head: number): void;
  show(change: Partial<Looks>): void;
  /**
   * Other rules, many a second: not as a trait, which Jupyter sends only when the kernel has come to rest after the one
   * before.
   */
  attempt(rules: WhatIf): void;
}

/** Return the signals of a model's traits, and functions to write them. */
export function createStore(model: Model, kernel: Kernel, stop: AbortSignal): Store {
  const listener = listenTo(model, stop);
  const refused = signal<string | null>(null);
  const refuse = (reason: string) => {
    refused.value = reason;
  };
  const recovery = createRecovery();
  const traits = mirrorTraits(model, PLAIN, listener, recovery, refuse);
  const decoded = traitDecoder(model, listener, recovery, refuse);
  const shown = shownSelection(traits);
  const pictures = storePictures({
    ...{ decoded, listener, kernel, refuse, stop },
    facts: traits.facts,
    isElsewhere: () => isElsewhere(traits),
    selected: () => ({
      layer: traits.layer.value,
      batch: traits.batch.value,
      head: shown.pictured.value,
      stage: traits.stage.value,
      pool: traits.pool.value,
    }),
  });
  const thumbnails = decoded("thumbnails", decodeThumbnails);
  const sent = {
    links: decoded("links", decodeLinks),
    survey: decoded("survey", decodeSurvey),
    stageHeads: decoded("stage_heads", decodeStageHeads),
    stages: decoded("stages", decodeStages),
    comparison: decoded("comparison", decodeComparison),
    mass: decoded("mass", decodeMass),
  };
  const segments = decoded("segments", decodeSegments);
  const keySegments = decoded("key_segments", decodeSegments);
  const tokens = { query: decoded("tokens", readTokens), key: decoded("key_tokens", readTokens) };

  /** The values before changes that Python has not accepted yet. */
  const before = new Map<Plain, unknown>();
  for (const name of TAKEN) listener.onChange(name, () => before.clear());

  function put(change: Partial<Pick<Traits, Plain>>) {
    const putOne = <K extends Plain>(name: K) => {
      const value = change[name] as Traits[K];
      model.set(name, value);
      traits[name].value = value; // hosts differ in when they echo
    };
    recovery.attempt(() => {
      for (const name of Object.keys(change) as Plain[]) putOne(name);
    });
  }

  function save(change: Partial<Pick<Traits, Plain>>) {
    put(change);
    kernel.guard(() => model.save_changes());
  }

  function write(change: Partial<Pick<Traits, Plain>>) {
    refused.value = null;
    const can = !kernel.away.peek() || kernel.probe();
    const names = Object.keys(change) as Plain[];
    if (!can) return save(Object.fromEntries(names.filter(isFree).map((name) => [name, change[name]])));
    for (const name of names) {
      if (!isFree(name) && !before.has(name)) before.set(name, traits[name].peek());
    }
    save(change);
  }

  /** Without a kernel a choice returns to what is drawn; a kernel that was only busy gets it later. */
  const end = effect(() => {
    if (!kernel.away.value || before.size === 0) return;
    const drawn = Object.fromEntries(before) as Partial<Pick<Traits, Plain>>;
    before.clear();
    if (hasNone(kernel.state.peek())) save(drawn);
    else put(drawn);
  });
  stop.addEventListener("abort", end, { once: true });

  const recall = decoded("recall", decodeRecall);
  return {
    ...traits,
    ...shown,
    ...pictures,
    thumbnails,
    ...storeAbsent(
      { ...traits, ...shown, thumbnails, picture: pictures.picture, sent: { ...sent, segments } },
      kernel,
      stop,
    ),
    pair: decoded("pair", decodePair),
    comparison: sent.comparison,
    changes: decoded("changes", decodeChanges),
    segments,
    keySegments: computed(() => keySegments.value ?? segments.value),
    mass: sent.mass,
    headMass: decoded("head_mass", decodeHeadMass),
    recall: computed(() => {
      const { layer, batch, head } = pictures.picture.value?.of ?? {};
      const found = recall.value;
      return found !== null && found.layer === layer && found.batch === batch && found.head === head ? found : null;
    }),
    recovery,
    refused,
    queryLabels: labelsOfSide("query", tokens.query, traits, kernel),
    keyLabels: labelsOfSide("key", tokens.key, traits, kernel),
    select: write,
    addPin(query, key) {
      write(withPinToggled(shown.shownPins.value, query, key));
    },
    toggleHead(head) {
      const change = withHeadToggled(shown.shownHeads.value, traits.head.value, head);
      if (change !== null) write(change);
    },
    show: write,
    attempt(rules) {
      refused.value = null;
      kernel.tell({ what_if: rules });
    },
  };
}

/** Whether the wanted stack differs from the one that Python has sent (`facts` names it). */
function isElsewhere({ facts, stack, forward }: Mirrored<Plain>): boolean {
  const shown = facts.value;
  return (stack.value ?? "") !== (shown.stack ?? "") || (forward.value ?? 0) !== (shown.forward ?? 0);
}

/** The current heads and pins, and the wanted picture. */
function shownSelection(traits: Mirrored<Plain>) {
  const shownHeads = computed(() => headsInForce(traits.head.value, traits.heads.value));
  const shownPins = computed(() => pinsInForce(traits.query.value, traits.key.value, traits.pins.value));
  /** Under Python's name. */
  const pictured = computed<HeadName>(() => {
    const heads = shownHeads.value;
    const { combine, stage, view, sides } = traits;
    const alone = heads.length < 2 || stage.value !== "weights" || view.value === "stages" || sides.value?.length;
    if ((combine.value ?? "none") === "none" || alone) return traits.head.value;
    return [combine.value, ...[...heads].sort((a, b) => a - b)].join(" ");
  });
  const drawnHeads = computed<readonly HeadName[]>(() =>
    typeof pictured.value === "string" ? [pictured.value] : shownHeads.value,
  );
  return { shownHeads, shownPins, pictured, drawnHeads, linkedStage: computed(() => linkedStage(traits.stage.value)) };
}
