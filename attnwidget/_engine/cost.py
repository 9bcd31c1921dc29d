"""The cost of an answer, in cells to compute, so that none keeps a front-end waiting for seconds."""

from __future__ import annotations

from math import ceil

from .._utils.indexing import Block, cuts
from .base import AttentionBase
from .kept_levels import only_overviews
from .stages import NORMALIZED, QUERIES, excludes, streamed

AT_ONCE = 1 << 26  # cells: 8,192², about 40 ms on two cores; more cells are computed in slices
MAX_CELLS = 1 << 28  # the most cells for all requests of one message, about 0.2 s; more cells raise an error
REFRESH = MAX_CELLS // 2  # cost of refreshing all that is shown
# The cost of one cell, in plain cells:
COMBINED = 4  # for each of several combined heads
WORDS = 16  # of merged words: several cells of subwords, each computed twice
STATISTICS = 12  # of a row's statistics, which read it several times
GRADIENT = 32  # of the gradients: five products, with many steps for each block
PEAK = 8  # of a bin whose largest cell is searched
RECEIVED = 4  # of the weights that keys receive
RANKED = 16  # of a ranked line, or of summed rows
JACOBIAN = 8  # of a Jacobian
SMALL_PICTURE = 3  # of the small pictures of all heads
COMPARED = 32  # of a picture of two attentions and their difference
CHANGE = 16  # of two attentions whose largest change is searched
SAMPLED = 2  # of sampled rows, in tiles or statistics, because they lie far apart
ASKED = 4  # of a mask function
# The cost of other things, in cells:
SWEEP = 1 << 25  # a sweep of head sizes
SEARCHED = 64  # a token of up to `BYTES_SEARCHED` bytes to search; more for a longer one
BYTES_SEARCHED = 16
PAIR = 1 << 19  # one of the strongest pairs, whose bin is searched for it
TILE = 1 << 13  # the least cost of a tile; for combined heads, of each head
COUNTED_PIECES = 64  # groups of queries to count by; this overestimates a triangle by about 1 %


def cells(att: AttentionBase, batch: int, head: int, queries: range, keys: range, stage: str) -> int:
    """Return how many cells of a region are computed, without excluded cells; it may be a few percent too high."""
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
    """Return the cost of one cell: more than 1 for combined heads and merged words."""
    heads = att.source.heads_in_cells(batch, head)
    if heads:
        return sum(_of_several(one[0]) * worth_of_a_cell(*one) for one in heads)
    return WORDS if att.source.derived else 1


def _of_several(att: AttentionBase) -> int:
    """Return the factor for each combined head; less for merged words, whose cells already cost more."""
    return COMBINED // 2 if att.source.derived else COMBINED


def normalizers(att: AttentionBase, batch: int, head: int, queries: range, stage: str) -> int:
    """Return how many cells are computed for the missing log-normalizers that a stage of some queries needs.

    Merged words need those of all their subwords, unless all are known.
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
    """The number of cells that the requests of one message may cost together."""

    def __init__(self, most: int = MAX_CELLS) -> None:
        self.most = self.left = most

    def spend(self, cells: int, advice: str) -> None:
        """Spend cells; raise ValueError, with advice, if too few are left."""
        if cells > self.left:
            raise ValueError(f"this takes {cells:,} numbers to compute, at most {self.most:,} at once: {advice}")
        self.left -= cells

    def use(self, cells: int) -> None:
        """Subtract cells that were computed; the rest stays 0 or more."""
        self.left = max(0, self.left - cells)
