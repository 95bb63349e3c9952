"""Attention that is known to be there although no hook sees it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
from foreshock_torch.unseen import IMPORTED, attention_unseen

pytestmark = pytest.mark.quick


def test_flash_attn_4_is_seen_once_it_is_imported() -> None:
    """The package comes before its modules, so no search over all modules is needed."""
    modules: dict[str, object] = {"flash_attn": None, "flash_attn.cute_other": None}
    assert attention_unseen(modules) == []
    modules["flash_attn.cute"] = modules["flash_attn.cute.interface"] = None
    assert attention_unseen(modules) == [("flash_attn.cute (flash-attn 4)", IMPORTED)]
