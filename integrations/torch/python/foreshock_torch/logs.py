"""Reads the Python floats that the training logs with W&B, TensorBoard, Hugging Face and Lightning.

Wraps their logging functions once their modules have been imported. tick(), at the end of a step, looks for new
modules; nothing is imported, and imports are not watched. A wrapper returns, raises and looks like the function that it
wraps. Only floats are read, because reading a tensor on a device would wait. If the training logs a tensor with
TensorBoard (as Megatron-LM does), TensorBoard itself reads the value and passes a float to a FileWriter, whose method
is wrapped too.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter_ns
from types import FunctionType
from typing import Any

from .signals import is_of_trainer

MOST_VALUES = 256  # most names for which values are kept between two steps; libforeshock.so keeps 16 of them
MARK = "_foreshock_reads_along"  # attribute of our wrappers

Reader = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]  # (args, kwargs) -> (logged mapping, step)


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, name: str) -> Any:
    """The positional argument at `index`, else the keyword argument `name`, else None."""
    return args[index] if len(args) > index else kwargs.get(name)


# The readers in the table LOGGERS below. The wrapped functions are methods, so args[0] is the logger.


def read_wandb(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    return argument(args, kwargs, 1, "data"), argument(args, kwargs, 2, "step")


def read_scalar(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    value = {argument(args, kwargs, 1, "tag"): argument(args, kwargs, 2, "scalar_value")}
    return value, argument(args, kwargs, 3, "global_step")


def read_summary(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    values = argument(args, kwargs, 1, "summary").value
    scalars = {value.tag: value.simple_value for value in values if value.HasField("simple_value")}
    return scalars, argument(args, kwargs, 2, "global_step")


def read_trainer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    return argument(args, kwargs, 1, "logs"), getattr(getattr(args[0], "state", None), "global_step", None)


def read_metrics(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    return argument(args, kwargs, 1, "metrics"), argument(args, kwargs, 2, "step")


# The wrapped methods: (module, class, method, reader). A `+` after a class adds its subclasses that define the method.
LOGGERS: list[tuple[str, str, str, Reader]] = [
    ("wandb.sdk.wandb_run", "Run", "log", read_wandb),
    ("torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar", read_scalar),
    ("torch.utils.tensorboard.writer", "FileWriter", "add_summary", read_summary),
    ("tensorboardX.writer", "SummaryWriter", "add_scalar", read_scalar),
    ("tensorboardX.writer", "FileWriter", "add_summary", read_summary),
    ("transformers.trainer", "Trainer", "log", read_trainer),
    ("lightning.fabric.loggers.logger", "Logger+", "log_metrics", read_metrics),
    ("lightning_fabric.loggers.logger", "Logger+", "log_metrics", read_metrics),
    ("pytorch_lightning.loggers.logger", "Logger+", "log_metrics", read_metrics),
]


def with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    for child in cls.__subclasses__():
        yield from with_subclasses(child)


class Logs:
    """Collects logged values. tick() passes [(name, value, the training's step number or -1)] to `pass_on`."""

    def __init__(self, pass_on: Callable[[list[tuple[str, float, int]]], None]) -> None:
        self._pass_on = pass_on
        self._values: dict[str, tuple[float, int]] = {}  # {name: (value, step or -1)} since the last tick()
        self.module_count = 0  # size of sys.modules when it was last searched
        self._spent_ns = 0
        self.after_call: Callable[[], Any] = int  # called when a logging call has been read; int() does nothing
        # Loggers call each other. `is_logging`: this thread is in a logging call. `has_tensor`: a tensor was logged.
        # The outermost call is always read, inner calls only if has_tensor: they may log the float of the tensor.
        self._thread_state = threading.local()

    def tick(self) -> None:  # called at the end of each step that is not quiet (QuietSteps in core.py)
        if len(sys.modules) != self.module_count:
            self.module_count = len(sys.modules)
            self._wrap_new()
        if self._values:
            values, self._values = self._values, {}
            # list() copies, because another thread that logs may still add to the old dictionary.
            self._pass_on([(name, value, step) for name, (value, step) in list(values.items())])

    def has_news(self) -> bool:
        """Whether tick() has values to pass on, or take_spent() a time to return."""
        return bool(self._values or self._spent_ns)

    def take_spent(self) -> int:
        """Nanoseconds that the wrappers have taken since the last call."""
        spent, self._spent_ns = self._spent_ns, 0
        return spent

    def _wrap_new(self) -> None:
        for module_name, class_name, method, reader in LOGGERS:
            cls = getattr(sys.modules.get(module_name), class_name.rstrip("+"), None)
            if isinstance(cls, type):
                for logger_class in with_subclasses(cls) if class_name.endswith("+") else [cls]:
                    self._wrap(logger_class, method, reader)
        self._wrap_bound()

    def _wrap(self, cls: type, method: str, reader: Reader) -> None:
        original = vars(cls).get(method)
        # Only a plain function is wrapped, not a mock or a static method. An attribute other than __wrapped__, which
        # functools.wraps adds, excludes our wrappers (MARK) and functions that other tools have marked.
        if type(original) is not FunctionType or not vars(original).keys() <= {"__wrapped__"}:
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            outermost = self._enter(reader, args, kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                if outermost:
                    self._thread_state.is_logging = False

        setattr(wrapper, MARK, True)
        setattr(cls, method, wrapper)

    def _wrap_bound(self) -> None:
        """Replaces `wandb.log`, which wandb.init() has bound to the original method before the class was wrapped."""
        wandb = sys.modules.get("wandb")
        bound = getattr(wandb, "log", None)
        if bound is None:
            return
        # Replaced only if the run's class has our wrapper, and `wandb.log` is still the function that it wraps.
        wrapper = getattr(type(getattr(bound, "__self__", None)), "log", None)
        if hasattr(wrapper, MARK) and getattr(bound, "__func__", bound) is getattr(wrapper, "__wrapped__", None):
            wandb.log = wrapper.__get__(bound.__self__)  # type: ignore[union-attr]

    def _enter(self, reader: Reader, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Reads a logging call. Returns whether it is the outermost. Drops all errors except the training's own."""
        begin = perf_counter_ns()
        outermost = not getattr(self._thread_state, "is_logging", False)
        try:
            if outermost:
                self._thread_state.is_logging, self._thread_state.has_tensor = True, False
            if outermost or self._thread_state.has_tensor:
                self._note(*reader(args, kwargs))
        except Exception as error:
            if is_of_trainer(error):
                if outermost:  # the wrapper's `finally`, which does the same, is not reached
                    self._thread_state.is_logging = False
                raise
            return outermost
        finally:
            self._spent_ns += perf_counter_ns() - begin
            self.after_call()
        return outermost

    def _note(self, logged: Any, step: Any) -> None:
        """Stores the floats of a logged mapping, and whether it has a tensor (a type with the method dim)."""
        if not isinstance(logged, Mapping):
            return
        # -1: unknown. Step numbers from 2**62 on are invalid in the C interface (foreshock_step in hook.h).
        step_number = step if type(step) is int and 0 <= step < 2**62 else -1
        for name, value in itertools.islice(logged.items(), 4 * MOST_VALUES):  # bounds the time
            if len(self._values) >= MOST_VALUES and name not in self._values:
                continue
            self._thread_state.has_tensor |= hasattr(type(value), "dim")
            if isinstance(value, float) and isinstance(name, str):
                self._values[name] = (float(value), step_number)
