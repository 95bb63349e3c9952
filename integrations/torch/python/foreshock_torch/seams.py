"""Wraps Python functions that compute attention which no hook of an operation sees (seams), and reports their calls.

A seam is a row of SEAMS in providers.py or flex.py: a function, or a method of a class, recognised by the name of its
module and by the names of its parameters. It is wrapped when its module is imported, so other modules that import the
function get the wrapped one. Arguments are read by name. The file of the row describes the calls. A call is reported by
a custom operation as foreshock.tap() reports one.

A wrapped function computes what it did before. A call that is not sampled is only counted. A call whose meaning is not
known is counted with a reason and never judged. Nothing is wrapped in a process that is not monitored.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from time import perf_counter_ns
from types import FunctionType, ModuleType
from typing import Any

from . import sinks, tap
from .calls import SKIP_UNKNOWN, Call, Given, Seam
from .row_sums import completed
from .signals import is_of_trainer

USED, IMPORTED = 1, 2  # FORESHOCK_UNSEEN_... of hook.h
SAMPLED, SAMPLED_STEP = 1, 2  # bits of the result of foreshock_adapter_enter (adapter.cpp)


# {module: the file of this package that describes its functions}. The file is imported with the module, since most
# trainings import none of them.
DESCRIBED_IN = {
    "transformer_engine.pytorch.cpp_extensions.fused_attn": "providers",
    "flash_attn.cute.interface": "providers",
    "torch.nn.attention.flex_attention": "flex",
}
# {module: functions} that compile the graphs of a model, which written_graph.py wraps after their import.
GRAPH_FUNCTIONS = {
    "torch._functorch.partitioners": ("min_cut_rematerialization_partition", "default_partition"),
    "torch._functorch.aot_autograd": ("aot_module_simplified",),
}


_runs = 0  # of the custom operations
described: set[str] = set()  # operations of which a call has been described
traced: set[str] = set()  # operations whose functions torch.compile has traced into a graph
described_in_graphs: set[str] = set()  # of these, the ones of which a call has been described
missed_in_graphs: set[str] = set()  # and those of which a graph has a call that is not reported
not_followed: dict[str, int] = {}  # {why attention that a compiled model writes out is not followed: how often}
graph_reports: dict[Any, bool] = {}  # {operation that reports calls of flex_attention in graphs: of the backward pass}
graph_mark: Any = None  # an operation that marks traced calls of flex_attention; set by flex_graph.prepare()
_active: Watch | None = None


def reported() -> int:
    """How many calls of wrapped functions have been described. The adapter counts them as it counts foreshock.tap()."""
    return _runs


def run(operation: Any, arguments: tuple[Any, ...]) -> None:
    global _runs
    _runs += 1
    operation(*arguments)


def _note_traced(operation: str) -> None:
    """Dynamo calls a function with this mark while it traces, and puts its result into the graph as a constant."""
    traced.add(operation)
    if operation == "flex_attention" and _active is not None:
        try:
            from . import flex_graph

            flex_graph.prepare(_active)
        except Exception as error:  # another release of torch: the calls are named as not seen
            if is_of_trainer(error):
                raise


_note_traced._dynamo_marked_constant = True  # as torch.compiler.assume_constant_result() does


class Wrapper:
    """Counts the calls of one wrapped function, and reports those that are sampled."""

    def __init__(self, watch: Watch, seam: Seam, original: Any) -> None:
        parameters = inspect.signature(original).parameters
        self._names = tuple(parameters)
        self._defaults = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        # A newer release may have parameters that change the attention. A call that uses one is not understood.
        self._unknown = tuple(set(parameters) - seam.read - seam.ignored)
        self.is_understood = seam.read <= set(parameters)
        self._seam, self._watch = seam, watch
        self.original = nested(original, watch.core.adapter.foreshock_adapter_nest) if seam.nests else original
        self._is_named = False  # as not understood
        self._place = self._names.index(seam.query) if self.is_understood else 0
        self._operations = watch.operations(seam.operation)
        self._number = watch.number(seam.operation, seam.is_backward)
        self._enter, self._mode_count = watch.core.adapter.foreshock_adapter_enter, watch.mode_count
        self._tensor = watch.torch.Tensor

    def count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Counts a call that is about to happen. Returns the sum of SAMPLED and SAMPLED_STEP; 0 also if the call has no
        real data."""
        try:
            seam = self._seam
            query = args[self._place] if self._place < len(args) else kwargs.get(seam.query)
            # Reading an attribute of a tensor calls a torch function mode of the training, if there is one.
            if type(query) is self._tensor and self._mode_count() == 0:
                return self._enter(query._cdata, self._number, seam.is_backward, seam.in_function)
            with self._watch.hidden():
                shown = query if type(query) is self._tensor else self._given(args, kwargs).get(seam.other_tensor)
                if type(shown) is not self._tensor:
                    return 0
                return self._enter(shown._cdata, self._number, seam.is_backward, seam.in_function)
        except Exception as error:
            if is_of_trainer(error):  # raised by a signal handler or another thread of the training
                raise
            return 0

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], counted: int) -> Any:
        """Runs the function in a sampled step, and reports the call. `counted`: the result of count()."""
        with self._watch.outside():
            return self._call(args, kwargs, counted)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], counted: int) -> Any:
        given, backward = self._prepare(args, kwargs, counted)
        try:
            if backward is not None:
                args, kwargs = backward.replace(self._names, args, kwargs)
            result = self.original(*args, **kwargs)
        except BaseException:
            if counted & SAMPLED:
                self._watch.core.core.foreshock_attention_skip(self._number, SKIP_UNKNOWN)
            raise
        return self._report(given, result, backward, bool(counted & SAMPLED))

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
        return {**self._defaults, **dict(zip(self._names, args)), **kwargs}

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any], counted: int) -> tuple[Given, Backward | None]:
        try:
            with self._watch.hidden():
                given = self._given(args, kwargs)
                is_followed = counted & SAMPLED_STEP and self._seam.follows_gradients
                return given, Backward.of(self._watch, self._seam, given) if is_followed else None
        except Exception as error:
            if is_of_trainer(error):
                raise
            return {}, None

    def _report(self, given: Given, result: Any, backward: Backward | None, is_sampled: bool) -> Any:
        """Describes a call by the custom operation, or skips it with a reason. Returns the result for the training."""
        begin, end, reason = perf_counter_ns(), None, SKIP_UNKNOWN
        try:
            with self._watch.hidden():
                call: Call | int = SKIP_UNKNOWN
                if all(given.get(name) is self._defaults.get(name, given) for name in self._unknown):
                    call = self._seam.describe(given, result, self.original)
                end = perf_counter_ns()  # the operation's hook counts its own time
                reason = call if isinstance(call, int) else None
                if isinstance(call, Call):
                    described.add(self._seam.operation)
                    if is_sampled:
                        is_backward = self._seam.is_backward
                        run(self._operations[is_backward], sinks.with_key(call).arguments(is_backward))
                    if backward is not None:
                        result = backward.follow(call, result)
        except Exception as error:
            if is_of_trainer(error):
                raise
        finally:
            if reason is not None and is_sampled:
                self._watch.core.core.foreshock_attention_skip(self._number, reason)
                if reason == SKIP_UNKNOWN and not self._is_named:
                    self._is_named = True
                    self._watch.name(self._seam, self.original.__module__, "not understood", USED)
            self._watch.add_time((end or perf_counter_ns()) - begin)
        return result


class Backward:
    """Follows the backward pass of one call whose function has no backward function of its own: tensor hooks collect
    the gradients. The call gets views of query, key and value, so that the gradients of the views are those of this
    call alone, also if the training uses the tensors elsewhere."""

    def __init__(self, watch: Watch, seam: Seam, views: dict[str, Any]) -> None:
        self._watch, self._seam, self.views = watch, seam, views
        self._call: Call | None = None
        self._gradients: dict[str, Any] = {}
        self._has_other_root = False

    @classmethod
    def of(cls, watch: Watch, seam: Seam, given: Given) -> Backward | None:
        tensors = {name: given[name] for name in (seam.query, *seam.keys_and_values)}
        if not watch.torch.is_grad_enabled() or not tensors[seam.query].requires_grad:
            return None
        if len({id(tensor) for tensor in tensors.values()}) != len(tensors):
            return None  # a tensor that is query and key has one gradient of both
        views = {name: tensor.view_as(tensor) for name, tensor in tensors.items() if tensor.requires_grad}
        return cls(watch, seam, views)

    def replace(self, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        """The arguments with the views in place of the tensors."""
        placed = tuple(self.views.get(name, value) for name, value in zip(names, args))
        return placed + args[len(names) :], {name: self.views.get(name, value) for name, value in kwargs.items()}

    def follow(self, call: Call, result: Any) -> Any:
        """`result`: what the function has returned for `call`. Returns it with views in place of all tensors but the
        output, which show whether the training uses them. The hooks must hold no tensor that is computed from the
        views: tensor and hook would keep each other in memory."""
        out = self._seam.output(result)
        if not out.requires_grad:
            return result
        # The query leads to its parameter, so it is kept as it is: it was there before the views.
        detached = {"key": call.key.detach(), "value": call.value.detach(), "out": call.out.detach()}
        self._call = call._replace(**detached)
        views, self.views = self.views, {}
        self._missing = {"out", *views}
        for name, tensor in {"out": out, **views}.items():
            tensor.register_hook(functools.partial(self._collect, name))
        return self._seam.rest(result, self._shown)

    def _shown(self, tensor: Any) -> Any:
        """A view of a tensor that the function returns beside its output, such as the scores. If a loss uses it, the
        gradients of query and key are not those of the output alone."""
        if not self._watch.torch.is_tensor(tensor) or not tensor.requires_grad:
            return tensor
        view = tensor.view_as(tensor)
        view.register_hook(self.note_other_root)
        return view

    def note_other_root(self, _: Any) -> None:
        self._has_other_root = True

    def _collect(self, name: str, gradient: Any) -> None:
        try:
            if self._call is None:
                return  # a second backward pass over the same graph
            self._gradients[name] = gradient
            self._missing.discard(name)
            if not self._missing:
                call, self._call, gradients, self._gradients = self._call, None, self._gradients, {}
                self._report(call, gradients)
        except Exception as error:
            if is_of_trainer(error):
                raise

    def _report(self, call: Call, gradients: dict[str, Any]) -> None:
        seam, watch = self._seam, self._watch
        with watch.hidden():
            number = watch.number(seam.operation, True)
            if not watch.core.adapter.foreshock_adapter_enter(call.query._cdata, number, True, True) & SAMPLED:
                return
            begin, is_described = perf_counter_ns(), False
            try:
                names = (seam.query, *seam.keys_and_values)
                of_query, of_key, of_value = (gradients.get(name) for name in names)
                of_inputs = (call.of_query(of_query), of_key, of_value)
                # Exact: where autocast has rounded an input, its gradient has the format of the rounded one.
                of_inputs = (part if part is None else part.to(call.query.dtype) for part in of_inputs)
                of_all = (call.of_out(gradients["out"]), *of_inputs)
                call = sinks.with_key(call)
                call = completed(call) if call.lse is None else call
                whole = sinks.with_gradients(call._replace(gradients=of_all))
                is_described = not self._has_other_root
            finally:
                watch.add_time(perf_counter_ns() - begin)
                if not is_described:
                    watch.core.core.foreshock_attention_skip(number, SKIP_UNKNOWN)
            if is_described:
                run(watch.operations(seam.operation)[True], whole.arguments(True))


def nested(original: Any, nest: Callable[[int], None]) -> Any:
    @functools.wraps(original)
    def nested(*args: Any, **kwargs: Any) -> Any:
        nest(1)
        try:
            return original(*args, **kwargs)
        finally:
            nest(-1)

    return nested


def _wrapped(wrapper: Wrapper, original: Any, compiler: Any, operation: str) -> Any:
    count, call, uncounted = wrapper.count, wrapper.call, wrapper.original
    is_compiling, is_marked = compiler.is_compiling, operation == "flex_attention"
    is_exporting = getattr(compiler, "is_exporting", compiler.is_compiling)  # an exported program must have no mark

    @functools.wraps(original)
    def seam(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            _note_traced(operation)
            if is_marked and graph_mark is not None and not is_exporting():
                graph_mark()
            return original(*args, **kwargs)
        counted = count(args, kwargs)
        return call(args, kwargs, counted) if counted else uncounted(*args, **kwargs)

    return seam


def replace(owner: Any, name: str, make: Callable[[Any], Any], is_in_use: bool) -> None:
    """Replaces the function owner.name by make(the function). `is_in_use`: others may have imported or compiled it, so
    the object stays, and its code calls what replaces it."""
    original = vars(owner)[name]
    if not is_in_use or not inspect.isfunction(original) or original.__closure__:
        setattr(owner, name, make(original))
        return
    copy = FunctionType(original.__code__, original.__globals__, original.__name__, original.__defaults__)
    functools.update_wrapper(copy, original)
    copy.__kwdefaults__ = original.__kwdefaults__
    vars(copy).pop("__wrapped__")
    target = f"_foreshock_{name}"
    found: dict[str, Any] = {}
    original.__globals__[target] = original.__wrapped__ = make(copy)
    # Dynamo traces functions of this file.
    exec(compile(f"def call(*args, **kwargs): return {target}(*args, **kwargs)", __file__, "exec"), found)
    original.__code__ = found["call"].__code__


_MODULES = dict.fromkeys((*DESCRIBED_IN, *GRAPH_FUNCTIONS))


class Watch:
    """Wraps the functions of seams in modules that are imported already or will be. A finder in sys.meta_path that
    finds nothing itself: it asks the other finders, and runs after the module's own loader."""

    def __init__(self, torch: Any, core: Any, hidden: Callable[[], Any], add_time: Callable[[int], None]) -> None:
        """`hidden()`: a context manager that hides calls from torch function and dispatch modes of the training.
        `add_time(ns)`: called with the time that a sampled call has taken."""
        self.torch, self.core, self.hidden, self.add_time = torch, core, hidden, add_time
        self.mode_count = torch._C._len_torch_function_stack
        self._operations: dict[str, tuple[Any, Any]] = {}
        self.outside: Callable[[], Any] = contextlib.nullcontext  # suspends the mode of written.py
        global _active
        _active = self
        for name in _MODULES:
            if (module := sys.modules.get(name)) is not None:
                self._wrap(module, is_in_use=True)
        sys.meta_path.insert(0, self)

    def operations(self, name: str) -> tuple[Any, Any]:
        """The custom operations `name` for the two passes, defined at the first call."""
        if name not in self._operations:
            tap.prepare()
            self._operations[name] = tap.define(name)
        return self._operations[name]

    def number(self, operation: str, is_backward: bool) -> int:
        name = f"foreshock::{operation}" + ("_backward" if is_backward else "")
        return self.core.core.foreshock_register_op(name.encode(), int(is_backward))

    def name(self, seam: Seam, module: str, why: str, evidence: int) -> None:
        """Adds a function to the names of attention that is not judged, which the summary lists. A name has 55 bytes:
        "transformer_engine fused_attn_fwd: other arguments"."""
        name = f"{module.partition('.')[0]} {seam.function}: {why}"
        self.core.core.foreshock_note_unseen(name.encode(errors="replace"), evidence)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _MODULES:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Has this object wrap the functions of the module once `loader` has executed it. The loader keeps its class,
        and has its own exec_module() again when that runs."""
        if isinstance(loader, type) or not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__"):
            return

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            loader.exec_module(module)
            self._wrap(module)

        loader.exec_module = exec_module

    def _wrap(self, module: ModuleType, is_in_use: bool = False) -> None:
        """`is_in_use`: other modules may have imported the functions of this one, or compiled them."""
        try:
            name = vars(module).get("__name__")
            if name in DESCRIBED_IN:
                for seam in importlib.import_module(f"{__package__}.{DESCRIBED_IN[name]}").SEAMS:
                    if name == seam.module:
                        self._wrap_function(module, seam, is_in_use)
            if name in GRAPH_FUNCTIONS:
                from . import written_graph

                written_graph.change(module, GRAPH_FUNCTIONS[name], self, is_in_use)
        except Exception as error:  # the training's import must not fail
            if is_of_trainer(error):
                raise

    def _wrap_function(self, module: ModuleType, seam: Seam, is_in_use: bool) -> None:
        owner_name, _, name = seam.function.rpartition(".")
        owner = vars(module).get(owner_name) if owner_name else module
        original = vars(owner).get(name) if owner is not None else None
        # A module may also have the function of another one, which is wrapped there.
        if not inspect.isfunction(original) or original.__module__ != module.__name__:
            return
        if Wrapper(self, seam, original).is_understood:
            replace(owner, name, lambda called: self._wrapper_of(seam, called), is_in_use)
        else:
            self.name(seam, module.__name__, "other arguments", IMPORTED)

    def _wrapper_of(self, seam: Seam, called: Any) -> Any:
        return _wrapped(Wrapper(self, seam, called), called, self.torch.compiler, seam.operation)
