"""The time that a job still takes, reported only once it can be known."""

from __future__ import annotations

from bisect import bisect_right

STEADY = 0.25  # the largest spread of reported predictions, as a share of the time left


class TimeLeft:
    """Predicts the end of a job from its recent speed; returns nothing until its predictions agree.

    A job is slow at first, while memory is new and a page still makes other requests, so the first half of the elapsed
    time does not count.

    Args:
        begun: the time at which it began, in seconds.
        share: the finished share at that time.
        settle: seconds over which predictions must agree; the first one is reported after at least twice as many.

    >>> left = TimeLeft(0.0, 0.0, settle=1.0)
    >>> found = [left.at(time, time / 100) for time in (0.5, 1.0, 1.5, 2.0, 4.0)]
    >>> [None if seconds is None else round(seconds) for seconds in found]
    [None, None, None, 98, 96]
    """

    def __init__(self, begun: float, share: float, settle: float) -> None:
        self._begun, self._settle, self._known = begun, settle, False
        self._times, self._shares = [begun], [share]
        self._ends: list[tuple[float, float]] = []  # times of predictions, and the predicted ends

    def at(self, now: float, share: float) -> float | None:
        """Note the finished share; return the seconds that are left, None if still unknown."""
        since = max(0, bisect_right(self._times, (self._begun + now) / 2) - 1)
        gained, passed = share - self._shares[since], now - self._times[since]
        self._times.append(now)
        self._shares.append(share)
        if gained <= 0 or passed <= 0:
            return None
        left = (1 - share) * passed / gained
        self._ends = [one for one in self._ends if one[0] >= now - self._settle]
        self._ends.append((now, now + left))
        ends = [end for _, end in self._ends]
        agree = max(ends) - min(ends) <= STEADY * max(left, 1.0)
        self._known = self._known or (now - self._begun >= 2 * self._settle and agree)
        return left if self._known else None
