"""Reports weight tensors to the core (libforeshock.so), which measures a few of them in each step.

Sends the core a list of all tensors that the optimizers step. In each step the core returns which of them are due to be
measured, and this module passes these to the core before and after the optimizer's work. One optimizer is the clock:
its steps are those of the training.
"""

from __future__ import annotations

import math
import sys
from typing import Any
from weakref import ref
from zlib import crc32

from .names import Named, as_bytes
from .numbers import number_on_cpu, step_number
from .optimizers import groups, parameters_in, parameters_of, state_of
from .replicas import Replicas, prefixed
from .rows import Row
from .signals import is_of_trainer, suppress_ours
from .topology import MeshNumbers, is_flat, placements_of

DIMS = 4  # as FORESHOCK_TENSOR_DIMS
# When tensors are passed, as FORESHOCK_BEFORE_STEP, _AFTER_STEP: before or after the optimizer's work. The bit ENDED
# (_ENDED_STEP) is added to either if the clock has already ended the step.
BEFORE, AFTER, ENDED = 0, 1, 2
# Why a tensor is not measured, as FORESHOCK_UNFOLLOWED_...: FLAT: it consists of several parameters; PLACEMENT: the
# offset of this rank's part is unknown; PACE: its optimizer does not step once per step of the training.
FLAT, PLACEMENT, PACE = 1, 2, 3
# Whether the optimizer has a gradient for a parameter, as FORESHOCK_GRADIENT_...: present, absent although it is
# required, or not required.
GRADIENT_PRESENT, GRADIENT_ABSENT, GRADIENT_NOT_REQUIRED = 1, 2, 3


class Weight(Row):
    """This rank's part of a model tensor."""

    name: str
    layer: str  # label of the layer; "": unknown
    shape: tuple[int, ...]  # of the whole tensor
    offset: tuple[int, ...]  # index in the whole tensor at which the part begins
    part: tuple[int, ...]  # shape of the part
    unfollowed: int = 0  # FLAT, PLACEMENT or PACE; 0: it is measured


class Position(Row):
    """Indices of a parameter in an optimizer. torch.utils.swap_tensors refuses parameters with weak references."""

    optimizer: Any  # weak reference to the optimizer
    group: int  # index in param_groups
    index: int  # in the group's parameters
    address: int  # of the parameter's TensorImpl (tensor._cdata)
    owner: Any = None  # weak reference to the module that has the parameter, if no optimizer has it
    key: str = ""  # of the parameter in the module


class Watchable(Row):
    """A parameter whose gradient may be looked at (looks.py)."""

    number: int  # index in the list of tensors that the core has
    seed: int  # of its sketches; from the name, so that it is the same on all ranks
    elements: int  # of the whole tensor
    first: int = 0  # index of the first element of this rank's part in the whole tensor
    whole: int = 0  # elements of the whole tensor; 0: not distributed, or the part is not a range of elements
    mesh: int = 0  # of the ranks that share it, from MeshNumbers; 0: not distributed

    @classmethod
    def of(cls, number: int, name: str, weight: Weight, parameter: Any, mesh: int) -> Watchable | None:
        """None: not a tensor whose gradients can be compared between ranks."""
        seed, elements = crc32(as_bytes(name)), math.prod(weight.shape)
        if weight.unfollowed:
            return None
        if not placements_of(parameter):
            return cls(number, seed, elements) if weight.part == weight.shape else None
        if weight.part == weight.shape:
            return cls(number, seed, elements, 0, elements, mesh)
        is_range = weight.part[1:] == weight.shape[1:]  # sharded in the first dimension only
        first = weight.offset[0] * math.prod(weight.shape[1:])
        return cls(number, seed, elements, first if is_range else 0, elements if is_range else 0, mesh)


class Watched(Row):
    """A parameter of a look, with addresses of tensors, as in gradient_looks.h."""

    number: int
    seed: int
    first: int
    whole: int
    mesh: int
    parameter: int  # this rank's part
    leaf: int | None  # to which autograd adds the contributions
    gradient: int | None = None  # of a distributed tensor: this rank's part at this time


NOWHERE = Position(lambda: None, 0, 0, 0)  # no optimizer: for a tensor that is listed but not measured


class OptimizerNumbers(Row):
    """Hyperparameters and step number of one tensor, from its optimizer's group and state. Unknown: NaN, step -1."""

    step: int
    rate: float
    beta1: float
    beta2: float
    epsilon: float
    decay: float
    gradient: int = 0  # GRADIENT_...; 0: unknown


def local_part(tensor: Any) -> Any:
    """This rank's part of a distributed tensor; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def folded(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with at most DIMS dimensions: the last one is the product of all that follow the first DIMS - 1."""
    return sizes if len(sizes) <= DIMS else (*sizes[: DIMS - 1], math.prod(sizes[DIMS - 1 :]))


def part_on_this_rank(parameter: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """(shape, offset, part) as in Weight; None if the offset is unknown."""
    shape, part = tuple(parameter.shape), tuple(local_part(parameter).shape)
    if not placements_of(parameter):  # not a DTensor: taken as a whole tensor
        return folded(shape), (0,) * min(len(shape), DIMS), folded(part)
    compute = sys.modules["torch.distributed.tensor._utils"].compute_local_shape_and_global_offset
    expected, offset = compute(parameter.shape, parameter.device_mesh, parameter.placements)
    if tuple(expected) != part:  # this rank has another part than the placements describe
        return None
    if len(shape) > DIMS and shape[DIMS - 1 :] != part[DIMS - 1 :]:  # sharded in a dimension that is folded
        return None
    inside = tuple(min(start, size) for start, size in zip(offset, shape))  # an empty part may begin beyond the end
    return folded(shape), inside[:DIMS], folded(part)


class Weights:
    """Keeps the list of tensors that the core has, and the numbers (indices in the list) of those that are due.

    `core`: class Core of core.py. The methods observe_...() return the nanoseconds spent in the core.
    """

    def __init__(self, torch: Any, core: Any) -> None:
        self._torch = torch
        self._core = core
        self._positions: list[Position] = []  # by number; empty if the core measures none of the tensors
        self._watchable: list[Watchable] = []
        self._due: list[int] = []  # numbers of the tensors to measure in this step
        self._is_due_now = False  # self._due belongs to the step that the clock ends next, not to an earlier one

    def send_list(
        self, optimizers: list[Any], unfollowed_optimizers: list[Any], temporary: list[int],
        named: dict[int, tuple[Named, Any]], labels: dict[str, str], replicas: Replicas,
        outside: dict[int, tuple[Any, str]],
    ) -> bool:  # fmt: skip
        """Sends the list of tensors to the core. False: the core was busy; call it again at the next step.

        A parameter that several optimizers hold is listed once, with the first of them. Parameters of
        `unfollowed_optimizers` are listed but not measured. `temporary`: addresses of flat parameters that an optimizer
        has in its groups only during one of several calls per step; these are not measured either. `named`: {address:
        (Named, parameter)} of the model. `labels`: {name: layer label}. `replicas`: prefixes the names of tensors that
        may differ over ranks. `outside`: {address: (module, key in it)} of parameters that have a gradient and are in
        no optimizer. They are measured at the steps of the first optimizer.
        """
        order = {address: n for n, address in enumerate(named)}
        rows: dict[int, tuple[Weight, Position]] = {}  # by address of the parameter
        names: dict[int, str] = {}  # without prefix, of the tensors that optimizers have
        for address in temporary:
            rows[address] = self._not_measured(1, f"parameters.{len(rows)}", FLAT), NOWHERE
        for optimizer in optimizers:
            reference = ref(optimizer)
            for group, members in enumerate(groups(optimizer)):
                for n, parameter in enumerate(parameters_in(members)):
                    if parameter._cdata in rows:
                        continue
                    entry = named.get(parameter._cdata)
                    name = entry[0].name if entry else f"parameters.{len(rows)}"
                    prefix = replicas.prefix(parameter, is_named=entry is not None)
                    weight = Weight(prefixed(prefix, name), labels.get(name, ""), *self._fields_of_part(parameter))
                    rows[parameter._cdata] = weight, Position(reference, group, n, parameter._cdata)
                    names[parameter._cdata] = name
        for parameter in (p for o in unfollowed_optimizers for p in parameters_of(o) if p._cdata not in rows):
            rows[parameter._cdata] = self._not_measured(parameter.numel(), f"parameters.{len(rows)}", PACE), NOWHERE
        for address, (module, key) in outside.items():
            row, parameter = named[address]
            name = prefixed(replicas.prefix(parameter, is_named=True), row.name)
            weight = Weight(name, labels.get(row.name, ""), *self._fields_of_part(parameter))
            rows[address] = weight, Position(ref(optimizers[0]), 0, 0, address, ref(module), key)
        # In the order of the model, so that the schedule does not depend on which optimizer holds a tensor.
        listed = sorted(rows, key=lambda address: order.get(address, len(order)))
        measured = self._core.name_weights([rows[address][0] for address in listed])  # how many; -1: the core is busy
        self._positions = [rows[address][1] for address in listed] if measured > 0 else []
        meshes = MeshNumbers()
        self._watchable = [
            watchable
            for number, address in enumerate(listed[:measured])
            if (name := names.get(address) or (named[address][0].name if address in outside else "")) != ""
            and (parameter := self.parameter_of(number)) is not None
            and (watchable := Watchable.of(number, name, rows[address][0], parameter, meshes.of(parameter)))
        ]
        self._due = []
        return measured >= 0

    @staticmethod
    def _fields_of_part(parameter: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
        """The last four fields of Weight: shape, offset, part, unfollowed."""
        part = None
        with suppress_ours():  # if this torch cannot compute the offset, `part` stays None
            part = None if is_flat(parameter) else part_on_this_rank(parameter)
        if part is not None:
            return *part, 0
        return Weights._not_measured(parameter.numel(), "", FLAT if is_flat(parameter) else PLACEMENT)[2:]

    @staticmethod
    def _not_measured(elements: int, name: str, why: int) -> Weight:
        """A tensor that is listed but not measured."""
        # The core derives the step at which a tensor is due from the sizes of the tensors before it. Sizes must
        # therefore be the same on all ranks. The size of a flat parameter differs between ranks, so it counts as 1.
        size = (1 if why == FLAT else elements,)
        return Weight(name, "", size, (0,), size, why)

    def fetch_due(self) -> None:
        """Gets the numbers of the tensors to measure in this step from the core."""
        self._due = self._core.weights_due() if self._positions else []
        self._is_due_now = True

    def forget_due(self) -> None:
        """Must be called if the optimizer's step was skipped or the next step of the training has started."""
        self._due = []

    def end_step(self) -> None:
        """Must be called when the clock ends a step. After a quiet step, whose hooks run only in C++ and do not call
        fetch_due(), self._due belongs to an earlier step and is forgotten."""
        if not self._is_due_now:
            self._due = []
        self._is_due_now = False

    def watchable(self) -> list[Watchable]:
        """The same list until the tensors change."""
        return self._watchable

    def parameter_of(self, number: int) -> Any:
        """A parameter that still exists, or None."""
        position = self._positions[number]
        if position.owner is not None:
            module = position.owner()
            parameter = None if module is None else module._parameters.get(position.key)
            return parameter if parameter is not None and parameter._cdata == position.address else None
        param_groups = groups(position.optimizer())  # () if the optimizer was destroyed (None)
        members = parameters_in(param_groups[position.group]) if position.group < len(param_groups) else []
        is_there = position.index < len(members) and members[position.index]._cdata == position.address
        return members[position.index] if is_there else None

    def has_optimizer(self, number: int) -> bool:
        """Whether an optimizer has the parameter."""
        return self._positions[number].owner is None

    @property
    def is_any_measured(self) -> bool:
        return bool(self._positions)

    def observe_before_due(self, due: list[int], optimizer: Any) -> int:
        """Does what fetch_due() and observe_before() do. `due`: the numbers, which the core has already returned."""
        self._due = due
        self._is_due_now = True
        return self.observe_before(optimizer)

    @property
    def is_any_due(self) -> bool:
        return bool(self._due)

    def observe_before(self, optimizer: Any, ended: int = 0) -> int:
        """Passes the due tensors of `optimizer` to the core. `ended`: ENDED if the clock has ended the step, else 0."""
        return self._observe(self._due_of(optimizer), BEFORE | ended)

    def observe_after(self, optimizer: Any, ended: int = 0) -> int:
        """Passes the same tensors to the core after `optimizer` changed them. Tensors of other optimizers stay due."""
        numbers = self._due_of(optimizer)
        done = set(numbers)
        self._due = [number for number in self._due if number not in done]
        return self._observe(numbers, AFTER | ended)

    def _due_of(self, optimizer: Any) -> list[int]:
        return [number for number in self._due if self._positions[number].optimizer() is optimizer]

    def _observe(self, numbers: list[int], when: int) -> int:
        rows = [row for number in numbers if (row := self._row_or_none(number)) is not None]
        return self._core.observe_weights(rows, when) if rows else 0

    def _row_or_none(self, number: int) -> tuple[int, list[int | None], OptimizerNumbers] | None:
        """The result of _row(); None also if a custom optimizer's groups or state raised an exception."""
        try:
            return self._row(number)
        except Exception as error:
            if is_of_trainer(error):
                raise
            return None

    def _row(self, number: int) -> tuple[int, list[int | None], OptimizerNumbers] | None:
        """(number, addresses of parameter, gradient and both moments, OptimizerNumbers); None: the optimizer does not
        have the parameter at its position."""
        position = self._positions[number]
        optimizer = position.optimizer()
        if position.owner is not None:
            return self._row_outside(number, position)
        param_groups = groups(optimizer)  # () if the optimizer was destroyed (None)
        if optimizer is None or position.group >= len(param_groups):
            return None
        group = param_groups[position.group]
        members = parameters_in(group)
        if position.index >= len(members) or members[position.index]._cdata != position.address:
            return None
        parameter = members[position.index]
        state = state_of(optimizer, parameter)
        # A second moment that contains the weight decay is left out, since it is not the gradient's second moment.
        second_moment = None if self._adds_decay(optimizer, group) else state.get("exp_avg_sq")
        tensors = (parameter, parameter.grad, state.get("exp_avg"), second_moment)
        addresses = [local_part(t)._cdata if isinstance(t, self._torch.Tensor) else None for t in tensors]
        return number, addresses, self._optimizer_numbers(group, state)._replace(gradient=self._gradient_of(parameter))

    def _row_outside(self, number: int, position: Position) -> tuple[int, list[int | None], OptimizerNumbers] | None:
        """As _row(), for a parameter that is in no optimizer."""
        module = position.owner()
        parameter = None if module is None else vars(module).get("_parameters", {}).get(position.key)
        if parameter is None or parameter._cdata != position.address:
            return None
        addresses = [t._cdata if isinstance(t, self._torch.Tensor) else None for t in (parameter, parameter.grad)]
        numbers = self._optimizer_numbers({}, {})._replace(gradient=self._gradient_of(parameter))
        return number, [*addresses, None, None], numbers

    def _gradient_of(self, parameter: Any) -> int:
        if isinstance(parameter.grad, self._torch.Tensor):
            return GRADIENT_PRESENT
        return GRADIENT_ABSENT if parameter.requires_grad else GRADIENT_NOT_REQUIRED

    def _adds_decay(self, optimizer: Any, group: dict[str, Any]) -> bool:
        """Whether weight decay is part of the second moment (exp_avg_sq), as in Adam but not in AdamW (decoupled)."""
        optim = self._torch.optim
        is_adam = isinstance(optimizer, (optim.Adam, optim.NAdam, optim.RAdam))
        adds_by_default = is_adam and not isinstance(optimizer, optim.AdamW)
        given = group.get("weight_decay")
        decay = number_on_cpu(self._torch, given)  # None for a tensor on a device, which is assumed not to be 0
        has_decay = decay != 0 if decay is not None else given is not None
        # "decoupled": the decay is subtracted from the weight directly, so it is not part of the second moment.
        is_decoupled = group.get("decoupled_weight_decay", not adds_by_default)
        return has_decay and not is_decoupled

    def _optimizer_numbers(self, group: dict[str, Any], state: dict[str, Any]) -> OptimizerNumbers:
        betas = group.get("betas")
        pair = betas if isinstance(betas, (tuple, list)) and len(betas) == 2 else (None, None)
        values = [group.get("lr"), *pair, group.get("eps")]
        known = [number_on_cpu(self._torch, value) for value in (*values, group.get("weight_decay"))]
        step = step_number(self._torch, state.get("step"))
        hyperparameters = (math.nan if value is None else value for value in known)
        return OptimizerNumbers(-1 if step is None else step, *hyperparameters)
