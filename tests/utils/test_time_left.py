"""The time left is told once it can be known, and then about right, however slow the beginning was."""

from __future__ import annotations

import pytest

from attnwidget._utils.time_left import TimeLeft

SETTLE, EVERY = 2.5, 0.25


def told(ends: list[tuple[float, float]]) -> list[tuple[float, float | None, float]]:
    """(time, said, true) of a job whose rate changes: (until, share a second) each."""
    left, found, time, share = TimeLeft(0.0, 0.0, SETTLE), [], 0.0, 0.0
    while share < 1:
        time += EVERY
        rate = next(rate for until, rate in ends if time <= until)
        share = min(1.0, share + rate * EVERY)
        found.append((time, left.at(time, share), share))
    return [(at, said, time - at) for at, said, _ in found]


def test_of_a_steady_job_it_is_right_from_the_first() -> None:
    said = told([(1e9, 0.01)])
    assert [one for _, one, _ in said[:19]] == [None] * 19
    for _, one, true in said[20:]:
        assert one == pytest.approx(true, rel=0.02, abs=0.3)


@pytest.mark.parametrize("slower", [3, 10, 30])
@pytest.mark.parametrize("seconds", [1.0, 2.0, 4.0])
def test_a_slow_beginning_does_not_count(slower: float, seconds: float) -> None:
    said = told([(seconds, 0.005 / slower), (1e9, 0.005)])
    known = [(one, true) for _, one, true in said if one is not None]
    assert known
    assert all(one <= 2 * true + 1 for one, true in known)
    assert all(0.5 * true - 1 <= one for one, true in known)
    assert all(one is not None for at, one, _ in said if at > 6 * seconds + 8)


def test_nothing_is_said_while_nothing_moves() -> None:
    left = TimeLeft(0.0, 0.3, 1.0)
    assert [left.at(time, 0.3) for time in (1.0, 2.0, 3.0)] == [None] * 3


def test_once_told_it_goes_on_to_be_told() -> None:
    said = told([(8.0, 0.01), (9.0, 0.001), (1e9, 0.01)])
    first = next(at for at, (_, one, _) in enumerate(said) if one is not None)
    assert all(one is not None for _, one, _ in said[first:])
