"""All heads at once: small pictures, metrics, and the order they are shown in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from ..._analysis.metrics import SURVEYED
from ..._engine.softmax import run_to_end
from ..._messages.codec import encoding
from ..._messages.pictures import heads_of_stage
from ..._messages.pictures.heads_of_stage import STAGE_HEADS, STAGE_SUMS, StageSurvey
from ..._messages.pictures.heads_overview import Survey, Surveys, Thumbnails, drawing_thumbnails, thumbnail_plan
from ..._utils.weak import weakly
from ..derived.derived_trait import DerivedTrait
from ..derived.selection import Selection
from ..traits.keywords import Combine
from ..traits.trait_types import Choice, Kinds, MetricChoice, OnlyHeads, derived
from .selection import SelectionPart

EFFECT = "effect"  # of removing a head: a metric from runs of the model
BARS = (*SURVEYED, EFFECT, *STAGE_SUMS)
ORDERS = ("layer", "similar", *BARS)

Made = dict[str, Any]


class HeadsPart(SelectionPart):
    """All heads of the selected layer, and of all layers."""

    _surveys: Surveys[Survey]
    _stage_surveys: Surveys[StageSurvey]
    _drawn: tuple[tuple[Any, ...], Thumbnails] | None = None

    kinds = Kinds(help="Custom metrics of all heads: functions of exact rows, by name.").tag(role="given")
    bar = MetricChoice(*BARS, help="The metric under each head in the heads view.").tag(sync=True, role="look")
    order = MetricChoice(*ORDERS, help="The metric that orders all heads.").tag(sync=True, role="look")
    only_heads = OnlyHeads(
        help="Which heads the heads view shows: first layer, last layer, and the least value of `bar`."
    ).tag(sync=True, role="look")
    combine: Choice[Combine] = Choice(*get_args(Combine), help="Show several `heads` as one.").tag(
        sync=True, role="numbers"
    )
    thumbnails = derived("All heads of the selected layer, small.")
    survey = derived("All heads of all layers, small.")
    stage_heads = derived("All heads of all layers in the chosen stage after the weights.")

    def _make(self) -> None:
        super()._make()
        self._surveys = Surveys[Survey](self._scheduler, weakly(self._put_survey))
        self._stage_surveys = Surveys[StageSurvey](self._scheduler, weakly(self._put_stage_heads), STAGE_HEADS)

    def _rules(self, at: Selection) -> dict[str, DerivedTrait]:
        is_shown = at.view == "heads"
        staged = (at.batch, at.linked_stage, at.query) if is_shown and at.linked_stage != "weights" else ()
        return super()._rules(at) | {
            "thumbnails": DerivedTrait((*at.sample, at.linked_stage), self._thumbnails),
            "survey": DerivedTrait(
                (at.batch,) if is_shown else (), self._survey, self._no_survey, leave=self._surveys.leave
            ),
            "stage_heads": DerivedTrait(
                staged, self._stage_heads, heads_of_stage.failed, leave=self._stage_surveys.leave
            ),
        }

    def _forget_layers(self) -> None:
        super()._forget_layers()
        self._forget_surveys()

    def _forget_tokens(self) -> None:
        super()._forget_tokens()
        self._forget_surveys()
        self._derived.forget("survey")

    def _forget_segments(self) -> None:
        super()._forget_segments()
        if self.kinds:  # custom metrics may look at segments
            self._surveys.forget()
            self._derived.forget("survey")

    def _finish(self) -> None:
        super()._finish()
        self._surveys.finish()
        self._stage_surveys.finish()

    def _end(self) -> None:
        super()._end()
        self._forget_surveys()

    def _watch(self) -> None:
        super()._watch()
        self.observe(self._when_changed(self._on_kinds), ["kinds"])

    def _on_kinds(self) -> None:
        """Measure all heads again with other custom metrics."""
        with self._lock:
            self.bar = self.bar if self.bar in (*BARS, *self.kinds) else BARS[0]
            self.order = self.order if self.order in (*ORDERS, *self.kinds) else ORDERS[0]
            self._surveys.forget()
            self._derived.forget("survey")
            self._refresh()

    def _forget_surveys(self) -> None:
        self._surveys.forget()
        self._stage_surveys.forget()

    def _put_survey(self, found: Any) -> None:
        self.set_trait("survey", found)

    def _put_stage_heads(self, found: Any) -> None:
        self.set_trait("stage_heads", found)

    def _thumbnails(self, layer: int, batch: int, stage: str) -> Made:
        att, of = self._shown.layers[layer], {"layer": layer, "batch": batch, "stage": stage}
        if stage == "weights":
            known, self._drawn = self._drawn, None
            of_now = self._thumbnails_of(layer, batch)
            small = known[1] if known and known[0] == of_now else run_to_end(drawing_thumbnails(att, batch))
            values, highs = encoding.encode_thumbnails(small.heads), encoding.encode_highs(small.heads)
            return {**of, "values": values, "highs": highs, "rows": small.rows}
        found = run_to_end(heads_of_stage.stage_pictures(att, batch, stage, *thumbnail_plan(att)))
        highs = encoding.encode_highs(found.heads)
        return {**of, "values": heads_of_stage.encoded(found, stage), "highs": highs, "rows": found.rows}

    def _thumbnails_of(self, layer: int, batch: int) -> tuple[Any, ...]:
        return layer, batch, self._version, self._shown.layers[layer].versions()

    def _drawing_thumbnails(self) -> Iterator[None]:
        """Draw the small pictures of the selected layer step by step, for `_thumbnails`."""
        of = self._thumbnails_of(self.layer, self.batch)
        if Selection.of(self).linked_stage == "weights":
            small = yield from drawing_thumbnails(self._shown.layers[self.layer], self.batch)
            self._drawn = of, small

    def _survey(self, batch: int) -> Made:
        shown = self._shown
        ids = lambda layer: shown.ids(layer, batch)  # noqa: E731
        of = batch, shown.versions()
        return self._surveys.look(of, lambda: Survey(shown.layers, batch, ids, shown.kinds, shown.text))

    def _no_survey(self, error: Exception, batch: int) -> Made | None:
        return self._surveys.failed(error)

    def _stage_heads(self, batch: int, stage: str, query: int | None) -> Made:
        def ask(found: StageSurvey) -> None:
            found.query = query

        layers, of = self._shown.layers, (batch, stage, self._shown.versions())
        return self._stage_surveys.look(of, lambda: StageSurvey(layers, batch, stage), ask)
