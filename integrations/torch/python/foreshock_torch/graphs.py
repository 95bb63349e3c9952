"""Counts the attention calls that run inside CUDA graphs, where no hook is called.

torch.cuda.CUDAGraph captures the calls of a graph once and replays them many times. While a graph is captured, the
hooks count its calls; every replay adds this number. torch.compile(mode="reduce-overhead"), make_graphed_callables()
and torch.cuda.graph use this class too. Graphs that C++ code captures or launches are not seen.
"""

from __future__ import annotations

import functools
from typing import Any

# Attribute of a CUDAGraph: ctypes array with its forward and backward calls. None: they are unknown.
CALLS = "_foreshock_calls"


def watch(graph_type: Any, core: Any) -> None:
    """Wraps capture_begin(), capture_end() and replay() of `graph_type`, which is torch.cuda.CUDAGraph. The wrappers
    pass on arguments, results and exceptions. `core`: libforeshock.so, as a ctypes library."""
    import ctypes

    pair = ctypes.c_uint64 * 2
    core.foreshock_graph_ends.argtypes = core.foreshock_graph_launched.argtypes = [ctypes.c_void_p]
    core.foreshock_graph_launched.restype = core.foreshock_graph_begins.restype = None
    begins, ends, launched = core.foreshock_graph_begins, core.foreshock_graph_ends, core.foreshock_graph_launched
    original_begin, original_end, original_replay = (
        graph_type.capture_begin, graph_type.capture_end, graph_type.replay,
    )  # fmt: skip

    @functools.wraps(original_begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original_begin(self, *args, **kwargs)
        self.__dict__.pop(CALLS, None)
        begins()
        return result

    @functools.wraps(original_end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls, is_known = pair(), 0
        try:
            result = original_end(self, *args, **kwargs)
        finally:  # a capture that fails has ended too
            is_known = ends(calls)
        if is_known:
            self.__dict__[CALLS] = calls
        return result

    @functools.wraps(original_replay)
    def replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original_replay(self, *args, **kwargs)
        launched(self.__dict__.get(CALLS))
        return result

    graph_type.capture_begin, graph_type.capture_end, graph_type.replay = capture_begin, capture_end, replay
