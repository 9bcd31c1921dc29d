"""Which queries are padding, if tokens or a mask show it; their attention is meaningless.

The rules are those of js/src/state/padding.ts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._tokens.display import Label

PADDING = re.compile(r"[\[<|]*_?pad(ding)?_?[\]>|]*", re.IGNORECASE)  # special tokens after the end of a text
LOOKED_AT = 1024  # positions; the tokens of a longer axis are not searched

Array = np.ndarray[Any, Any]


def padded_queries(
    lengths: tuple[int, int], queries: Sequence[Label], keys: Sequence[Label], start: int | None, *, has_tokens: bool
) -> Array:
    """Return whether each query is padding: its token is a padding token, or a padding mask blocks its own key.

    Args:
        lengths: the numbers of queries and keys.
        queries, keys: a label for each position; for more than `LOOKED_AT` the first is enough.
        start: the first key that a padding mask blocks; None if no mask is known to be a padding mask.
        has_tokens: whether there are tokens, which show whether queries and keys share one text.

    Returns:
        (queries,) bool.
    """
    count = lengths[0]
    padded, is_long = np.zeros(count, bool), count > LOOKED_AT
    if not is_long:
        padded[:] = [label.special and PADDING.fullmatch(label.text) is not None for label in queries]
    if start is None or count != lengths[1] or not has_tokens:
        return padded
    if is_long:
        padded[start:] = queries[0].text == keys[0].text
    else:
        padded[start:] |= [query.text == key.text for query, key in zip(queries[start:], keys[start:], strict=True)]
    return padded


def padded_rows(padded: Array, each: int) -> Array:
    """Return whether all queries of each drawn row, `each` queries tall, are padding, (rows,) bool."""
    return np.logical_and.reduceat(padded, np.arange(0, len(padded), each)) if len(padded) else padded


def runs(rows: Array) -> list[range]:
    """Return the runs of padding rows.

    >>> runs(np.array([False, True, True, False, True]))
    [range(1, 3), range(4, 5)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], rows.astype(np.int8), [0]])))
    return [range(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
