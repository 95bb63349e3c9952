"""The operations by which compiled graphs report attention that a model writes out (written_graph.py)."""

from __future__ import annotations

import math
from time import perf_counter_ns
from typing import Any

from . import seams
from .calls import NO_MASK, SKIP_MASK, SKIP_TOO_LARGE, SKIP_UNKNOWN, Call
from .graph_report import GraphReport, source_function
from .row_sums import completed
from .scores import HIDDEN
from .signals import is_of_trainer
from .tap import LAYOUTS
from .written_graph import Traced, read

OPERATION = "eager_attention"  # under which the calls are counted, as those of eager code
_MOST_SCORES = 1 << 24  # of a call whose mask is evaluated
# See flex.py: differences of two values in fp64, and a computation of some more operations.
_STEP, _TOLERANCE = 2.0**-10, 2.0**-36

_library: Any = None  # keeps the definitions registered until the process ends


def define(watch: seams.Watch) -> tuple[Any, Any, Any]:
    """Defines the mark, and the operations of the two passes."""
    global _library
    from torch.fx.node import has_side_effect

    torch = watch.torch
    _library = torch.library.Library("foreshock_written", "DEF")
    forward, backward = _Forward(watch), _Backward(watch)
    ops = []
    for name, schema, kernel, meta in (
        ("mark", "() -> ()", lambda: None, lambda: None),
        ("forward", "(Tensor[] tensors, str call) -> Tensor", forward, lambda tensors, _: _ticket(torch, tensors[0])),
        ("backward", "(Tensor[] tensors, str call) -> ()", backward, lambda *_: None),
    ):
        _library.define(name + schema, tags=(torch.Tag.flexible_layout,))
        _library.impl(name, kernel, "CompositeExplicitAutograd")
        _library.impl(name, meta, "Meta")
        ops.append(getattr(torch.ops.foreshock_written, name).default)
        has_side_effect(ops[-1])
    return ops[0], ops[1], ops[2]


def _ticket(torch: Any, like: Any) -> Any:
    """What the graph keeps of a forward call until its backward pass. It holds what the latter needs as an attribute,
    as long as the training keeps the ticket."""
    return like.new_empty(1, dtype=torch.uint8)


class _Kept:
    """The output and the leaves of a forward call, for its backward pass. Compiled code may write over the output."""

    __slots__ = ("leaves", "out", "versions")

    def __init__(self, out: Any, leaves: list[Any]) -> None:
        self.out, self.leaves = out.clone(), leaves
        self.versions = [leaf._version for leaf in leaves]

    def is_unchanged(self) -> bool:
        return [leaf._version for leaf in self.leaves] == self.versions


class _Forward(GraphReport):
    def __init__(self, watch: seams.Watch) -> None:
        super().__init__(watch, OPERATION, False)

    def __call__(self, tensors: list[Any], text: str) -> Any:
        query, keys, value, out, *more = tensors
        ticket = _ticket(self._watch.torch, query)
        counted = self._count(query)
        if counted & seams.SAMPLED_STEP:
            self._keep(ticket, out, more, text)
        if counted & seams.SAMPLED:
            self._report(lambda: _described(read(text), query, keys.mT, value, out, *_parts(read(text), more)))
        return ticket

    def _keep(self, ticket: Any, out: Any, more: list[Any], text: str) -> None:
        begin = perf_counter_ns()
        try:
            with self._watch.hidden():
                ticket.foreshock_kept = _Kept(out, _parts(read(text), more)[1])
        except Exception as error:
            if is_of_trainer(error):
                raise
        self._watch.add_time(perf_counter_ns() - begin)


class _Backward(GraphReport):
    def __init__(self, watch: seams.Watch) -> None:
        super().__init__(watch, OPERATION, True)

    def __call__(self, tensors: list[Any], text: str) -> None:
        ticket = tensors[0]
        if self._count(tensors[1]) & seams.SAMPLED:
            self._report(lambda: self._call(tensors, read(text)))
        vars(ticket).pop("foreshock_kept", None)

    @staticmethod
    def _call(tensors: list[Any], traced: Traced) -> Call | int:
        ticket, of_out, query, key, value, of_query, of_key, of_value, *more = tensors
        kept = vars(ticket).get("foreshock_kept")
        if kept is None or not kept.is_unchanged():
            return SKIP_UNKNOWN
        call = _described(traced, query.mT, key, value.mT, kept.out, more[0] if more else None, kept.leaves)
        if not isinstance(call, Call):
            return call
        gradients = tuple(_whole(tensor, traced) for tensor in (of_out, of_query, of_key.mT, of_value))
        return completed(call)._replace(gradients=gradients)


def _whole(tensor: Any, traced: Traced) -> Any:
    """(batch * head, position, d) as (batch, head, position, d)."""
    return tensor.unflatten(0, traced.shape)


def _parts(traced: Traced, more: list[Any]) -> tuple[Any, list[Any]]:
    """What dropout has kept, or None, and the leaves."""
    return (more[0], more[1:]) if traced.dropout else (None, more)


def _described(traced: Traced, query: Any, key: Any, value: Any, out: Any, kept: Any, leaves: list[Any]) -> Call | int:
    if len({tensor.dtype for tensor in (query, key, value, out)}) != 1:
        return SKIP_UNKNOWN
    mask = None
    if traced.source:
        if query.shape[0] * query.shape[1] * key.shape[1] > _MOST_SCORES:
            return SKIP_TOO_LARGE
        mask = _mask(traced, query, key, leaves)
        if isinstance(mask, int):
            return mask
    if kept is not None:
        kept = kept.reshape(*traced.shape, query.shape[1], key.shape[1])
    query, key, value, out = (_whole(tensor, traced) for tensor in (query, key, value, out))
    return Call(
        query, key, value, out, None, traced.factor, NO_MASK, LAYOUTS["bhnd"], mask, traced.dropout, kept, traced.cap,
        is_written_out=True,
    )  # fmt: skip


def _mask(traced: Traced, query: Any, key: Any, leaves: list[Any]) -> Any:
    """The mask by which the graph changes the scores after factor and soft cap; None: no mask; SKIP_MASK: the graph
    does something else, also if the scores were a little different, as the gradients show them."""
    function = source_function(traced.source)
    cap, factor = traced.cap, traced.factor

    def capped(scores: Any) -> Any:
        return (scores * (factor / cap)).tanh() * cap if cap else scores * factor

    def evaluated(scores: Any) -> Any:
        return function(scores, *leaves).double().reshape(scores.shape)

    scores = query.double() @ key.double().mT
    values = evaluated(scores)
    seen = values > HIDDEN
    if not bool(seen.any(-1).all()):
        return SKIP_MASK  # a row without a visible key
    more = values - capped(scores)
    limit = _TOLERANCE * (1 + factor * scores.abs() + more.abs())
    for step in (-_STEP / factor, _STEP / factor):
        error = (evaluated(scores + step) - capped(scores + step) - more).abs()
        if bool((seen & ~(error <= limit)).any()):
            return SKIP_MASK
    if not bool((seen & (more.abs() > limit)).any()):
        return None if bool(seen.all()) else _whole(seen, traced)
    more = more if query.dtype.itemsize == 8 else more.float()
    return _whole(more.masked_fill(~seen, -math.inf), traced)
