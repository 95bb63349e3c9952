"""Recognises attention that a module writes out in torch operations, whatever its source: product of query and key,
scores, softmax, product with the values.

The forward of each class of attention module is wrapped. In sampled steps it runs under a torch function mode, which
follows the scores from the first product to the last: factors, soft cap, added tensors, hidden scores, sinks, dropout.
Nothing is guessed: an operation that is not in the table of scores.py, or that writes into a tensor unseen, ends the
trace, and the call is not reported. Calls in other steps are not counted. Compiled graphs: written_graph.py.

The mode calls each operation with its own arguments. Only query, key and value of a product become views of themselves,
whose gradients are those of this attention alone (seams.Backward).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter_ns
from typing import Any
from weakref import ref

from . import seams, sinks
from .calls import NO_MASK, SKIP_MASK, SKIP_TOO_LARGE, SKIP_UNKNOWN, Call, Sink, itself
from .rows import Row
from .scores import HIDDEN, STEPS, Trace, append, floor, has_sink_column, is_of_rows
from .signals import is_of_trainer
from .tap import LAYOUTS

OPERATION = "eager_attention"
_SEAM = seams.Seam(
    "", "", OPERATION, False, itself, frozenset(), frozenset(), query="query", keys_and_values=("key", "value")
)
_TRIES = 8  # sampled calls of a class without attention, after which its calls are traced no more
_EQUAL = -1e30  # added to all scores of a row, it makes them equal


class Letters(Row):
    """A product as einsum writes it: the axes of both factors and of the result."""

    left: str
    right: str
    out: str


_AXES = "abefghklmn"


def _spread(function: Any, parts: Any, rest: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A function of a sequence of tensors, with its arguments, as a function of these tensors."""
    n, kind = len(parts), type(parts)
    return lambda *args, **given: function(kind(args[:n]), *args[n:], **given), (*parts, *rest)


def _letters(name: str, args: tuple[Any, ...]) -> tuple[Letters, int]:
    """The product that the function `name` computes, and the place of its first factor."""
    if name == "einsum":
        if len(args) != 3 or not isinstance(args[0], str) or "..." in args[0]:
            raise ValueError
        factors, arrow, out = args[0].replace(" ", "").partition("->")
        left, comma, right = factors.partition(",")
        if not arrow or not comma or any(len(set(axes)) != len(axes) for axes in (left, right, out)):
            raise ValueError
        return Letters(left, right, out), 1
    place = 1 if name == "baddbmm" else 0
    left, right = args[place : place + 2]
    axes = _AXES[: left.dim() - 2]
    shared = (*left.shape[:1], 1)  # batch and head of a key that all heads have
    if left.dim() != right.dim() or left.dim() < 2 or right.shape[:-2] not in (left.shape[:-2], shared):
        raise ValueError
    return Letters(axes + "ic", axes + "cj", axes + "ij"), place


class _Form:
    """How a tensor with axes of the letters `have` becomes one with axes of `want`, and then (batch, head, position,
    d), by views. `lead`: the sizes of batch and head; None: as the tensor has them."""

    def __init__(self, have: str, want: str, lead: tuple[int, int] | None) -> None:
        if sorted(have) != sorted(want) or not 2 <= len(want) <= 4:
            raise ValueError
        self._order = tuple(have.index(axis) for axis in want)
        self._back = tuple(want.index(axis) for axis in have)
        self._lead = lead

    def whole(self, tensor: Any) -> Any:
        tensor = tensor.permute(self._order)
        while tensor.dim() < 4:
            tensor = tensor.unsqueeze(-3)
        lead = tuple(tensor.shape[:2])
        is_whole = self._lead is None or lead in (self._lead, (self._lead[0], 1))
        return tensor if is_whole else tensor.view(*self._lead, *tensor.shape[2:])

    def viewed(self, tensor: Any) -> tuple[Any, Any]:
        """(the tensor by way of a view, the view with four dimensions); no view if the tensor needs no gradient."""
        if not tensor.requires_grad:
            return tensor, None
        view = self.whole(tensor)
        return view.view([tensor.shape[axis] for axis in self._order]).permute(self._back), view


class _Forms(Row):
    """The forms of a product's tensors. In the first product `right` is the key and `out` the scores, in the second
    `left` is the weights, `right` the value and `out` the output."""

    left: _Form
    right: _Form
    out: _Form

    @classmethod
    def of(cls, letters: Letters, lead: tuple[int, int] | None) -> _Forms:
        """`lead`: of the first product, for the second one. Scores and weights must have their axes in order."""
        left, right, out = letters
        summed, rows, columns = (
            [axis for axis in first if axis in second and axis not in third]
            for first, second, third in ((left, right, out), (left, out, right), (right, out, left))
        )
        if not len(summed) == len(rows) == len(columns) == 1:
            raise ValueError
        i, c, j = rows[0], summed[0], columns[0]
        batch = "".join(axis for axis in (out if lead is None else left) if axis in right and axis in left)
        batch = batch.replace(c, "").replace(j, "")
        if (out != batch + i + j) if lead is None else (left != batch + i + c):
            raise ValueError
        key = batch + j + c if lead is None else batch + c + j
        return cls(_Form(left, batch + i + c, lead), _Form(right, key, lead), _Form(out, batch + i + j, lead))


@functools.cache
def _tracker_class() -> Any:
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __init__(self, tracker: Tracker) -> None:
            super().__init__()
            self.tracker = tracker

        def __torch_function__(self, function: Any, _: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            return self.tracker.run(function, args, kwargs or {})

    return Mode


class Tracker:
    """Follows the scores in one forward of one module."""

    def __init__(self, watch: seams.Watch) -> None:
        self._watch, self._torch = watch, watch.torch
        self._traces: dict[int, tuple[Any, int, Trace]] = {}  # {id of a tensor: (the tensor, its version, its trace)}
        self._shifts: dict[int, _Shift] = {}  # {id of scores: ...}, whose largest of each row was computed
        # {id: (reference to a tensor that is computed from scores, operation that ended a trace)}
        self._lost: dict[int, tuple[Any, str]] = {}
        self._is_tensor = watch.torch.is_tensor
        self.found = 0  # attention calls
        self.cause = ""  # the operation between scores and a softmax that is not described
        self.mode = _tracker_class()(self)
        self._opened: Any = None

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation of the training."""
        name = getattr(function, "__name__", "")
        if name in _PRODUCTS:
            return self._product(name, function, args, kwargs)
        if name == "multi_head_attention_forward":  # a Python function, whose operations are to be seen
            with self.mode:
                return _opened(function)(*args, **kwargs)
        step = STEPS.get(name)
        if step is append and args and type(args[0]) in (list, tuple):
            function, args = _spread(function, args[0], args[1:])
        place = next((n for n, value in enumerate(args[:3]) if id(value) in self._traces), -1) if step else -1
        trace = None if place < 0 else self._trace(args[place])
        if trace is None or step is None:
            return self._run_other(name, function, args, kwargs)
        scores = args[place]
        if step is floor and place == 0 and not trace.is_weights and is_of_rows(args, kwargs):
            self._shifts[id(scores)] = _Shift(scores, trace.backward)
            return function(*args, **kwargs)
        is_in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
        shift = self._shifts.pop(id(scores), None) if is_in_place else self._shifts.get(id(scores))
        given = scores if is_in_place or shift is not None else self._view(scores)
        result = function(*args[:place], given, *args[place + 1 :], **kwargs)
        begin = perf_counter_ns()
        if result is given:  # nothing was done, for example by float()
            result = scores
        elif shift is None:
            _Use.watch(scores, given, trace.backward)
        else:
            shift.note_use()
        try:
            with self._watch.hidden(), self._torch.no_grad():
                self._keep(result, step(trace, place, args, kwargs, result))
        except Exception as error:  # the operation has another form than those described here: the trace ends
            if is_of_trainer(error):
                raise
            self._lose(name, args, kwargs, result)
        self._watch.add_time(perf_counter_ns() - begin)
        return result

    def _run_other(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        begin = perf_counter_ns()
        self._lose(name, args, kwargs, result)
        self._watch.add_time(perf_counter_ns() - begin)
        return result

    def _lose(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Notes what an operation that is not described has computed from scores, until it is a softmax."""
        results = [part for part in _flat(args[:1] if name == "__setitem__" else (result,)) if self._is_tensor(part)]
        if not results:
            return
        parts, cause = _flat((*args, *kwargs.values())), None
        if any(part.requires_grad for part in results):
            for part in parts:
                if (shift := self._shifts.get(id(part))) is not None:
                    shift.backward.note_other_root(None)
        for part in parts:
            if (known := self._lost.get(id(part))) is not None and known[0]() is part:
                cause = cause or known[1]
            elif name in _PRODUCTS or id(part) in self._traces:
                cause = cause or name
        if cause is None:
            return
        cause = name if cause in _MOVES else cause
        if name == "softmax":
            self.cause = self.cause or cause
        self._lost.update((id(part), (ref(part), cause)) for part in results)

    def finish(self) -> None:
        """Call it after the forward."""
        self._traces.clear()
        self._lost.clear()
        for shift in self._shifts.values():
            if shift.scores() is not None:  # the training has kept them, and a loss may use them
                shift.backward.note_other_root(None)

    def _keep(self, tensor: Any, trace: Trace) -> None:
        self._traces[id(tensor)] = (tensor, tensor._version, trace)

    def _trace(self, tensor: Any) -> Trace | None:
        kept, version, trace = self._traces.get(id(tensor), (None, 0, None))
        return trace if kept is tensor and tensor._version == version else None

    def _view(self, tensor: Any) -> Any:
        """What the next operation gets of a tensor: a view, whose gradient is that of this operation."""
        if not tensor.requires_grad:
            return tensor
        with self._watch.hidden():
            return tensor.view_as(tensor)

    def _product(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begin, given, finish = perf_counter_ns(), (args, kwargs), None
        try:
            args, kwargs, finish = self._prepared(name, args, kwargs)
        except Exception as error:
            if is_of_trainer(error):
                raise
            args, kwargs = given
        self._watch.add_time(perf_counter_ns() - begin)
        if finish is None:
            return self._run_other(name, function, args, kwargs)
        result = function(*args, **kwargs)
        begin = perf_counter_ns()
        try:
            with self._watch.hidden():
                finish(result)
        except Exception as error:
            if is_of_trainer(error):
                raise
        self._watch.add_time(perf_counter_ns() - begin)
        return result

    def _prepared(self, name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict, Callable[[Any], None]]:
        """The arguments of a product with views in place of its factors, and what is to be done with its result."""
        args, kwargs = _by_place(name, args, kwargs)
        letters, place = _letters(name, args)
        left, right = factors = args[place : place + 2]
        if any(type(tensor) not in (self._torch.Tensor, self._torch.nn.Parameter) for tensor in factors):
            raise ValueError
        weights = self._trace(left)
        if weights is not None and (not weights.is_weights or name == "baddbmm"):
            raise ValueError
        with self._watch.hidden():
            forms = _Forms.of(letters, None if weights is None else tuple(weights.query.shape[:2]))
            new_right, view = forms.right.viewed(right)
            if weights is not None:
                views = {**weights.views, "value": view}
                report = functools.partial(self._report, weights, left, forms.right.whole(right), forms, views)
                new_left = self._view(left)
                _Use.watch(left, new_left, weights.backward)
                return (*args[:place], new_left, new_right, *args[place + 2 :]), kwargs, report
            new_left, of_query = forms.left.viewed(left)
            versions = tuple((tensor, tensor._version) for tensor in factors)
            views = {"query": of_query, "key": view}
            backward = seams.Backward(self._watch, _SEAM, {})
            trace = Trace(forms.left.whole(left), forms.right.whole(right), views, backward, versions, 1.0)
            if name == "baddbmm":
                trace = trace._replace(factor=float(kwargs.get("alpha", 1)))
                if beta := float(kwargs.get("beta", 1)):
                    trace = trace._replace(added=args[0].detach() * beta)

            def keep(scores: Any) -> None:
                self._keep(scores, trace._replace(dtype=scores.dtype))

            return (*args[:place], new_left, new_right, *args[place + 2 :]), kwargs, keep

    def _report(self, trace: Trace, weights: Any, value: Any, forms: _Forms, views: dict, result: Any) -> None:
        if any(tensor._version != version for tensor, version in trace.inputs):
            return
        self.found += 1
        core, number = self._watch.core, self._watch.number(OPERATION, False)
        counted = core.adapter.foreshock_adapter_enter(trace.query._cdata, number, False, False)
        call: Call | int = SKIP_UNKNOWN
        try:
            if counted:
                call = self._call(trace, weights, value, result, forms.out)
        finally:
            if isinstance(call, int) and counted & seams.SAMPLED:
                core.core.foreshock_attention_skip(number, call)
        if isinstance(call, int):
            return
        if counted & seams.SAMPLED:
            seams.run(self._watch.operations(OPERATION)[False], sinks.with_key(call).arguments(False))
        views = {role: view for role, view in views.items() if view is not None}
        if "query" in views:
            trace.backward.views = views
            trace.backward.follow(call, result)

    @staticmethod
    def _call(trace: Trace, weights: Any, value: Any, result: Any, form: _Form) -> Call | int:
        """The call, or the reason why it is not described. `form`: that of the result."""
        factors = (trace.query, trace.key, value)
        # Autocast rounds the factors of a product to the format of its result. A gradient in fp32 has all its bits.
        if any(part.dtype != trace.dtype and part.dtype.itemsize != 4 for part in (*factors, result)):
            return SKIP_UNKNOWN
        query, key, value = (part.to(trace.dtype) for part in factors)
        gain, out = trace.gain, form.whole(result)
        whole, of_out, of_query = (*query.shape[:3], key.shape[2]), form.whole, itself
        mask, hidden = (
            part if part is None or part.dim() == 0 else part.expand(weights.shape).reshape(whole)
            for part in (trace.added, trace.hidden)
        )
        sink = trace.sink
        if has_sink_column(trace):
            return SKIP_UNKNOWN
        if hidden is not None:
            if hidden.device.type != "cpu" or trace.fill > HIDDEN:
                return SKIP_MASK
            blind = hidden.expand(whole).all(-1) & (sink is None)
            visible = ~hidden if mask is None else ~hidden & (mask > HIDDEN / 2)
            if sink is None and bool((blind | visible.any(-1)).logical_not().any()):
                return SKIP_MASK  # the weights of such a row are those of hidden keys
            mask = ~hidden if mask is None else mask.masked_fill(hidden, -math.inf)
            if bool(blind.any()):
                mask = _additive(mask)
                mask = mask.masked_fill(blind[..., None], _EQUAL)
                of_out = functools.partial(_checked, form, blind)
        if gain is not None:
            query, of_query = query * gain, gain.reciprocal().mul
        if not query.dtype == key.dtype == out.dtype:
            return SKIP_UNKNOWN  # the factor of a head, or one of the products, has another format
        kept = None if trace.kept is None else trace.kept.reshape(whole)
        if sink is not None:
            mask = None if mask is None else _additive(mask)
            columns = (part.expand(*weights.shape[:-1], 1).reshape(*query.shape[:3], 1) for part in sink)
            sink = Sink(*columns)
        call = Call(
            query, key, value, out, None, trace.factor, NO_MASK, LAYOUTS["bhnd"], mask, trace.dropout, kept, trace.cap,
            sink, is_written_out=True, of_out=of_out, of_query=of_query,
        )  # fmt: skip
        return SKIP_TOO_LARGE if sink is not None and sinks.is_too_large(call) else call


class _Shift:
    """Scores from which the largest of each row is subtracted. That has no effect on the weights, and the gradient of
    the largest ones is the sum of roundings. So the scores have two uses; a further one may be of another loss."""

    def __init__(self, scores: Any, backward: seams.Backward) -> None:
        self.scores, self.backward, self._is_used = ref(scores), backward, False

    def note_use(self) -> None:
        if self._is_used:
            self.backward.note_other_root(None)
        self._is_used = True


class _Use:
    """Compares the gradient of a tensor with that of its view, which one operation uses. If the training uses the
    scores or weights elsewhere too, the gradients of query and key are not those of the output alone."""

    @classmethod
    def watch(cls, tensor: Any, view: Any, backward: seams.Backward) -> None:
        if view is not tensor:
            use = cls(backward)
            view.register_hook(use.note)
            tensor.register_hook(use.compare)

    def __init__(self, backward: seams.Backward) -> None:
        self._backward, self._gradient = backward, None

    def note(self, gradient: Any) -> None:
        self._gradient = gradient  # kept, so that autograd adds nothing to it in place

    def compare(self, gradient: Any) -> None:
        one, self._gradient = self._gradient, None
        if one is not None and one.data_ptr() != gradient.data_ptr():  # None: this use has no part in the loss
            self._backward.note_other_root(gradient)


def _additive(mask: Any) -> Any:
    mask = mask if mask.dtype.is_floating_point else mask.float().log()  # 0 or minus infinity
    return mask.float() if mask.dtype.itemsize < 4 else mask


def _checked(form: _Form, blind: Any, gradient: Any) -> Any:
    """The gradient of the output. The hidden scores of a row without a visible key have equal weights but no gradient,
    which no mask describes. Such a row must have no part in the loss."""
    whole = form.whole(gradient)
    if bool(((whole != 0).any(-1) & blind).any()):
        raise ValueError
    return whole


_PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum", "baddbmm")
_NAMES = {"bmm": ("input", "mat2"), "baddbmm": ("input", "batch1", "batch2"), "matmul": ("input", "other")}


# Operations that only move elements. The one after them says more about what a module does.
_MOVES = frozenset(
    ("permute", "transpose", "movedim", "swapaxes", "view", "reshape", "flatten", "unflatten", "contiguous", "__get__")
)


def _flat(values: Iterable[Any]) -> list[Any]:
    return [part for value in values for part in (value if isinstance(value, (list, tuple)) else (value,))]


def _by_place(name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments with the tensors of a product by place."""
    names = _NAMES.get(name, ())[len(args) :]
    kwargs = dict(kwargs)
    args = (*args, *(kwargs.pop(name) for name in names if name in kwargs))
    if name == "einsum" and len(args) == 2 and isinstance(args[1], (list, tuple)):
        args = (args[0], *args[1])
    return args, kwargs


def _opened(function: Any) -> Any:
    """A Python function of torch that does not pass its whole call to a torch function mode."""
    names = {**function.__globals__, "has_torch_function": lambda *_: False}
    opened = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


class _Class:
    """The state of one wrapped forward."""

    __slots__ = ("cause", "is_on", "name", "tries")

    def __init__(self, name: str) -> None:
        self.name, self.is_on, self.tries, self.cause = name, True, 0, ""

    def note(self, tracker: Tracker) -> None:
        """Call it after a forward. Names the class among the attention that is not judged, if that is known."""
        self.tries = 0 if tracker.found else self.tries + 1
        self.is_on = self.tries < _TRIES
        if tracker.cause and not tracker.found and not self.cause:
            self.cause = tracker.cause
            name = f"{self.name}: {self.cause} before softmax"
            watch.core.core.foreshock_note_unseen(name.encode(errors="replace"), seams.USED)


watch: seams.Watch | None = None  # None: the monitor has not started
_classes: dict[Any, _Class] = {}  # {original forward: state}
_of_thread = threading.local()  # .tracker: the one of the forward that runs


def begin(new: seams.Watch) -> None:
    """Call it once the monitor has started."""
    global watch
    watch = new


def follow(classes: Iterable[type]) -> None:
    """Wraps the forward of the classes of attention modules. Does nothing once torch.compile has compiled a frame:
    graphs that call such a forward would be compiled again."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if watch is None or getattr(frames, "FRAME_COUNTER", 0):
        return
    watch.outside = _suspended
    for owner in classes:
        original = inspect.getattr_static(owner, "forward", None)
        if inspect.isfunction(original) and not hasattr(original, "_is_followed"):
            _classes.setdefault(original, _Class(owner.__name__))
            owner.forward = _wrapped(original, watch.torch.compiler.is_compiling)


def _wrapped(original: Any, is_compiling: Callable[[], bool]) -> Any:
    """The function can be pickled by value (cloudpickle). In a process without this module it is the original."""

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            written = sys.modules.get("foreshock_torch.written")
            if written is not None:
                return written.call(original, args, kwargs)
        return original(*args, **kwargs)

    forward._is_followed = True
    return forward


def call(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a forward of the training."""
    state = _classes.get(original)
    if state is None or not state.is_on or getattr(_of_thread, "tracker", None) is not None or not _is_traced():
        return original(*args, **kwargs)
    tracker = _of_thread.tracker = Tracker(watch)
    try:
        with tracker.mode:
            return original(*args, **kwargs)
    finally:
        _of_thread.tracker = None
        tracker.finish()
        state.note(tracker)


def _is_traced() -> bool:
    """Whether the calls of this step are sampled, and no mode, transform or tracer of the training sees operations."""
    c = watch.torch._C
    return (
        watch.core.core.foreshock_step_is_sampled() != 0
        and watch.core.adapter.foreshock_adapter_taps() == seams.reported()  # the training reports its calls itself
        and watch.torch.is_grad_enabled()
        and c._len_torch_function_stack() == 0
        and c._len_torch_dispatch_stack() == 0
        and c._functorch.peek_interpreter_stack() is None
        and c._get_tracing_state() is None
    )


@contextlib.contextmanager
def _suspended() -> Iterator[None]:
    """Suspends the mode while a function of seams.py, which reports its call itself, runs."""
    tracker, modes = getattr(_of_thread, "tracker", None), watch.torch._C
    count = 0 if tracker is None else modes._len_torch_function_stack()
    if count == 0 or modes._get_function_stack_at(count - 1) is not tracker.mode:
        yield
        return
    modes._pop_torch_function_stack()
    try:
        yield
    finally:
        modes._push_on_torch_function_stack(tracker.mode)
