"""The traits of what edits of the model do: which are asked for, and what came of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, get_args

import numpy as np
import traitlets

from ..._messages.segments.segment_mass import SINK
from ..._utils.validation import told
from ..passes.effects import Effects, EffectWish, SegmentColumns
from ..stores.segment_store import columns_of
from .keywords import EffectEdit, SegmentsShow
from .stack_traits import StackTraits
from .trait_types import Choice, WrongType, WrongValue, derived

MOST = 2**31 - 1  # of a position or a token's id, that a front-end can set

Goal = tuple[int, int]


class EffectTarget(traitlets.TraitType[Goal | None, Sequence[SupportsIndex] | None]):
    """A position of the model's text and a token's id, or None for those that it takes itself."""

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


class EffectTraits(StackTraits):
    """What is asked of a model that is at hand, and its answers; `effects` is None where none is."""

    _effects: Effects
    bar: Any
    order: Any

    segments_show: Choice[SegmentsShow] = Choice(
        *get_args(SegmentsShow), help="What the segments view shows: attention, or what its removal does."
    ).tag(sync=True, role="look")
    effect_target = EffectTarget(help="Where and of which token the probability is looked at; None: the last.").tag(
        sync=True, role="numbers"
    )
    effect_edit: Choice[EffectEdit] = Choice(*get_args(EffectEdit), help="What is done to a head or a segment.").tag(
        sync=True, role="numbers"
    )
    effects = derived("What edits of each head and segment do, as far as they have run.")
    effect_details: Any = traitlets.List(
        default_value=None, allow_none=True, help="The edits that were asked for, with the next token before and after."
    ).tag(sync=True, role="derived")

    def _bring_effects(self) -> None:
        """Run the model that goes with the stack that is shown, where that is asked for."""
        if self._is_changing:
            return
        self._effects.use(self._named_stacks.find(self._chosen).effects)
        self._effects.bring()

    def _effect_wish(self) -> EffectWish:
        looked_at = "effect" in (self.segments_show, self.order, self.bar)
        asked = self.batch, self.effect_target, self.effect_edit, tuple(self.segment_path), looked_at
        return EffectWish(*asked, words=self._shown.words)

    def _effect_columns(self, path: tuple[str, ...]) -> SegmentColumns | None:
        """Return the segments of a place and the keys of the model's text in each; None where there are none."""
        found = self._segments_of("key")
        if found is None:
            return None
        columns = columns_of(found, path, lambda names, _: [0] * len(names))
        keys = [self._in_model("key", columns.labels == number) for number in range(len(columns.names))]
        sink = [SINK] if self._shown.layers[self.layer].has_sinks else []
        return SegmentColumns([*columns.names, *sink], [*keys, *([()] * len(sink))])

    def _answer_positions(self) -> tuple[int, ...]:
        """Return the positions of the answer among the queries."""
        found = self._segments_of("query")
        if found is None:
            return ()
        held = np.zeros(found.length, bool)
        held[found.positions(found.answer)] = True
        return self._in_model("query", held)

    def _in_model(self, side: str, held: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """Return the positions of the model's text that some of those shown stand for: words for their pieces."""
        ends = self._shown.word_ends(side, self.layer, self.batch) if self._shown.words else None
        if ends is not None:
            held = np.repeat(held, np.diff(ends.cpu().numpy()))
        return tuple(np.flatnonzero(held).tolist())

    def _pieces_of(self, side: str, position: int, layer: int | None) -> tuple[int, ...]:
        """Return the positions of the model's text that one of a layer, or of the selected one, stands for."""
        known = layer is not None and layer < len(self._shown.layers)
        return self._shown.pieces_of(side, position, layer if known and layer is not None else self.layer, self.batch)
