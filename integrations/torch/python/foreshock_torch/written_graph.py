"""Recognises attention that a compiled model writes out: product of query and key, softmax, product with the values.

No operation shows such attention as a whole. But its two products, and the four of the backward pass, have tensors of
their own. In the graph of both passes, before AOTAutograd partitions it, each such attention gets two operations of
ours, behind its output and behind its gradients. They read the factors and results of the products, and change nothing.
The operations between the first product and the softmax are kept as Python source. At sampled calls this source is
evaluated in fp64, which shows factor, soft cap and mask.

This is done for backends that run the operations of the graph (aot_eager). Inductor chooses other kernels with
operations of ours between, so its graphs stay as they are, and their attention is named as not seen.

The graph that the caches of compiled code look up gets a mark, so that no process without foreshock finds code with
these operations there.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from . import seams
from .signals import is_of_trainer

_LONGEST = 256  # operations between the first product and the softmax, masks included
_NEAR = 8  # operations between a softmax and the second product, of attention that is not followed

_FUSED = "written-out attention, fused by Inductor"
# The default partitioner does not compile a graph that has operations like ours and parts to recompute.
_RECOMPUTED = "checkpoints, default partitioner"

_operations: tuple[Any, Any, Any] | None = None  # the mark, and the operations of the two passes
_watch: seams.Watch | None = None


class Traced(NamedTuple):
    """What the graph knows of a call."""

    shape: tuple[int, int]  # batch and heads
    factor: float
    cap: float
    source: str  # scores and leaves -> input of the softmax; empty: factor and cap say all
    dropout: float


class _Found(NamedTuple):
    """Nodes of one attention. Its products have the factors (query, keys), (weights, value)."""

    scores: Any
    out: Any
    kept: list[Any]  # with dropout, which weights it has kept
    leaves: list[Any]  # inputs of the graph that masks are computed from
    traced: Traced
    backward: list[Any]  # gradient of the output; query, key and value; their gradients


class _Dropout(NamedTuple):
    p: float
    kept: Any
    nodes: list[Any]  # those between its result and the weights, and the weights


class NotFollowedError(ValueError):
    """The attention has another form than those described here; the message says which."""


def change(module: ModuleType, names: Iterable[str], watch: seams.Watch, is_in_use: bool) -> None:
    """Wraps the functions `names` (seams.GRAPH_FUNCTIONS) of a module after its import. `is_in_use`: see replace()."""
    global _watch
    _watch = watch
    for name in names:
        if name in vars(module):
            make = _with_mark if name == "aot_module_simplified" else functools.partial(_with_reports, name=name)
            seams.replace(module, name, make, is_in_use)


def _with_mark(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def aot_module_simplified(mod: Any, args: Any, *more: Any, **given: Any) -> Any:
        try:
            # Inductor would fuse the operations around one of ours in another way, and other kernels round otherwise.
            if not getattr(given.get("partition_fn"), "__module__", "").startswith("torch._inductor"):
                _mark(mod)
        except Exception as error:
            if is_of_trainer(error):
                raise
        return original(mod, args, *more, **given)

    return aot_module_simplified


def _mark(module: Any) -> None:
    import torch

    if not isinstance(module, torch.fx.GraphModule) or not torch.is_grad_enabled():
        return
    if not any(_is_softmax(node) for node in module.graph.nodes):
        return  # so that caches have the same keys as without foreshock
    mark = operations()[0]
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    with module.graph.inserting_before(first):
        module.graph.call_function(mark)
    module.recompile()


def _is_softmax(node: Any) -> bool:
    """Whether the node of Dynamo's graph is a softmax on the CPU. On a device a graph may be captured and replayed."""
    value = node.meta.get("example_value")
    is_named = getattr(node.target, "__name__", node.target) == "softmax"
    return is_named and value is not None and value.device.type == "cpu"


def operations() -> tuple[Any, Any, Any]:
    global _operations
    if _operations is None:
        from . import written_reports

        _operations = written_reports.define(_watch)
    return _operations


def _with_reports(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def partition(joint_module: Any, *args: Any, **given: Any) -> Any:
        try:
            graph = joint_module.graph
            is_recomputed = name == "default_partition" and any(node.meta.get("recompute") for node in graph.nodes)
            if is_recomputed:
                _remove_flex_reports(graph)
            why_not = _RECOMPUTED if is_recomputed else _FUSED if given.get("compiler") == "inductor" else ""
            add_reports(graph, given["num_fwd_outputs"], why_not)
            for node in graph.nodes:
                # AOTAutograd gives all nodes of the forward pass another tag, with which the backward pass may repeat
                # an operation that returns nothing.
                if seams.graph_reports.get(node.target) is False:
                    node.meta["partitioner_tag"] = "must_be_in_forward"
        except Exception as error:
            if is_of_trainer(error):
                raise
        return original(joint_module, *args, **given)

    return partition


def _remove_flex_reports(graph: Any) -> None:
    for node in reversed(list(graph.nodes)):
        if node.target in seams.graph_reports:
            seams.missed_in_graphs.add("flex_attention")
            graph.erase_node(node)


def add_reports(graph: Any, forward_outputs: int, why_not: str) -> None:
    """Adds the operations behind each attention in the graph of both passes, if it has a mark, which is removed.
    `why_not`: adds nothing, and notes the attention of the graph with this reason."""
    marks = [node for node in graph.nodes if _operations is not None and node.target is _operations[0]]
    for mark in marks:
        graph.erase_node(mark)
    if not marks and not why_not:
        return
    finder = _Finder(graph, forward_outputs)
    for node in list(graph.nodes):
        if node.target is finder.aten.bmm.default and node in finder.forward:
            try:
                found = finder.attention(node)
                if found is not None and why_not:
                    raise NotFollowedError(why_not)
            except NotFollowedError as why:
                seams.not_followed[str(why)] = seams.not_followed.get(str(why), 0) + 1
                continue
            if found is not None:
                _add(graph, found, finder.place)


def _add(graph: Any, found: _Found, place: dict[Any, int]) -> None:
    """Changes the graph only at its end, so that an exception leaves it as it was."""
    import torch

    _, forward, backward = operations()
    text = repr(tuple(found.traced))
    tensors = [*found.scores.args[:2], found.out.args[1], found.out, *found.kept, *found.leaves]
    last = max((found.out, *found.backward), key=place.__getitem__)
    value = found.out.meta["val"]
    with value.fake_mode:
        kept = torch.empty(1, dtype=torch.uint8, device=value.device)
    with graph.inserting_after(found.out):
        ticket = graph.call_function(forward, (tensors, text))
    ticket.meta |= {"val": kept, "partitioner_tag": "is_forward"}
    with graph.inserting_after(last):
        node = graph.call_function(backward, ([ticket, *found.backward, *found.kept], text))
    node.meta["partitioner_tag"] = "is_backward"


class _Finder:
    """Finds attention in the graph of both passes."""

    def __init__(self, graph: Any, forward_outputs: int) -> None:
        import torch

        self.aten, self._prims, self._tensor = torch.ops.aten, torch.ops.prims, torch.Tensor
        self._torch = torch
        aten, prims = self.aten, self._prims
        self._casts = {prims.convert_element_type.default, aten._to_copy.default}
        self._shaped = {
            aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default, aten.clone.default,
            aten.alias.default, aten.squeeze.dim, aten.unsqueeze.default,
        }  # fmt: skip
        outputs = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
        self._returned = {node for node in outputs[:forward_outputs] if hasattr(node, "users")}
        self.forward = set(_before(self._returned))
        self.place = {node: place for place, node in enumerate(graph.nodes)}

    def attention(self, out: Any) -> _Found | None:
        """The attention whose output is this product; None: it is another product."""
        weights, value = out.args
        path, dropout = [weights], None
        is_fixed = all(_has_fixed_shape(node.meta["val"]) for node in (out, weights, value))
        while is_fixed:
            if self._keeps_order(path[-1]):
                path.append(path[-1].args[0])
            elif dropout is None and (dropout := self._dropout(path[-1])) is not None:
                path += dropout.nodes
            else:
                break
        softmax = next(filter(None, map(self._softmax, _nearest(path[-1], _NEAR))), None)
        if softmax is None:
            return None
        score, inside = softmax
        scores, between, of_scores = self._scores(score)
        if scores is None:
            return None  # not of two products
        if not is_fixed:
            raise NotFollowedError("sizes that change")
        if inside[0] is not path[-1]:
            raise NotFollowedError(f"{_name(path[-1])} after softmax")
        if self._shape(score)[-1] != self._shape(scores)[-1] or self._shape(weights) != self._shape(scores):
            raise NotFollowedError("weights of another shape")
        used = {*of_scores, *inside, *path}
        for node in used:
            if node in self._returned or any(user in self.forward and user not in {*used, out} for user in node.users):
                raise NotFollowedError("weights are used elsewhere")
        factor, cap, is_plain = self._factor(scores, score, of_scores)
        leaves = [] if is_plain else [node for node in between if node.op in ("placeholder", "get_attr")]
        source = "" if is_plain else self._source(scores, score, between, of_scores, leaves)
        backward = self._backward(scores, weights, value)
        kept, p = ([], 0.0) if dropout is None else ([dropout.kept], dropout.p)
        return _Found(
            scores, out, kept, leaves, Traced(self._lead(scores, of_scores), factor, cap, source, p), backward
        )

    def _dropout(self, node: Any) -> _Dropout | None:
        """The dropout whose result `node` is. Inductor has it in single operations."""
        aten = self.aten
        if node.target is operator.getitem and node.args[0].target is aten.native_dropout.default:
            whole = node.args[0]
            kept = [user for user in whole.users if user.target is operator.getitem and user.args[1] == 1]
            is_on = node.args[1] == 0 and len(kept) == 1 and whole.args[2] is True
            return _Dropout(float(whole.args[1]), kept[0], [*kept, whole, whole.args[0]]) if is_on else None
        if node.target is not aten.mul.Tensor or not isinstance(node.args[1], float):
            return None
        product = node.args[0]
        if product.target is not aten.mul.Tensor or not all(hasattr(part, "users") for part in product.args):
            return None
        kept, weights = product.args
        if kept.target is not aten.gt.Scalar or self._shape(kept) != self._shape(weights):
            return None
        p = float(kept.args[1])
        if not 0 < p < 1 or abs(node.args[1] * (1 - p) - 1) > 2**-40:
            return None
        return _Dropout(p, kept, [product, weights])

    @staticmethod
    def _shape(node: Any) -> tuple[int, ...]:
        """Sizes. To compare those that change would put guards into the graph."""
        value = node.meta.get("val")
        if not hasattr(value, "shape") or not _has_fixed_shape(value):
            raise NotFollowedError("sizes that change")
        return tuple(value.shape)

    def _keeps_order(self, node: Any) -> bool:
        """Whether the operation returns its first argument with the same elements in the same order."""
        if node.target is self.aten.permute.default:
            shape = self._shape(node.args[0])
            moved = [axis for axis in node.args[1] if shape[axis] != 1]
            return moved == sorted(moved)
        if node.target in self._casts:
            to = node.meta["val"].dtype
            return to.is_floating_point and to.itemsize > 1
        if node.target not in self._shaped:
            return False
        return math.prod(self._shape(node)) == math.prod(self._shape(node.args[0]))

    def _softmax(self, node: Any) -> tuple[Any, list[Any]] | None:
        """The input of the softmax whose result `node` is, and the nodes that compute it."""
        aten = self.aten
        if node.target is aten._softmax.default:
            return (node.args[0], [node]) if self._is_last(node.args[1], node) else None
        if node.target is not aten.div.Tensor or not all(hasattr(part, "users") for part in node.args):
            return None
        exp, total = node.args
        if exp.target is not aten.exp.default or not self._is_of_rows(total, aten.sum.dim_IntList, exp):
            return None
        shifted = exp.args[0]
        if shifted.target is not aten.sub.Tensor or not hasattr(shifted.args[1], "users"):
            return None
        score, largest = shifted.args
        if not self._is_of_rows(largest, aten.amax.default, score):
            return None
        return score, [node, exp, total, shifted, largest]

    def _is_of_rows(self, node: Any, target: Any, of: Any) -> bool:
        return (
            node.target is target
            and node.args[0] is of
            and len(node.args[1]) == 1
            and self._is_last(node.args[1][0], of)
            and node.args[2] is True
        )

    @staticmethod
    def _is_last(dim: int, node: Any) -> bool:
        return dim in (-1, node.meta["val"].dim() - 1)

    def _scores(self, score: Any) -> tuple[Any, list[Any], set[Any]]:
        """The first product, the nodes between it and `score` in order, and those of them that depend on it. No
        product: this softmax is not of attention."""
        aten, products, seen, to_visit = self.aten, [], set(), [score]
        stops = {aten.mm.default, aten.addmm.default, aten.baddbmm.default, aten.convolution.default}
        while to_visit:
            node = to_visit.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.target is aten.bmm.default:
                products.append(node)
            elif node.op not in ("placeholder", "get_attr") and node.target not in stops:
                to_visit.extend(node.all_input_nodes)
            if len(seen) > _LONGEST:
                break
        if not products:
            return None, [], set()
        if len(products) > 1 or len(seen) > _LONGEST or any(node.target in stops for node in seen):
            raise NotFollowedError("scores of more than one product")
        scores = products[0]
        of_scores = {scores}
        between = sorted(seen, key=self.place.__getitem__)
        for node in between:
            if any(part in of_scores for part in node.all_input_nodes):
                of_scores.add(node)
            if node is not scores and not self._is_repeatable(node):
                raise NotFollowedError(f"{_name(node)} before softmax")
            if node in of_scores and not (node is scores or self._is_of_elements(node, scores)):
                raise NotFollowedError(f"{_name(node)} before softmax")
        return scores, between, of_scores

    def _is_of_elements(self, node: Any, scores: Any) -> bool:
        """Whether each element of the result depends on one score, and they have the order of the scores."""
        if self._keeps_order(node):
            return True
        is_pointwise = self._torch.Tag.pointwise in getattr(node.target, "tags", ())
        return is_pointwise and math.prod(self._shape(node)) == math.prod(self._shape(scores))

    def _is_repeatable(self, node: Any) -> bool:
        value = node.meta.get("val")
        if node.op in ("placeholder", "get_attr"):
            return isinstance(value, self._tensor) and _has_fixed_shape(value)
        if node.target is operator.getitem:
            return isinstance(value, self._tensor)
        if not isinstance(node.target, self._torch._ops.OpOverload) or node.target._schema.is_mutable:
            return False
        if any(word in str(node.target) for word in ("rand", "seed")):
            return False  # prims of Inductor have no tag
        values = value if isinstance(value, (list, tuple)) else (value,)
        is_fixed = all(isinstance(part, self._tensor) and _has_fixed_shape(part) for part in values)
        return is_fixed and self._torch.Tag.nondeterministic_seeded not in node.target.tags

    def _factor(self, scores: Any, score: Any, of_scores: set[Any]) -> tuple[float, float, bool]:
        """Factor and soft cap of the scores, and whether nothing else changes them. The report checks both: it
        evaluates all operations between."""
        aten, factor, cap, is_plain = self.aten, 1.0, 0.0, True
        ahead = {aten.mul.Tensor, aten.mul.Scalar}
        behind = {aten.div.Tensor, aten.div.Scalar}
        for node in sorted(of_scores - {scores}, key=self.place.__getitem__):
            others = [part for part in node.args if part not in of_scores] if node.target in ahead | behind else []
            others = [] if node.target in behind and node.args[0] not in of_scores else others
            if len(others) == 1 and isinstance(others[0], (int, float)) and not (cap and not is_plain):
                number = float(others[0]) if node.target in ahead else 1 / float(others[0])
                factor, cap = factor * number, cap * number
            elif node.target is aten.tanh.default and not cap and is_plain:
                cap = 1.0
            elif not self._keeps_order(node):
                is_plain = False
        if not factor > 0:
            raise NotFollowedError("scores with another factor")
        return factor, cap, is_plain

    @staticmethod
    def _lead(scores: Any, of_scores: set[Any]) -> tuple[int, int]:
        """Sizes of batch and heads."""
        whole = next((_Finder._shape(node) for node in scores.users if node in of_scores), ())
        batch, rows, _ = _Finder._shape(scores)
        return (
            (whole[0], whole[1])
            if len(whole) == 4 and whole[0] * whole[1] == batch and whole[2] == rows
            else (1, batch)
        )

    def _source(self, scores: Any, score: Any, between: list[Any], of_scores: set[Any], leaves: list[Any]) -> str:
        """What the graph computes from scores and leaves, without the rounding of scores."""
        fx = self._torch.fx
        graph, copies = fx.Graph(), {}
        for node in (scores, *leaves):
            copies[node] = graph.placeholder(f"given_{len(copies)}")
        for node in between:
            if node in copies:
                continue
            if node in of_scores and node.target in self._casts:
                copies[node] = copies[node.args[0]]
            else:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[score])
        return fx.GraphModule({}, graph).code

    def _backward(self, scores: Any, weights: Any, value: Any) -> list[Any]:
        """The nodes of _Found.backward."""
        query, keys = scores.args[:2]
        of_out, of_value = self._product(self._turned(weights), 0)
        of_weights = next(
            (user for turned in self._turned(value) for user in turned.users if self._is_bmm(user, of_out, turned)),
            None,
        )
        of_keys, to_query = self._products_of_one(query, keys)
        if of_weights is None or of_weights not in _before({of_keys.args[1]}):
            raise NotFollowedError("another backward pass")
        factors = of_keys.args[0], to_query.args[1], of_weights.args[1]
        return [of_out, *factors, to_query, of_keys, of_value]

    def _is_bmm(self, node: Any, left: Any, right: Any) -> bool:
        return node.target is self.aten.bmm.default and node.args[0] is left and node.args[1] is right

    def _product(self, factors: list[Any], place: int) -> tuple[Any, Any]:
        """The other factor, and the product of the backward pass that has one of `factors` at `place`."""
        found = [
            node
            for factor in factors
            for node in factor.users
            if node.target is self.aten.bmm.default and node.args[place] is factor and node not in self.forward
        ]
        if len(found) != 1:
            raise NotFollowedError("another backward pass")
        return found[0].args[1 - place], found[0]

    def _products_of_one(self, query: Any, keys: Any) -> tuple[Any, Any]:
        """The gradients of keys and of query: two products of the gradient of the scores."""
        of_scores, of_keys = self._product(self._turned(query), 0)
        other, of_query = self._product(self._turned(keys), 1)
        if other is not of_scores:
            raise NotFollowedError("another backward pass")
        return of_keys, of_query

    def _turned(self, node: Any) -> list[Any]:
        """The nodes with the last two dimensions of `node` in the other order."""
        turned = [user for user in node.users if self._is_turn(user)]
        return [*turned, node.args[0]] if self._is_turn(node) else turned

    def _is_turn(self, node: Any) -> bool:
        if node.target is self.aten.permute.default:
            return list(node.args[1]) == [0, 2, 1]
        dims = {1, 2}, {-1, -2}
        return node.target is self.aten.transpose.int and set(node.args[1:]) in dims and node.meta["val"].dim() == 3


def _before(nodes: Iterable[Any]) -> Iterator[Any]:
    """The nodes and all that they are computed from."""
    seen: set[Any] = set()
    to_visit = list(nodes)
    while to_visit:
        node = to_visit.pop()
        if node not in seen:
            seen.add(node)
            to_visit.extend(node.all_input_nodes)
    return iter(seen)


def _nearest(node: Any, count: int) -> list[Any]:
    """The node and those that it is computed from, nearest first, at most `count`."""
    found = [node]
    for one in found:
        if len(found) < count:
            found.extend(one.all_input_nodes)
    return found[:count]


def _has_fixed_shape(tensor: Any) -> bool:
    return all(isinstance(size, int) for size in tensor.shape)


def _name(node: Any) -> str:
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


@functools.cache
def read(text: str) -> Traced:
    return Traced(*ast.literal_eval(text))
