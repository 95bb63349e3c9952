"""The tensors that the optimizers step: their table for the core, and those whose turn it is around each step."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple
from weakref import ref

from .names import Named
from .numbers import on_cpu, step_number
from .optimizers import groups, parameters_in, parameters_of, state_of
from .replicas import Replicas, prefixed
from .signals import is_of_trainer, suppress_ours

DIMS = 4  # as FORESHOCK_TENSOR_DIMS
BEFORE, AFTER, ENDED = 0, 1, 2  # ENDED: of the step that was told last
FLAT, PLACEMENT, PACE = 1, 2, 3  # as FORESHOCK_UNFOLLOWED_...


class Weight(NamedTuple):
    """Where a tensor of the model lies on this rank: its part begins at `offset` of the whole `shape`."""

    name: str
    layer: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    part: tuple[int, ...]
    unfollowed: int = 0  # why it cannot be followed, or 0


class Held(NamedTuple):
    """Where a parameter is found again. Not by a weak reference to it: torch.utils.swap_tensors refuses a tensor that
    has one."""

    optimizer: Any  # weak reference
    group: int
    place: int
    address: int


NOWHERE = Held(lambda: None, 0, 0, 0)


class Numbers(NamedTuple):
    """What an optimizer's group and state say of one tensor."""

    step: int
    rate: float
    beta1: float
    beta2: float
    epsilon: float
    decay: float


def local(tensor: Any) -> Any:
    """This rank's part of a distributed tensor; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def folded(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """At most four dimensions: the last ones multiplied into one."""
    return sizes if len(sizes) <= DIMS else (*sizes[: DIMS - 1], math.prod(sizes[DIMS - 1 :]))


def is_flat(parameter: Any) -> bool:
    """One that FSDP1 made of many."""
    return any(getattr(parameter, mark, None) for mark in ("_is_flat_param", "_fsdp_flattened"))


def place_of(parameter: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """(shape, offset, part); None where it cannot be told."""
    shape, part = tuple(parameter.shape), tuple(local(parameter).shape)
    if not getattr(parameter, "placements", None):
        return folded(shape), (0,) * min(len(shape), DIMS), folded(part)
    compute = sys.modules["torch.distributed.tensor._utils"].compute_local_shape_and_global_offset
    expected, offset = compute(parameter.shape, parameter.device_mesh, parameter.placements)
    if tuple(expected) != part:
        return None
    if len(shape) > DIMS and shape[DIMS - 1 :] != part[DIMS - 1 :]:  # cut in one of those that are folded
        return None
    return folded(shape), tuple(min(at, size) for at, size in zip(offset, shape))[:DIMS], folded(part)


class Weights:
    """`core` has name_weights, weights_due and observe_weights."""

    def __init__(self, torch: Any, core: Any) -> None:
        self._torch = torch
        self._core = core
        self._held: list[Held] = []
        self._due: list[int] = []

    def name(
        self,
        optimizers: list[Any],
        unfollowed: list[Any],
        pieces: list[int],
        named: dict[int, tuple[Named, Any]],
        labels: dict[str, str],
        replicas: Replicas,
    ) -> bool:
        """Each parameter once, however many optimizers hold it: that of the first one, which steps it. `pieces`:
        those that an optimizer has in its groups only for a moment. False when the core has to be told again, at the
        next step."""
        order = {address: n for n, address in enumerate(named)}
        rows: dict[int, tuple[Weight, Held]] = {}
        for address in pieces:
            rows[address] = self._unfollowed(1, f"parameters.{len(rows)}", FLAT), NOWHERE
        for optimizer in optimizers:
            reference = ref(optimizer)
            for group, members in enumerate(groups(optimizer)):
                for n, parameter in enumerate(parameters_in(members)):
                    if parameter._cdata in rows:
                        continue
                    found = named.get(parameter._cdata)
                    name = found[0].name if found else f"parameters.{len(rows)}"
                    prefix = replicas.prefix(parameter, found is not None)
                    weight = Weight(prefixed(prefix, name), labels.get(name, ""), *self._place_of(parameter))
                    rows[parameter._cdata] = weight, Held(reference, group, n, parameter._cdata)
        for parameter in (p for o in unfollowed for p in parameters_of(o) if p._cdata not in rows):
            rows[parameter._cdata] = self._unfollowed(parameter.numel(), f"parameters.{len(rows)}", PACE), NOWHERE
        # As the model has them: which optimizer of a rank holds them does not change whose turn it is.
        there = sorted(rows, key=lambda address: order.get(address, len(order)))
        followed = self._core.name_weights([rows[address][0] for address in there])
        self._held = [rows[address][1] for address in there] if followed > 0 else []
        self._due = []
        return followed >= 0

    @staticmethod
    def _place_of(parameter: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
        """shape, offset, part, and why it cannot be followed."""
        place = None
        with suppress_ours():  # a placement that this torch cannot tell the offset of
            place = None if is_flat(parameter) else place_of(parameter)
        if place is not None:
            return *place, 0
        return Weights._unfollowed(parameter.numel(), "", FLAT if is_flat(parameter) else PLACEMENT)[2:]

    @staticmethod
    def _unfollowed(elements: int, name: str, why: int) -> Weight:
        # Turns follow from the sizes before a tensor, which all ranks must know alike; that of a flat one is a rank's.
        size = (1 if why == FLAT else elements,)
        return Weight(name, "", size, (0,), size, why)

    def due(self) -> None:
        """Asks whose turn it is."""
        self._due = self._core.weights_due() if self._held else []

    def forget_due(self) -> None:
        """The step was left out, or another one has begun."""
        self._due = []

    @property
    def is_any_held(self) -> bool:
        return bool(self._held)

    def due_are(self, due: list[int], optimizer: Any) -> int:
        """What due() and before() do, where the core was asked already."""
        self._due = due
        return self.before(optimizer)

    @property
    def is_any_due(self) -> bool:
        return bool(self._due)

    def before(self, optimizer: Any, ended: int = 0) -> int:
        """Those whose turn it is and that `optimizer` is about to step. Nanoseconds spent in the core."""
        return self._observe(self._of(optimizer), BEFORE | ended)

    def after(self, optimizer: Any, ended: int = 0) -> int:
        """The same once it has stepped; what other optimizers step later stays due."""
        mine = self._of(optimizer)
        seen = set(mine)
        self._due = [number for number in self._due if number not in seen]
        return self._observe(mine, AFTER | ended)

    def _of(self, optimizer: Any) -> list[int]:
        return [number for number in self._due if self._held[number].optimizer() is optimizer]

    def _observe(self, numbers: list[int], when: int) -> int:
        rows = [row for number in numbers if (row := self._row(number)) is not None]
        return self._core.observe_weights(rows, when) if rows else 0

    def _row(self, number: int) -> tuple[int, list[int | None], Numbers] | None:
        """None where there is nothing to show, or an optimizer of one's own is not as we know them."""
        try:
            return self._state_of(number)
        except Exception as error:
            if is_of_trainer(error):
                raise
            return None

    def _state_of(self, number: int) -> tuple[int, list[int | None], Numbers] | None:
        held = self._held[number]
        optimizer = held.optimizer()
        of = groups(optimizer)
        if optimizer is None or held.group >= len(of):
            return None
        group = of[held.group]
        members = parameters_in(group)
        if held.place >= len(members) or members[held.place]._cdata != held.address:
            return None
        parameter = members[held.place]
        state = state_of(optimizer, parameter)
        square = None if self._adds_decay(optimizer, group) else state.get("exp_avg_sq")
        tensors = (parameter, parameter.grad, state.get("exp_avg"), square)
        addresses = [local(t)._cdata if isinstance(t, self._torch.Tensor) else None for t in tensors]
        return number, addresses, self._numbers(group, state)

    def _adds_decay(self, optimizer: Any, group: dict[str, Any]) -> bool:
        """Whether the second moment is not that of the gradient alone: Adam adds its weight decay to it, AdamW does
        not."""
        optim = self._torch.optim
        coupled = isinstance(optimizer, (optim.Adam, optim.NAdam, optim.RAdam)) and not isinstance(
            optimizer, optim.AdamW
        )
        given = group.get("weight_decay")
        decay = on_cpu(self._torch, given)
        is_there = decay != 0 if decay is not None else given is not None  # one on a device may be anything
        return is_there and not group.get("decoupled_weight_decay", not coupled)

    def _numbers(self, group: dict[str, Any], state: dict[str, Any]) -> Numbers:
        betas = group.get("betas")
        pair = betas if isinstance(betas, (tuple, list)) and len(betas) == 2 else (None, None)
        values = [group.get("lr"), *pair, group.get("eps")]
        known = [on_cpu(self._torch, value) for value in (*values, group.get("weight_decay"))]
        step = step_number(self._torch, state.get("step"))
        return Numbers(-1 if step is None else step, *(math.nan if value is None else value for value in known))
