"""Implements start(), stop(), status() and metrics() of foreshock.py: monitoring that a training starts itself.

start() starts `foreshock run` with a command that prints its environment and then waits. start() sets the same
variables in its own process, and starts the helper (start.py) as `import torch` does under `foreshock run`. So the
launcher, its agent, the record and the summary are those of `foreshock run`. The command ends when stop() or the end of
this process closes its input.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

# The waiting command. Prints its environment, waits for a line with the exit status of the training, and ends with it;
# with status 1 if this process ends without it (killed). Imports nothing: a file of the training's folder could be
# imported instead.
WAITING = """
import os, sys
names = [name for name in os.environ if name.startswith("FORESHOCK") or name == "PYTHONPATH"]
print({name: os.environ[name] for name in names}, flush=True)
status = sys.stdin.readline().strip()
sys.exit(int(status) if status.isdigit() else 1)
"""
SECONDS_TO_END = 200  # `foreshock run` waits for the agent's summary, 180 s at most
SECONDS_TO_ANSWER = 10  # of the agent, to `foreshock status`

# metrics(): the path of each in the state of a rank (docs/summary.md)
RANK_METRICS = (
    "step",
    "loss.last",
    "gradient.norm",
    "slowdown_ratio",
    *(
        f"attention.{which}.{name}"
        for which in ("forward", "backward")
        for name in ("calls", "judged", "relative_error.mean", "fused_ratio.mean", "fused_ratio.max", "nonfinite")
    ),
    "key_gradients.judged",
    "key_gradients.fused_ratio_grad_key",
    "key_gradients.fused_ratio_grad_value",
)

_run: Any = None  # the Launched of this process


class Launched:
    """The launcher that start() has started, in the process `pid`. `summary`: the file that it writes, and whether
    stop() removes it. `variables`: the environment of its command."""

    def __init__(self, process: Any, summary: tuple[str, bool], variables: dict[str, str], token: list[str]) -> None:
        self.process, self.variables = process, variables
        self.token = token  # words of a command line, with which the agent answers
        self.summary, self.owns_summary = summary
        self.before = {name: os.environ.get(name) for name in variables}
        self.pid = os.getpid()  # a forked child must not end the launcher of its parent
        self.sentence = ""  # the verdict at the end

    @property
    def is_live(self) -> bool:
        return self.process is not None


def start(**options: Any) -> bool:
    global _run
    if os.environ.get("FORESHOCK") in ("off", "0", "false", "no"):
        return False
    if _run is not None:
        return _say("monitoring was stopped in this process; it cannot begin again") if not _run.is_live else True
    if os.environ.get("FORESHOCK_LAUNCHER"):  # `foreshock run` has set up this process
        return True
    try:
        return _start(options)
    except Exception as error:  # of the helper: the training goes on unmonitored
        return _say(f"not monitoring: {error}")


def stop(status: int = 0) -> str:
    run = _run
    if run is not None and run.is_live and run.pid == os.getpid():
        atexit.unregister(_stop_at_exit)
        with contextlib.suppress(Exception):
            _stop(run, status)
        run.process = None
    return "" if run is None else run.sentence


def status() -> str:
    if _run is not None and not _run.is_live:
        return _run.sentence
    return _sentence(_state())


def metrics() -> dict[str, float]:
    state = _state()
    ranks = state.get("ranks") or []
    own = os.environ.get("RANK", "0")
    found = next((rank for rank in ranks if str(rank.get("rank")) == own), None)
    if found is None:
        return {}
    values = {f"foreshock/{path}": _at(found, path) for path in RANK_METRICS}
    values["foreshock/findings"] = len(state.get("findings") or [])
    values["foreshock/healthy"] = 1 if state.get("healthy") else 0
    return {name: value for name, value in values.items() if type(value) in (int, float)}


def _say(line: str) -> bool:
    print(f"foreshock: {line}", file=sys.stderr, flush=True)
    return False


def _executable() -> str:
    """The command foreshock of this installation."""
    here = os.path.dirname(os.path.abspath(__file__))  # <root>/share/foreshock/python/foreshock_torch
    path = os.path.normpath(os.path.join(here, "..", "..", "..", "..", "bin", "foreshock"))
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path} is not there; reinstall foreshock")
    return path


def _words(options: dict[str, Any]) -> list[str]:
    """{"math_path": "on"} as words of a command line: ["--math-path", "on"]."""
    words = []
    for name, value in options.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(os.fspath(value) if isinstance(value, os.PathLike) else str(value))
    return words


def _start(options: dict[str, Any]) -> bool:
    global _run
    owns_summary = "summary" not in options
    if owns_summary:
        descriptor, path = tempfile.mkstemp(prefix="foreshock-", suffix=".json")
        os.close(descriptor)
        options = options | {"summary": path}
    summary = os.path.abspath(options["summary"])
    # A session of its own: Ctrl-C is for the training, whose end ends the launcher.
    process = subprocess.Popen(
        [_executable(), "run", *_words(options), "--", sys.executable, "-c", WAITING],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    variables = {}  # stay empty if the launcher has ended, and printed why
    with contextlib.suppress(ValueError, SyntaxError):
        variables = ast.literal_eval(process.stdout.readline())
    if "FORESHOCK_LAUNCHER" not in variables:  # the command runs unmonitored, and the launcher has printed why
        process.stdin.close()
        process.stdout.close()
        process.wait()
        if owns_summary:
            os.remove(summary)
        return False
    token = _words({name: value for name, value in options.items() if name == "token_file"})
    _run = Launched(process, (summary, owns_summary), variables, token)
    atexit.register(_stop_at_exit)
    os.environ.update(variables)  # also for processes that the training starts
    helper = variables["PYTHONPATH"].split(os.pathsep)[0]
    if helper not in sys.path:
        sys.path.append(helper)  # `import torch` finds the entry point there
    if "torch" in sys.modules:
        from . import start as helper_start
        from .tap import prepare

        prepare()
        helper_start.enter()
    return True


def _stop(run: Launched, status: int) -> None:
    monitor = _take_monitor()
    if monitor is not None:
        # Writes all counts into the segment. Without a reason, which the summary would name.
        monitor.core.core.foreshock_off(b"")
    _release_segments(run)
    for name, value in run.before.items():  # for processes that the training starts from now on
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    with contextlib.suppress(BrokenPipeError):  # the launcher was killed
        run.process.stdin.write(f"{status}\n")
        run.process.stdin.close()
    run.process.wait(SECONDS_TO_END)
    run.process.stdout.close()
    with open(run.summary) as file:
        run.sentence = _sentence(json.load(file))
    if run.owns_summary:
        os.remove(run.summary)


def _stop_at_exit() -> None:
    """The exit status is not known yet: 1 after an exception that ended the program, else 0."""
    stop(1 if getattr(sys, "last_value", None) is not None else 0)


def _take_monitor() -> Any:
    """Takes the monitor away from the hooks of the helper; None if it was not started."""
    start_module = sys.modules.get(f"{__package__}.start")
    monitor = start_module.monitor if start_module is not None else None
    if monitor is not None:
        start_module.monitor = None
        monitor.core.quiet.stop()
    return monitor


def _release_segments(run: Launched) -> None:
    """Shows the agent that this process writes no more, for which it would else wait 5 s: a lock on the segment shows
    it that a trainer lives, and a process loses its locks on a file when it closes any descriptor of it."""
    directory = os.path.join(run.variables["FORESHOCK_DIR"], run.variables["FORESHOCK_RUN_ID"], "")
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path.startswith(directory) and path.endswith(".seg"):
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))


def _state() -> dict[str, Any]:
    """The state of the run of this process, as its agent reports it; {} if there is none."""
    run_id = os.environ.get("FORESHOCK_RUN_ID")
    if not run_id or not os.environ.get("FORESHOCK_DIR"):
        return {}
    try:
        words = [_executable(), "status", "--json", "--run-id", run_id, *(_run.token if _run is not None else [])]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_TO_ANSWER, check=False)
        states = json.loads(answer.stdout or "[]")
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return states[0] if states and states[0].get("ranks") is not None else {}


def _sentence(state: dict[str, Any]) -> str:
    verdict, findings = state.get("verdict") or "", state.get("findings") or []
    return f"{verdict}: {findings[0]['text']}" if findings else verdict


def _at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree
