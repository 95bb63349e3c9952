"""Attention that is known to be there although no hook sees it."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
from foreshock_torch.unseen import IMPORTED, attention_unseen

pytestmark = pytest.mark.quick


def test_old_releases_of_transformer_engine_are_named() -> None:
    """Their functions have other names than those that seams.py wraps."""
    for version, name in (("1.13.0", "transformer_engine before 2.0"), ("2.20.2", None)):
        modules = {"transformer_engine": types.SimpleNamespace(__version__=version), "flash_attn.cute": None}
        assert attention_unseen(modules) == ([(name, IMPORTED)] if name else [])
