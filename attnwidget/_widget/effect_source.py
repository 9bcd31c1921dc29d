"""What a widget asks of a model that is at hand, which `_capture` answers: runs of it with edits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Goal = tuple[int, int]  # a position of the output, and a token's id


class EditedPart(NamedTuple):
    """What is edited at a time: a head, a layer, an edge, or keys in all heads of all layers.

    Attributes:
        layer, head: of the widget; None: all.
        queries: of an edge: one position, or those of a word's pieces.
        keys: positions; None: the whole head or layer.
    """

    layer: int | None = None
    head: int | None = None
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None


class TargetChoice(NamedTuple):
    """A token that can be the target.

    Attributes:
        at: the position whose output tells it.
        token: its id; None of a function of the output.
        text: of the token.
        note: why it is offered.
    """

    at: int | None
    token: int | None
    text: str
    note: str


class PlainRun(NamedTuple):
    """A run without edits.

    Attributes:
        heads: how many each layer has.
        seconds: that one run takes.
        goal: the target where none is chosen; None of a function.
        targets: what can be chosen.
        unit: of what is lost: "nats", or "change" of a function's number.
    """

    heads: tuple[int, ...]
    seconds: float
    goal: Goal | None
    targets: tuple[TargetChoice, ...]
    unit: str


class PartEffect(NamedTuple):
    """What came of one edit.

    Attributes:
        before, after: log-probability of the target, or the function's number.
        kl: at the target's position; None of a function.
        kl_answer: mean over the positions that tell the answer; None where there is none.
        vocabulary: how many tokens there are.
        tokens: text, probability before and after: of the target and of those most likely.
    """

    before: float
    after: float
    kl: float | None
    kl_answer: float | None
    vocabulary: int
    tokens: tuple[tuple[str, float, float], ...]


class EffectSource(Protocol):
    """A model with what it is called with, whose attention a widget shows."""

    @property
    def edits(self) -> Sequence[tuple[str, str, str]]:
        """The edits that there are: value, its name, and what is done to a head."""

    def begin(self, batch: int) -> PlainRun:
        """Run the model once or twice without edits, for a sample; raise ValueError with the reason if it cannot be."""

    def choice(self, batch: int, goal: Goal) -> TargetChoice:
        """Return a target as it is told; raise IndexError or ValueError if it is none."""

    def text(self, batch: int, at: int) -> str:
        """Return the last words up to a position."""

    def room(self, batch: int, goal: Goal | None, answer: Sequence[int], total: int) -> int:
        """Return how many parts the next run takes, of so many that are left."""

    def run(
        self, batch: int, parts: Sequence[EditedPart], edit: str, goal: Goal | None, answer: Sequence[int]
    ) -> list[PartEffect]:
        """Run the model once, with these parts edited one by one.

        Args:
            batch: the sample.
            parts: at most as many as there is `room` for.
            edit: the value of one of `edits`.
            goal: the target.
            answer: positions of the answer's tokens.
        """
