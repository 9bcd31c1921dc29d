"""LinkLists of heads that an atlas shows: the strongest over all texts, and ordinary ones, drawn at random."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LISTS = 4  # strongest and ordinary links to any key; strongest and ordinary links among content tokens
NAMES = ("strongest", "ordinary", "strongest content", "ordinary content")
CONTENT = 1  # of the two kinds of links: any, and among tokens that are neither first nor special
OF_A_TEXT = 2  # the most strongest links of one text
WIDTH = 64  # tokens of an excerpt
BESIDE = 48  # a query and a key that are nearer have one window of text, others have two


class LinkLists(NamedTuple):
    """Lists of links of a layer's heads, each (LISTS, heads, count); a missing link has order −∞.

    order: the larger comes first: the weight of a strongest link, a random number of an ordinary one.
    weight: float64.
    text: the number of the text.
    query, key: positions in the text.
    row: (…, WIDTH) float32, the weights of the query on the excerpt's tokens: see `excerpt_places`.
    values: (…, Dv) float32, the value vector of the key; None if it is not needed.
    """

    order: Tensor
    weight: Tensor
    text: Tensor
    query: Tensor
    key: Tensor
    row: Tensor
    values: Tensor | None

    def joined(self, other: LinkLists, count: int) -> LinkLists:
        """Return the first links of both; among equal ones those of `self`, then those of earlier texts."""
        both = [None if x is None or y is None else torch.cat([x, y], 2) for x, y in zip(self, other, strict=True)]
        assert both[0] is not None
        at = both[0].sort(dim=2, descending=True, stable=True).indices[..., :count]
        return LinkLists(*(None if x is None else _taken(x, at) for x in both))  # type: ignore[arg-type]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: x for name, x in self._asdict().items() if x is not None}


def _taken(x: Tensor, at: Tensor) -> Tensor:
    return x.gather(2, at) if x.ndim == 3 else x.gather(2, at[..., None].expand(*at.shape, x.shape[3]))


def mixed(text: int, salt: int, heads: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two random numbers for each head of a layer in a text, the same in every run: splitmix64.

    Returns:
        (heads,) float64 from 0 to 1, and (heads,) int64 from 0.
    """
    head = torch.arange(heads, dtype=torch.int64, device=device)
    first = _splitmix((text * 0x1F3D5B79 + salt) * 4096 + head)
    return (first & ((1 << 53) - 1)).double() / (1 << 53), _splitmix(first + 1) & ((1 << 62) - 1)


def _splitmix(x: Tensor) -> Tensor:
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shift right as an unsigned number."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def excerpt_places(query: Tensor, key: Tensor, length: int) -> Tensor:
    """Return the positions of the tokens shown with a link, (…, WIDTH) int64; −1 after the last.

    Args:
        query, key: positions in the text, of any shape.
        length: of the text. A short text is shown whole; of a longer one a window with both, or one around each.

    >>> excerpt_places(torch.tensor(900), torch.tensor(100), 1000)[[0, 31, 32, 63]].tolist()
    [84, 115, 884, 915]
    """
    span = torch.arange(WIDTH, device=query.device)
    if length <= WIDTH:
        return torch.where(span < length, span, -1).expand(*query.shape, WIDTH)
    low, high = torch.minimum(query, key), torch.maximum(query, key)
    one = (low - (WIDTH - (high - low)) // 2).clamp(0, length - WIDTH)[..., None] + span
    half = WIDTH // 2
    left = (low - half // 2).clamp(0, length - half)
    right = torch.maximum((high - half // 2).clamp(0, length - half), left + half)
    two = torch.where(span < half, left[..., None] + span, right[..., None] + span - half)
    return torch.where((high - low < BESIDE)[..., None], one, two)
