"""The traits of what edits of the model do: which are asked for, and what came of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import traitlets

from .._utils.validation import told
from .traits import Choice, WrongType, WrongValue

EDITS = ("zero", "uniform")
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


class EffectTraits(traitlets.HasTraits):
    """What is asked of a model that is at hand, and its answers; `effects` is None where none is."""

    segments_show = Choice(
        "attention", "effect", help="What the segments view shows: attention, or what its removal does."
    ).tag(sync=True, role="look")
    effect_target = EffectTarget(help="Where and of which token the probability is looked at; None: the last.").tag(
        sync=True, role="numbers"
    )
    effect_edit = Choice(*EDITS, help="What is done to a head or a segment.").tag(sync=True, role="numbers")
    effects = traitlets.Dict(
        default_value=None, allow_none=True, help="What edits of each head and segment do, as far as they have run."
    ).tag(sync=True, role="derived")
    effect_details: Any = traitlets.List(
        default_value=None, allow_none=True, help="The edits that were asked for, with the next token before and after."
    ).tag(sync=True, role="derived")
