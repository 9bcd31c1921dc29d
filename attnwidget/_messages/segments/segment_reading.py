"""Mass, mass per token and lift, with some segments excluded; js/src/data/segments.ts computes the same readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..._segments.named import FIRST
from ..._utils.assets import stage_names
from .segment_mass import SINK
from .segment_rows import Numbers

MEASURES = ("mass", "per_token", "lift")
SINKS, SELF = "sink", "self"  # keywords in `aside`
MOST_LINEAR = 40  # segments per side; above that, a few numbers dwarf the others


def measure_of(measure: str, stage: str) -> str:
    """Return the measure that applies to a stage: only masses have a lift.

    >>> measure_of("lift", "logit"), measure_of("lift", "weights")
    ('mass', 'lift')
    """
    return "mass" if measure == "lift" and stage != "weights" else measure


def measure_name(measure: str, stage: str) -> str:
    """Return the name of a reading.

    >>> measure_name("per_token", "weights"), measure_name("mass", "logit")
    ('Mass per token', 'Logit added')
    """
    name = "lift" if measure == "lift" else stage_names(stage).get("sum", "mass")
    return (name[:1].upper() + name[1:]) + (" per token" if measure == "per_token" else "")


def is_logarithmic(rows: int, columns: int, *, signed: bool) -> bool:
    """Return whether the colors of segments × segments are on a log scale.

    >>> is_logarithmic(6, 40, signed=False), is_logarithmic(6, 41, signed=False), is_logarithmic(41, 41, signed=True)
    (False, True, False)
    """
    return not signed and max(rows, columns) > MOST_LINEAR


def aside_columns(names: Sequence[str], aside: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which columns are excluded.

    >>> aside_columns(["first token", "doc 1", "learned sink"], ["sink", "self"])
    array([ True, False,  True])
    """
    wanted = {*aside, *((FIRST, SINK) if SINKS in aside else ())}
    return np.array([name in wanted for name in names], bool)


def read(
    parts: Mapping[str, np.ndarray[Any, Any]],
    names: Sequence[str],
    sizes: Sequence[int],
    aside: Sequence[str],
    measure: str,
    stage: str = "weights",
) -> tuple[Numbers, Numbers, Numbers]:
    """Convert masses to a measure; mass and even attention are shares of what is not excluded.

    This includes the largest masses of combined heads, which do not sum to 1. Sums of stages other than the weights are
    not shares and stay unchanged.

    Args:
        parts: "mass", "even", and the part of each that goes to the queries' own keys, "self" and "self_even":
            (rows, columns).
        names, sizes: of the columns.
        aside: names of excluded columns, "sink" and "self".
        measure: "mass", "per_token" or "lift"; for another stage "mass" means its sum, and there is no lift.
        stage: the stage that was summed.

    Returns:
        (rows, columns), NaN where a column is excluded; the same for even attention; and (rows,) the excluded mass.
    """
    gone = aside_columns(names, aside)
    own = SELF in aside
    mass, even = (
        np.asarray(parts[name], np.float64) - (np.asarray(parts[own_part], np.float64) if own else 0.0)
        for name, own_part in (("mass", "self"), ("even", "self_even"))
    )
    left = np.where(gone, 0.0, mass).sum(1)
    set_aside = np.asarray(parts["mass"], np.float64).sum(1) - left
    with np.errstate(invalid="ignore", divide="ignore"):
        mass = mass / np.where(left > 0, left, np.nan)[:, None] if stage == "weights" else mass
        total = np.where(gone, 0.0, even).sum(1)
        even = even / np.where(total > 0, total, np.nan)[:, None]
        found = mass
        if measure == "per_token":
            found = mass / np.where(np.array(sizes) > 0, sizes, np.nan)
        elif measure == "lift":
            found = np.where(even > 0, mass / even, np.nan) if stage == "weights" else np.full_like(mass, np.nan)
    return np.where(gone, np.nan, found), np.where(gone, np.nan, even), set_aside
