"""Chooses the steps and the parameters of looks at gradients (gradient_looks.h).

All ranks must look at the same parameters in the same step, so the choice depends only on the number of the step and on
the list of parameters. Looks come in pairs at the same parameters, since a finding needs two looks in a row. After the
first looks, an interval of INTERVAL steps has one pair. If looks would take more than their share of the training's
time, only one interval in 2, 4, 8, ... has a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

from .signals import suppress_ours
from .topology import placements_of
from .weights import Watchable, Watched, Weights, local_part

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


def gathered_parameters(modules: Iterable[Any]) -> dict[int, Any]:
    """{address of a parameter: the whole tensor that FSDP2 gathers from its shards, and to which autograd adds}. FSDP2
    makes these tensors in the first forward pass, and keeps the objects while their memory is free."""
    found: dict[int, Any] = {}
    for module in modules:
        if not hasattr(type(module), "_get_fsdp_state"):
            continue
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # since torch 2.12
        for parameter in (each for group in groups if group is not None for each in group.fsdp_params):
            whole = getattr(parameter, "_unsharded_param", None)
            if whole is not None and not placements_of(whole):
                found[parameter.sharded_param._cdata] = whole
    return found


class GradientLooks:
    """The looks of one process. A step is known by its tick, its number in this process, from 1 on."""

    def __init__(self, core: Any, weights: Weights, modules: Callable[[], Iterable[Any]], share: float) -> None:
        self._core = core
        self._weights = weights
        self._modules = modules  # all modules that exist
        self._late: list[tuple[Watched, Any]] = []  # parameters of the look in progress whose gradient end() passes
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
        rows = self._watched(self._portions[number % len(self._portions)])
        if rows and self._core.begin_look(rows) > 0:
            self.tick = tick
            self._cost_ns = perf_counter_ns() - begin

    def end(self) -> int:
        """Call it before the optimizer's work. Ends the look in progress, if any. Returns the nanoseconds that it took
        in backward passes."""
        if self.tick == 0:
            return 0
        begin = perf_counter_ns()
        in_passes = self._core.end_look(
            [row._replace(gradient=self._gradient_of(parameter)) for row, parameter in self._late]
        )
        now = perf_counter_ns()
        self._choose_stride(self._cost_ns + in_passes + now - begin, now)
        self.tick = 0
        self._late = []
        return in_passes

    def _watched(self, portion: list[Watchable]) -> list[Watched]:
        rows: list[Watched] = []
        self._late = []
        gathered: dict[int, Any] | None = None
        for each in portion:
            parameter = self._weights.parameter_of(each.number)
            if parameter is None or not parameter.requires_grad:
                continue
            address = parameter._cdata
            row = Watched(*each[:2], *each[3:], parameter=address, leaf=address)
            if placements_of(parameter):
                if gathered is None:
                    gathered = {}
                    with suppress_ours():
                        gathered = gathered_parameters(self._modules())
                whole = gathered.get(address) if each.whole else None
                row = row._replace(
                    parameter=local_part(parameter)._cdata,
                    leaf=None if whole is None else whole._cdata,
                    gradient=self._gradient_of(parameter),
                )
                self._late.append((row, parameter))
            elif not self._weights.has_optimizer(each.number):
                # Its contributions are not compared with what an optimizer uses: no optimizer clears or clips it.
                row = row._replace(leaf=None, gradient=self._gradient_of(parameter))
                self._late.append((row, parameter))
            rows.append(row)
        return rows

    @staticmethod
    def _gradient_of(parameter: Any) -> int | None:
        """The address of this rank's part; None: there is no gradient, or DTensor has yet to sum it over the ranks."""
        gradient = parameter.grad
        is_final = gradient is not None and placements_of(gradient) == placements_of(parameter)
        return local_part(gradient)._cdata if is_final else None

    def cancel(self) -> None:
        """Ends the look in progress without a report."""
        if self.tick != 0:
            self._core.cancel_look()
            self.tick = 0
            self._late = []

    def _choose_stride(self, cost_ns: int, now_ns: int) -> None:
        """A power of two, so that ranks with other strides still have looks in common."""
        step_ns = (now_ns - self._began_ns) / self.tick
        self._stride = 1
        while 2 * cost_ns > self._share * step_ns * INTERVAL * self._stride and self._stride < 1 << 16:
            self._stride *= 2
