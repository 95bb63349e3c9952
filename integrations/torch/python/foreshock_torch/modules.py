"""Finds the modules of the models, and names parameters by their paths in a model. The address of a parameter, by which
the core (libforeshock.so) identifies it, is tensor._cdata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from weakref import ref

from .names import Named, plain_name, with_number
from .topology import is_ddp, is_shard

WRAPPERS = ("_orig_mod", "module")  # attributes of wrappers (torch.compile, DDP) that have the wrapped module


def modules_below(root: Any) -> Iterator[tuple[str, Any]]:
    """(path, module) of `root` itself and all modules below it, each once, in torch's order. Calls no method of a
    module: the training may have overridden the method, and the training's tests may have replaced it."""
    seen: set[int] = set()
    to_visit = [("", root)]
    while to_visit:
        path, module = to_visit.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        to_visit.extend((f"{path}.{name}" if path else name, child) for name, child in reversed(children_of(module)))


def children_of(module: Any) -> list[tuple[str, Any]]:
    """(name, module) of each child; the module may be None."""
    return list(vars(module).get("_modules", {}).items())


def parameters_below(root: Any) -> Iterator[tuple[str, Any]]:
    """(name, parameter) of all parameters in `root`, each once."""
    seen: set[int] = set()
    for path, module in modules_below(root):
        for name, parameter in list(vars(module).get("_parameters", {}).items()):
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{path}.{name}" if path else name, parameter


def layer_numbers(root: Any) -> dict[str, int]:
    """{module path: its `layer_number`}. Megatron sets it, counting from 1 over all pipeline stages."""
    numbers = {}
    for path, module in modules_below(root):
        number = vars(module).get("layer_number")
        if type(number) is int and 0 <= number < 100_000:  # a larger number is not that of a layer
            numbers[plain_name(path + ".").rstrip(".")] = number  # plain_name() searches for names with a dot
    return numbers


def groups_of(state: Any) -> list[Any]:
    """The parameter groups in fully_shard's (FSDP2) state of a module, one for each device mesh. torch before 2.13 has
    at most one, in _fsdp_param_group; later versions raise if this attribute is read while there are several."""
    several = getattr(state, "_fsdp_param_groups", None)
    return [getattr(state, "_fsdp_param_group", None)] if several is None else list(several)


def shards_of(module: Any) -> list[Any]:
    """fully_shard's records of the module's sharded parameters (FSDPParam)."""
    method = getattr(type(module), "_get_fsdp_state", None)  # looked up in the type, which avoids Module.__getattr__
    state = method(module) if method is not None else None
    return [shard for group in groups_of(state) for shard in getattr(group, "fsdp_params", ())]


def is_gathered(shard: Any) -> bool:
    """Whether the whole parameter of this shard exists on this rank."""
    return getattr(shard, "_unsharded_param", None) is not None


class Modules:
    """Keeps weak references to the modules that have registered parameters, or were copied or unpickled.

    The parameters of any other module get no names: finding it would need a search of all live objects, which would
    stall the training and show up in its profile.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._seen: dict[int, Any] = {}  # {id: weak reference}
        self.averaging_writes = 0  # how often per step DDP writes its average into each gradient; set by named()

    def has(self, module: Any) -> bool:
        reference = self._seen.get(id(module))
        return reference is not None and reference() is module

    def note(self, module: Any) -> None:
        """Adds a module."""
        key = id(module)
        # The callback of the weak reference may run anywhere in the training's code. If it were a Python function, a
        # signal handler of the training could run in it, and Python would drop the handler's exception. pop() gets the
        # dead reference as its default, so a missing key raises no error.
        self._seen[key] = ref(module, partial(self._seen.pop, key))

    def alive(self) -> list[Any]:
        return [module for reference in list(self._seen.values()) if (module := reference()) is not None]

    def _roots(self) -> list[Any]:
        """Modules that are not children of another module."""
        alive = self.alive()
        children = {id(child) for module in alive for _, child in children_of(module)}
        return [module for module in alive if id(module) not in children]

    def named(self, wanted: tuple[int, ...]) -> dict[int, tuple[Named, Any]]:
        """{address: (name, parameter)} of all models with a parameter in `wanted`, models with the most of these first.

        `wanted`: addresses of the parameters that the optimizers step. If no model has such a parameter, all models
        with trained parameters are named. The optimizer then steps copies in higher precision (DeepSpeed, Megatron-LM,
        Apex), but attention uses the parameters of the model, and they identify its layers.
        """
        # Models: (sort key: number of parameters in `wanted`, or of all; {address: (name, parameter)}; root).
        stepped, others = [], []
        for root in self._roots():
            rows = {p._cdata: (plain_name(name), p) for name, p in parameters_below(root)}
            if hits := len(rows.keys() & set(wanted)):
                stepped.append((hits, rows, root))
            elif any(p.requires_grad for _, p in rows.values()):
                others.append((len(rows), rows, root))
        named: dict[int, tuple[Named, Any]] = {}
        models = []
        for _, rows, root in sorted(stepped or others, key=lambda model: -model[0]):
            if is_ddp(root) and not getattr(root, "gradient_as_bucket_view", False):
                self.averaging_writes = 1  # DDP averages gradients over ranks in buckets, and copies each gradient back
            numbers = layer_numbers(root)
            with_gathered = {**rows, **self._gathered(root, rows)}
            new = {a: (with_number(name, numbers), p) for a, (name, p) in with_gathered.items() if a not in named}
            named.update(new)
            models.append((root, new))
        return self._prefixed_by_model(models, {address: n for n, address in enumerate(wanted)}) or named

    def _prefixed_by_model(self, models: list[tuple[Any, Any]], order: dict[int, int]) -> dict[int, tuple[Named, Any]]:
        """If two models use the same name: all names, each with the class of its model as a prefix; else {}. Models of
        the same class also get a number, in the order in which the optimizers step their parameters. `models`: [(root,
        {address: (name, parameter)})]. `order`: {address: position in the optimizers}."""
        names = [name for _, rows in models for name in {row.name for row, _ in rows.values()}]
        if len(names) == len(set(names)):
            return {}
        models.sort(key=lambda model: min((order.get(a, len(order)) for a in model[1]), default=len(order)))
        class_names, prefixed = [], {}
        for root, _ in models:
            for _ in range(8):  # unwraps nested wrappers; bounded, since a proxy may have an attribute of any name
                wrapped = [getattr(root, name, None) for name in WRAPPERS]
                root = next((w for w in wrapped if isinstance(w, self._torch.nn.Module)), root)
            class_names.append(type(root).__name__)
        for n, (_, rows) in enumerate(models):
            class_name = class_names[n]
            number = f"_{class_names[:n].count(class_name)}" if class_names.count(class_name) > 1 else ""
            model = f"{class_name}{number}"
            for address, (row, p) in rows.items():
                prefixed[address] = row._replace(name=f"{model}.{row.name}", model=model), p
        return prefixed

    def roots_of(self, addresses: Iterable[int]) -> list[Any]:
        """The models that have a parameter at one of `addresses`."""
        wanted = set(addresses)
        return [root for root in self._roots() if any(p._cdata in wanted for _, p in parameters_below(root))]

    def outside(self, named: dict[int, tuple[Named, Any]], stepped: list[Any]) -> dict[int, tuple[Any, str]]:
        """{address: (module, key in it)} of the parameters that have a gradient and are not in `stepped`, the
        parameters of all optimizers. Empty if at most half of these have names: the optimizers then step copies."""
        inside = {parameter._cdata for parameter in stepped}
        names = {named[address][0].name for address in inside & named.keys()}
        if 2 * len(names) <= len(inside):
            return {}
        found = {}
        for root in self.roots_of(inside):
            for _, module in modules_below(root):
                for key, p in list(vars(module).get("_parameters", {}).items()):
                    if p is None or p.grad is None or p._cdata in inside or is_shard(p):
                        continue
                    if p._cdata in named and named[p._cdata][0].name not in names:
                        found[p._cdata] = module, key
        return found

    def owners(self, named: dict[int, tuple[Named, Any]]) -> list[tuple[Any, list[int]]]:
        """(module, addresses of its own parameters that are in `named`) of every module and child module."""
        all_modules = {id(module): module for module in self.alive()}
        for root in self._roots():
            all_modules.update((id(module), module) for _, module in modules_below(root))
        found = []
        for module in all_modules.values():
            own = [p._cdata for p in vars(module).get("_parameters", {}).values() if p is not None]
            gathered = [shard._unsharded_param._cdata for shard in shards_of(module) if is_gathered(shard)]
            found.append((module, [address for address in dict.fromkeys(own + gathered) if address in named]))
        return found

    @staticmethod
    def _gathered(root: Any, rows: dict[int, tuple[str, Any]]) -> dict[int, tuple[str, Any]]:
        """{address: (name, parameter)} of the whole parameters that fully_shard has gathered, which attention reads.
        The optimizer steps the shards, whose names are in `rows`."""
        found = {}
        for _, module in modules_below(root):
            for shard in shards_of(module):
                row = rows.get(shard.sharded_param._cdata)
                if is_gathered(shard) and row is not None:
                    found[shard._unsharded_param._cdata] = (row[0], shard._unsharded_param)
        return found
