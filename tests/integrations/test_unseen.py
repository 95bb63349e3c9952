"""Attention that is known to be there although no hook sees it."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
from foreshock_torch import seams
from foreshock_torch.unseen import IMPORTED, USED, attention_unseen

pytestmark = pytest.mark.quick


def test_old_releases_of_transformer_engine_are_named() -> None:
    """Their functions have other names than those that seams.py wraps."""
    for version, name in (("1.13.0", "transformer_engine before 2.0"), ("2.20.2", None)):
        modules = {"transformer_engine": types.SimpleNamespace(__version__=version), "flash_attn.cute": None}
        assert attention_unseen(modules) == ([(name, IMPORTED)] if name else [])


def test_flex_attention_is_named_unless_all_its_calls_are_seen(monkeypatch) -> None:
    for names in ("described", "traced", "described_in_graphs", "missed_in_graphs"):
        monkeypatch.setattr(seams, names, set())
    used = types.SimpleNamespace(flex_attention=types.SimpleNamespace(_dispatch_cache={1: 2}))
    modules = {"torch._higher_order_ops.flex_attention": used}
    named = [("flex_attention", USED)]
    assert attention_unseen(modules) == named
    seams.described.add("flex_attention")
    assert attention_unseen(modules) == []
    seams.traced.add("flex_attention")
    assert attention_unseen(modules) == named
    seams.described_in_graphs.add("flex_attention")
    assert attention_unseen(modules) == []
    seams.missed_in_graphs.add("flex_attention")
    assert attention_unseen(modules) == named


def test_attention_of_compiled_graphs_that_is_not_followed_is_named(monkeypatch) -> None:
    monkeypatch.setattr(seams, "not_followed", {"weights are used elsewhere": 2})
    assert attention_unseen({}) == [("compiled: weights are used elsewhere", USED)]
