"""Chooses the steps and the parameters of looks at gradients (gradient_looks.h).

All ranks must look at the same parameters in the same step, so the choice depends only on the number of the step and on
the list of parameters. Looks cost time. If they would take more than their share of the training's time, only one
interval in 2, 4, 8, ... has a pair.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from .weights import Watchable, Weights

FIRST = (2, 3, 5, 9, 17, 33)  # the steps of the first looks, in pairs: each pair has the same parameters
INTERVAL = 128  # later, one pair of looks in so many steps
DISTANCE = 8  # between the two looks of a pair. A finding needs two looks in a row at a parameter.
READ_OF_ONE = 1 << 14  # elements of one parameter that are read at most (kMostSketched in sketch.h)
READ_OF_ALL = 1 << 18  # elements that are read in one look


def mixed(number: int) -> int:
    """31 bits that depend on all bits of the number."""
    return ((number * 0x9E3779B97F4A7C15) & (2**64 - 1)) >> 33


def portions(watchable: list[Watchable]) -> list[list[Watchable]]:
    """The parameters in portions, each for one look."""
    found: list[list[Watchable]] = []
    room = 0
    for row in watchable:
        elements = min(row.elements, READ_OF_ONE)
        if elements > room:
            found.append([])
            room = READ_OF_ALL
        found[-1].append(row)
        room -= elements
    return found


class GradientLooks:
    """The looks of one process. A step is known by its tick, its number in this process, from 1 on."""

    def __init__(self, core: Any, weights: Weights, share: float) -> None:
        self._core = core
        self._weights = weights
        self._share = share  # of the training's time
        self._known: list[Watchable] = []  # of which _portions were made
        self._portions: list[list[Watchable]] = []
        self._stride = 1  # one interval in so many has a pair of looks
        self._began_ns = perf_counter_ns()
        self._cost_ns = 0  # of the look in progress, without the time in backward passes
        self.tick = 0  # of the look in progress; 0: none

    def next_tick(self, tick: int) -> int:
        """The tick of the next look after `tick`."""
        for first in FIRST:
            if first > tick:
                return first
        interval = max(tick // INTERVAL, 1)
        while True:
            first = interval * INTERVAL + mixed(interval) % (INTERVAL - DISTANCE)
            if interval % self._stride == 0 and first + DISTANCE > tick:
                return first if first > tick else first + DISTANCE
            interval += 1

    def begin(self, tick: int) -> None:
        """Call it when the step before `tick` has ended. Begins a look if `tick` has one."""
        self.cancel()
        if self.next_tick(tick - 1) != tick or not self._core.is_monitored():
            return
        begin = perf_counter_ns()
        watchable = self._weights.watchable()
        if watchable is not self._known:
            self._known, self._portions = watchable, portions(watchable)
        if not self._portions:
            return
        number = FIRST.index(tick) // 2 if tick in FIRST else mixed(tick // INTERVAL + 1)
        rows = [
            (row.number, row.seed, address)
            for row in self._portions[number % len(self._portions)]
            if (address := self._weights.address_of(row.number)) is not None
        ]
        if rows and self._core.begin_look(rows) > 0:
            self.tick = tick
            self._cost_ns = perf_counter_ns() - begin

    def end(self) -> int:
        """Call it before the optimizer's work. Ends the look in progress, if any. Returns the nanoseconds that it took
        in backward passes."""
        if self.tick == 0:
            return 0
        begin = perf_counter_ns()
        in_passes = self._core.end_look()
        now = perf_counter_ns()
        self._choose_stride(self._cost_ns + in_passes + now - begin, now)
        self.tick = 0
        return in_passes

    def cancel(self) -> None:
        """Ends the look in progress without a report."""
        if self.tick != 0:
            self._core.cancel_look()
            self.tick = 0

    def _choose_stride(self, cost_ns: int, now_ns: int) -> None:
        """A power of two, so that ranks with other strides still have looks in common."""
        step_ns = (now_ns - self._began_ns) / self.tick
        self._stride = 1
        while 2 * cost_ns > self._share * step_ns * INTERVAL * self._stride and self._stride < 1 << 16:
            self._stride *= 2
