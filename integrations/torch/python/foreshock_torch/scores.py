"""Describes scores and weights of attention, and the operations that change them, for written.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from . import seams, sinks
from .calls import Sink
from .rows import Row

# A score that is replaced by this or less has a weight of 0: other scores are not that low. With larger numbers the
# call is skipped.
HIDDEN = -1e4


class Trace(Row):
    """What is known of a tensor of scores or, after the softmax, of weights: cap * tanh(factor / cap * query @ key^T) +
    added, without the soft cap if it is 0; `fill` where `hidden`. `added` and `hidden` are broadcast."""

    query: Any  # (batch, head, query, d)
    key: Any
    views: dict[str, Any]  # of query and key, for the gradients
    backward: seams.Backward
    inputs: tuple[tuple[Any, int], ...]  # tensors of the call with their versions
    factor: float
    dtype: Any = None  # of the product of query and key, to which autocast rounds both
    gain: Any = None  # a further factor of each head, (batch, head, 1, 1)
    cap: float = 0.0
    added: Any = None
    hidden: Any = None
    fill: float = -math.inf  # the largest number that replaced hidden scores
    sink: Sink | None = None  # the last column, until a slice without it gives `sink.weights`
    is_weights: bool = False
    dropout: float = 0.0
    kept: Any = None


# A function below raises a ValueError where an operation has a form that is not described. It must be a class of
# Python: others are taken for exceptions of the training (signals.py).


def _number(value: Any) -> float:
    """The value of a number or of a tensor with one element on the CPU, where reading does not wait."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hasattr(value, "numel") and value.numel() == 1 and value.device.type == "cpu" and not value.requires_grad:
        return float(value.item())
    raise ValueError


def _other(trace: Trace, place: int, args: tuple[Any, ...]) -> Any:
    if len(args) != 2 or trace.is_weights:
        raise ValueError
    return args[1 - place]


def _times(trace: Trace, factor: float) -> Trace:
    if not factor > 0 or trace.sink is not None:
        raise ValueError
    added = None if trace.added is None else trace.added * factor
    return trace._replace(
        factor=trace.factor * factor, cap=trace.cap * factor, added=added, fill=trace.fill * min(factor, 1.0)
    )


def _multiply(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    other = _other(trace, place, args)
    if getattr(other, "shape", ())[-2:] != (1, 1):
        return _times(trace, _number(other))
    if any(part is not None for part in (trace.gain, trace.added, trace.hidden, trace.sink)) or trace.cap:
        raise ValueError
    return trace._replace(gain=other.detach().expand(*result.shape[:-2], 1, 1).reshape(*trace.query.shape[:2], 1, 1))


def _divide(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    if place != 0 or given:
        raise ValueError
    return _times(trace, 1 / _number(_other(trace, place, args)))


def _add(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    other = _other(trace, place, args)
    if given:
        raise ValueError
    if getattr(other, "shape", ())[-1:] == (1,) and other.dim() == result.dim():
        return trace  # one number for all scores of a row, for example the largest: the weights stay
    if trace.sink is not None:
        raise ValueError
    other = other.detach() if hasattr(other, "detach") else result.new_full((), float(other))
    return trace._replace(added=other if trace.added is None else trace.added + other)


def _subtract(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    if place != 0:
        raise ValueError
    return _add(trace, 0, (args[0], -_other(trace, 0, args)), given, result)


def floor(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    """The larger of the scores and of one number, which replaces minus infinity."""
    least = _number(_other(trace, place, args))
    if least > HIDDEN or given:
        raise ValueError
    return trace if trace.added is None else _hide(trace, trace.added <= least, least)


def _tanh(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    if trace.is_weights or trace.cap or any(part is not None for part in (trace.added, trace.hidden, trace.sink)):
        raise ValueError
    return trace._replace(cap=1.0)


def _hide(trace: Trace, hidden: Any, fill: float) -> Trace:
    if trace.is_weights or trace.sink is not None or str(hidden.dtype) != "torch.bool" or fill > HIDDEN:
        raise ValueError
    if fill == -math.inf:
        added = hidden.new_zeros((), dtype=trace.query.dtype) if trace.added is None else trace.added
        return trace._replace(added=added.masked_fill(hidden, fill))
    return trace._replace(hidden=hidden if trace.hidden is None else trace.hidden | hidden, fill=max(trace.fill, fill))


def _fill(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    mask, value = (*args[1:], *(given[name] for name in ("mask", "value") if name in given))
    return _hide(trace, mask, _number(value))


def _where(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    if len(args) != 3 or given:
        raise ValueError
    condition, other = (args[1], args[2]) if place == 0 else (args[0], args[3 - place])
    return _hide(trace, condition if place == 2 else ~condition, _number(other))


def _softmax(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    dim = args[1] if len(args) > 1 else given.get("dim")
    if trace.is_weights or dim not in (-1, result.dim() - 1):
        raise ValueError
    return trace._replace(is_weights=True)


def _dropout(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    named = {**dict(zip(("input", "p", "training"), args)), **given}
    if not trace.is_weights or trace.dropout:
        raise ValueError
    p = float(named.get("p", 0.5))
    return trace._replace(dropout=p, kept=result) if p and named.get("training", named.get("train", True)) else trace


def has_sink_column(trace: Trace) -> bool:
    return trace.sink is not None and trace.sink.weights is None


def append(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    """A sink: one more score a row."""
    dim = args[2] if len(args) > 2 else given.get("dim", 0)
    if place != 0 or trace.is_weights or trace.sink is not None or dim not in (-1, result.dim() - 1):
        raise ValueError
    if result.shape[-1] != args[0].shape[-1] + 1:
        raise ValueError
    # A copy: a sharded parameter may be freed before the backward pass.
    return trace._replace(sink=Sink(sinks.once(args[1].detach()).clone(), None))


def _slice(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    """The weights without that of the sink."""
    whole = args[0]
    is_first = result.data_ptr() == whole.data_ptr() and result.stride() == whole.stride()
    shape = (*whole.shape[:-1], whole.shape[-1] - 1)
    if not (has_sink_column(trace) and trace.is_weights and is_first and result.shape == shape) or trace.dropout:
        raise ValueError
    return trace._replace(sink=trace.sink._replace(weights=whole.detach()[..., -1:]))


def _same(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    if result.shape != args[0].shape:
        raise ValueError
    return trace


def _shaped(trace: Trace, place: int, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> Trace:
    """The order of the elements stays."""
    shape, old = result.shape, args[0].shape
    if result.dtype != args[0].dtype or shape[-1] != old[-1] or has_sink_column(trace):
        raise ValueError
    parts = {
        name: part.expand(old).reshape(shape)
        for name in ("added", "hidden")
        if (part := getattr(trace, name)) is not None and part.dim()
    }
    return trace._replace(**parts)


# Operations that change scores or weights, by the names of their functions and methods.
STEPS: dict[str, Callable[..., Trace]] = {
    name: step
    for step, names in {
        _multiply: "mul mul_ multiply __mul__ __rmul__ __imul__",
        _divide: "div div_ divide true_divide __truediv__ __itruediv__",
        _add: "add add_ __add__ __radd__ __iadd__",
        _subtract: "sub sub_ subtract __sub__ __isub__",
        _tanh: "tanh tanh_",
        floor: "max maximum amax",
        _fill: "masked_fill masked_fill_",
        _where: "where",
        _softmax: "softmax",
        _dropout: "dropout dropout_",
        append: "cat concat concatenate",
        _slice: "__getitem__ narrow",
        _same: "to float half bfloat16 double type type_as contiguous clone",
        _shaped: "view reshape flatten unflatten squeeze unsqueeze view_as",
    }.items()
    for name in names.split()
}


def is_of_rows(args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Whether the function max has one result for each row."""
    named = {**dict(zip(("input", "dim", "keepdim"), args)), **given}
    return named.get("keepdim") is True and named.get("dim") in (-1, args[0].dim() - 1)
