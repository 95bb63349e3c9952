"""What a training may tell foreshock by itself, and ask. Without `foreshock run` every function here does nothing.

    import foreshock
    out = my_attention(q, k, v)
    foreshock.tap(q, k, v, out, layer=3, causal=True)
    advice = foreshock.advice()
    if advice and advice.level == "warn": ...

tap() is for attention that no hook can see: FlexAttention, flash-attn 4, a kernel of one's own. report() is for steps
and losses that are nowhere else to be seen. advice() is what the detectors say, for a training that wants to act on it.
"""

from __future__ import annotations

import sys

__all__ = ["advice", "report", "tap"]
__version__ = "0.1.0"

try:
    from foreshock_torch import report
    from foreshock_torch.advice import advice
    from foreshock_torch.tap import tap
except Exception:  # half an installation is no reason for a training to fail

    def report(*arguments: object, **named: object) -> None:
        """Not there."""

    tap = advice = report


def _enter() -> None:
    """This import is a door too: where torch has been imported but its entry points were not looked at."""
    try:
        if "torch" not in sys.modules:
            return  # its entry point comes back to us
        from foreshock_torch import door
        from foreshock_torch.tap import prepare

        prepare()
        door.enter(load=True)
    except Exception:
        return


_enter()
