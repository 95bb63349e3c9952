"""Starts the helper (this package) in a training. Registers its hooks, which let no error of the helper reach torch.

Class Monitor (clock.py) does the work of the hooks. In quiet steps, in which nothing is measured, the hooks call the
adapter (a C++ library) instead. A Core object has the adapter's functions for quiet steps as `quiet`, and those of
libforeshock.so (also called the core) as `core`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from time import perf_counter_ns
from typing import Any

from . import (
    graphs,  # counts attention calls in CUDA graphs
    seams,  # wraps functions that compute attention which no hook sees
    tap,  # foreshock.tap(), with which a training reports such attention itself
    written,  # recognises attention that a module writes out in torch operations
)
from .clock import Monitor
from .compiled import Watch, skip_in_dynamo, step_traced
from .core import Core
from .signals import is_of_trainer, suppress_ours  # distinguish exceptions of the training from those of the helper
from .topology import bind_distributed
from .trust import is_trusted

monitor: Any = None  # the Monitor of this process, once enter() has succeeded
torch: Any = None
# Functions of torch, bound once, since the training's own tests may replace them. The first two make context managers,
# in which __torch_function__ and __torch_dispatch__ of the training do not run.
disable_torch_function: Any = None
disable_torch_dispatch: Any = None
is_compiling: Any = None
is_dynamo_compiling: Any = None
# Functions of the adapter. begins_quietly() returns 0 if it has handled the hook before a step, -1 if the monitor must,
# else the number of weights that the monitor must measure. ends_quietly(): whether it handled the hook after a step.
begins_quietly: Any = None
ends_quietly: Any = None
set_tracer: Any = None  # sets the tracer of Dynamo in this thread (None: no tracer), and returns the one before
_watch: Any = None  # keeps the callback for compiled steps alive


def call_monitor(name: str, *arguments: Any) -> None:
    """Calls the monitor's method `name`, hidden from the training's torch function and dispatch modes. The first
    exception of the helper, except a RecursionError, switches the monitor off."""
    global monitor
    called = monitor  # kept, since the method may set `monitor` to None
    if called is None:
        return
    begin = perf_counter_ns()
    try:
        with disable_torch_function(), disable_torch_dispatch():
            method_begin = perf_counter_ns()
            getattr(called, name)(*arguments)
            in_method = perf_counter_ns() - method_begin
        called.add_outside_time(perf_counter_ns() - begin - in_method)  # the method itself has counted in_method
    except Exception as error:
        if is_of_trainer(error):  # raised by a signal handler or another thread of the training
            raise
        if isinstance(error, RecursionError):
            return  # the training's own stack is nearly full; the next call may have enough
        monitor = None
        with suppress_ours():
            called.core.quiet.stop()
            called.core.cancel_look()
            reason = re.sub(r"\W", "_", f"helper_{name}_{type(error).__name__}")
            called.core.core.foreshock_off(reason.encode()[:47])  # the core keeps 47 bytes


def takes_closure(args: Any, kwargs: Any) -> bool:
    """Whether step() got a callable argument. `args` begin with the optimizer."""
    # A hook of the training may have replaced `args` and `kwargs`. Reading an iterator would use it up.
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, dict):
        return False
    return any(map(callable, (*args[1:], *kwargs.values())))


# The next two functions are the hooks. In quiet steps they run no other Python code of ours. While Dynamo (the tracer
# of torch.compile) traces them, it replaces is_dynamo_compiling() by True, so it does not trace the code after the
# return. If it has given up tracing the function of torch that calls the hooks, it must trace neither them
# (skip_in_dynamo) nor what they call (set_tracer).


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if is_dynamo_compiling():
        return
    weights_due = begins_quietly(optimizer, args, kwargs)
    if weights_due == 0:
        return
    tracer = set_tracer(None)
    try:
        _before_other_step(optimizer, args, kwargs, weights_due)
    finally:
        if tracer is not None:
            set_tracer(tracer)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if is_dynamo_compiling():
        step_traced(optimizer)
        return
    if ends_quietly(optimizer):
        return
    tracer = set_tracer(None)
    try:
        _after_other_step(optimizer, args, kwargs)
    finally:
        if tracer is not None:
            set_tracer(tracer)


# For steps that are not quiet. is_compiling() is also true while torch.export runs a hook on tensors without data.


def _before_other_step(optimizer: Any, args: Any, kwargs: Any, weights_due: int) -> None:
    """`weights_due`: the result of begins_quietly()."""
    if is_compiling():
        return
    if weights_due > 0:
        call_monitor("weights_are_due", optimizer, weights_due)
        return
    is_alone = type(args) is tuple and args == (optimizer,) and not kwargs  # in most steps
    call_monitor("before_step" if is_alone or not takes_closure(args, kwargs) else "before_closure", optimizer)


def _after_other_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if is_compiling():
        step_traced(optimizer)
        return
    is_alone = type(args) is tuple and args == (optimizer,) and not kwargs
    call_monitor("after_step" if is_alone or not takes_closure(args, kwargs) else "after_closure", optimizer)


def _compiled_step(optimizer: Any) -> None:
    """Called after a compiled step. The step's hooks ran only while Dynamo traced it (see compiled.py)."""
    call_monitor("compiled_step", optimizer)


def _on_module_change(module: Any, name: str, part: Any, has_new_tensors: bool = True) -> None:
    """The hook for registered parameters. torch passes the module, and the name and object that it registers in it."""
    if monitor is None or is_dynamo_compiling():
        return
    try:
        monitor.note_module(module, has_new_tensors, part if has_new_tensors else None)
    except Exception as error:  # not suppress_ours(): a profiler of the training would record its calls
        if is_of_trainer(error):
            raise


def _on_submodule(module: Any, name: str, part: Any) -> None:
    if is_dynamo_compiling():  # Dynamo cannot trace a call with its own wrapper, which has no module yet
        return
    _on_module_change(module, name, part, has_new_tensors=False)


@contextlib.contextmanager
def _hidden() -> Any:
    """Hides the calls in this context from the training's torch function and dispatch modes."""
    with disable_torch_function(), disable_torch_dispatch():
        yield


@contextlib.contextmanager
def _negative_hook_numbers() -> Any:
    """Gives negative numbers to the hooks that are registered in this context. The training's own hooks must get the
    numbers that they have without the helper, because torch saves hook numbers with a module."""
    handle = sys.modules["torch.utils.hooks"].RemovableHandle
    next_id, handle.next_id = handle.next_id, -16  # -16 to -1; enter() registers only four hooks
    try:
        yield
    finally:
        handle.next_id = next_id


def _wrap_setstate(modules: Any) -> None:
    """Detects copied and unpickled modules, which call no registration hook, by wrapping Module.__setstate__. torch's
    compiler wraps it in the same way (torch/_dynamo/mutation_guard.py)."""
    original = modules.Module.__setstate__

    @functools.wraps(original)
    def __setstate__(self: Any, state: Any) -> None:  # noqa: N807
        original(self, state)
        _on_module_change(self, "", None)

    modules.Module.__setstate__ = __setstate__


def _adapter_path() -> str:
    """Path of the adapter that `foreshock run` has built or found for this build of torch."""
    build = f"torch-{torch.__version__}-{torch.version.git_version[:12]}"
    return os.path.join(os.environ.get("FORESHOCK_ADAPTERS", ""), build, "adapter.so")


def is_wanted() -> bool:
    """Whether `foreshock run` has set up the process, and the environment variable FORESHOCK does not switch it off."""
    off = os.environ.get("FORESHOCK") in ("off", "0", "false", "no")
    return bool(os.environ.get("FORESHOCK_DIR")) and not off


def _report_off(reason: str) -> None:
    """Does what foreshock_off() does, in a process that has no core: leaves the reason for `foreshock run`."""
    directory = os.path.join(os.environ["FORESHOCK_DIR"], os.environ["FORESHOCK_RUN_ID"])
    with open(os.path.join(directory, f"off.{os.getpid()}.{reason}"), "x") as file:
        file.write(os.environ.get("FORESHOCK_LAUNCHER", "0"))


def _load_core(c: Any) -> bool:
    """Loads the core (libforeshock.so) from this installation unless the process has it (preloaded or linked), and lets
    the core load the adapter. Returns whether the adapter's hooks are in place; the reason is reported if they are not.
    `c`: the module ctypes."""
    if not hasattr(c.CDLL(None), "foreshock_abi_version"):
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        library = os.path.normpath(os.path.join(root, "..", "..", "..", "lib", "libforeshock.so"))
        if not os.path.isfile(library) or not os.environ.get("FORESHOCK_RUN_ID"):
            return False
        if not is_trusted(library):
            _report_off("library_untrusted")
            return False
        try:
            c.CDLL(library, mode=c.RTLD_GLOBAL)  # global: the adapter finds the core's functions by name
        except OSError:
            _report_off("library_not_loadable")
            return False
    return bool(c.CDLL(None).foreshock_load_adapter())


def enter() -> None:
    """Loads the core and the adapter, and starts the monitor. Does nothing if the monitor runs already, or if torch,
    the core or the adapter is missing."""
    global monitor, torch, disable_torch_function, disable_torch_dispatch, is_compiling, is_dynamo_compiling
    global begins_quietly, ends_quietly, set_tracer, _watch
    if monitor is not None or not is_wanted():
        return
    import ctypes

    if "torch" not in sys.modules:
        return
    if not _load_core(ctypes):
        return
    torch = sys.modules["torch"]
    disable_torch_function, disable_torch_dispatch = torch._C.DisableTorchFunction, torch._C._DisableTorchDispatch
    is_compiling, is_dynamo_compiling = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
    if not is_trusted(_adapter_path()):
        ctypes.CDLL(None).foreshock_off(b"adapter_untrusted")
        return
    bind_distributed()  # keeps functions of torch.distributed, since the training's own tests may replace them
    core = Core(torch, _adapter_path())
    new_monitor = Monitor(torch, core)
    begins_quietly, ends_quietly = core.quiet.begins, core.quiet.ends
    _watch = Watch(torch, _compiled_step, core.weakref_callback)
    optimizers, modules = sys.modules["torch.optim.optimizer"], sys.modules["torch.nn.modules.module"]
    frames = torch._C._dynamo.eval_frame
    set_tracer = frames.set_eval_frame
    for hook in (_before_step, _after_step):
        skip_in_dynamo(frames, hook)
    with _negative_hook_numbers():
        optimizers.register_optimizer_step_pre_hook(_before_step)
        optimizers.register_optimizer_step_post_hook(_after_step)
        modules.register_module_parameter_registration_hook(_on_module_change)
        modules.register_module_module_registration_hook(_on_submodule)
    _wrap_setstate(modules)
    if torch.backends.cuda.is_built():
        graphs.watch(torch.cuda.CUDAGraph, core.core)
    monitor = new_monitor
    tap.is_active = True
    written.begin(seams.Watch(torch, core, _hidden, new_monitor.add_outside_time))
