"""Detects when a module whose parameters have names is destroyed. The core (libforeshock.so) finds a name by the
parameter's address (tensor._cdata). After the destruction another tensor may get this address and the wrong name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from .compiled import skip_in_dynamo
from .signals import is_of_trainer


class Owners:
    """Calls `lost` when the last module that contains a named parameter is destroyed, unless has_lost is already True.

    The call comes before the parameter's address can be reused, in the thread that destroys the module. The weak
    references are to modules, because torch.utils.swap_tensors refuses tensors that have weak references.
    """

    def __init__(self, torch: Any, lost: Callable[[], None], call_back: Callable[[Any], Any]) -> None:
        """`call_back` (Core.weakref_callback) makes the callback of a weak reference from a Python function. Python
        drops all exceptions in callbacks of weak references, but this one passes on those of the training's signal
        handlers."""
        self._call_back = call_back
        self._frames = torch._C._dynamo.eval_frame
        self._lost = lost
        skip_in_dynamo(self._frames, Owners._on_module_death)  # torch.compile (Dynamo) does not trace this method
        self._references: list[Any] = []
        self._ids: set[int] = set()  # id() of the modules in _references
        # An owner was lost, or an error may have hidden this. watch() and Monitor (clock.py) set it to False.
        self.has_lost = False

    def watch(self, owners: Iterable[tuple[Any, list[int]]]) -> None:
        """Watches `owners` instead of the previous ones: (module, addresses of its own parameters that have names)."""
        self._references, self._ids, self.has_lost = [], set(), False
        owner_counts: dict[int, int] = {}  # {address: number of modules that still contain the parameter}
        for module, addresses in owners:
            for address in addresses:
                owner_counts[address] = owner_counts.get(address, 0) + 1
            if addresses:
                on_death = functools.partial(self._on_module_death, addresses, owner_counts)
                self._references.append(ref(module, self._call_back(on_death)))
                self._ids.add(id(module))

    def has(self, module: Any) -> bool:
        """Whether the module contains a parameter that has a name."""
        return id(module) in self._ids

    def _on_module_death(self, addresses: list[int], owner_counts: dict[int, int], _: Any) -> None:
        try:
            for address in addresses:
                owner_counts[address] -= 1
            if self.has_lost or all(owner_counts[address] > 0 for address in addresses):
                return
            self.has_lost = True
            tracer = self._frames.set_eval_frame(None)  # Dynamo must not trace self._lost(); restored below
            try:
                self._lost()
            finally:
                self._frames.set_eval_frame(tracer)
        except Exception as error:  # raised by the training, for example in a signal handler, or by this code
            self.has_lost = True  # the counts may be wrong now, so Monitor must clear the names
            if is_of_trainer is not None and is_of_trainer(error):  # at process exit a global may be None
                raise  # the training's own exception must reach the training; other exceptions are dropped
