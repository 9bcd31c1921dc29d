"""Answers that take longer than a message may: computed a slice further each time they are asked for, until whole.

Nothing runs in between, so that a question that nobody asks any more costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from typing import Any, NamedTuple

from ..._engine.cost import CostBudget

MAX_OPEN = 4  # answers that are begun and kept
SLICE = 1 << 27  # cells of one slice, at most: about 0.15 s on one core

Made = dict[str, Any]


class FilePart(NamedTuple):
    """A part of a file.

    Attributes:
        name: that of the file.
        total: its length in bytes; 0 while it is made.
        data: the part, empty while the file is made.
        share: how much of the file is made, 0 to 1.
    """

    name: str
    total: int
    data: bytes
    share: float


class LongAnswer:
    """An answer that is computed in steps.

    Args:
        steps: yields after each step how many cells it was worth, and returns the answer.
        cells: how many all steps are worth.
        first: what can be said before; {} for nothing.
        begun: how many cells that was worth.

    Attributes:
        made: the whole answer, or what was said before.
        done: how many cells the steps so far were worth.
        whole: whether the answer is there.
    """

    def __init__(self, steps: Generator[int, None, Made], cells: int, first: Made, begun: int = 0) -> None:
        self._steps, self._cells, self.begun = steps, cells, begun
        self.made, self.done, self.whole = first, 0, False

    @property
    def share(self) -> float:
        """The share of the steps that is done; 1 only once the answer is whole."""
        return 1.0 if self.whole else min(self.done / max(1, self._cells), 0.999)

    def go_on(self, budget: CostBudget) -> None:
        """Compute a slice, or as much of it as the budget has left; a step at least, if anything is left."""
        slice_left = min(SLICE, budget.left)
        while slice_left > 0 and not self.whole:
            try:
                cells = next(self._steps)
            except StopIteration as end:
                self.made, self.whole = end.value, True
                return
            self.done += cells
            slice_left -= cells
            budget.use(cells)


class LongAnswers:
    """The answers that are begun: those asked for last."""

    def __init__(self) -> None:
        self._open: OrderedDict[Hashable, LongAnswer] = OrderedDict()

    def answer(self, of: Hashable, begin: Callable[[], LongAnswer], budget: CostBudget) -> Made:
        """Return an answer as far as it is known, a slice further than before, with the `share` that is done.

        Args:
            of: what tells it from others, the versions of the tensors included.
            begin: begins it.
            budget: what the message has left.

        Raises:
            ValueError: nothing is left to begin with.
        """
        found = self._open.pop(of, None)
        if found is None:
            if not budget.left:
                budget.spend(1, "ask for fewer at once")
            found = begin()
            budget.use(found.begun)
        found.go_on(budget)
        if not found.whole:
            self._open[of] = found
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        return {**found.made, "share": found.share}
