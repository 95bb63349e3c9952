"""Reads optimizers: their groups, parameters and states, and which calls of several of them belong to one step."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from weakref import ref

from .signals import is_of_trainer


def attribute(of: Any, name: str) -> Any:
    """None where there is none. A `__getattribute__` of the trainer's own is not called: it would see what we read."""
    if type(of).__getattribute__ is object.__getattribute__:
        return getattr(of, name, None)
    try:
        return object.__getattribute__(of, name)
    except AttributeError as error:
        if is_of_trainer(error):
            raise
        return type(of).__getattr__(of, name) if hasattr(type(of), "__getattr__") else None


def groups(optimizer: Any) -> list[Any] | tuple[Any, ...]:
    """Empty if they are no list or tuple. An iterator can be read only once, and the optimizer has to read it."""
    these = attribute(optimizer, "param_groups")
    return these if type(these) in (list, tuple) or isinstance(these, (list, tuple)) else ()


def parameters_in(group: dict[str, Any]) -> list[Any] | tuple[Any, ...]:
    """Empty as above."""
    these = group["params"]
    return these if type(these) in (list, tuple) or isinstance(these, (list, tuple)) else ()


def parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in groups(optimizer) for parameter in parameters_in(group)]


def state_of(optimizer: Any, parameter: Any) -> dict[str, Any]:
    """Empty where the optimizer keeps its state in another way."""
    states = attribute(optimizer, "state")
    state = states.get(parameter) if isinstance(states, dict) else None
    return state if isinstance(state, dict) else {}


def is_plain(optimizer: Any, tensor: Any) -> bool:
    """Whether reading its groups and states runs no code of the trainer's, so that quiet_steps.h may do it. `tensor` is
    torch.Tensor."""
    kind = type(optimizer)
    if kind.__getattribute__ is not object.__getattribute__:
        return False
    special = ("__getattr__", "found_inf", "param_groups", "state")
    if any(name in vars(each) for each in kind.__mro__ for name in special):
        return False
    these = groups(optimizer)
    if not these or type(getattr(optimizer, "state", None)) not in (dict, defaultdict):
        return False
    ends = [*parameters_in(these[0])[:1], *parameters_in(these[-1])[-1:]]
    kinds = {type(parameter) for parameter in ends}
    return all(
        kind.__getattribute__ is object.__getattribute__
        and getattr(kind, "_cdata", None) is tensor._cdata
        and kind.__hash__ is tensor.__hash__
        for kind in kinds
    )


class Partner:
    """One with a backward pass of its own, as one half of a GAN has. What it steps is followed if it steps about as
    often as the clock; at another pace it would seldom be there when its tensors have their turn."""

    LOOK_AFTER = 4  # ticks

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.ticks = 0
        self.steps = 0
        self.keeps_pace: bool | None = None  # not known yet

    def tick(self) -> None:
        self.ticks += 1
        if self.keeps_pace is None and self.ticks >= self.LOOK_AFTER:
            self.keeps_pace = 4 * self.steps >= 3 * self.ticks


class Others:
    """By weak reference. Thread-compatible."""

    def __init__(self) -> None:
        self._companions: list[Any] = []  # step after the clock without a backward pass of their own
        self._wrappers: list[Any] = []  # hold only what the clock steps itself
        self._partners: list[Partner] = []

    def stepped(self, optimizer: Any, clock: Any, has_backward: bool) -> None:
        partner = self._partner(optimizer)
        if partner is not None:
            partner.steps += 1
        elif all(each() is not optimizer for each in self._companions + self._wrappers):
            reference = ref(optimizer)
            if not self._steps_more(optimizer, clock):
                self._wrappers = [*self._alive(self._wrappers), reference]
            elif not has_backward:
                self._companions = [*self._alive(self._companions), reference]
            else:
                self._partners = [partner for partner in self._partners if partner.reference() is not None]
                self._partners.append(Partner(reference))
                self._partners[-1].steps = 1

    def ticked(self) -> None:
        for partner in self._partners:
            partner.tick()

    def companions(self, clock: Any) -> list[Any]:
        return [o for each in self._companions if (o := each()) is not None and o is not clock]

    def partners(self, keep_pace: bool) -> list[Any]:
        """Those of which it is known that they do, or do not."""
        these = [partner.reference() for partner in self._partners if partner.keeps_pace is keep_pace]
        return [optimizer for optimizer in these if optimizer is not None]

    def number_of(self, optimizer: Any) -> int:
        """2 for the first partner, since the optimizer that ticks is number 1. 0: not a partner."""
        return next((n for n, each in enumerate(self._partners, 2) if each.reference() is optimizer), 0)

    def is_partner(self, optimizer: Any) -> bool:
        return self._partner(optimizer) is not None

    def _partner(self, optimizer: Any) -> Partner | None:
        return next((partner for partner in self._partners if partner.reference() is optimizer), None)

    @staticmethod
    def _alive(references: list[Any]) -> list[Any]:
        return [each for each in references if each() is not None]

    @staticmethod
    def _steps_more(optimizer: Any, clock: Any) -> bool:
        """False for one that wraps the clock and holds nothing else."""
        mine = {id(parameter) for parameter in parameters_of(clock)}
        return any(id(parameter) not in mine for parameter in parameters_of(optimizer))


class Pieces:
    """What the optimizer that ticks has stepped since the last backward pass, if it is called several times in a step,
    each time with another part of its parameters in its groups. DeepSpeed's ZeRO does so: once for each group, in stage
    3 for each sub-group. The parts are flat copies of many parameters, or of this rank's share of them."""

    def __init__(self) -> None:
        self.addresses: list[int] = []  # of all pieces, once there are several
        self._first: list[int] = []

    def forget(self) -> None:
        """Another optimizer ticks."""
        self.addresses = []

    def begin(self, addresses: list[int]) -> None:
        """The first call of a step."""
        self._first = addresses

    def go_on(self, optimizer: Any) -> None:
        """Another one."""
        before = self.addresses or self._first
        known = set(before)
        new = [p._cdata for p in parameters_of(optimizer) if p._cdata not in known]
        if new:
            self.addresses = before + new
