"""Short names of a model's attention layers, for the parts of its residual stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

TOWER = re.compile(r"(?:^|[._])(encoder|decoder|vision|visual|text|audio)(?=[._]|$)")


class LayerName(NamedTuple):
    """A layer's names.

    label: its short name: its number, such as "3"; of a tower "encoder 3", counted within it; or "cross 3".
    number: its number in `cap.attention`, or in `cap.cross`.
    cross: whether it is cross-attention.
    """

    label: str
    number: int
    cross: bool


def layer_names(records: Mapping[str, bool]) -> dict[str, LayerName]:
    """Return the names of layers, by the names of their records.

    Args:
        records: whether each is cross-attention, in the order of their calls.

    >>> layer_names({"h.0.attn": False, "h.1.attn": False})["h.1.attn"].label
    '1'
    >>> layer_names({"encoder.0": False, "decoder.0": False, "decoder.0.cross": True})["decoder.0.cross"].label
    'cross 0'
    """
    towers = {name: tower_of(name) for name, cross in records.items() if not cross}
    several = len(set(towers.values())) > 1
    found, numbers, within = {}, {False: 0, True: 0}, dict.fromkeys(towers.values(), 0)
    for name, cross in records.items():
        number = numbers[cross]
        numbers[cross] += 1
        if cross:
            label = f"cross {number}"
        else:
            tower = towers[name]
            label = f"{tower} {within[tower]}" if several and tower else f"{number}"
            within[tower] += 1
        found[name] = LayerName(label, number, cross)
    return found


def tower_of(name: str) -> str:
    """Return the word in a module's name that says its tower; "" for none."""
    found = TOWER.search(name)
    return "" if found is None else found[1]
