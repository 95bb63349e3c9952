"""Starts trainings with and without the monitor, which take turns of a few steps on one core, for benchmarks of the
monitor's cost. interval() gives the median of the times that a benchmark has measured, and how certain it is."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
CACHE = os.environ.get("FORESHOCK_CACHE", str(ROOT / "build" / "adapters"))

# glibc's malloc returns the memory of freed tensors to the kernel, in some processes more than in others: one training
# had 1500 page faults in each step of 110 ms, another 2700 (2 % of its time). With high limits malloc returns none.
ENVIRONMENT = {"OMP_NUM_THREADS": "1"} | dict.fromkeys(
    ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(1 << 30)
)


class Trainer:
    """A training process on cores[0]: training.py, which waits between its turns. `kind`: its name. `model`: the
    argument of training.py. `options`: those of `foreshock run`; None: without the monitor."""

    def __init__(
        self, kind: str, model: str, base: pathlib.Path, cores: list[int], options: tuple[str, ...] | None = None
    ) -> None:
        self.base = base / f"{kind}-{model}"
        self.base.mkdir()
        self.summary = self.base / "summary.json"
        command = [sys.executable, str(ROOT / "bench" / "turns" / "training.py"), model]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESHOCK")} | ENVIRONMENT
        if options is not None:
            run = [str(BUILD / "bin" / "foreshock"), "run", "--port", "0", "--run-id", "bench"]
            run += ["--record", str(self.base / "record.jsonl")]
            command = [*run, "--summary", str(self.summary), *options, "--", "taskset", "-c", str(cores[0]), *command]
            environment |= {"FORESHOCK_DIR": str(self.base), "FORESHOCK_CACHE": CACHE}
        else:
            command = ["taskset", "-c", str(cores[0]), *command]
        # bufsize 1: a line is sent as soon as it is written.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, **pipes)

    def turn(self, steps: int) -> dict[str, float]:
        """Runs `steps` steps. Returns their seconds by clock, "cpu" and "wall", and those of the "slowest" step."""
        return self._request(str(steps))

    def parts(self, steps: int) -> dict[str, dict[str, list[float]]]:
        """Microseconds of parts of a step, without clipping ("plain") and with it ("clipped"): [median, mean] of the
        optimizer's hooks, the forward attention calls, the loss and the norm."""
        return self._request(f"parts {steps}")

    def _request(self, line: str) -> dict:
        """Sends a line to the process, which prints its result as one line of JSON."""
        self.process.stdin.write(f"{line}\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.base.name} ended with status {self.process.wait()}")
        return json.loads(answer)

    def finish(self) -> dict:
        """Ends the training. Returns the object of its rank in the summary; {} without the monitor."""
        self.process.stdin.close()
        self.process.wait()
        return json.loads(self.summary.read_text())["ranks"][0] if self.summary.exists() else {}


@contextlib.contextmanager
def plain_and_default(model: str, cores: list[int]) -> Iterator[dict[str, Trainer]]:
    """Starts a trainer without the monitor and one with its default options, and kills them at the end."""
    base = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-bench-", dir="/dev/shm"))
    trainers: dict[str, Trainer] = {}
    try:
        trainers["plain"] = Trainer("plain", model, base, cores)
        trainers["default"] = Trainer("default", model, base, cores, ())
        yield trainers
    finally:
        for trainer in trainers.values():
            trainer.process.kill()
        shutil.rmtree(base, ignore_errors=True)


def interval(sets: list[list[float]], draws: int = 2000) -> tuple[float, float, float]:
    """The median of the sets' medians, and the ends of its 95 % bootstrap interval. Each of the `draws` samples chooses
    sets, and values in each chosen set, at random and with repetition."""
    chance = random.Random(1)

    def estimate(chosen: list[list[float]]) -> float:
        return statistics.median(statistics.median(rounds) for rounds in chosen)

    def draw(values: list) -> list:
        return chance.choices(values, k=len(values))

    drawn = sorted(estimate([draw(rounds) for rounds in draw(sets)]) for _ in range(draws))
    return estimate(sets), drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]
