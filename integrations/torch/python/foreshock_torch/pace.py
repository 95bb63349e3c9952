"""How often what is dear may be done again: names are told anew whenever an optimizer steps other parameters."""

from __future__ import annotations

from time import perf_counter_ns


class Pace:
    """The first times are free; after them no more than a share of the time since it began."""

    SHARE = 0.01  # what all of the monitor may take unless it is told otherwise

    def __init__(self, free: int, share: float = SHARE) -> None:
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
