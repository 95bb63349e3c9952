"""What the operations run that report calls of compiled graphs (flex_graph.py, written_reports.py)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from . import seams
from .calls import SKIP_UNKNOWN, Call
from .signals import is_of_trainer


@functools.cache
def source_function(source: str) -> Callable[..., Any]:
    """The function of a graph from its source, as torch writes it (GraphModule.code). Its arguments are the inputs of
    the graph."""
    import torch

    names = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan}
    exec(source, names)
    return functools.partial(names["forward"], None)


class GraphReport:
    """Counts the calls of one pass, and reports those that are sampled. `operation`: under which they are counted.

    Its time counts as that of foreshock. A call that raises an exception while it is described is skipped as `unknown`.
    Of the exceptions only those reach the training that are its own (signals.py).
    """

    def __init__(self, watch: seams.Watch, operation: str, is_backward: bool) -> None:
        self._watch, self._operation, self._is_backward = watch, operation, is_backward
        self._enter = watch.core.adapter.foreshock_adapter_enter
        self._number = watch.number(operation, is_backward)

    def _count(self, query: Any) -> int:
        """Counts a call. Returns whether it is sampled, as bits of seams.py."""
        # In a compiled graph the query needs no gradient, whatever the training does.
        return self._enter(query._cdata, self._number, self._is_backward, True)

    def _report(self, describe: Callable[[], Call | int], place: tuple[int, int] = (-1, 0)) -> None:
        """Reports the sampled call that `describe` returns, or the reason why it is skipped. `place` of a backward
        call: see foreshock_adapter_set_place."""
        watch, torch, begin = self._watch, self._watch.torch, perf_counter_ns()
        call: Call | int = SKIP_UNKNOWN
        try:
            with watch.hidden():
                with torch.no_grad():
                    call = describe()
                watch.add_time(perf_counter_ns() - begin)  # the operation's hook counts its own time
                if isinstance(call, Call):
                    operation = watch.operations(self._operation)[self._is_backward]
                    watch.core.adapter.foreshock_adapter_set_place(*place)
                    try:
                        seams.run(operation, call.arguments(self._is_backward))
                    finally:
                        watch.core.adapter.foreshock_adapter_set_place(-1, 0)
        except Exception as error:
            if is_of_trainer(error):
                raise
        finally:
            if not isinstance(call, Call):
                watch.core.core.foreshock_attention_skip(self._number, call)
