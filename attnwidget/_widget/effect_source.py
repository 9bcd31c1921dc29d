"""The interface to a model behind a widget, implemented in `_capture`: runs with edits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

Goal = tuple[int, int]  # a position of the output, and a token id


class EditedPart(NamedTuple):
    """One part to edit: a head, a layer, an edge, or keys in all heads of all layers.

    Attributes:
        layer, head: numbers in the widget; None: all.
        queries: the queries of an edge: one position, or all subwords of a word.
        keys: positions; None: the whole head or layer.
    """

    layer: int | None = None
    head: int | None = None
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None


class TargetChoice(NamedTuple):
    """A possible target token.

    Attributes:
        at: the position whose output predicts it.
        token: its id; None if the target is a function of the output.
        text: its text.
        note: why it is offered.
    """

    at: int | None
    token: int | None
    text: str
    note: str


class PlainRun(NamedTuple):
    """A run without edits.

    Attributes:
        heads: the number of heads in each layer.
        seconds: the time of one run.
        goal: the default target; None for a function of the output.
        targets: the targets to choose from.
        unit: the unit of losses: "nats", or "change" of a function's number.
    """

    heads: tuple[int, ...]
    seconds: float
    goal: Goal | None
    targets: tuple[TargetChoice, ...]
    unit: str


class PartEffect(NamedTuple):
    """The result of one edit.

    Attributes:
        before, after: log-probability of the target, or the function's number.
        kl: divergence at the target's position; None for a function.
        kl_answer: mean divergence over the positions that predict the answer; None without an answer.
        vocabulary: the number of tokens.
        tokens: text, probability before and after, of the target and the most likely tokens.
    """

    before: float
    after: float
    kl: float | None
    kl_answer: float | None
    vocabulary: int
    tokens: tuple[tuple[str, float, float], ...]


class EffectSource(Protocol):
    """The model and inputs behind a widget."""

    @property
    def edits(self) -> Sequence[tuple[str, str, str]]:
        """The edits: value, name, and the words for an edited head."""

    def begin(self, batch: int) -> PlainRun:
        """Run the model once or twice without edits for a sample; raise ValueError with the reason if that fails."""

    def choice(self, batch: int, goal: Goal) -> TargetChoice:
        """Return a target; raise IndexError or ValueError if it does not exist."""

    def text(self, batch: int, at: int) -> str:
        """Return the last words before and at a position."""

    def left_out(self, edit: str, *, keys: bool) -> Mapping[int, str]:
        """Return the layers, by number in the widget, that an edit cannot be made in, as far as known, with reasons.

        Args:
            edit: the value of one of `edits`.
            keys: whether keys of all layers are edited, or a whole head.
        """

    def room(self, batch: int, goal: Goal | None, answer: Sequence[int], total: int) -> int:
        """Return the number of parts for the next run, at most as many as are left."""

    def run(
        self, batch: int, parts: Sequence[EditedPart], edit: str, goal: Goal | None, answer: Sequence[int]
    ) -> list[PartEffect]:
        """Run the model once, with each of these parts edited in a sample of its batch.

        Args:
            batch: the sample.
            parts: at most `room` parts.
            edit: the value of one of `edits`.
            goal: the target.
            answer: positions of the answer's tokens.
        """
