"""Calls the C side through ctypes: libforeshock.so, which the process has loaded, and the adapter for this torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from .logs import Logs
from .place import Place
from .weights import DIMS, Numbers, Weight

ABI = 1
REPORTED, OPTIMIZER_STATE, COUNTED = 1, 2, 3
GIVEN_LEARNING_RATE, GIVEN_BATCH_ID, GIVEN_UP, GIVEN_UP_FAILED, GIVEN_OTHER_TRAINING = 2, 8, 16, 32, 64
LOSS_REPORTED = 1


def _structures() -> tuple[Any, ...]:
    import ctypes as c

    head = [("size", c.c_uint32), ("version", c.c_uint32)]

    class Parameter(c.Structure):
        _fields_ = [
            *head,
            ("identity", c.c_void_p),
            ("name", c.c_char_p),
            ("layer", c.c_char_p),
            ("elements", c.c_uint64),
        ]

    class Identity(c.Structure):
        _fields_ = [
            *head,
            *[(name, c.c_int32) for name in ("rank", "local_rank", "world_size", "attempt")],
            *[(name + "_parallel", c.c_int32) for name in ("data", "tensor", "pipeline", "expert")],
            ("framework", c.c_char_p),
        ]

    class Scalar(c.Structure):
        _fields_ = [*head, ("name", c.c_char_p), ("value", c.c_double), ("step", c.c_int64)]

    class Weight(c.Structure):
        _fields_ = [
            *head,
            ("name", c.c_char_p),
            ("layer", c.c_char_p),
            *[(name, c.c_int64 * DIMS) for name in ("shape", "offset", "part")],
            ("dims", c.c_uint32),
            ("unfollowed", c.c_uint32),
        ]

    class WeightState(c.Structure):
        _fields_ = [
            ("number", c.c_uint64),
            ("addresses", c.c_void_p * 4),
            ("step", c.c_int64),
            ("numbers", c.c_double * 5),
        ]

    return Parameter, Identity, Scalar, Weight, WeightState


class Arrays:
    """Makes ctypes arrays of at least `count` entries. ctypes creates a type for every length, in reference cycles that
    only the garbage collector frees. So lengths are rounded up to powers of two, and each type is kept."""

    def __init__(self) -> None:
        self._types: dict[tuple[Any, int], Any] = {}

    def make(self, kind: Any, count: int) -> Any:
        room = 1 << max(count - 1, 0).bit_length()
        if (kind, room) not in self._types:
            self._types[kind, room] = kind * room
        return self._types[kind, room]()


class QuietSteps(NamedTuple):
    """Functions of quiet_steps.h, which handle the optimizer hooks of quiet steps. They create no Python frame, so no
    signal handler runs in them."""

    prepare: Callable[..., Any]
    begins: Callable[..., int]  # returns how many weights are due; negative: not a quiet step
    ends: Callable[..., int]
    look: Callable[..., int]
    look_other: Callable[..., int]
    arm: Callable[..., Any]
    disarm: Callable[..., Any]
    wait: Callable[[], Any]  # makes the end of the next step run in Python
    take: Callable[[], tuple[int, int, int, int, int, int, int, int]]


def _return_zero(*given: Any) -> int:
    return 0


NO_QUIET_STEPS = QuietSteps(
    _return_zero,
    lambda *given: -1,
    _return_zero,
    _return_zero,
    _return_zero,
    _return_zero,
    _return_zero,
    _return_zero,
    lambda: (0,) * 8,
)


class Core:
    """Functions of libforeshock.so and of the adapter. They are called with the interpreter lock held (PyDLL)."""

    def __init__(self, torch: Any, adapter_path: str) -> None:
        import ctypes as c

        self._torch = torch
        self.core = c.PyDLL(None)
        self.Parameter, self.Identity, self.Scalar, self.Weight, self.WeightState = _structures()
        self._arrays = Arrays()
        self._last_addresses: tuple[list[int], Any] = ([], (c.c_void_p * 0)())
        self.core.foreshock_observe_loss.argtypes = [c.c_double, c.c_uint32]
        self.core.foreshock_observe_loss.restype = None
        self.core.foreshock_loss_is_of.argtypes = [c.c_char_p]
        self.core.foreshock_loss_is_of.restype = None
        self.core.foreshock_name_parameters.argtypes = [c.c_void_p, c.c_size_t]
        self.core.foreshock_name_parameters.restype = None
        self.core.foreshock_note_unseen.argtypes = [c.c_char_p, c.c_uint32]
        self.core.foreshock_note_unseen.restype = None
        self.core.foreshock_observe_scalars.argtypes = [c.c_void_p, c.c_size_t]
        self.logs = Logs(self.observe_scalars)
        for name in ("foreshock_describe", "foreshock_off"):
            getattr(self.core, name).argtypes = [c.c_void_p if name != "foreshock_off" else c.c_char_p]
            getattr(self.core, name).restype = None
        self.adapter = c.PyDLL(adapter_path)
        self.adapter.foreshock_adapter_backwards.restype = c.c_uint64
        self.adapter.foreshock_adapter_taps.restype = c.c_uint64
        self.adapter.foreshock_adapter_step_begins.restype = c.c_uint64
        self.adapter.foreshock_adapter_step_begins.argtypes = [
            c.c_void_p,
            c.c_size_t,
            c.c_double,
            c.c_uint32,
            c.c_uint32,
        ]
        self.adapter.foreshock_adapter_number.argtypes = [c.c_void_p]
        self.adapter.foreshock_adapter_number.restype = c.c_double
        self.adapter.foreshock_adapter_end_step.argtypes = [
            c.c_int64, c.c_uint32, c.c_double, c.c_uint64, c.c_uint32, c.c_uint64,
        ]  # fmt: skip
        self.adapter.foreshock_adapter_end_step.restype = None
        self.core.foreshock_name_weights.argtypes = [c.c_void_p, c.c_size_t]
        self.core.foreshock_weights_due.argtypes = [c.c_void_p, c.c_size_t]
        self.core.foreshock_weights_due.restype = c.c_size_t
        self.adapter.foreshock_adapter_observe_weights.argtypes = [c.c_void_p, c.c_size_t, c.c_uint32]
        self.adapter.foreshock_adapter_observe_weights.restype = c.c_uint64
        self._due_numbers, self._due_numbers_address = (c.c_uint32 * 0)(), 0
        self.adapter.foreshock_adapter_call_back.argtypes = [c.py_object, c.py_object]
        self.adapter.foreshock_adapter_call_back.restype = None
        self.hooked = self.adapter.foreshock_adapter_start()
        self.quiet = self._quiet_steps()
        self._reports_steps = False

    def call_back(self, function: Any) -> Any:
        """A callback for weak references that calls `function(reference)` and loses no exception of the training's
        signal handlers. It is not a Python function, because a handler may run before the first line of one."""
        return partial(self.adapter.foreshock_adapter_call_back, function)

    def reports_steps(self) -> None:
        """Call it once an optimizer or the training itself reports steps. Until then the adapter counts a step when a
        weight has changed after a backward pass, which also detects updates without an optimizer."""
        if not self._reports_steps:
            self._reports_steps = True
            self.adapter.foreshock_adapter_steps_are_told()

    def step_end(
        self, step: int, source: int, rate: float | None, batch_id: int | None, spent_ns: int, given_up: int
    ) -> None:
        given = given_up
        if rate is not None:
            given |= GIVEN_LEARNING_RATE
        if batch_id is not None:
            given |= GIVEN_BATCH_ID
        self.adapter.foreshock_adapter_end_step(step, source, rate or 0.0, batch_id or 0, given, spent_ns)

    def _quiet_steps(self) -> QuietSteps:
        """NO_QUIET_STEPS if this Python lacks a function that they need, or has no interpreter lock."""
        import ctypes as c

        function = self.adapter.foreshock_adapter_quiet_function
        function.argtypes, function.restype = [c.c_uint32], c.py_object
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return NO_QUIET_STEPS
        try:
            quiet = QuietSteps(*map(function, range(len(QuietSteps._fields))))
        except ValueError:  # a null pointer
            return NO_QUIET_STEPS
        tensor = self._torch.Tensor
        quiet.prepare(sys.getprofile, tensor, tensor.__basicsize__, vars(self._torch.compiler))
        self.logs.noted = quiet.wait
        return quiet

    def look(self, clock: Any, others: list[tuple[Any, int]]) -> bool:
        """Whether quiet steps can follow the step that step_begins() has started. `others`: the other optimizers and
        their numbers, see QuietSteps::look_other in quiet_steps.h."""
        import ctypes as c

        addresses, array = self._last_addresses
        if not self.quiet.look(clock, c.addressof(array), len(addresses)):
            return False
        return all(self.quiet.look_other(*other) for other in others)

    def arm(
        self, ends: bool, is_counted: bool, step: int, address: int, before: int, after: int, weights: bool
    ) -> None:
        """Lets quiet steps follow. The arguments are the fields of QuietSteps::Armed in quiet_steps.h."""
        room = len(self._due_numbers) if weights else 0
        self.quiet.arm(
            ends, is_counted, step, address, before, after, self.logs.modules, self._due_numbers_address, room
        )

    def due(self, count: int) -> list[int]:
        """Numbers of the weights that QuietSteps.begins has found due."""
        return self._due_numbers[:count]

    def number(self, tensor: Any) -> float | None:
        """The value of a plain one-element tensor in host memory; None for any other tensor, and for NaN."""
        value = self.adapter.foreshock_adapter_number(tensor._cdata)
        return value if value == value else None  # noqa: PLR0124  # NaN

    def step_begins(self, addresses: list[int], inverse_scale: float, copies: int, writes_untracked: bool) -> int:
        known, array = self._last_addresses  # read together, since another thread may step too
        if addresses != known:
            import ctypes as c

            array = self._arrays.make(c.c_void_p, len(addresses))
            array[: len(addresses)] = addresses
            self._last_addresses = (addresses, array)
        return self.adapter.foreshock_adapter_step_begins(
            array, len(addresses), inverse_scale, copies, writes_untracked
        )

    def name_parameters(self, rows: list[tuple[int, str, str, int]]) -> None:
        import ctypes as c

        array = self._arrays.make(self.Parameter, len(rows))
        for entry, (identity, name, layer, elements) in zip(array, rows):
            entry.size, entry.version = c.sizeof(self.Parameter), ABI
            entry.identity, entry.elements = identity, elements
            entry.name, entry.layer = name.encode(), layer.encode()
        self.core.foreshock_name_parameters(array, len(rows))

    def name_weights(self, rows: list[Weight]) -> int:
        import ctypes as c

        array = self._arrays.make(self.Weight, len(rows))
        for entry, row in zip(array, rows):
            entry.size, entry.version = c.sizeof(self.Weight), ABI
            entry.name, entry.layer, entry.dims = row.name.encode(), row.layer.encode(), len(row.shape)
            entry.unfollowed = row.unfollowed
            beyond = DIMS - len(row.shape)
            entry.shape[:], entry.part[:] = [*row.shape, *[1] * beyond], [*row.part, *[1] * beyond]
            entry.offset[:] = [*row.offset, *[0] * beyond]
        self._due_numbers = self._arrays.make(c.c_uint32, len(rows))
        self._due_numbers_address = c.addressof(self._due_numbers)
        return self.core.foreshock_name_weights(array, len(rows))

    def is_monitored(self) -> bool:
        return bool(self.core.foreshock_enabled())

    def weights_due(self) -> list[int]:
        count = self.core.foreshock_weights_due(self._due_numbers, len(self._due_numbers))
        return self._due_numbers[:count]

    def observe_weights(self, rows: list[tuple[int, list[int | None], Numbers]], when: int) -> int:
        array = self._arrays.make(self.WeightState, len(rows))
        for entry, (number, addresses, numbers) in zip(array, rows):
            entry.number, entry.step = number, numbers.step
            entry.addresses[:], entry.numbers[:] = addresses, numbers[1:]
        return self.adapter.foreshock_adapter_observe_weights(array, len(rows), when)

    def observe_scalars(self, rows: list[tuple[str, float, int]]) -> None:
        import ctypes as c

        array = self._arrays.make(self.Scalar, len(rows))
        for entry, (name, value, step) in zip(array, rows):
            entry.size, entry.version = c.sizeof(self.Scalar), ABI
            entry.name, entry.value, entry.step = name.encode(errors="replace"), value, step
        self.core.foreshock_observe_scalars(array, len(rows))

    def describe(self, place: Place) -> None:
        import ctypes as c

        record = self.Identity(size=c.sizeof(self.Identity), version=ABI)
        record.rank, record.local_rank, record.world_size, record.attempt = place[:4]
        for name, at in place.coordinates._asdict().items():
            setattr(record, name + "_parallel", at)
        record.framework = ("torch " + self._torch.__version__.partition("+")[0]).encode()
        self.core.foreshock_describe(c.byref(record))
