"""Reads parameters and states of optimizers, and classifies the optimizers of a training. One optimizer is the clock:
its first step() after a backward pass ends a training step (a tick). See OtherOptimizers for the other kinds."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any
from weakref import ref

from .signals import is_of_trainer


def attribute(owner: Any, name: str) -> Any:
    """The attribute, or None if it is missing. Does not call a `__getattribute__` that the training has defined, but
    does call its `__getattr__`, through which wrappers pass on the attributes of an optimizer."""
    if type(owner).__getattribute__ is object.__getattribute__:
        return getattr(owner, name, None)
    try:
        return object.__getattribute__(owner, name)
    except AttributeError as error:
        if is_of_trainer(error):  # raised by a signal handler of the training: not a missing attribute
            raise
        fallback = getattr(type(owner), "__getattr__", None)
    try:
        return fallback(owner, name) if fallback else None
    except AttributeError as error:
        if is_of_trainer(error):
            raise
        return None


def groups(optimizer: Any) -> list[Any] | tuple[Any, ...]:
    """param_groups if it is a list or tuple, else (). An iterator can be read only once, and the optimizer needs it."""
    found = attribute(optimizer, "param_groups")
    return found if isinstance(found, (list, tuple)) else ()


def parameters_in(group: dict[str, Any]) -> list[Any] | tuple[Any, ...]:
    """The group's parameters if they are a list or tuple, else ()."""
    found = group["params"]
    return found if isinstance(found, (list, tuple)) else ()


def parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in groups(optimizer) for parameter in parameters_in(group)]


def state_of(optimizer: Any, parameter: Any) -> dict[str, Any]:
    """The optimizer's state of one parameter; empty if the state is not a dictionary of dictionaries."""
    states = attribute(optimizer, "state")
    state = states.get(parameter) if isinstance(states, dict) else None
    return state if isinstance(state, dict) else {}


def is_plain(optimizer: Any, tensor_class: Any) -> bool:
    """Whether quiet_steps.h, which reads groups and states in C++, can read those of this optimizer without running
    code of the training. `tensor_class`: torch.Tensor. Only the first and the last parameter are checked, to save
    time."""
    optimizer_class = type(optimizer)
    if optimizer_class.__getattribute__ is not object.__getattribute__:
        return False
    # quiet_steps.h reads these attributes. One that a class defines, such as a property, may run the training's code.
    special = ("__getattr__", "found_inf", "param_groups", "state")
    if any(name in vars(base) for base in optimizer_class.__mro__ for name in special):
        return False
    found = groups(optimizer)
    if not found or type(getattr(optimizer, "state", None)) not in (dict, defaultdict):
        return False
    first_and_last = [*parameters_in(found[0])[:1], *parameters_in(found[-1])[-1:]]
    return all(  # the classes of the parameters must inherit attribute access, address (_cdata) and hash from torch
        cls.__getattribute__ is object.__getattribute__
        and getattr(cls, "_cdata", None) is tensor_class._cdata
        and cls.__hash__ is tensor_class.__hash__
        for cls in {type(parameter) for parameter in first_and_last}
    )


class Partner:
    """An optimizer other than the clock with a backward pass of its own, such as the second one of a GAN. Its tensors
    are measured if it has stepped at least 3 times in 4 ticks: a tensor is due at one tick, and is not measured if the
    optimizer does not step then."""

    DECIDE_AFTER = 4  # ticks before `keeps_pace` is decided

    def __init__(self, reference: Any, number: int) -> None:
        self.reference = reference  # weak reference to the optimizer
        self.number = number  # see OtherOptimizers.number_of()
        self.ticks = 0  # ticks since this optimizer's first step
        self.steps = 0
        self.keeps_pace: bool | None = None  # None: undecided

    def tick(self) -> None:
        self.ticks += 1
        if self.keeps_pace is None and self.ticks >= self.DECIDE_AFTER:
            self.keeps_pace = 4 * self.steps >= 3 * self.ticks


class OtherOptimizers:
    """Weak references to the optimizers other than the clock. Companions step after the clock without a backward pass
    of their own, partners have one, wrappers have only parameters of the clock. Calls must not overlap."""

    def __init__(self, on_death: Any) -> None:
        """`on_death`: called with the weak reference when one of these optimizers is destroyed."""
        self._on_death = on_death
        self._companions: list[Any] = []
        self._wrappers: list[Any] = []
        self._partners: list[Partner] = []

    def note_step(self, optimizer: Any, clock: Any, has_backward: bool) -> bool:
        """Call it after each step of an optimizer other than the clock; the first step classifies the optimizer.
        `has_backward`: a backward pass has started since the clock's last step. Returns True if the optimizer is new,
        or if it is a wrapper (its step() calls the clock's step()): the caller must then stop quiet steps."""
        partner = self._partner(optimizer)
        if partner is not None:
            partner.steps += 1
        elif any(wrapper() is optimizer for wrapper in self._wrappers):
            return True
        elif all(companion() is not optimizer for companion in self._companions):
            reference = ref(optimizer, self._on_death)
            if not self._has_other_parameters(optimizer, clock):
                self._wrappers = [*self._alive(self._wrappers), reference]
            elif not has_backward:
                self._companions = [*self._alive(self._companions), reference]
            else:
                self._partners = [partner for partner in self._partners if partner.reference() is not None]
                taken = {partner.number for partner in self._partners}
                self._partners.append(Partner(reference, next(n for n in itertools.count(2) if n not in taken)))
                self._partners[-1].steps = 1
            return True
        return False

    def note_tick(self) -> None:
        """Call it at each tick."""
        for partner in self._partners:
            partner.tick()

    def companions(self, clock: Any) -> list[Any]:
        alive = [optimizer for companion in self._companions if (optimizer := companion()) is not None]
        return [optimizer for optimizer in alive if optimizer is not clock]  # a companion may have become the clock

    def partners(self, keep_pace: bool) -> list[Any]:
        """Partners that step about as often as the clock (`keep_pace` True), or less often (False). During its first
        ticks a partner is undecided and in neither list."""
        found = [partner.reference() for partner in self._partners if partner.keeps_pace is keep_pace]
        return [optimizer for optimizer in found if optimizer is not None]

    def has_partners(self) -> bool:
        return any(partner.reference() is not None for partner in self._partners)

    def is_any_undecided(self) -> bool:
        """Whether a partner is in its first ticks, so that its `keeps_pace` is not decided yet."""
        return any(partner.keeps_pace is None and partner.reference() is not None for partner in self._partners)

    def number_of(self, optimizer: Any) -> int:
        """The number n in "loss of optimizer n", under which the partner's losses are recorded; 0: not a partner. At
        least 2, since the clock is the first optimizer. A partner keeps its number. A new partner may get the number of
        a destroyed one."""
        partner = self._partner(optimizer)
        return 0 if partner is None else partner.number

    def is_partner(self, optimizer: Any) -> bool:
        return self._partner(optimizer) is not None

    def _partner(self, optimizer: Any) -> Partner | None:
        return next((partner for partner in self._partners if partner.reference() is optimizer), None)

    @staticmethod
    def _alive(references: list[Any]) -> list[Any]:
        return [reference for reference in references if reference() is not None]

    @staticmethod
    def _has_other_parameters(optimizer: Any, clock: Any) -> bool:
        """Whether the optimizer has a parameter that the clock does not have. A wrapper of the clock has none."""
        clocked = {id(parameter) for parameter in parameters_of(clock)}
        return any(id(parameter) not in clocked for parameter in parameters_of(optimizer))


class FormerClocks:
    """Weak references to the living optimizers that were the clock before. `take_turns`: one of them has become the
    clock again, so optimizers take turns in blocks of steps."""

    def __init__(self) -> None:
        self.take_turns = False
        self._references: list[Any] = []

    def note(self, clock: Any, new_clock: Any) -> None:
        """Call it when `new_clock` becomes the clock instead of `clock`, or of None if that was destroyed."""
        if clock is None:
            self.take_turns, self._references = False, []
            return
        self.take_turns |= any(optimizer is new_clock for optimizer in self.alive())
        self._references = [ref(optimizer) for optimizer in [*self.alive(clock), clock]]

    def alive(self, clock: Any = None) -> list[Any]:
        """The living former clocks without `clock`."""
        found = [reference() for reference in self._references]
        return [optimizer for optimizer in found if optimizer is not None and optimizer is not clock]


class SplitStep:
    """Collects the parameters of a clock whose step() is called several times in a training step, each time with
    other parameters.

    DeepSpeed's ZeRO does this: one call for each group, in stage 3 for each sub-group. The parameters of a call are
    flat copies of many parameters, or of this rank's share of them.
    """

    def __init__(self) -> None:
        # Addresses (_cdata) of the parameters of all calls; empty until a step has had a second call.
        self.addresses: list[int] = []
        self._first: list[int] = []  # addresses that begin() got at the step's first call

    def forget(self) -> None:
        """Call it when another optimizer becomes the clock."""
        self.addresses = []

    def begin(self, addresses: list[int]) -> None:
        """Notes the first call of a step. `addresses`: of the parameters of the clock and its companions."""
        self._first = addresses

    def add(self, optimizer: Any) -> None:
        """Notes a further call of the same step."""
        collected = self.addresses or self._first
        known = set(collected)
        new = [p._cdata for p in parameters_of(optimizer) if p._cdata not in known]
        if new:
            self.addresses = collected + new
