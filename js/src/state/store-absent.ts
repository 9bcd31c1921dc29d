/** What a view lacks: the kernel owes it, or without a kernel it is made from the available data if possible. */

import { computed, effect, type ReadonlySignal } from "@preact/signals-core";
import type { Links, Picture, Thumbnails } from "../contract/decode";
import type { EffectsMessage, Facts } from "../contract/messages";
import { wordsOf } from "../contract/stages";
import type { TraitName } from "../contract/traits";
import type { HeadName, Side, Stage, ViewName } from "../contract/values";
import { withEffect } from "../data/effects";
import { hasLinksOf, linksOfPicture } from "../data/links";
import type { Segments } from "../data/segment-data";
import { type Stages, stagesOfPicture } from "../data/stage-data";
import { type StageHeads, type Survey, surveyOfLayer, withStage } from "../data/survey";
import type { Kernel } from "../kernel/kernel";

/** The fewest links per token that a graph draws. */
const LINKS = 3;
/** Tokens × heads up to which Python sends the links of every token. */
const MOST_LINKED = 16_384;

interface Known {
  readonly view: ReadonlySignal<ViewName>;
  readonly facts: ReadonlySignal<Facts>;
  readonly layer: ReadonlySignal<number>;
  readonly batch: ReadonlySignal<number>;
  readonly head: ReadonlySignal<number>;
  readonly direction: ReadonlySignal<Side>;
  readonly top_k: ReadonlySignal<number | null>;
  readonly drawnHeads: ReadonlySignal<readonly HeadName[]>;
  readonly linkedStage: ReadonlySignal<Stage>;
  readonly picture: ReadonlySignal<Picture | null>;
  readonly thumbnails: ReadonlySignal<Thumbnails | null>;
  readonly effects: ReadonlySignal<EffectsMessage | null | undefined>;
  readonly errors: ReadonlySignal<Partial<Record<TraitName, string>> | undefined>;
  /** As Python sent them. */
  readonly sent: {
    readonly links: ReadonlySignal<Links | null>;
    readonly survey: ReadonlySignal<Survey | null>;
    readonly stageHeads: ReadonlySignal<StageHeads | null>;
    readonly stages: ReadonlySignal<Stages | null>;
    readonly comparison: ReadonlySignal<object | null>;
    readonly segments: ReadonlySignal<Segments | null>;
    readonly mass: ReadonlySignal<object | null>;
  };
}

export interface Absent {
  readonly links: ReadonlySignal<Links | null>;
  readonly survey: ReadonlySignal<Survey | null>;
  readonly stages: ReadonlySignal<Stages | null>;
  /** A sentence about what the view cannot draw; null if nothing is missing. */
  readonly missing: ReadonlySignal<string | null>;
}

/** Return what the views can draw, and what is missing; while something is, an answer is due. */
export function storeAbsent(known: Known, kernel: Kernel, stop: AbortSignal): Absent {
  const { view, facts, layer, batch, direction, top_k, drawnHeads, sent } = known;
  const links = computed(() => {
    const at = { layer: layer.value, batch: batch.value, heads: [...drawnHeads.value], side: direction.value };
    const of = { ...at, stage: known.linkedStage.value };
    const own = sent.links.value;
    if (view.value !== "graph" || (own !== null && hasLinksOf(own, of))) return own;
    const picture = known.picture.value;
    const made = picture === null ? null : linksOfPicture(picture, of.side, top_k.value ?? LINKS);
    return made !== null && hasLinksOf(made, of) ? made : own;
  });
  const survey = computed(() => {
    const small = known.thumbnails.value;
    const own =
      sent.survey.value !== null || small === null || small.stage !== "weights" || !kernel.away.value
        ? sent.survey.value
        : surveyOfLayer(small, facts.value);
    const ofStage = sent.stageHeads.value;
    const fits = ofStage !== null && ofStage.stage === known.linkedStage.value;
    const whole = own && withEffect(own, known.effects.value);
    return whole && fits ? withStage(whole, ofStage) : whole;
  });
  const stages = computed(() => {
    const picture = known.picture.value;
    if (isOfHead(sent.stages.value, known) || picture === null || !kernel.away.value) return sent.stages.value;
    const made = stagesOfPicture(picture);
    return isOfHead(made, known) ? made : sent.stages.value;
  });
  const missing = computed(() => {
    const { saved, queries, keys, layers } = facts.value;
    const lacks = (name: TraitName, what: string, them = "them") =>
      known.errors.value?.[name] ? null : `${what}: a notebook that is saved with this view open keeps ${them}.`;
    if (saved) return null;
    if (view.value === "graph") {
      const every = Math.max(queries, keys) * drawnHeads.value.length <= MOST_LINKED;
      return every && links.value === null ? lacks("links", "The links were not saved") : null;
    }
    if (view.value === "heads" && sent.survey.value === null) {
      return lacks(
        "survey",
        layers.length > 1 ? "The heads of the other layers were not saved" : "The metrics were not saved",
      );
    }
    if (view.value === "stages" && !isOfHead(sent.stages.value, known))
      return lacks("stages", stagesLack(stages.value));
    if (view.value === "segments" && sent.segments.value?.error === null && sent.mass.value === null)
      return lacks("mass", "The attention between segments was not saved", "it");
    if (view.value === "compare" && sent.comparison.value === null)
      return lacks("comparison", "The comparison was not saved", "it");
    return null;
  });
  const end = effect(() => (missing.value === null ? undefined : kernel.expect()));
  stop.addEventListener("abort", end, { once: true });
  return { links, survey, stages, missing };
}

/** What a notebook keeps of the stages depends on the view in which it was saved. */
const stagesLack = (stages: Stages | null) =>
  stages?.isAlone
    ? `Of the stages only the ${wordsOf(stages.pictures[0]!.stage)} were saved`
    : "The stages were not saved";

function isOfHead(stages: Stages | null, { layer, batch, head }: Known): boolean {
  const of = stages?.of;
  return of !== undefined && of.layer === layer.value && of.batch === batch.value && of.head === head.value;
}
