"""Functions that a training may call. Without `foreshock run` or foreshock.start() they do nothing.

    import foreshock
    out = my_attention(q, k, v)
    foreshock.tap(q, k, v, out, layer=3, causal=True)
    advice = foreshock.advice()
    if advice and advice.level == "warn": ...
    foreshock.start(); ...; wandb.log(foreshock.metrics()); ...; print(foreshock.stop())

tap() reports attention that no hook can see: FlexAttention, custom kernels. report() reports steps and
losses that foreshock cannot detect. advice() returns the current warning level, for a training that acts on it.
start() begins monitoring in a training that `foreshock run` has not started, and stop() ends it. status() returns the
verdict so far, metrics() numbers by name.
"""

from __future__ import annotations

import os
import sys

__all__ = ["advice", "metrics", "report", "start", "status", "stop", "tap"]
__version__ = "0.1.0"


def _find_helper() -> None:
    """A wheel installs this module into site-packages, and the helper below the same prefix, where Python does not look
    for modules. `foreshock run` puts the helper on PYTHONPATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    helper = os.path.normpath(os.path.join(here, "..", "..", "..", "share", "foreshock", "python"))
    if not os.path.isdir(os.path.join(here, "foreshock_torch")) and helper not in sys.path and os.path.isdir(helper):
        sys.path.append(helper)


try:
    _find_helper()
    from foreshock_torch import report
    from foreshock_torch.advice import advice
    from foreshock_torch.tap import tap
except Exception:  # an incomplete installation must not make a training fail

    def report(*arguments: object, **named: object) -> None:
        """Does nothing."""

    tap = advice = report


def start(**options: object) -> bool:
    """Begins monitoring in this process, and returns whether it is monitored; if it is not, one line says why.

    `options` are those of `foreshock run`: start(every=2, record="run.jsonl", math_path="on"). Call it before the model
    is built: the layers of a model that is already there have numbers instead of names. In a process that `foreshock
    run` has started, it does nothing.
    """
    return _launch("start", False, **options)


def stop(status: int = 0) -> str:
    """Ends the monitoring that start() began, waits for the summary, which is printed, and returns the verdict.
    `status`: the exit status to report for the training. The end of the process does the same."""
    return _launch("stop", "", status)


def status() -> str:
    """The verdict on the run so far in one sentence; "" if this process is not monitored or the agent is silent."""
    return _launch("status", "")


def metrics() -> dict:
    """Numbers of this rank, by name, for wandb.log(), MLflow or TensorBoard: {"foreshock/loss.last": 2.1, ...}. Unknown
    numbers are left out; {} if this process is not monitored or the agent is silent. Runs `foreshock status`."""
    return _launch("metrics", {})


def _launch(name: str, without: object, *arguments: object, **named: object) -> object:
    """Calls a function of foreshock_torch.launch, which is imported at the first call only. Returns `without` if this
    installation lacks it."""
    try:
        from foreshock_torch import launch
    except Exception:
        return without
    return getattr(launch, name)(*arguments, **named)


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
