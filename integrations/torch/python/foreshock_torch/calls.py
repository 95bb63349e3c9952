"""A Call describes one attention call, a Seam a Python function that computes attention (seams.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .rows import Row
from .tap import DESCRIBED

SKIP_FP8, SKIP_MASK, SKIP_LAYOUT, SKIP_TOO_LARGE, SKIP_UNKNOWN = 5, 6, 7, 8, 10  # FORESHOCK_SKIP_... of hook.h
ALL_KEYS = -1, -1  # a window that hides nothing
NO_MASK, TOP_LEFT, BOTTOM_RIGHT = 0, 1, 2  # FORESHOCK_CAUSAL_... of hook.h

Given = dict[str, Any]  # the arguments of a call, defaults included


def itself(value: Any) -> Any:
    return value


class Sink(Row):
    """One more key of each row, of which only the score is given (sinks.py)."""

    scores: Any  # (batch, heads, queries, 1), broadcast
    weights: Any  # attention weights of that key as the function has them, (batch, heads, queries, 1)


class Call(Row):
    """One attention call, as foreshock.tap() takes it. `layout`: a number of LAYOUTS, for all tensors."""

    query: Any
    key: Any
    value: Any
    out: Any
    lse: Any
    scale: float | None
    causal: int
    layout: int
    mask: Any = None
    dropout: float = 0.0
    kept: Any = None  # not 0 where dropout has kept a weight
    soft_cap: float = 0.0
    sink: Sink | None = None
    gradients: tuple[Any, Any, Any, Any] | None = None  # of output, query, key and value
    is_written_out: bool = False  # in operations of torch, so that the backward pass does not read the output
    # For a function without a backward function of its own: the gradients of its output and of its query -> those of
    # `out` and `query` as they are described here.
    of_out: Callable[[Any], Any] = itself
    of_query: Callable[[Any], Any] = itself
    window: tuple[int, int] = ALL_KEYS  # keys seen before and after the own key, which has the alignment of `causal`

    def arguments(self, is_backward: bool) -> tuple[Any, ...]:
        """The arguments of the custom operation, in the order of tap.py, for a call that has been counted."""
        tensors = (self.query, self.key, self.value, self.out, self.lse, self.mask)
        more = self.gradients if is_backward and self.gradients is not None else ()
        numbers = (self.scale, float(self.soft_cap), self.causal, *self.window, self.layout, self.dropout)
        return *tensors, *more, self.kept, *numbers, None, True, DESCRIBED


class Seam(Row):
    """A function that is wrapped once its module is imported."""

    module: str
    function: str  # or CLASS.METHOD
    operation: str  # name in the namespace foreshock; define() of tap.py appends "_backward" for the backward pass
    is_backward: bool
    describe: Callable[[Given, Any, Any], Call | int]  # arguments, result, function -> the call, or a SKIP_... reason
    read: frozenset[str]  # parameters that `describe` needs; a function without one of them is not understood
    ignored: frozenset[str]  # parameters that change no attention, or that not all releases have
    query: str = "q"  # the parameter that is the query
    in_function: bool = False  # called inside an autograd.Function, where gradient mode is off
    other_tensor: str = ""  # stands for the query, which may be quantized, when the call is counted
    nests: bool = False  # calls operations that are hooked and must not be counted again
    # For a function without a backward function of its own. Names of the parameters that are key and value:
    keys_and_values: tuple[str, ...] = ()
    output: Callable[[Any], Any] = itself  # result -> the tensor whose gradient is that of the output
    # (result, replace) -> the result with replace(tensor) in place of each of its other tensors
    rest: Callable[[Any, Callable[[Any], Any]], Any] = lambda result, replace: result

    @property
    def follows_gradients(self) -> bool:
        return bool(self.keys_and_values)
