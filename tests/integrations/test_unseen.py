"""Attention that is known to be there although no hook sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
from foreshock_torch.unseen import IMPORTED, attention_unseen


def test_modules_that_another_thread_imports_meanwhile() -> None:
    """Each name that is looked at lets one come in."""

    class Name(str):
        def startswith(self, *given: object) -> bool:
            modules[f"module{len(modules)}"] = None
            return str.startswith(self, *given)

    def names() -> Iterator[str]:
        yield from (Name(f"name{n}") for n in range(3))
        yield "flash_attn.cute.interface"

    modules: dict[str, object] = dict.fromkeys(names())
    assert attention_unseen(modules) == [("flash_attn.cute (flash-attn 4)", IMPORTED)]
    assert len(modules) > 4
