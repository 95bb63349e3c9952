"""What the helper may spend: the core limits what it samples, but not what is spent here."""

from __future__ import annotations

import re
from time import perf_counter_ns

DEFAULT = 0.01  # of --max-slowdown


def limit_of(text: str | None) -> float:
    """The ratio that FORESHOCK_MAX_SLOWDOWN is, as parse_ratio() of the core reads it; else the default."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?) ?(%?)", text or "")
    value = float(found[1]) / (100 if found[2] else 1) if found else DEFAULT
    return value if value <= 1 else DEFAULT


class Fuse:
    """Blows once and for good, when our own time at steps has been several times the limit: in two windows in a row,
    or, where it is flagrant, within one. A burst may take three times the limit.

    Set-up is not counted, and of a window not its dearest step: a new model, a collection of garbage that comes in the
    midst of our work or a process that was stopped there are no habit. A limit of 100 % allows everything.
    """

    TIMES, FLAGRANT_TIMES = 5, 10
    LEAST_NS = 500_000_000  # own time after set-up, below which nothing is judged
    SET_UP = 6  # steps: names, the search for modules and the optimizers beside the clock come in them
    WINDOW, WINDOW_NS = 100, 1_000_000_000  # steps, and how long they take at least

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._steps = 0
        self._own_ns = self._at_ns = 0  # at the end of the step before
        self._set_up_ns = 0  # of the former
        self._has_blown = self._was_beyond = False
        self._begin()

    def _begin(self) -> None:
        self._count = self._ours_ns = self._dearest_ns = self._lasted_ns = 0

    def blows(self, own_ns: int, now_ns: int, steps: int = 1, dearest_ns: int | None = None) -> bool:
        """Call when steps have ended: how many since the last call, all of our own time until now, and our time in the
        step that took the most of it (None: there was one step). True at the step with which it blows."""
        ours, lasted = own_ns - self._own_ns, now_ns - self._at_ns
        self._own_ns, self._at_ns = own_ns, now_ns
        self._steps += steps
        if self._steps <= self.SET_UP:
            self._set_up_ns = own_ns
        if self._has_blown or self._limit >= 1 or self._steps <= self.SET_UP:
            return False
        self._count += steps
        self._ours_ns += ours
        self._lasted_ns += lasted
        self._dearest_ns = max(self._dearest_ns, ours if dearest_ns is None else dearest_ns)
        self._has_blown = self._judge()
        return self._has_blown

    def _judge(self) -> bool:
        ours, theirs = self._ours_ns - self._dearest_ns, max(self._lasted_ns - self._ours_ns, 0)
        if ours >= self.LEAST_NS and ours > self.FLAGRANT_TIMES * self._limit * theirs:
            return True
        if self._count < self.WINDOW or self._lasted_ns < self.WINDOW_NS:
            return False
        so_far = self._own_ns - self._set_up_ns - self._dearest_ns
        is_beyond = so_far >= self.LEAST_NS and ours > self.TIMES * self._limit * theirs
        self._was_beyond, was_beyond = is_beyond, self._was_beyond
        self._begin()
        return is_beyond and was_beyond


class Pace:
    """How often expensive work may be repeated, such as naming the tensors. The first times are free; after them it may
    take no more than a share of the time since it began."""

    def __init__(self, free: int, share: float = DEFAULT) -> None:
        self._free = free
        self._share = share
        self._times = 0
        self._spent_ns = 0
        self._began_ns = perf_counter_ns()

    def allows(self) -> bool:
        elapsed = perf_counter_ns() - self._began_ns
        return self._times < self._free or self._spent_ns <= self._share * elapsed

    def spend(self, nanoseconds: int) -> None:
        self._times += 1
        self._spent_ns += nanoseconds
