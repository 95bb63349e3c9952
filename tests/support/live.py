"""A trainer that does what a test tells it, line by line, while the test does something to it.

As a module: Live. As a program (the trainer's side): executes the code it reads, one JSON string a line, and answers
each with one line of JSON.
"""

import ctypes
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

SUPPORT = pathlib.Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]


def build_hand_library(folder: pathlib.Path) -> pathlib.Path:
    """hand_attention.c as a shared library; not linked with the monitor."""
    target = folder / "libhand.so"
    compiler = shutil.which("gcc") or shutil.which("cc") or "clang"
    flags = ["-std=c99", "-pedantic", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    include = f"-I{ROOT / 'libmonitor' / 'include'}"
    source = str(SUPPORT / "hand_attention.c")
    subprocess.run([compiler, *flags, include, source, "-o", str(target), "-lm"], check=True)
    return target


class Live:
    """`command` (that ends in this file) as a process of its own; do() runs code in it, finish() ends it."""

    def __init__(self, command: list[str], environment: dict[str, str], **more: object) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            **more,
        )  # fmt: skip
        self.pid: int = self.do("os.getpid()")

    def do(self, code: str) -> object:
        """The value of an expression, or None after statements."""
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the trainer has ended: {self.stderr()}"
        value = json.loads(answer)
        assert "error" not in value, value["error"]
        return value["value"]

    def stderr(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def finish(self, timeout: float = 300) -> int:
        """Ends the trainer as by itself; the exit status of the command."""
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()
            self.process.stdout.close()

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()


class Hand:
    """The trainer's hands: the functions of hand_attention.h, and how many calls they really made."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        self.library.hand_step.argtypes = [ctypes.c_int, ctypes.c_int64]
        self.library.hand_step.restype = ctypes.c_double
        self.library.hand_plant.argtypes = [ctypes.c_double]
        self.library.hand_step_told.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_double, ctypes.c_double]
        self.library.hand_begin()
        self.calls = {"forward": 0, "backward": 0}

    def step(self, count: int = 1, layers: int = 2, number: int = -1) -> float:
        loss = 0.0
        for n in range(count):
            loss = self.library.hand_step(layers, number + n if number >= 0 else -1)
        self.calls["forward"] += count * layers
        self.calls["backward"] += count * layers
        return loss

    def plant(self, factor: float) -> None:
        self.library.hand_plant(factor)

    def train(self, first: int, count: int, loss: float = 2.0, gradient: float = 1.0, layers: int = 2) -> None:
        """Steps whose loss and gradient norm move a little around these; the same in every run."""
        for step in range(first, first + count):
            noise = random.Random(step)
            told = loss * (1 + noise.gauss(0, 0.02)), gradient * math.exp(noise.gauss(0, 0.1))
            self.library.hand_step_told(layers, step, *told)
        self.calls["forward"] += count * layers
        self.calls["backward"] += count * layers

    def forward(self, needs_gradient: bool = True) -> int:
        self.calls["forward"] += 1
        return self.library.hand_forward(int(needs_gradient))

    def skip(self, reason: int) -> int:
        self.calls["forward"] += 1
        return self.library.hand_skip(reason)


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the code prints must not pass for an answer
    names: dict[str, object] = {"os": os, "sys": sys, "ctypes": ctypes, "core": ctypes.CDLL(None)}
    if "HAND_LIBRARY" in os.environ:
        names["hand"] = Hand(os.environ["HAND_LIBRARY"])
    for line in sys.stdin:
        code, answer = json.loads(line), {"value": None}
        try:
            try:
                answer["value"] = eval(code, names)
            except SyntaxError:
                exec(code, names)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error} in {code}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
