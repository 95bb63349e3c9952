"""What the training itself logs, read along: Python floats passed to W&B, TensorBoard, Hugging Face and Lightning.

Their functions are wrapped once their modules are there, which is looked for at steps: nothing is imported, and no
import is watched. A wrapper returns, raises and looks as what it wraps. Only floats are read: a tensor may be on a
device, and reading it would wait for that. TensorBoard's writers wait themselves, so of a tensor that they were given
(Megatron-LM's loss) what they write is read.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter_ns
from types import FunctionType
from typing import Any

from .signals import is_of_trainer

MOST_VALUES = 256  # between two steps; the core keeps 16 names
MARK = "_foreshock_reads_along"

Reader = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]  # of a call: what is logged, its step


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


# `args` begin with the object: all of these are methods.


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


# Module, class, method, what to read; `+`: every subclass that defines the method itself too.
DOORS: list[tuple[str, str, str, Reader]] = [
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


def family(cls: type) -> Iterator[type]:
    yield cls
    for child in cls.__subclasses__():
        yield from family(child)


class Logs:
    """`pass_on` takes [(name, value, step or -1)] at the end of a step; it is called by whoever calls tick()."""

    def __init__(self, pass_on: Callable[[list[tuple[str, float, int]]], None]) -> None:
        self._pass_on = pass_on
        self._values: dict[str, tuple[float, int]] = {}
        self.modules = 0  # that were there at the last look
        self._spent_ns = 0
        self.noted: Callable[[], Any] = int  # called after each look at what is logged
        self._within = threading.local()  # a logger that calls another one logs once, unless it was given a tensor

    def tick(self) -> None:
        if len(sys.modules) != self.modules:
            self.modules = len(sys.modules)
            self._look()
        if self._values:
            values, self._values = self._values, {}
            # A copy: a thread that logs may hold the old ones still.
            self._pass_on([(name, value, step) for name, (value, step) in list(values.items())])

    def has_news(self) -> bool:
        """Whether there is anything for tick() or take_spent()."""
        return bool(self._values or self._spent_ns)

    def take_spent(self) -> int:
        """Nanoseconds since it was last asked that reading along has taken."""
        spent, self._spent_ns = self._spent_ns, 0
        return spent

    def _look(self) -> None:
        for module_name, class_name, method, reader in DOORS:
            cls = getattr(sys.modules.get(module_name), class_name.rstrip("+"), None)
            if isinstance(cls, type):
                for each in family(cls) if class_name.endswith("+") else [cls]:
                    self._wrap(each, method, reader)
        self._wrap_bound()

    def _wrap(self, cls: type, method: str, reader: Reader) -> None:
        original = vars(cls).get(method)
        # A function alone, with nothing in it but what functools.wraps put there: no mock, no static method.
        if type(original) is not FunctionType or not vars(original).keys() <= {"__wrapped__"}:
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            outermost = self._enter(reader, args, kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                if outermost:
                    self._within.logger = False

        setattr(wrapper, MARK, True)
        setattr(cls, method, wrapper)

    def _wrap_bound(self) -> None:
        """`wandb.log` is the method of the run that init() made, bound before the class was wrapped."""
        wandb = sys.modules.get("wandb")
        bound = getattr(wandb, "log", None)
        wrapped = getattr(type(getattr(bound, "__self__", None)), "log", None)
        if getattr(bound, "__func__", bound) is getattr(wrapped, "__wrapped__", None) and hasattr(wrapped, MARK):
            wandb.log = wrapped.__get__(bound.__self__)  # type: ignore[union-attr]

    def _enter(self, reader: Reader, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Notes what is logged. True for the outermost of nested loggers. Raises what is the trainer's alone."""
        begin = perf_counter_ns()
        outermost = not getattr(self._within, "logger", False)
        try:
            if outermost:
                self._within.logger, self._within.has_tensor = True, False
            if outermost or self._within.has_tensor:
                self._note(*reader(args, kwargs))
        except Exception as error:
            if is_of_trainer(error):
                if outermost:
                    self._within.logger = False
                raise
            return outermost
        finally:
            self._spent_ns += perf_counter_ns() - begin
            self.noted()
        return outermost

    def _note(self, logged: Any, step: Any) -> None:
        if not isinstance(logged, Mapping):
            return
        number = step if type(step) is int and 0 <= step < 2**62 else -1
        for name, value in logged.items():
            if len(self._values) >= MOST_VALUES and name not in self._values:
                return
            self._within.has_tensor |= hasattr(type(value), "dim")
            if isinstance(value, float) and isinstance(name, str):
                self._values[name] = (float(value), number)
