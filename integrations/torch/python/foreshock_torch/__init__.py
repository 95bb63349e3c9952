"""The helper: the Python side of foreshock inside a PyTorch training. Reports steps, names, gradients, learning rate.

`import torch` calls autoload() (entry point group torch.backends), which does nothing unless `foreshock run` has set up
the process. The helper must not make a training fail: every entry point catches all exceptions of the helper, and the
first exception switches the monitor off for this process. Needs only the standard library and the imported torch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["autoload", "report"]


def autoload() -> None:
    """Called at the end of `import torch`."""
    try:
        # The package `foreshock` was imported before torch, so that it could not prepare foreshock.tap() itself.
        if "foreshock" in sys.modules:
            from . import tap

            tap.prepare()
        if os.environ.get("FORESHOCK_DIR"):
            from . import start  # starts the helper, and guards its calls against exceptions

            start.enter()
    except Exception:  # of the helper
        return


def report(step: Any = None, loss: Any = None, batch_id: Any = None) -> None:
    """Reports the step that has ended, its loss, and an id of its batch.

    `step`: optimizer steps done so far, this one included. `loss`: a number or a one-element tensor on the CPU.
    `batch_id`: a whole number, of which 64 bits are kept. Other values are ignored.
    """
    start = sys.modules.get(f"{__name__}.start")
    if start is not None:  # else the helper was not started
        start.call_monitor("report", step, loss, batch_id)
