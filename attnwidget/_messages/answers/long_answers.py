"""Answers that take longer than one message may: each request computes the next slice.

Nothing runs between the requests, so an abandoned answer costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from typing import Any, NamedTuple

from ..._engine.cost import CostBudget

MAX_OPEN = 4  # unfinished answers that are kept
SLICE = 1 << 27  # cells in one slice, at most: about 0.15 s on one core

Made = dict[str, Any]


class FilePart(NamedTuple):
    """Part of a file.

    Attributes:
        name: the file's name.
        total: the file's length in bytes; 0 while it is being made.
        data: the bytes of this part; empty while the file is being made.
        share: how much of the file is made, 0 to 1.
    """

    name: str
    total: int
    data: bytes
    share: float


class LongAnswer:
    """An answer computed in steps.

    Args:
        steps: yields each step's cost in cells, and returns the answer.
        cells: the cost of all steps.
        first: a preliminary answer; {} for none.
        begun: the cost of the preliminary answer.

    Attributes:
        made: the complete answer, or the preliminary one.
        done: the cost of the steps so far.
        whole: whether the answer is complete.
    """

    def __init__(self, steps: Generator[int, None, Made], cells: int, first: Made, begun: int = 0) -> None:
        self._steps, self._cells, self.begun = steps, cells, begun
        self.made, self.done, self.whole = first, 0, False

    @property
    def share(self) -> float:
        """The share of the steps done; 1 only once the answer is complete."""
        return 1.0 if self.whole else min(self.done / max(1, self._cells), 0.999)

    def go_on(self, budget: CostBudget) -> None:
        """Compute one slice, or less if the budget is smaller; at least one step if anything is left."""
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
    """The unfinished answers, most recently requested last."""

    def __init__(self) -> None:
        self._open: OrderedDict[Hashable, LongAnswer] = OrderedDict()

    def answer(self, of: Hashable, begin: Callable[[], LongAnswer], budget: CostBudget) -> Made:
        """Compute the next slice of an answer and return the answer so far, with the `share` done.

        Args:
            of: identifies the answer; includes the versions of the tensors.
            begin: starts the answer.
            budget: the rest of the message's budget.

        Raises:
            ValueError: nothing is left of the budget to begin with.
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
