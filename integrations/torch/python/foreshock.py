"""Functions that a training may call to report to foreshock. Without `foreshock run` they do nothing.

    import foreshock
    out = my_attention(q, k, v)
    foreshock.tap(q, k, v, out, layer=3, causal=True)
    advice = foreshock.advice()
    if advice and advice.level == "warn": ...

tap() reports attention that no hook can see: FlexAttention, custom kernels. report() reports steps and
losses that foreshock cannot detect. advice() returns the current warning level, for a training that acts on it.
"""

from __future__ import annotations

import sys

__all__ = ["advice", "report", "tap"]
__version__ = "0.1.0"

try:
    from foreshock_torch import report
    from foreshock_torch.advice import advice
    from foreshock_torch.tap import tap
except Exception:  # an incomplete installation must not make a training fail

    def report(*arguments: object, **named: object) -> None:
        """Does nothing."""

    tap = advice = report


def _enter() -> None:
    """If torch is imported, starts the helper (foreshock_torch.start), unless `import torch` has started it already."""
    try:
        if "torch" not in sys.modules:
            return  # `import torch` will start the helper
        from foreshock_torch import start
        from foreshock_torch.tap import prepare

        prepare()  # defines the operations that tap() calls
        start.enter()
    except Exception:
        return


_enter()
