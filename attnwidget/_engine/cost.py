"""What an answer costs, in cells to compute, so that none takes seconds while a front-end waits."""

from __future__ import annotations

from math import ceil

from .._utils.indexing import Block, cuts
from .base import AttentionBase
from .kept_levels import only_overviews
from .stages import NORMALIZED, QUERIES, excludes, streamed

AT_ONCE = 1 << 26  # cells: 8,192², about 40 ms on two cores; what is beyond is computed in slices
MAX_CELLS = 1 << 28  # cells that the questions of one message may come to, about 0.2 s; what is beyond is refused
REFRESH = MAX_CELLS // 2  # cells that all that is shown is worth, made anew
COMBINED = 4  # cells that one of a head is worth, of which several are one
WORDS = 16  # and one of words: some cells of pieces, each computed twice
STATISTICS = 12  # cells that one of a row's statistics is worth: it is read several times
GRADIENT = 32  # and one of the gradients, of five products, each of whose blocks is gone through many times
PEAK = 8  # and one of a bin whose largest is looked for
RANKED = 16  # and one of a line that is ranked, or whose rows are summed
JACOBIAN = 8  # and one of a Jacobian
SWEEP = 1 << 25  # cells that a sweep of head sizes is worth
SMALL_PICTURE = 3  # and one of a small picture of one of all heads
SEARCHED = 64  # cells that a token which is searched is worth
BYTES_SEARCHED = 16  # of text in a token; a longer one is worth more
COMPARED = 32  # and one of a picture of two attentions and their difference
CHANGE = 16  # and one of two attentions, among which the largest change is looked for
TILE = 1 << 13  # cells that a tile is worth, however few it has; one of several heads, so many for each
SAMPLED = 2  # and one of sampled rows, of a tile or of statistics: they lie far apart
ASKED = 4  # and one of which a mask function is asked
COUNTED_PIECES = 64  # in which queries are counted: a triangle is then overestimated by a hundredth


def cells(att: AttentionBase, batch: int, head: int, queries: range, keys: range, stage: str) -> int:
    """Return how many cells of a region are computed, without those that known rules exclude.

    It may be a few hundredths too many.
    """
    if only_overviews(att) is not None:
        return 0
    heads = att.source.heads_in_cells(batch, head)
    if heads:
        return sum(_of_several(one[0]) * cells(*one, queries, keys, stage) for one in heads)
    own = WORDS if att.source.derived else 1
    if not excludes(att, streamed(att, stage)):
        return own * len(queries) * len(keys)
    pieces = cuts(range(len(queries)), 1, max(QUERIES, ceil(len(queries) / COUNTED_PIECES)))
    parts = (queries[piece.start : piece.stop] for piece in pieces)
    found = sum(len(rows) * len(att.rules.span(Block(batch, head, rows, keys))) for rows in parts)
    return own * found


def worth_of_a_cell(att: AttentionBase, batch: int, head: int) -> int:
    """Return how many cells one is worth, as several heads as one, or words, are read from others."""
    heads = att.source.heads_in_cells(batch, head)
    if heads:
        return sum(_of_several(one[0]) * worth_of_a_cell(*one) for one in heads)
    return WORDS if att.source.derived else 1


def _of_several(att: AttentionBase) -> int:
    """Return how many cells one of a head is worth where several are one; one of words is worth many by itself."""
    return COMBINED // 2 if att.source.derived else COMBINED


def normalizers(att: AttentionBase, batch: int, head: int, queries: range, stage: str) -> int:
    """Return how many cells are computed for log-normalizers of some queries that a stage needs and are not known.

    Of words these are those of all their pieces, if not all are known.
    """
    needed = att.source.rows_needed(batch, head, queries)
    if needed is not None:
        return sum(normalizers(*one, rows, stage) for one, rows in needed)
    if stage not in NORMALIZED or streamed(att, stage) != "masked":
        return 0
    if att.known_rows(batch, head, queries) is not None:
        return 0
    found = 0
    for piece in cuts(range(len(queries)), 1, max(QUERIES, ceil(len(queries) / COUNTED_PIECES))):
        rows = queries[piece.start : piece.stop]
        if att.known_rows(batch, head, rows) is None:
            found += cells(att, batch, head, rows, range(att.shape.K), stage)
    return found


class CostBudget:
    """The number of cells that the questions of one message may cost together."""

    def __init__(self, most: int = MAX_CELLS) -> None:
        self.most = self.left = most

    def spend(self, cells: int, advice: str) -> None:
        """Raise ValueError, with advice, if so many more cells are too many."""
        if cells > self.left:
            raise ValueError(f"this takes {cells:,} numbers to compute, at most {self.most:,} at once: {advice}")
        self.left -= cells

    def use(self, cells: int) -> None:
        """Take away what was computed, as far as there is any left."""
        self.left = max(0, self.left - cells)
