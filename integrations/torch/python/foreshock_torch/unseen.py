"""Detects attention implementations that no hook sees. clock.py calls attention_unseen() at UNSEEN_CHECK_TICKS."""

from __future__ import annotations

import sys
from typing import Any

from . import seams

USED, IMPORTED = 1, 2  # as in hook.h (FORESHOCK_UNSEEN_...): the function ran; or its module was only imported
# Training steps of this process, counted from 1. Several, since a training may import or call more as it goes on.
UNSEEN_CHECK_TICKS = (2, 10, 100, 1000)


def attention_unseen(modules: dict[str, Any] | None = None) -> list[tuple[str, int]]:
    """(name, USED or IMPORTED) of each implementation that foreshock sees only if the training calls foreshock.tap().
    `modules`: the modules to search; None: all that are imported."""
    modules = sys.modules if modules is None else modules
    found = []
    flex = getattr(modules.get("torch._higher_order_ops.flex_attention"), "flex_attention", None)
    described = seams.described_in_graphs if "flex_attention" in seams.traced else seams.described
    is_seen = "flex_attention" in described - seams.missed_in_graphs
    # The operator fills this cache at its first call, which may come from the compiler.
    if getattr(flex, "_dispatch_cache", None) and not is_seen:
        found.append(("flex_attention", USED))
    found += [(f"compiled: {why}", USED) for why in seams.not_followed]
    # seams.py sees the calls from version 2.0 on. No version: 2 is assumed.
    engine = modules.get("transformer_engine")
    if str(getattr(engine, "__version__", "2.")).startswith(("0.", "1.")):
        found.append(("transformer_engine before 2.0", IMPORTED))
    return found
