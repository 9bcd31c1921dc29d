"""The traits of edits of the model: which effects are asked for, and their results."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, get_args

import numpy as np
import traitlets

from ..._messages.segments.segment_mass import SINK
from ..._utils.validation import told
from ..._utils.weak import weakly
from ..passes.effects import Effects, EffectWish, SegmentColumns
from ..stores.segment_store import columns_of
from ..traits.keywords import EffectEdit, SegmentsShow
from ..traits.trait_types import Choice, WrongType, WrongValue, derived
from .stacks import StacksPart

MOST = 2**31 - 1  # the largest position or token id that a front-end can set

Goal = tuple[int, int]


class EffectTarget(traitlets.TraitType[Goal | None, Sequence[SupportsIndex] | None]):
    """A position of the model's text and a token id, or None for the model's own choice."""

    default_value = None

    def validate(self, obj: Any, value: Any) -> Goal | None:
        if value is None:
            return None
        advice = "give (position, token id), such as (11, 262), or None for the model's own most likely token"
        try:
            if isinstance(value, str | bytes | dict) or any(isinstance(one, bool) for one in value):
                raise TypeError
            at, token = map(operator.index, value)
        except (TypeError, ValueError, RecursionError):
            raise WrongType(f"{self.name} is {told(value)}: {advice}") from None
        if not (0 <= at <= MOST and 0 <= token <= MOST):
            raise WrongValue(f"{self.name} is {told((at, token))}: {advice}")
        return at, token


class EffectsPart(StacksPart):
    """Effects of edits, from runs of the model; `effects` is None if the widget has no model."""

    _effects: Effects
    bar: Any
    order: Any

    segments_show: Choice[SegmentsShow] = Choice(
        *get_args(SegmentsShow), help="What the segments view shows: attention, or the effect of its removal."
    ).tag(sync=True, role="look")
    effect_target = EffectTarget(
        help="The token whose probability is measured, (position, id); None: the model's choice."
    ).tag(sync=True, role="numbers")
    effect_edit: Choice[EffectEdit] = Choice(*get_args(EffectEdit), help="The edit of a head or a segment.").tag(
        sync=True, role="numbers"
    )
    effects = derived("The effects of edits of each head and segment, so far.")
    effect_details: Any = traitlets.List(
        default_value=None, allow_none=True, help="The requested edits, with the next token before and after."
    ).tag(sync=True, role="derived")

    def _make(self) -> None:
        super()._make()
        self._effects = Effects(
            self._scheduler,
            weakly(self.set_trait),
            weakly(self._effect_wish),
            weakly(self._effect_columns),
            weakly(self._answer_positions),
            weakly(self._pieces_of),
        )

    def _forget_segments(self) -> None:
        super()._forget_segments()
        self._effects.forget()

    def _finish(self) -> None:
        super()._finish()
        self._effects.finish()

    def _end(self) -> None:
        super()._end()
        self._effects.use(None)

    def _watch(self) -> None:
        super()._watch()
        wishes = ["segments_show", "order", "bar", "effect_target", "effect_edit"]
        self.observe(self._when_changed(self._bring_effects), wishes)

    def _bring_effects(self) -> None:
        """Run the model of the stack on display if its effects are asked for."""
        if self._is_changing:
            return
        source = self._named_stacks.find(self._chosen).effects
        self._effects.use(None if self._shown.as_one is not None else source)  # a run edits single heads
        self._effects.bring()

    def _effect_wish(self) -> EffectWish:
        looked_at = "effect" in (self.segments_show, self.order, self.bar)
        asked = self.batch, self.effect_target, self.effect_edit, tuple(self.segment_path), looked_at
        return EffectWish(*asked, words=self._shown.words)

    def _effect_columns(self, path: tuple[str, ...]) -> SegmentColumns | None:
        """Return the segments under a path and the keys of each in the model's text; None if there are none."""
        found = self._segments_of("key")
        if found is None:
            return None
        columns = columns_of(found, path, lambda names, _: [0] * len(names))
        keys = [self._in_model("key", columns.labels == number) for number in range(len(columns.names))]
        sink = [SINK] if self._shown.layers[self.layer].has_sinks else []
        return SegmentColumns([*columns.names, *sink], [*keys, *([()] * len(sink))])

    def _answer_positions(self) -> tuple[int, ...]:
        """Return the query positions of the answer."""
        found = self._segments_of("query")
        if found is None:
            return ()
        held = np.zeros(found.length, bool)
        held[found.positions(found.answer)] = True
        return self._in_model("query", held)

    def _in_model(self, side: str, held: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """Return the positions of the model's text for some positions on display: a word has several subwords."""
        ends = self._shown.word_ends(side, self.layer, self.batch) if self._shown.words else None
        if ends is not None:
            held = np.repeat(held, np.diff(ends.cpu().numpy()))
        return tuple(np.flatnonzero(held).tolist())

    def _pieces_of(self, side: str, position: int, layer: int | None) -> tuple[int, ...]:
        """Return the positions of the model's text for one position of a layer, the selected one by default."""
        known = layer is not None and layer < len(self._shown.layers)
        return self._shown.pieces_of(side, position, layer if known and layer is not None else self.layer, self.batch)
