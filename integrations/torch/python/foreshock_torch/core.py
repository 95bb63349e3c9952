"""Calls the C side through ctypes: libforeshock.so (the core), which the process has loaded, and the adapter, a library
with hooks on torch's operations that is built for this version of torch. "The helper" is this Python package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from .inventory import Mixer
from .logs import Logs
from .names import as_bytes
from .rows import Row
from .topology import Topology
from .weights import DIMS, OptimizerNumbers, Watched, Weight

# Constants of hook.h.
ABI = 1  # FORESHOCK_ABI_VERSION
REPORTED, OPTIMIZER_STATE, COUNTED = 1, 2, 3  # FORESHOCK_STEP_...: how the step number is known
# FORESHOCK_GIVEN_...: bits that are reported with a step. GIVEN_UP: from now on the helper reports no names, gradients
# and weights, because they cost too much time; with GIVEN_UP_FAILED: because naming tensors failed.
# GIVEN_OTHER_TRAINING: this is the first step of another optimizer; the optimizer of the earlier steps was destroyed.
GIVEN_LEARNING_RATE, GIVEN_BATCH_ID, GIVEN_UP, GIVEN_UP_FAILED, GIVEN_OTHER_TRAINING = 2, 8, 16, 32, 64
LOSS_REPORTED = 1  # FORESHOCK_LOSS_REPORTED


def _structures() -> tuple[Any, ...]:
    """The ctypes classes of structures in hook.h and (the last two) in weight_report.h and gradient_looks.h."""
    import ctypes as c

    head = [("size", c.c_uint32), ("version", c.c_uint32)]  # size of the structure, ABI version

    class Parameter(c.Structure):
        _fields_ = [*head, ("identity", c.c_void_p), ("name", c.c_char_p), ("layer", c.c_char_p),
                    ("elements", c.c_uint64)]  # fmt: skip

    class Mixer(c.Structure):
        _fields_ = [*head, ("layer", c.c_char_p), ("name", c.c_char_p), ("kind", c.c_uint32),
                    ("is_trained", c.c_uint32)]  # fmt: skip

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
            *head, ("name", c.c_char_p), ("layer", c.c_char_p),
            *[(name, c.c_int64 * DIMS) for name in ("shape", "offset", "part")],
            ("dims", c.c_uint32), ("unfollowed", c.c_uint32),
        ]  # fmt: skip

    class Watched(c.Structure):
        _fields_ = [("number", c.c_uint64), ("seed", c.c_uint64), ("addresses", c.c_void_p * 3), ("first", c.c_int64),
                    ("whole", c.c_int64), ("mesh", c.c_uint64)]  # fmt: skip

    # number: index in the list of name_weights(). addresses: of parameter, gradient and Adam's two moments; or NULL.
    class WeightState(c.Structure):
        _fields_ = [("number", c.c_uint64), ("gradient_state", c.c_uint64), ("addresses", c.c_void_p * 4),
                    ("step", c.c_int64), ("numbers", c.c_double * 5)]  # fmt: skip  # the fields of OptimizerNumbers

    return Parameter, Mixer, Identity, Scalar, Weight, WeightState, Watched


class Arrays:
    """Makes ctypes arrays of at least `count` entries. ctypes creates a type for every length, with reference cycles
    that only the garbage collector frees. So lengths are rounded up to powers of two, and each type is kept."""

    def __init__(self) -> None:
        self._types: dict[tuple[Any, int], Any] = {}

    def make(self, kind: Any, count: int) -> Any:
        length = 1 << max(count - 1, 0).bit_length()
        if (kind, length) not in self._types:
            self._types[kind, length] = kind * length
        return self._types[kind, length]()


class QuietSteps(Row):
    """Functions of quiet_functions.h in the adapter. They do the work of the optimizer hooks in quiet steps: those that
    are not sampled, while all optimizers are known and their tensors have names. The order of the fields is that in
    quiet_functions.h."""

    prepare: Callable[..., Any]  # must be called first; keeps objects of Python and torch that the others need
    begins: Callable[..., int]  # the hook before a step; returns how many weights are due; negative: not a quiet step
    ends: Callable[..., int]  # the hook after a step; 0: the end is not quiet, Python must handle it
    set_clock: Callable[..., int]  # remembers the optimizer whose steps are the training steps; 0: none can be quiet
    add_other: Callable[..., int]  # remembers another optimizer; 0: no step can be quiet
    allow: Callable[..., Any]  # allows quiet steps, after set_clock() and add_other()
    stop: Callable[..., Any]  # ends quiet steps until the next set_clock() and allow()
    run_next_end_in_python: Callable[[], Any]  # the end of the next step will not be quiet
    take: Callable[[], tuple[int, int, int, int, int, int, int, int]]  # number and times of quiet steps since last call


def _return_zero(*given: Any) -> int:
    return 0


NO_QUIET_STEPS = QuietSteps(*[_return_zero] * len(QuietSteps._fields))._replace(
    begins=lambda *given: -1, take=lambda: (0,) * 8
)


class Core:
    """Functions of libforeshock.so (`core`) and of the adapter (`adapter`). They are called with the interpreter lock
    held (PyDLL). "Address" means the address of a tensor's TensorImpl (tensor._cdata)."""

    def __init__(self, torch: Any, adapter_path: str) -> None:
        import ctypes as c

        self._torch, self._ctypes = torch, c
        self.core = c.PyDLL(None)  # the symbols of this process, among them those of libforeshock.so
        structures = _structures()
        self.Parameter, self.Mixer, self.Identity, self.Scalar, self.Weight, self.WeightState, self.Watched = structures
        self._arrays = Arrays()
        # The addresses passed to the last step_begins(), and a ctypes array of them, for calls with equal addresses.
        self._last_addresses: tuple[list[int], Any] = ([], (c.c_void_p * 0)())
        self._due_numbers, self._due_numbers_address = (c.c_uint32 * 0)(), 0  # buffer for the weights that are due
        self.adapter = c.PyDLL(adapter_path)
        address, length = c.c_void_p, c.c_size_t
        # Library, name after "foreshock_", type of the result, types of the arguments. Functions without a method of
        # Core are called by other modules of the helper.
        self._declare(self.core, "observe_loss", None, c.c_double, c.c_uint32)
        self._declare(self.core, "loss_is_of", None, c.c_char_p)
        self._declare(self.core, "name_parameters", None, address, length)
        self._declare(self.core, "name_mixers", c.c_int, address, length)
        self._declare(self.core, "note_unseen", None, c.c_char_p, c.c_uint32)
        self._declare(self.core, "register_op", c.c_int32, c.c_char_p, c.c_uint32)
        self._declare(self.core, "attention_skip", None, c.c_int32, c.c_uint32)
        self._declare(self.core, "observe_scalars", c.c_int, address, length)
        self._declare(self.core, "describe", None, address)
        self._declare(self.core, "off", None, c.c_char_p)
        self._declare(self.core, "name_weights", c.c_int, address, length)
        self._declare(self.core, "weights_due", length, address, length)
        self._declare(self.adapter, "adapter_backwards", c.c_uint64)
        self._declare(self.adapter, "adapter_taps", c.c_uint64)
        self._declare(self.adapter, "adapter_enter", c.c_int, address, c.c_int32, c.c_uint32, c.c_uint32)
        self._declare(
            self.adapter, "adapter_step_begins", c.c_uint64, address, length, c.c_double, c.c_uint32, c.c_uint32
        )
        self._declare(self.adapter, "adapter_number", c.c_double, address)
        self._declare(
            self.adapter, "adapter_end_step", None,
            c.c_int64, c.c_uint32, c.c_double, c.c_uint64, c.c_uint32, c.c_uint64,
        )  # fmt: skip
        self._declare(self.adapter, "adapter_observe_weights", c.c_uint64, address, length, c.c_uint32)
        self._declare(self.adapter, "adapter_begin_look", length, address, length)
        self._declare(self.adapter, "adapter_end_look", c.c_uint64, address, length)
        self._declare(self.adapter, "adapter_cancel_look", None)
        self._declare(self.adapter, "adapter_call_back", None, c.py_object, c.py_object)
        self.logs = Logs(self.observe_scalars)
        self.adapter.foreshock_adapter_start()  # hooks torch's operations
        self.quiet = self._quiet_steps()
        self._has_stopped_counting = False

    @staticmethod
    def _declare(library: Any, name: str, result: Any, *arguments: Any) -> None:
        function = getattr(library, "foreshock_" + name)
        function.restype, function.argtypes = result, arguments

    def weakref_callback(self, function: Any) -> Any:
        """A callback for weak references that calls `function(reference)`. If a signal handler of the training raises
        an exception during the callback, Python would drop the exception; the adapter raises it again later. The
        callback is a C function, since a signal handler may run before the first line of a Python function."""
        return partial(self.adapter.foreshock_adapter_call_back, function)

    def stop_counting_steps(self) -> None:
        """Must be called when an optimizer or the training itself begins to report steps. Until then the adapter counts
        a step when a weight has changed after a backward pass, which also detects updates without an optimizer."""
        if not self._has_stopped_counting:
            self._has_stopped_counting = True
            self.adapter.foreshock_adapter_steps_are_told()

    def step_end(
        self, step: int, source: int, rate: float | None, batch_id: int | None, spent_ns: int, bits: int
    ) -> None:
        """Reports the end of a step. `step`: its number; -1: unknown. `source`: REPORTED, ... `rate`: learning rate.
        `spent_ns`: time of the helper since the last step. `bits`: GIVEN_... bits except those of `rate` and
        `batch_id`."""
        bits |= 0 if rate is None else GIVEN_LEARNING_RATE
        bits |= 0 if batch_id is None else GIVEN_BATCH_ID
        self.adapter.foreshock_adapter_end_step(step, source, rate or 0.0, batch_id or 0, bits, spent_ns)

    def _quiet_steps(self) -> QuietSteps:
        """The adapter's functions; NO_QUIET_STEPS if this Python has no lock (GIL) or lacks a C function they call."""
        function = self.adapter.foreshock_adapter_quiet_function
        function.argtypes, function.restype = [self._ctypes.c_uint32], self._ctypes.py_object
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return NO_QUIET_STEPS
        try:
            quiet = QuietSteps(*map(function, range(len(QuietSteps._fields))))
        except ValueError:  # a null pointer: this Python lacks a C function
            return NO_QUIET_STEPS
        tensor = self._torch.Tensor
        # These show quiet_steps.h in each step whether a profiler runs, an object is a plain tensor, or Dynamo traces.
        quiet.prepare(sys.getprofile, tensor, tensor.__basicsize__, vars(self._torch.compiler))
        self.logs.after_call = quiet.run_next_end_in_python
        return quiet

    def set_optimizers(self, clock: Any, others: list[tuple[Any, int]]) -> bool:
        """Passes the optimizers to quiet_steps.h. Returns whether quiet steps can follow the step that step_begins()
        has started. `clock`: the optimizer whose steps are the training steps. `others`: the other optimizers, each
        with a number: n if its loss is recorded as "loss of optimizer n", 0 if it steps after `clock` without a
        backward pass of its own."""
        addresses, array = self._last_addresses
        if not self.quiet.set_clock(clock, self._ctypes.addressof(array), len(addresses)):
            return False
        return all(self.quiet.add_other(*other) for other in others)

    def allow_quiet_steps(
        self, may_end_quietly: bool, is_counted: bool, step: int, address: int, begins_left: int, ends_left: int,
        has_weights: bool,
    ) -> None:  # fmt: skip
        """Lets quiet steps follow. `may_end_quietly`: the end of the next step may be quiet too. `step`: number of the
        last step. If `is_counted`, the helper has counted it and `address` is 0; else it was read from the optimizer's
        state of the parameter at `address`. `begins_left`, `ends_left`: how many begins and ends may be quiet."""
        capacity = len(self._due_numbers) if has_weights else 0
        self.quiet.allow(
            may_end_quietly, is_counted, step, address, begins_left, ends_left,
            self.logs.module_count, self._due_numbers_address, capacity,
        )  # fmt: skip

    def due_in_quiet_step(self, count: int) -> list[int]:
        """Numbers (indices in the list of name_weights()) of the `count` weights that QuietSteps.begins found due."""
        return self._due_numbers[:count]

    def number(self, tensor: Any) -> float | None:
        """The value of a plain one-element tensor in host memory; None for any other tensor, and for NaN."""
        value = self.adapter.foreshock_adapter_number(tensor._cdata)
        return value if value == value else None  # noqa: PLR0124  # NaN

    def step_begins(
        self, addresses: list[int], inverse_scale: float, averaging_writes: int, writes_untracked: bool
    ) -> int:
        """Passes the gradients of the parameters at `addresses` to the core and returns the ns spent there.
        `inverse_scale`: factor by which the optimizer multiplies gradients. `averaging_writes`: how often per step DDP
        writes into each gradient to average it over ranks. `writes_untracked`: kernels that do not change a tensor's
        version counter may have clipped the gradients."""
        known, array = self._last_addresses  # read together, since another thread may step too
        if addresses != known:
            array = self._arrays.make(self._ctypes.c_void_p, len(addresses))
            array[: len(addresses)] = addresses
            self._last_addresses = (addresses, array)
        return self.adapter.foreshock_adapter_step_begins(
            array, len(addresses), inverse_scale, averaging_writes, writes_untracked
        )

    def name_parameters(self, rows: list[tuple[int, str, str, int]]) -> None:
        """`rows`: (address, name, layer label, elements). With an empty list the core forgets all names."""
        array = self._arrays.make(self.Parameter, len(rows))
        for entry, (identity, name, layer, elements) in zip(array, rows):
            entry.size, entry.version = self._ctypes.sizeof(self.Parameter), ABI
            entry.identity, entry.elements = identity, elements
            entry.name, entry.layer = as_bytes(name), as_bytes(layer)
        self.core.foreshock_name_parameters(array, len(rows))

    def name_mixers(self, mixers: list[Mixer]) -> bool:
        """Sends the model's inventory of attention. Returns False if the core was busy: call again."""
        array = self._arrays.make(self.Mixer, len(mixers))
        for entry, mixer in zip(array, mixers):
            entry.size, entry.version = self._ctypes.sizeof(self.Mixer), ABI
            entry.layer = None if mixer.layer is None else as_bytes(mixer.layer)
            entry.name, entry.kind, entry.is_trained = as_bytes(mixer.name), mixer.kind, mixer.is_trained
        return self.core.foreshock_name_mixers(array, len(mixers)) >= 0

    def name_weights(self, rows: list[Weight]) -> int:
        """Sends the list of weight tensors. Returns how many the core has; 0: not monitored; -1: busy, call again."""
        array = self._arrays.make(self.Weight, len(rows))
        for entry, row in zip(array, rows):
            entry.size, entry.version = self._ctypes.sizeof(self.Weight), ABI
            entry.name, entry.layer, entry.dims = as_bytes(row.name), as_bytes(row.layer), len(row.shape)
            entry.unfollowed = row.unfollowed
            unused = DIMS - len(row.shape)  # dimensions
            entry.shape[:], entry.part[:] = [*row.shape, *[1] * unused], [*row.part, *[1] * unused]
            entry.offset[:] = [*row.offset, *[0] * unused]
        self._due_numbers = self._arrays.make(self._ctypes.c_uint32, len(rows))
        self._due_numbers_address = self._ctypes.addressof(self._due_numbers)
        return self.core.foreshock_name_weights(array, len(rows))

    def is_monitored(self) -> bool:
        return bool(self.core.foreshock_enabled())

    def weights_due(self) -> list[int]:
        """Numbers of the weights that are due in a step that is not quiet. For a quiet step see due_in_quiet_step()."""
        count = self.core.foreshock_weights_due(self._due_numbers, len(self._due_numbers))
        return self._due_numbers[:count]

    def observe_weights(self, rows: list[tuple[int, list[int | None], OptimizerNumbers]], when: int) -> int:
        """Passes weights to the core. `rows`: (number, addresses as in WeightState, OptimizerNumbers). `when`: 0
        before the optimizer's work, 1 after it; plus 2 if the step has ended. Returns the ns spent in the core."""
        array = self._arrays.make(self.WeightState, len(rows))
        for entry, (number, addresses, numbers) in zip(array, rows):
            entry.number, entry.step, entry.gradient_state = number, numbers.step, numbers.gradient
            entry.addresses[:], entry.numbers[:] = addresses, numbers[1:6]
        return self.adapter.foreshock_adapter_observe_weights(array, len(rows), when)

    def begin_look(self, rows: list[Watched]) -> int:
        """Begins a look at gradients. Returns how many of the parameters are looked at."""
        return self.adapter.foreshock_adapter_begin_look(self._watched(rows), len(rows))

    def end_look(self, distributed: list[Watched]) -> int:
        """Ends and reports the look. `distributed`: the distributed tensors of the look, with their gradients at this
        time. Returns the nanoseconds that the look took in backward passes."""
        return self.adapter.foreshock_adapter_end_look(self._watched(distributed), len(distributed))

    def _watched(self, rows: list[Watched]) -> Any:
        array = self._arrays.make(self.Watched, len(rows))
        for entry, row in zip(array, rows):
            entry.number, entry.seed, entry.first, entry.whole, entry.mesh = row[:5]
            entry.addresses[:] = row[5:]
        return array

    def cancel_look(self) -> None:
        self.adapter.foreshock_adapter_cancel_look()

    def observe_scalars(self, rows: list[tuple[str, float, int]]) -> None:
        """`rows`: (name, value, the training's step number or -1) of the floats that the training has logged."""
        array = self._arrays.make(self.Scalar, len(rows))
        for entry, (name, value, step) in zip(array, rows):
            entry.size, entry.version = self._ctypes.sizeof(self.Scalar), ABI
            entry.name, entry.value, entry.step = name.encode(errors="replace"), value, step
        self.core.foreshock_observe_scalars(array, len(rows))

    def describe(self, topology: Topology) -> None:
        """Reports rank, world size and parallel coordinates of this process (-1: unknown), and the version of torch."""
        identity = self.Identity(size=self._ctypes.sizeof(self.Identity), version=ABI)
        identity.rank, identity.local_rank, identity.world_size, identity.attempt = topology[:4]
        for name, coordinate in topology.coordinates._asdict().items():
            setattr(identity, name + "_parallel", coordinate)
        identity.framework = ("torch " + self._torch.__version__.partition("+")[0]).encode()
        self.core.foreshock_describe(self._ctypes.byref(identity))
