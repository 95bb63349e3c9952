"""Reports compiled calls of flex_attention, whose kernels no hook sees.

While torch.compile traces a call, the wrapped function (seams.py) leaves a mark in the graph: graphs with it have other
keys in the caches of compiled code than those of a process that is not monitored. When AOTAutograd then traces the
operator behind flex_attention, or its backward operator, the mark is replaced by an operation behind it, which has the
tensors of the call and, as Python source, its `mask_mod` and `score_mod`. The operation changes nothing, and Inductor
keeps it outside of its kernels. At sampled calls it describes the call as flex.py describes one of eager code.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import operator
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from . import flex, seams
from .calls import SKIP_UNKNOWN, Call
from .graph_report import GraphReport, source_function
from .signals import is_of_trainer

OPERATION = "flex_attention"  # under which the calls are counted, as those of eager code
_SCHEMA = "(Tensor[] tensors, str call) -> ()"  # few arguments: torch converts each at each call
_NO_BLOCKS = 1 << 30  # size of the only block if the call has no BlockMask


_library: Any = None  # keeps the definitions registered until the process ends
_reports: tuple[Any, Any]  # the operations for the two passes
_marked: weakref.WeakSet[Any] = weakref.WeakSet()  # tracers whose graph had a mark


class _Traced(NamedTuple):
    """What the graph knows of a call. Its tensors are those of the call, those of the blocks, those that `mask_mod` and
    `score_mod` read, and, if the graph has it, the gradient of the log-sum-exp; `counts`: how many."""

    counts: list[int]
    mask_mod: str  # source; empty: no mask
    score_mod: str
    block_size: tuple[int, int]
    scale: float
    place: tuple[int, int]  # of the query among the tensors that the graph is called with, and their number; or (-1, 0)
    is_of_out: bool  # whether the gradients are those of the output alone if the gradient of the log-sum-exp is 0


def prepare(watch: seams.Watch) -> None:
    """Defines the operations, and wraps the operators of flex_attention where AOTAutograd traces them, at the first
    call."""
    global _library, _reports
    if _library is not None:
        return
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
    from torch.fx.node import has_side_effect

    torch = watch.torch
    _library = torch.library.Library("foreshock_graph", "DEF")

    def define(name: str, schema: str, kernel: Callable[..., None]) -> Any:
        _library.define(name + schema, tags=(torch.Tag.flexible_layout,))
        _library.impl(name, kernel, "CompositeExplicitAutograd")
        _library.impl(name, lambda *_: None, "Meta")
        defined = getattr(torch.ops.foreshock_graph, name).default
        has_side_effect(defined)
        return defined

    names = (OPERATION, f"{OPERATION}_backward")
    _reports = tuple(define(name, _SCHEMA, _Report(watch, n == 1)) for n, name in enumerate(names))
    seams.graph_reports.update({_reports[False]: False, _reports[True]: True})
    operators = sys.modules["torch._higher_order_ops.flex_attention"]
    dense = torch._C.DispatchKey.CompositeExplicitAutograd
    for name, report in zip(names, _reports):
        traced = getattr(operators, name)
        table, kernels = traced.python_key_table, traced.py_kernels
        table[ProxyTorchDispatchMode] = _followed(table[ProxyTorchDispatchMode], traced, report)
        # In a graph of aot_eager, which calls torch's own operations for attention.
        kernels[dense] = seams.nested(kernels[dense], watch.core.adapter.foreshock_adapter_nest)
        traced._dispatch_cache.clear()
    seams.graph_mark = define("mark", "() -> ()", lambda: None)


def _followed(original: Callable[..., Any], traced: Any, report: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def follow(mode: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(mode, *args, **kwargs)
        try:
            _add(mode.tracer, traced, report)
        except Exception as error:  # what the graph has is not what is described here
            if is_of_trainer(error):
                raise
            seams.missed_in_graphs.add(OPERATION)
        return result

    return follow


def _add(tracer: Any, traced: Any, report: Any) -> None:
    """Adds `report` behind the call of the operator `traced`, the last one in the graph. Raises an exception, and
    changes nothing but the mark, if the graph has another form than that described here."""
    nodes = tracer.graph.nodes
    called = next(node for node in reversed(nodes) if node.target is traced)
    is_backward = report is _reports[True]
    if not is_backward:
        tracer.graph.erase_node(next(node for node in reversed(nodes) if node.target is seams.graph_mark))
        _marked.add(tracer)
    if tracer not in _marked:
        raise ValueError
    given = dict(zip(_names(type(traced)), called.args))
    results = {node.args[1]: node for node in called.users if node.target is operator.getitem}
    tensors = [given[name] for name in ("query", "key", "value")]
    if is_backward:
        tensors += [given[name] for name in ("out", "logsumexp", "grad_out")] + [results[n] for n in range(3)]
    else:
        tensors += [results[n] for n in range(1 + bool(given["kernel_options"]["OUTPUT_LOGSUMEXP"]))]
    *_, rows, columns, mask_mod = given["block_mask"]
    buffers = [list(given[name]) for name in ("mask_mod_other_buffers", "score_mod_other_buffers")]
    mask = "" if rows >= _NO_BLOCKS else _source(tracer, mask_mod)
    score = _source(tracer, given["fw_graph" if is_backward else "score_mod"])
    # On a device, the blocks are not read.
    is_read = mask and tensors[0].meta["val"].device.type == "cpu"
    blocks = [block for block in given["block_mask"][2:6] if block is not None] if is_read else []
    of_lse = _shown(given["grad_logsumexp"]) if is_backward and given["grad_logsumexp"] is not None else []
    parts = (tensors, blocks, buffers[0] if mask else [], buffers[1], of_lse or [])
    everything = [node for part in parts for node in part]
    if not all(hasattr(node.meta["val"], "layout") for node in everything):
        raise ValueError  # a number that the graph computes
    inputs = [
        node
        for node in nodes
        if node.op == "placeholder" and "tangents" not in node.target and hasattr(node.meta.get("val"), "layout")
    ]
    place = (inputs.index(tensors[0]), len(inputs)) if tensors[0] in inputs else (-1, 0)
    counts = [len(part) for part in parts]
    size = (int(rows), int(columns))
    call = _Traced(counts, mask, score, size, float(given["scale"]), place, of_lse is not None)
    node = tracer.graph.call_function(report, (everything, repr(tuple(call))))
    node.meta["partitioner_tag"] = "is_backward" if is_backward else "must_be_in_forward"


@functools.cache
def _names(owner: type) -> tuple[str, ...]:
    return tuple(owner.__call__.__code__.co_varnames[1 : owner.__call__.__code__.co_argcount])


def _shown(gradient: Any) -> list[Any] | None:
    """The input of the graph that shows at each call whether a loss uses the log-sum-exp: if none does, and the graph
    returns it, autograd gives zeros as its gradient. None: not known. On a device, to read it would wait. Results of
    the graph are not read: Inductor would then compute them elsewhere."""
    import torch

    while gradient.op == "call_function" and gradient.target is torch.ops.aten.mul.Tensor:
        gradient = gradient.args[0]  # to base 2
    return [gradient] if gradient.op == "placeholder" and gradient.meta["val"].device.type == "cpu" else None


def _source(tracer: Any, node: Any) -> str:
    """The source of a function of the graph, whose arguments are the tensors that it reads. Empty: it returns its first
    argument."""
    module = getattr(tracer.root, node.target)
    nodes = list(module.graph.nodes)
    if nodes[-1].args[0] is nodes[0]:
        return ""
    if any(node.op in ("get_attr", "call_module") for node in nodes):
        raise ValueError  # it reads a tensor of its own
    return module.code


@functools.cache
def _read(text: str) -> _Traced:
    return _Traced(*ast.literal_eval(text))


# Dispatch keys that torch excludes below an operation whose inputs need gradients. vmap needs them.
_KEYS = (
    "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchVmapMode", "FuncTorchBatched",
    "AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView",
)  # fmt: skip


def _with_vmap(c: Any) -> Any:
    """A context in which vmap works."""
    excluded = c._dispatch_tls_local_exclude_set()
    for key in _KEYS:
        excluded = excluded.remove(getattr(c.DispatchKey, key))
    return c._ForceDispatchKeyGuard(c._dispatch_tls_local_include_set(), excluded)


class _Report(GraphReport):
    """What the operation of one pass runs."""

    def __init__(self, watch: seams.Watch, is_backward: bool) -> None:
        super().__init__(watch, OPERATION, is_backward)

    def __call__(self, tensors: list[Any], call: str) -> None:
        if self._count(tensors[0]) & seams.SAMPLED:
            self._report(lambda: self._described(tensors, call), _read(call).place)

    def _described(self, tensors: list[Any], text: str) -> Call | int:
        with _with_vmap(self._watch.torch._C):
            call = self._call(tensors, _read(text))
        if isinstance(call, Call):
            seams.described_in_graphs.add(OPERATION)
        return call

    def _call(self, tensors: list[Any], traced: _Traced) -> Call | int:
        ends = list(itertools.accumulate(traced.counts))
        blocks, mask_buffers, score_buffers, of_lse = (tensors[a:b] for a, b in zip(ends, ends[1:]))
        if not traced.is_of_out or any(bool(gradient.any()) for gradient in of_lse):
            return SKIP_UNKNOWN
        query, key, value, out, *more = tensors[: ends[0]]
        block_mask = score = None
        if traced.mask_mod:
            is_visible = source_function(traced.mask_mod)
            block_mask = flex.mask_of(
                blocks, traced.block_size, lambda b, h, i, j: is_visible(b, h, i, j, *mask_buffers)
            )
        if traced.score_mod:
            changed = source_function(traced.score_mod)
            score = lambda score, b, h, i, j: changed(score, b, h, i, j, *score_buffers)  # noqa: E731
        # The operator's log-sum-exp has base 2.
        lse = more[0] * math.log(2) if more else None
        call = flex.described(query, key, value, out, lse, traced.scale, block_mask, score)
        return call._replace(gradients=tuple(more[1:])) if self._is_backward and isinstance(call, Call) else call
