"""The Python side of foreshock inside a PyTorch training: step clock, names, gradients, learning rate.

`import torch` calls autoload() (entry point group torch.backends). It does nothing unless `foreshock run` has set
the process up, and nothing here may make a training fail: every door catches everything, and the first failure
switches the monitor off for this process. Standard library only; torch is taken as it is found.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import time
from typing import Any

__all__ = ["autoload", "layer_labels", "report"]

_ABI = 1
_REPORTED, _OPTIMIZER_STATE, _COUNTED = 1, 2, 3
_GIVEN_LEARNING_RATE, _GIVEN_BATCH_ID = 2, 8
_LOSS_REPORTED = 1

_monitor: Any = None  # the one _Monitor of this process, once autoload() has succeeded
torch: Any = None


class _Box:
    """Its one slot gets a new list at every compiled optimizer step; the adapter watches the pointer.

    A compiled step runs no Python of ours, but Dynamo replays this assignment, without a graph break, without a
    node in the graph and without a guard on a value.
    """

    __slots__ = ("token",)


_box = _Box()
_box.token = []


# -- names (pure functions) --


def plain_name(name: str) -> str:
    """The parameter's name without what wrappers (DDP, compile, FSDP, checkpointing) put into it."""
    wrappers = r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
    name = re.sub(wrappers, "", name)
    while name.startswith("module."):
        name = re.sub(wrappers, "", name.removeprefix("module."))
    return name


def _split(name: str) -> tuple[str, int] | None:
    """("encoder.layers", 3) of encoder.layers.3.q.weight: what stands before the first number, and the number."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:i]), int(part)
    return None


def _tower(prefix: str, prefixes: set[str]) -> str:
    """The last component that tells every tower from every other one, else the full prefix."""
    if len(prefixes) < 2:
        return ""
    paths = [p.split(".") for p in prefixes]
    for back in range(1, min(map(len, paths)) + 1):
        if len({path[-back] for path in paths}) == len(paths) and prefix in prefixes:
            return prefix.split(".")[-back]
    return prefix


def layer_labels(matrices: list[str], names: list[str]) -> dict[str, str]:
    """Label of the layer each of `names` belongs to, at most 31 characters; `matrices` are the 2-D parameters."""
    prefixes = {split[0] for name in matrices if (split := _split(name))}
    labels = {}
    for name in names:
        split = _split(name)
        if split is None:
            labels[name] = (name.rpartition(".")[0] or name)[-31:]
            continue
        tower = _tower(split[0], prefixes) if split[0] in prefixes else split[0]
        labels[name] = f"{tower}.{split[1]:03d}".lstrip(".")[-31:]
    return labels


# -- the C side --


def _structures() -> tuple[Any, Any, Any]:
    import ctypes as c

    head = [("size", c.c_uint32), ("version", c.c_uint32)]

    class Step(c.Structure):
        _fields_ = [
            *head,
            ("step", c.c_int64),
            ("step_source", c.c_uint32),
            ("reserved", c.c_uint32),
            ("loss", c.c_double),
            ("learning_rate", c.c_double),
            ("gradient_norm", c.c_double),
            ("batch_id", c.c_uint64),
            ("given", c.c_uint32),
            ("reserved2", c.c_uint32),
            ("prepare_ns", c.c_uint64),
        ]

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

    return Step, Parameter, Identity


class _Core:
    """libforeshock.so, already in the process, and the adapter; called with the interpreter lock held."""

    def __init__(self, adapter_path: str) -> None:
        import ctypes as c

        self.core = c.PyDLL(None)
        self.Step, self.Parameter, self.Identity = _structures()
        self.core.foreshock_observe_loss.argtypes = [c.c_double, c.c_uint32]
        self.core.foreshock_observe_loss.restype = None
        self.core.foreshock_name_parameters.argtypes = [c.c_void_p, c.c_size_t]
        for name in ("foreshock_step_end", "foreshock_describe", "foreshock_off"):
            getattr(self.core, name).argtypes = [c.c_void_p if name != "foreshock_off" else c.c_char_p]
            getattr(self.core, name).restype = None
        self.adapter = c.PyDLL(adapter_path)
        self.adapter.foreshock_adapter_backwards.restype = c.c_uint64
        self.adapter.foreshock_adapter_step_begins.restype = c.c_uint64
        self.adapter.foreshock_adapter_step_begins.argtypes = [
            c.c_void_p,
            c.c_size_t,
            c.c_double,
            c.c_uint32,
        ]
        self.adapter.foreshock_adapter_watch.argtypes = [c.c_void_p]
        self.hooked = self.adapter.foreshock_adapter_start()

    def step_end(self, step: int, source: int, rate: float | None, batch_id: int | None, prepare_ns: int = 0) -> None:
        import ctypes as c

        record = self.Step(size=c.sizeof(self.Step), version=_ABI, step=step, step_source=source)
        record.prepare_ns = prepare_ns
        if rate is not None:
            record.learning_rate, record.given = rate, record.given | _GIVEN_LEARNING_RATE
        if batch_id is not None:
            record.batch_id, record.given = batch_id & (2**64 - 1), record.given | _GIVEN_BATCH_ID
        self.core.foreshock_step_end(c.byref(record))

    def step_begins(self, addresses: list[int], inverse_scale: float, copies: int) -> int:
        import ctypes as c

        array = (c.c_void_p * len(addresses))(*addresses)
        return self.adapter.foreshock_adapter_step_begins(array, len(addresses), inverse_scale, copies)

    def name_parameters(self, rows: list[tuple[int, str, str, int]]) -> int:
        import ctypes as c

        array = (self.Parameter * len(rows))()
        for entry, (identity, name, layer, elements) in zip(array, rows, strict=True):
            entry.size, entry.version = c.sizeof(self.Parameter), _ABI
            entry.identity, entry.elements = identity, elements
            entry.name, entry.layer = name.encode(), layer.encode()
        return self.core.foreshock_name_parameters(array, len(rows))

    def describe(self) -> None:
        import ctypes as c

        def number(name: str) -> int:
            value = os.environ.get(name, "")
            return int(value) if value.isdigit() else -1

        record = self.Identity(size=c.sizeof(self.Identity), version=_ABI)
        record.rank, record.world_size = number("RANK"), number("WORLD_SIZE")
        record.local_rank, record.attempt = number("LOCAL_RANK"), number("TORCHELASTIC_RESTART_COUNT")
        record.data_parallel = record.tensor_parallel = record.pipeline_parallel = record.expert_parallel = -1
        if _ranks() > 1:
            record.rank, record.world_size = torch.distributed.get_rank(), _ranks()
        record.framework = ("torch " + torch.__version__.partition("+")[0]).encode()
        self.core.foreshock_describe(c.byref(record))

    def watch(self, box: _Box) -> None:
        import ctypes as c

        address = id(box) + object.__basicsize__
        if c.c_void_p.from_address(address).value == id(box.token):  # the layout is as expected
            self.adapter.foreshock_adapter_watch(address)


def _ranks() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()


def _on_cpu(value: Any) -> float | None:
    """A number, or the value of a one-element CPU tensor; never waits for a device."""
    if isinstance(value, (int, float)):
        return value
    if type(value) is torch.Tensor and value.device.type == "cpu" and value.numel() == 1:
        return value.item()
    return None


# -- modules and parameters --


class _Modules:
    """Modules as they register their parameters, by weak reference: where names come from."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self.copies = 0  # in-place writes per step into gradients by those who average them over ranks

    def note(self, module: Any) -> None:
        import weakref

        key = id(module)
        if key not in self._seen or self._seen[key]() is not module:
            self._seen[key] = weakref.ref(module)

    def search(self) -> None:
        """Finds modules that never registered anything here (unpickled, copied). Slow: once, and late."""
        import gc

        for thing in gc.get_objects():
            if issubclass(type(thing), torch.nn.Module):
                self.note(thing)

    def named(self, wanted: tuple[int, ...]) -> dict[int, tuple[str, Any]]:
        """{address: (name, parameter)} of trees that hold any parameter in `wanted`, the fullest tree first."""
        alive = [module for ref in list(self._seen.values()) if (module := ref()) is not None]
        children = {id(child) for module in alive for child in module.children()}
        trees = []
        for root in (module for module in alive if id(module) not in children):
            rows = {p._cdata: (plain_name(name), p) for name, p in root.named_parameters()}
            if hits := len(rows.keys() & set(wanted)):
                trees.append((hits, rows, root))
        named: dict[int, tuple[str, Any]] = {}
        models = []
        for _, rows, root in sorted(trees, key=lambda tree: -tree[0]):
            if type(root).__name__ == "DistributedDataParallel" and not root.gradient_as_bucket_view:
                self.copies = 1
            new = {a: row for a, row in {**rows, **self._gathered(root, rows)}.items() if a not in named}
            named.update(new)
            models.append((root, new))
        return self._told_apart(models, {address: n for n, address in enumerate(wanted)}) or named

    @staticmethod
    def _told_apart(models: list[tuple[Any, Any]], order: dict[int, int]) -> dict[int, tuple[str, Any]]:
        """With each model's class before its names where two models use the same ones; else nothing."""
        names = [name for _, rows in models for name in {name for name, _ in rows.values()}]
        if len(names) == len(set(names)):
            return {}
        models.sort(key=lambda model: min((order.get(a, len(order)) for a in model[1]), default=len(order)))
        kinds, told = [], {}
        for root, _ in models:
            for _ in range(8):  # wrappers in wrappers; bounded, since a proxy may answer to any name
                wrapped = [getattr(root, name, None) for name in ("_orig_mod", "module")]
                root = next((w for w in wrapped if isinstance(w, torch.nn.Module)), root)
            kinds.append(type(root).__name__)
        for n, (_, rows) in enumerate(models):
            number = f"_{kinds[:n].count(kinds[n])}" if kinds.count(kinds[n]) > 1 else ""
            told.update({a: (f"{kinds[n]}{number}.{name}", p) for a, (name, p) in rows.items()})
        return told

    @staticmethod
    def _gathered(root: Any, rows: dict[int, tuple[str, Any]]) -> dict[int, tuple[str, Any]]:
        """Under fully_shard the attention sees the gathered parameter, another tensor than the optimizer's."""
        found = {}
        for module in root.modules():
            state = getattr(module, "_get_fsdp_state", lambda: None)()
            group = getattr(state, "_fsdp_param_group", None)
            for shard in getattr(group, "fsdp_params", ()):
                gathered = getattr(shard, "_unsharded_param", None)
                row = rows.get(shard.sharded_param._cdata)
                if gathered is not None and row is not None:
                    found[gathered._cdata] = (row[0], gathered)
        return found


def _is_part(parameter: Any) -> bool:
    """True for a shard of a larger parameter: its gradient's norm says nothing about the whole one's."""
    marks = ("placements", "_is_flat_param", "_fsdp_flattened", "tensor_model_parallel")
    return any(getattr(parameter, mark, None) for mark in marks)


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# -- the clock --


class _Monitor:
    """Counts a training step at the step of one optimizer whose call follows a backward pass."""

    UNSEEN_CALLS = 3  # calls without any backward pass seen, after which every call counts
    LOOK_AT = 4  # parameters whose optimizer state is looked at for the step
    SEARCH_AT = 3  # tick at which modules are searched for, if names are still missing

    def __init__(self, core: _Core) -> None:
        self.core = core
        self.modules = _Modules()
        self.batch_id: int | None = None
        self.reported = False  # the trainer tells its steps itself
        self._clock: Any = None  # weak reference to the optimizer that ticks
        self._companions: list[Any] = []  # those that step after it without a backward pass of their own
        self._others: dict[int, int] = {}  # calls of the others since the last tick
        self._unseen_calls = 0
        self._seen_backward = False
        self._state_seen: tuple[int, int] | None = None
        self._named_for: list[int] = []
        self._missing_names = self._described = False
        self._whole = True
        self._ticks = 0
        self._spent_ns = 0  # our own time since the last tick

    def before_step(self, optimizer: Any) -> None:
        if self._clock is not None and self._clock() not in (None, optimizer):
            return
        begin = time.perf_counter_ns()
        together = [optimizer, *(o for ref in self._companions if (o := ref()) not in (None, optimizer))]
        parameters = [p for o in together for p in _parameters(o)]
        addresses = [p._cdata for p in parameters]
        self._name(parameters, addresses)
        scale = self._scale(optimizer)
        in_backward = torch._C._current_graph_task_id() != -1
        publish = self._whole and scale is not None and not in_backward
        in_core = self.core.step_begins(addresses if publish else [], 1 / (scale or 1), self.modules.copies)
        self._spent_ns += time.perf_counter_ns() - begin - in_core

    def after_step(self, optimizer: Any) -> None:
        begin = time.perf_counter_ns()
        backwards = self.core.adapter.foreshock_adapter_backwards()
        if not self._is_clock(optimizer, backwards):
            return
        self._others.clear()
        source, step = self._state_step(optimizer)
        if step is not None and not self.reported:
            rate = _on_cpu(optimizer.param_groups[0].get("lr"))
            spent = self._spent_ns + time.perf_counter_ns() - begin
            self.core.step_end(step, source, rate, self.batch_id, spent)
            self.batch_id = None
            self._spent_ns = 0
            self._ticks += 1
        self.core.adapter.foreshock_adapter_step_ended()

    def _is_clock(self, optimizer: Any, backwards: int) -> bool:
        import weakref

        self._seen_backward |= backwards > 0
        clock = self._clock() if self._clock is not None else None
        if clock is not None and clock is not optimizer:
            if backwards == 0 and all(ref() is not optimizer for ref in self._companions):
                self._companions = [ref for ref in self._companions if ref() is not None]
                self._companions.append(weakref.ref(optimizer))
            calls = self._others[id(optimizer)] = self._others.get(id(optimizer), 0) + 1
            if calls < 2 or backwards == 0:
                return False
        if backwards == 0:
            self._unseen_calls += 1
            if self._seen_backward or self._unseen_calls <= self.UNSEEN_CALLS:
                return False
        if clock is not optimizer:
            self._clock, self._state_seen, self._companions = weakref.ref(optimizer), None, []
        return True

    def _state_step(self, optimizer: Any) -> tuple[int, int | None]:
        """(source, absolute step); step None when the optimizer left this step out (overflow, fused)."""
        if (_on_cpu(getattr(optimizer, "found_inf", None)) or 0) > 0:
            return _COUNTED, None
        used = (parameter for parameter in _parameters(optimizer) if parameter.grad is not None)
        for parameter in itertools.islice(used, self.LOOK_AT):
            state = optimizer.state.get(parameter)
            step = _on_cpu(state.get("step")) if state else None
            if step is not None:
                now = (parameter._cdata, int(step))
                stood_still, self._state_seen = now == self._state_seen, now
                return _OPTIMIZER_STATE, None if stood_still else int(step)
        return _COUNTED, -1

    @staticmethod
    def _scale(optimizer: Any) -> float | None:
        """What the gradients still carry of a scaler's factor; None when it is on a device."""
        scale = getattr(optimizer, "grad_scale", None)
        return 1.0 if scale is None else _on_cpu(scale)

    def _name(self, parameters: list[Any], addresses: list[int]) -> None:
        search = self._missing_names and self._ticks >= self.SEARCH_AT
        if addresses == self._named_for and not search:
            return
        if not self._described:
            self.core.describe()
            self._described = True
        if search:
            self.modules.search()
        self._named_for = addresses
        named = self.modules.named(addresses)
        self._missing_names = not search and not set(addresses) <= named.keys()
        self._whole = self._is_whole(parameters, named)
        matrices = [name for name, parameter in named.values() if parameter.dim() == 2]
        labels = layer_labels(matrices, [name for name, _ in named.values()])
        rows = [(address, name, labels[name], p.numel()) for address, (name, p) in named.items()]
        if self.core.name_parameters(rows) == 0 and self._ticks < self.SEARCH_AT:
            self._named_for = []  # not monitored yet

    @staticmethod
    def _is_whole(parameters: list[Any], named: dict[int, tuple[str, Any]]) -> bool:
        """False when this rank steps only a part of the model: its gradients are not the run's."""
        if any(_is_part(parameter) for parameter in parameters):
            return False
        here = {parameter._cdata for parameter in parameters}
        missing = [p for address, (_, p) in named.items() if p.requires_grad and address not in here]
        return _ranks() == 1 or not missing

    def report(self, step: int | None, loss: float | None, batch_id: int | None) -> None:
        if (value := _on_cpu(loss)) is not None:
            self.core.core.foreshock_observe_loss(value, _LOSS_REPORTED)
        if batch_id is not None:
            self.batch_id = batch_id
        if step is not None:
            self.reported = True
            self.core.step_end(step, _REPORTED, None, self.batch_id)
            self.batch_id = None


# -- doors --


def _guarded(name: str, *arguments: Any) -> None:
    """Calls a method of the monitor; the first failure is the last one."""
    global _monitor
    monitor = _monitor
    if monitor is None:
        return
    try:
        getattr(monitor, name)(*arguments)
    except Exception as error:
        _monitor = None
        with contextlib.suppress(Exception):
            reason = re.sub(r"\W", "_", f"helper_{name}_{type(error).__name__}")
            monitor.core.core.foreshock_off(reason.encode()[:47])


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        _guarded("before_step", optimizer)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        _box.token = []
        return
    _guarded("after_step", optimizer)


def _module_grows(module: Any, name: str, part: Any) -> None:
    if _monitor is not None and not torch.compiler.is_compiling():
        with contextlib.suppress(Exception):
            _monitor.modules.note(module)


def report(step: int | None = None, loss: float | None = None, batch_id: int | None = None) -> None:
    """What only the trainer knows: the step that has ended, its loss, an opaque number for its batch."""
    _guarded("report", step, loss, batch_id)


def _adapter_path() -> str:
    build = f"torch-{torch.__version__}-{torch.version.git_version[:12]}"
    return os.path.join(os.environ.get("FORESHOCK_ADAPTERS", ""), build, "adapter.so")


def autoload() -> None:
    """Called at the end of `import torch`."""
    global _monitor, torch
    try:
        if _monitor is not None or not os.environ.get("FORESHOCK_DIR"):
            return
        if os.environ.get("FORESHOCK") in ("off", "0", "false", "no"):  # as parse_switch() of the core reads it
            return
        import atexit
        import ctypes

        if not hasattr(ctypes.CDLL(None), "foreshock_abi_version"):
            return
        torch = sys.modules["torch"]
        if not os.path.isfile(_adapter_path()):
            return  # the core says so itself
        core = _Core(_adapter_path())
        monitor = _Monitor(core)
        core.watch(_box)
        optimizers, modules = sys.modules["torch.optim.optimizer"], sys.modules["torch.nn.modules.module"]
        optimizers.register_optimizer_step_pre_hook(_before_step)
        optimizers.register_optimizer_step_post_hook(_after_step)
        modules.register_module_parameter_registration_hook(_module_grows)
        modules.register_module_module_registration_hook(_module_grows)
        atexit.register(core.adapter.foreshock_adapter_poll)
        _monitor = monitor
    except Exception:
        _monitor = None
