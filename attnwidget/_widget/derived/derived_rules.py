"""The traits that follow from the selection: of which part of it each is, and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..._analysis.all_heads import numbers_of_heads
from ..._analysis.explain import Explanation
from ..._analysis.top_links import LINK_CELLS, LINKS, strongest
from ..._engine import cost
from ..._engine.cache_policies import kept_keys
from ..._engine.softmax import run_to_end, sink_weights
from ..._messages.answers import pair_steps
from ..._messages.codec import encoding
from ..._messages.pictures import heads_of_stage, picture
from ..._messages.pictures.heads_of_stage import StageSurvey
from ..._messages.pictures.heads_overview import Survey, Surveys, thumbnail_plan, thumbnails
from ..._messages.pictures.stage_pictures import StagePictures, becomes_exact, exact_stages
from ..._utils.scheduler import Scheduler
from ...attention import Attention
from ..passes.exact_pass import EXACT_STAGES, SEGMENTS, SEGMENTS_OF_HEADS, ExactPass
from ..passes.masses import Masses, MassPlace
from ..passes.recall_pass import RecallPass, whole_recall
from ..stores.layers import ShownLayers
from ..traits.selection import Selection
from .derived_trait import DerivedTrait
from .findings_cache import FindingsCache

EXACT_STAGES_URGENCY = 1.0  # before the exact picture of a long head, which is not in sight then
LINK_BYTES = 8  # a partner and a weight
MAX_TARGETS = 64  # samples whose tokens are named

Made = dict[str, Any]


def _targets_of(att: Attention) -> list[Made] | None:
    """Return of each sample the token whose logits are shown, and those that may be chosen; None where none is."""
    carries = att.carries
    if carries is None or carries.targets is None:
        return None
    found = []
    for batch, target in enumerate(carries.targets[:MAX_TARGETS]):
        others = carries.choices[batch] if carries.readout is not None and carries.choices else ()
        choices = [[one, carries.named(one)] for one in dict.fromkeys((*others, target))] if others else []
        own: Made = {"token": target, "text": carries.named(target), "choices": choices}
        found.append(own | {"before_cap": True} if carries.is_before_cap else own)
    return found


class TraitBuilders:
    """What computes the traits that follow from the selection.

    Args:
        exact_pass: computes the picture.
        surveys: computes small pictures and metrics of all heads.
        stage_surveys: computes small pictures and sums of what their weights carry.
        findings: finds what is likely wrong.
        masses: computes the attention between segments.
        scheduler: runs what makes the stages of a long head exact.
        tell: sets a trait again, once more of it is exact.
        merges: whether pieces can be merged into words.

    `use` says first which layers they are of.
    """

    def __init__(
        self,
        exact_pass: ExactPass,
        surveys: Surveys[Survey],
        stage_surveys: Surveys[StageSurvey],
        findings: FindingsCache,
        masses: Masses,
        scheduler: Scheduler,
        tell: Callable[[str, Any], object],
        *,
        merges: bool,
    ) -> None:
        self._recalls = RecallPass(scheduler, tell)
        self._exact_pass, self._surveys, self._findings, self._merges = exact_pass, surveys, findings, merges
        self._scheduler, self._tell, self._masses, self._stage_surveys = scheduler, tell, masses, stage_surveys
        self._stage_pictures = StagePictures()
        self._rest: Iterator[None] = iter(())  # of what makes the stages exact that are shown
        self._unruled: dict[tuple[Any, ...], Explanation] = {}  # the pair that was last explained without other rules

    def use(self, shown: ShownLayers) -> None:
        """Compute everything from these layers from now on."""
        self._shown = shown

    def forget(self) -> None:
        """Keep nothing that was computed: the tensors are others now."""
        self._stage_pictures = StagePictures()
        self._unruled.clear()

    def rules(self, at: Selection) -> dict[str, DerivedTrait]:
        """Return, for each trait, of what part of the selection it is and what computes it."""
        sample, head = (at.layer, at.batch), (at.layer, at.batch, at.head)
        all_heads, staged, by_segment = (at.view == view for view in ("heads", "stages", "segments"))
        pinned = at.query is not None and at.key is not None
        asking = tuple(at.asking) if isinstance(at.asking, list) else at.asking
        place = (asking, tuple(at.segment_path), at.summed_stage) if self._masses.has_segments else ()
        in_block = at.view == "heatmap" and at.segment is not None  # of two segments, which is pinned there
        return {
            "facts": DerivedTrait((at.layer,), self.facts, required=True),
            "stages": DerivedTrait(head if staged else (), self._stages, leave=self._leave_stages),
            "pair": DerivedTrait((*head, at.query, at.key) if staged and pinned else (), self._pair),
            "findings": DerivedTrait(head, self._found),
            "deviation": DerivedTrait(head, self._deviation),
            "thumbnails": DerivedTrait((*sample, at.linked_stage), self._thumbnails),
            "links": DerivedTrait(self._links_wanted(at), self._links),
            "mass": DerivedTrait(
                (*sample, at.shown_head, *place) if place and (by_segment or in_block) else (),
                self._mass,
                self._no_mass,
                leave=self._leave_mass,
            ),
            "head_mass": DerivedTrait(
                (*sample, *place) if place and by_segment else (),
                self._head_mass,
                self._no_head_mass,
                leave=self._leave_head_mass,
            ),
            "recall": DerivedTrait(self._recall_wanted(at), self._recall, leave=self._recalls.leave),
            "survey": DerivedTrait(
                (at.batch,) if all_heads else (), self._survey, self._no_survey, leave=self._surveys.leave
            ),
            "stage_heads": DerivedTrait(
                (at.batch, at.linked_stage, at.query) if all_heads and at.linked_stage != "weights" else (),
                self._stage_heads,
                heads_of_stage.failed,
                leave=self._stage_surveys.leave,
            ),
            # the last: it ends what waits
            "picture": DerivedTrait((*sample, at.shown_head, at.stage, at.pool), self._picture, self._no_picture),
        }

    def facts(self, layer: int) -> Made:
        """Return sizes, dtype and device of a layer, and the stages that it has."""
        shown, att = self._shown, self._shown.layers[layer]
        shape, numbers = att.shape, numbers_of_heads(shown.given[layer])
        return {
            "version": shown.version,
            **shown.place._asdict(),
            "layers": shown.labels,
            "batches": shape.B,
            "heads": shape.H,
            "groups": shape.G,
            "queries": shape.Q,
            "keys": shape.K,
            "head_size": shape.D,
            "value_size": shape.Dv,
            "dtype": str(att.dtype).removeprefix("torch."),
            "device": str(att.device),
            "is_causal": att.is_causal,
            "stages": list(att.stages),
            "targets": _targets_of(att),
            "has_pieces": self._merges and shown.has_pieces(layer),
            "has_sinks": att.has_sinks,
            "axes_read": shown.given[layer].axes_read,
            "head_numbers": None if numbers is None else list(numbers),
            "model_heads": shown.head_numbers,
        }

    def _thumbnails(self, layer: int, batch: int, stage: str) -> Made:
        att, of = self._shown.layers[layer], {"layer": layer, "batch": batch, "stage": stage}
        if stage == "weights":
            small = thumbnails(att, batch)
            values, highs = encoding.encode_thumbnails(small.heads), encoding.encode_highs(small.heads)
            return {**of, "values": values, "highs": highs, "rows": small.rows}
        found = run_to_end(heads_of_stage.stage_pictures(att, batch, stage, *thumbnail_plan(att)))
        highs = encoding.encode_highs(found.heads)
        return {**of, "values": heads_of_stage.encoded(found, stage), "highs": highs, "rows": found.rows}

    def _found(self, layer: int, batch: int, head: int) -> list[Made] | None:
        found = self._findings.of(self._shown, layer, batch, head)
        return None if found is None else found.findings

    def _deviation(self, layer: int, batch: int, head: int) -> Made | None:
        found = self._findings.of(self._shown, layer, batch, head)
        return None if found is None else {"layer": layer, "batch": batch, "head": head, **found.deviation}

    def _links_wanted(self, at: Selection) -> tuple[Any, ...]:
        """Return which links are to be sent; () while none are, or where a head is too long to look for all of them."""
        if at.view != "graph":
            return ()
        shape, shown = self._shown.stack[at.layer].shape, at.shown_head
        heads = (shown,) if isinstance(shown, str) else tuple(at.heads)
        count = min(at.top_k or LINKS, encoding.BUDGET // (LINK_BYTES * max(shape.Q, shape.K) * len(heads)))
        if count < 1 or shape.Q * shape.K > LINK_CELLS:
            return ()
        if len(heads) > 1 and sum(self._cells_of_links(at, head) for head in heads) > 3 * LINK_CELLS:
            return ()
        return (at.layer, at.batch, heads, at.direction, count, at.linked_stage)

    def _cells_of_links(self, at: Selection, name: int | str) -> int:
        levels, head = self._shown.source(at.layer, name)
        shape = levels.att.shape
        return cost.cells(levels.att, at.batch, head, range(shape.Q), range(shape.K), "weights")

    def _links(self, layer: int, batch: int, heads: tuple[int | str, ...], side: str, count: int, stage: str) -> Made:
        looked_at = [self._shown.source(layer, head) for head in heads]
        each = [levels.att.head(batch, at) for levels, at in looked_at]
        encoded = encoding.encode_links(
            [strongest(head, count=count, side=side, stage=stage) for head in each],
            [sink_weights(head, range(head.att.shape.Q)) for head in each] if stage == "weights" else (),
        )
        return {"layer": layer, "batch": batch, "heads": list(heads), "side": side, "stage": stage, **encoded}

    def _stages(self, layer: int, batch: int, head: int) -> Made:
        att = self._shown.layers[layer]
        self._leave_stages()
        made = self._stage_pictures.draw(att, batch, head, (layer, att.versions()), self._shown.rules)
        of = {"layer": layer, "batch": batch, "head": head}
        if becomes_exact(att, made):
            self._rest = self._exact_stages(att, of, made)
            self._scheduler.start(EXACT_STAGES, self._rest, EXACT_STAGES_URGENCY)
        return {**of, **made}

    def _exact_stages(self, att: Attention, of: dict[str, int], made: Made) -> Iterator[None]:
        versions = att.versions()
        for found in exact_stages(att, of["batch"], of["head"], made):
            if att.versions() != versions:
                return  # as they are drawn, they are of none: the picture says so
            if found is not None:
                self._tell("stages", {**of, **found})
            yield

    def _leave_stages(self) -> None:
        self._scheduler.drop(EXACT_STAGES)
        self._rest = iter(())

    def finish_stages(self) -> bool:
        """Compute the next step of what makes the stages exact; return whether there was one."""
        self._scheduler.drop(EXACT_STAGES)
        return next(self._rest, self) is not self

    def _pair(self, layer: int, batch: int, head: int, query: int, key: int) -> Made:
        original = self._shown.before(layer)
        before = None if original is None else (original, self._before(layer, batch, head, query, key))
        found = pair_steps.pair(self._shown.layers[layer], query, key, batch, head, before)
        return {"layer": layer, "batch": batch, "head": head, **found}

    def _before(self, layer: int, batch: int, head: int, query: int, key: int) -> Explanation:
        """Explain a pair without the other rules: the same for all values that a scale is dragged to."""
        att = self._shown.stack[layer]
        known = (layer, batch, head, query, key, att.versions())
        if known not in self._unruled:
            self._unruled = {known: att.explain(query, key, batch=batch, head=head)}
        return self._unruled[known]

    def _recall_wanted(self, at: Selection) -> tuple[Any, ...]:
        """Return the head, or several as one, whose rows are colored by what a cache keeps; () where none are."""
        kept = at.view == "heatmap" and self.has_recall(at.layer)
        return (at.layer, at.batch, at.shown_head) if kept else ()

    def has_recall(self, layer: int) -> bool:
        """Return whether a cache keeps only some keys of a layer."""
        return bool(self._shown.rules.get("keep")) or kept_keys(self._shown.given[layer]) is not None

    def _recall(self, layer: int, batch: int, head: int | str) -> Made:
        return self._recalls.look(self._shown.layers[layer], {"layer": layer, "batch": batch, "head": head})

    def whole_recall(self, layer: int, batch: int, head: int | str) -> Made | None:
        """Return what the rows of a head keep, all computed now; None where all keys are kept."""
        of = {"layer": layer, "batch": batch, "head": head}
        return whole_recall(self._shown.layers[layer], of) if self.has_recall(layer) else None

    def finish_recall(self) -> None:
        """Compute now what is left of what the rows keep."""
        self._recalls.finish()

    def _survey(self, batch: int) -> Made:
        shown = self._shown
        ids = lambda layer: shown.ids(layer, batch)  # noqa: E731
        of = batch, shown.versions()
        return self._surveys.look(of, lambda: Survey(shown.layers, batch, ids, shown.kinds, shown.text))

    def _stage_heads(self, batch: int, stage: str, query: int | None) -> Made:
        def ask(found: StageSurvey) -> None:
            found.query = query

        layers, of = self._shown.layers, (batch, stage, self._shown.versions())
        return self._stage_surveys.look(of, lambda: StageSurvey(layers, batch, stage), ask)

    def _no_survey(self, error: Exception, batch: int) -> Made | None:
        return self._surveys.failed(error)

    def _mass(self, layer: int, batch: int, head: int | str, *place: Any) -> Made:
        return self._masses.of_head(self._shown, (layer, batch, head), MassPlace(*place))

    def _no_mass(self, error: Exception, layer: int, batch: int, head: int | str, *place: Any) -> Made:
        return self._masses.failed(error, {"layer": layer, "batch": batch, "head": head, **MassPlace(*place).of()})

    def _leave_mass(self) -> None:
        self._masses.leave(SEGMENTS)

    def _head_mass(self, layer: int, batch: int, *place: Any) -> Made:
        return self._masses.of_heads(self._shown, (layer, batch), MassPlace(*place))

    def _no_head_mass(self, error: Exception, layer: int, batch: int, *place: Any) -> Made:
        return self._masses.failed(error, {"batch": batch, **MassPlace(*place).of()})

    def _leave_head_mass(self) -> None:
        self._masses.leave(SEGMENTS_OF_HEADS)

    def _picture(self, *of: Any) -> Made:
        return self._exact_pass.picture(self._shown, *of)

    def _no_picture(self, error: Exception, *of: Any) -> Made:
        return picture.failed(error, of, self._shown.stack[of[0]].shape)
