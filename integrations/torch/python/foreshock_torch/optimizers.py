"""Reads parameters and states of optimizers, and classifies several optimizers that take part in one training step.
One of them is the clock: each of its steps ends a training step (a tick)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from weakref import ref

from .signals import is_of_trainer


def attribute(of: Any, name: str) -> Any:
    """The attribute, or None. Does not call a `__getattribute__` of the training, which would see our access."""
    if type(of).__getattribute__ is object.__getattribute__:
        return getattr(of, name, None)
    try:
        return object.__getattribute__(of, name)
    except AttributeError as error:
        if is_of_trainer(error):
            raise
        return type(of).__getattr__(of, name) if hasattr(type(of), "__getattr__") else None


def groups(optimizer: Any) -> list[Any] | tuple[Any, ...]:
    """param_groups; empty unless it is a list or tuple. An iterator is not read: only the optimizer may, once."""
    these = attribute(optimizer, "param_groups")
    return these if type(these) in (list, tuple) or isinstance(these, (list, tuple)) else ()


def parameters_in(group: dict[str, Any]) -> list[Any] | tuple[Any, ...]:
    """Parameters of the group; empty unless they are a list or tuple."""
    these = group["params"]
    return these if type(these) in (list, tuple) or isinstance(these, (list, tuple)) else ()


def parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in groups(optimizer) for parameter in parameters_in(group)]


def state_of(optimizer: Any, parameter: Any) -> dict[str, Any]:
    """The optimizer's state of one parameter; empty if the state is not a dictionary of dictionaries."""
    states = attribute(optimizer, "state")
    state = states.get(parameter) if isinstance(states, dict) else None
    return state if isinstance(state, dict) else {}


def is_plain(optimizer: Any, tensor: Any) -> bool:
    """Whether quiet_steps.h can read groups and states without running code of the training. `tensor`: torch.Tensor."""
    kind = type(optimizer)
    if kind.__getattribute__ is not object.__getattribute__:
        return False
    special = ("__getattr__", "found_inf", "param_groups", "state")  # as attributes of a class: properties, for example
    if any(name in vars(each) for each in kind.__mro__ for name in special):
        return False
    these = groups(optimizer)
    if not these or type(getattr(optimizer, "state", None)) not in (dict, defaultdict):
        return False
    first_and_last = [*parameters_in(these[0])[:1], *parameters_in(these[-1])[-1:]]
    kinds = {type(parameter) for parameter in first_and_last}
    return all(
        kind.__getattribute__ is object.__getattribute__
        and getattr(kind, "_cdata", None) is tensor._cdata
        and kind.__hash__ is tensor.__hash__
        for kind in kinds
    )


class Partner:
    """An optimizer other than the clock with a backward pass of its own, such as the second one of a GAN. Its tensors
    are measured if it has stepped at least 3 times in 4 ticks; else it would rarely step when they are due."""

    LOOK_AFTER = 4  # ticks before `keeps_pace` is decided

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.ticks = 0
        self.steps = 0
        self.keeps_pace: bool | None = None  # not known yet

    def tick(self) -> None:
        self.ticks += 1
        if self.keeps_pace is None and self.ticks >= self.LOOK_AFTER:
            self.keeps_pace = 4 * self.steps >= 3 * self.ticks


class OtherOptimizers:
    """The optimizers other than the clock, by weak reference. Calls must not overlap."""

    def __init__(self, on_death: Any) -> None:
        """`on_death`: called with the weak reference when a companion or partner is destroyed."""
        self._on_death = on_death
        self._companions: list[Any] = []  # step after the clock without a backward pass of their own
        self._wrappers: list[Any] = []  # have only parameters of the clock
        self._partners: list[Partner] = []

    def stepped(self, optimizer: Any, clock: Any, has_backward: bool) -> bool:
        """Call it after each step of an optimizer other than the clock; the first step classifies the optimizer.
        `has_backward`: a backward pass has started since the clock's last step. True: the optimizer is new, or it is a
        wrapper, whose step() calls that of the clock."""
        partner = self._partner(optimizer)
        if partner is not None:
            partner.steps += 1
        elif any(each() is optimizer for each in self._wrappers):
            return True
        elif all(each() is not optimizer for each in self._companions):
            reference = ref(optimizer, self._on_death)
            if not self._has_other_parameters(optimizer, clock):
                self._wrappers = [*self._alive(self._wrappers), reference]
            elif not has_backward:
                self._companions = [*self._alive(self._companions), reference]
            else:
                self._partners = [partner for partner in self._partners if partner.reference() is not None]
                self._partners.append(Partner(reference))
                self._partners[-1].steps = 1
            return True
        return False

    def ticked(self) -> None:
        """Call it after each step of the clock."""
        for partner in self._partners:
            partner.tick()

    def companions(self, clock: Any) -> list[Any]:
        """The optimizers that step after the clock without a backward pass of their own."""
        return [o for each in self._companions if (o := each()) is not None and o is not clock]

    def partners(self, keep_pace: bool) -> list[Any]:
        """Partners that are known to step about as often as the clock (True), or less often (False). A partner whose
        first ticks are not over is in neither list."""
        these = [partner.reference() for partner in self._partners if partner.keeps_pace is keep_pace]
        return [optimizer for optimizer in these if optimizer is not None]

    def is_any_undecided(self) -> bool:
        """Whether there is a partner of which it is not known yet how often it steps."""
        return any(partner.keeps_pace is None and partner.reference() is not None for partner in self._partners)

    def number_of(self, optimizer: Any) -> int:
        """Its number in the name of its loss: 2 for the first partner (the clock is number 1); 0: not a partner."""
        return next((n for n, each in enumerate(self._partners, 2) if each.reference() is optimizer), 0)

    def is_partner(self, optimizer: Any) -> bool:
        return self._partner(optimizer) is not None

    def _partner(self, optimizer: Any) -> Partner | None:
        return next((partner for partner in self._partners if partner.reference() is optimizer), None)

    @staticmethod
    def _alive(references: list[Any]) -> list[Any]:
        return [each for each in references if each() is not None]

    @staticmethod
    def _has_other_parameters(optimizer: Any, clock: Any) -> bool:
        """Whether it has a parameter that the clock does not have. A wrapper of the clock has none."""
        mine = {id(parameter) for parameter in parameters_of(clock)}
        return any(id(parameter) not in mine for parameter in parameters_of(optimizer))


class SplitStep:
    """Collects the parameters of a clock that is called several times in one step, each time with other parameters.

    DeepSpeed's ZeRO does this: one call for each group, in stage 3 for each sub-group. The parameters of a call are
    flat copies of many parameters, or of this rank's share of them.
    """

    def __init__(self) -> None:
        self.addresses: list[int] = []  # parameters of all calls; empty until a step had several
        self._first: list[int] = []  # parameters of the first call

    def forget(self) -> None:
        """Call it when another optimizer becomes the clock."""
        self.addresses = []

    def begin(self, addresses: list[int]) -> None:
        """Notes the first call of a step."""
        self._first = addresses

    def add(self, optimizer: Any) -> None:
        """Notes a further call of the same step."""
        before = self.addresses or self._first
        known = set(before)
        new = [p._cdata for p in parameters_of(optimizer) if p._cdata not in known]
        if new:
            self.addresses = before + new
