"""Attention inside CUDA graphs: counted as what was captured times the replays. By a stand-in of CUDAGraph."""

import ctypes
import json
import sys

import monitored
import pytest

HELPER = str(monitored.ROOT / "integrations" / "torch" / "python")
STAND_IN = f"""
import sys
sys.path.insert(0, {HELPER!r})
from foreshock_torch import graphs

class CUDAGraph:
    def capture_begin(self, pool=None, *, mode="global"):
        if mode == "fails": raise RuntimeError("begin")
        return pool, mode

    def capture_end(self):
        if hasattr(self, "fails"): raise RuntimeError("end")
        return "ended"

    def replay(self):
        if hasattr(self, "fails"): raise RuntimeError("replay")
        return "replayed"

    def capture(self):  # two forward and two backward calls
        self.capture_begin()
        hand.step(1)
        self.capture_end()
        return self
"""
WATCH = "graphs.watch(CUDAGraph, ctypes.PyDLL(None))"


def graphs_of(trainer) -> tuple[dict, dict]:
    assert trainer.finish() == 0
    (rank,) = json.loads(trainer.summary.read_text())["ranks"]
    monitored.assert_conserved(rank)
    return rank, rank["attention_coverage"]["graphs"]


def test_captured_calls_times_replays(start_hand):
    trainer = start_hand("me")
    trainer.do(STAND_IN + WATCH)
    trainer.do("hand.step(3); graph = CUDAGraph().capture(); replayed = [graph.replay() for _ in range(4)]")
    rank, graphs = graphs_of(trainer)
    calls = {"forward": 2, "backward": 2}
    assert graphs == {
        "launches": 4, "unknown_launches": 0, "recorded": calls, "calls": {"forward": 8, "backward": 8},
    }  # fmt: skip
    assert rank["attention_coverage"]["source"] == "graphs"
    assert rank["attention_coverage"]["ratio"] == pytest.approx(12 / (12 + 16))
    assert "16 calls ran in" in trainer.stderr()


def test_graphs_whose_calls_are_unknown(start_hand):
    """Never captured, captured at the same time as another, captured again without an end, failed."""
    trainer = start_hand("me")
    trainer.do(STAND_IN + WATCH)
    trainer.do("hand.step(1); CUDAGraph().replay()")
    trainer.do("one, two = CUDAGraph(), CUDAGraph(); one.capture_begin(); two.capture(); one.capture_end()")
    trainer.do("one.replay(); two.replay()")
    trainer.do("three = CUDAGraph().capture(); three.fails = True; three.capture_begin()")
    trainer.do("try: three.capture_end()\nexcept RuntimeError: pass")
    trainer.do("del three.fails; three.replay()")
    trainer.do("four = CUDAGraph().capture(); four.replay()")
    _, graphs = graphs_of(trainer)
    assert (graphs["launches"], graphs["unknown_launches"]) == (1, 4)
    assert graphs["calls"] == {"forward": 2, "backward": 2}
    assert graphs["recorded"] == {"forward": 6, "backward": 6}


class FakeCore:
    """Only has the three functions; the number of calls is unknown."""

    def __init__(self) -> None:
        self.called: list[str] = []
        for name in ("begins", "ends", "launched"):
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *([] if name == "begins" else [ctypes.c_void_p]))
            setattr(self, f"foreshock_graph_{name}", prototype(lambda *_, name=name: self.called.append(name) or 0))


def test_wrappers_pass_everything_on(monkeypatch):
    monkeypatch.syspath_prepend(HELPER)
    names: dict = {"sys": sys}
    exec(STAND_IN, names)
    wrapped, core = names["CUDAGraph"], FakeCore()
    originals = dict(vars(wrapped))
    names["graphs"].watch(wrapped, core)
    for name in ("capture_begin", "capture_end", "replay"):
        assert getattr(wrapped, name).__wrapped__ is originals[name]
    graph = wrapped()
    assert graph.capture_begin("pool", mode="relaxed") == ("pool", "relaxed")
    assert (graph.capture_end(), graph.replay()) == ("ended", "replayed")
    assert core.called == ["begins", "ends", "launched"]
    graph.fails = True
    for call, error in ((lambda: graph.capture_begin(mode="fails"), "begin"), (graph.capture_end, "end"),
                        (graph.replay, "replay")):  # fmt: skip
        with pytest.raises(RuntimeError, match=error):
            call()
    assert core.called[3:] == ["ends"]
    assert vars(graph) == {"fails": True}
