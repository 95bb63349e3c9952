"""The Python side of foreshock inside a PyTorch training: step clock, names, gradients, learning rate.

`import torch` calls autoload() (entry point group torch.backends). It does nothing unless `foreshock run` has set
the process up, and nothing here may make a training fail: every door catches everything, and the first failure
switches the monitor off for this process. Standard library only; torch is taken as it is found.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["autoload", "report"]


def autoload() -> None:
    """Called at the end of `import torch`."""
    try:
        if "foreshock" in sys.modules:  # imported before torch
            from . import tap

            tap.prepare()
        if os.environ.get("FORESHOCK_DIR"):
            from . import door

            door.enter()
    except Exception:
        return


def report(step: Any = None, loss: Any = None, batch_id: Any = None) -> None:
    """What only the trainer knows: the step that has ended, its loss, an opaque number for its batch.

    `step` counts optimizer steps done so far, this one included; `loss` is a number or a one-element tensor on the
    CPU; `batch_id` is a whole number, of which 64 bits are kept. What is none of these is left out.
    """
    door = sys.modules.get(f"{__name__}.door")
    if door is not None:
        door.guarded("report", step, loss, batch_id)
