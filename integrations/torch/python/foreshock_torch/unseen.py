"""Attention that is known to be there although no hook sees it. Looked at now and then, at the end of a step."""

from __future__ import annotations

import sys
from typing import Any

USED, IMPORTED = 1, 2  # FORESHOCK_UNSEEN_... of hook.h
LOOK_AT = (2, 10, 100, 1000)  # ticks


def attention_unseen(modules: dict[str, Any] | None = None) -> list[tuple[str, int]]:
    """(name, evidence) of what runs past the hooks unless it is tapped."""
    modules = sys.modules if modules is None else modules
    found = []
    flex = getattr(modules.get("torch._higher_order_ops.flex_attention"), "flex_attention", None)
    # An operator of higher order fills this cache when it is first called, be it by the compiler.
    if getattr(flex, "_dispatch_cache", None):
        found.append(("flex_attention", USED))
    if "flash_attn.cute" in modules:  # there before any module in it
        found.append(("flash_attn.cute (flash-attn 4)", IMPORTED))
    # The library interposes the functions of later versions (libmonitor/interpose_transformer_engine.cpp).
    engine = modules.get("transformer_engine")
    if str(getattr(engine, "__version__", "2.")).startswith(("0.", "1.")):
        found.append(("transformer_engine before 2.0", IMPORTED))
    return found
