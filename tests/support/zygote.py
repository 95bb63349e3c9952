"""Runs pieces of Python in processes that are forked from one which has already imported torch.

An `import torch` takes seconds; a fork takes milliseconds. This is sound where nothing that was loaded at the import
depends on the process (threads, a segment, an agent): under the fake core of tests/integrations or without monitor,
never under libforeshock.so. How an interpreter ends beside the monitor is shown by the trainings of tests/e2e.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import signal
import subprocess
import sys

# What follows the code that all pieces begin with. A piece goes on as the main program. It ends after its exit
# functions: the interpreter would take torch apart, which copies its memory, most of the time of a short piece.
SERVER = """
def _next_piece():
    import gc, json, os, sys
    gc.freeze()  # a piece that ends would look at all that was imported, which copies it: a second each
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads would be lost in a fork"
    print("ready", flush=True)
    for line in sys.stdin:
        piece = json.loads(line)
        process = os.fork()
        if process == 0:
            for number, path in enumerate([os.devnull, piece["out"], piece["err"]]):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY, 0o600)
                os.dup2(file, number)
                os.close(file)
            os.environ.update(piece["environment"])
            return piece["code"]
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    os._exit(0)
def _end():
    import atexit, os, sys, threading
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
exec(compile(_next_piece(), "<string>", "exec"))
_end()
"""


class Zygote:
    """A process that has run `begin` and forks for each piece. Not for several threads."""

    def __init__(self, begin: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", begin + SERVER], env=environment, bufsize=0,  # or select() would not see all of it
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._answer(900) == "ready"

    def _answer(self, timeout: float) -> str:
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise TimeoutError(f"no answer within {timeout} s")
        return self.process.stdout.readline().decode().strip()

    def run(
        self, code: str, environment: dict[str, str], folder: pathlib.Path, timeout: float = 900
    ) -> subprocess.CompletedProcess:
        """Runs `code` after `begin`, with `environment` on top of the zygote's. Its output goes by way of `folder`."""
        out, err = folder / "piece.out", folder / "piece.err"
        piece = {"code": code, "environment": environment, "out": str(out), "err": str(err)}
        self.process.stdin.write(json.dumps(piece).encode() + b"\n")
        process = int(self._answer(timeout))
        try:
            status = int(self._answer(timeout))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._answer(timeout)
            raise
        return subprocess.CompletedProcess(["piece"], status, out.read_text(), err.read_text())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()
