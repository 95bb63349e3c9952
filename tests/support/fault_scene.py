"""A trainer under a fault, plain and under `foreshock run`: the same result and end, no file, at most one line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
import statistics
import subprocess

import monitored
from segment_file import Segment, segments

EXITS = 7  # per kind and round
EXTRA_DELAY_US = 50_000  # what the monitor may add to the end of a trainer
RUN_ID = "fault"


@dataclasses.dataclass
class Outcome:
    """What one round of exits left; `delays` in microseconds from the trainer's last act to its death."""

    returncode: int
    stdout: str
    said: list[str]
    delays: list[int]
    statuses: list[int]
    summary: dict | None
    errors: str


def standard_error(values: list[int]) -> float:
    """Of the median, from the middle half of the values: 1.57 IQR / sqrt(n), as the notches of a box plot."""
    if len(values) < 2:
        return float("inf")
    low, _, high = statistics.quantiles(values, n=4)
    return 1.57 * (high - low) / len(values) ** 0.5


def lines_said(errors: str) -> list[str]:
    """The lines of the command line, but for the address of the page and the wait for an adapter."""
    lines = [line for line in errors.splitlines() if line.startswith("foreshock: ")]
    return [line for line in lines if ", page at " not in line and "preparing the adapter" not in line]


class Scene:
    """Where trainers run: programs, a base directory, a home, a working directory."""

    def __init__(self, programs: dict[str, str], base: pathlib.Path, folder: pathlib.Path) -> None:
        self.programs, self.base, self.folder = programs, base, folder
        self.home, self.cwd = folder / "home", folder / "cwd"
        for place in (self.home, self.cwd):
            place.mkdir()
        self.foreshock = str(monitored.FORESHOCK)
        self.rounds = 0

    def environment(self, **more: str) -> dict[str, str]:
        here = {"FORESHOCK_DIR": str(self.base), "HOME": str(self.home), "TMPDIR": str(self.home)}
        return monitored.clean_environment(**here) | more

    def run_line(self, *options: str) -> list[str]:
        line = [self.foreshock, "run", "--preload", "--run-id", RUN_ID, "--port", "0", *monitored.EVERYTHING]
        return [*line, "--summary", str(self.folder / f"summary{self.rounds}.json"), *options, "--"]

    def trainer_line(self, *arguments: str, exits: int = 1, before: tuple[str, ...] = ()) -> list[str]:
        """The trainer `exits` times one after the other, timed; each after `before`, which sets its scene."""
        return [self.programs["exit_timer"], str(exits), *before, self.programs["fault_trainer"], *arguments]

    def start(self, command: list[str], **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            command, env=self.environment(**environment), cwd=self.cwd, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def end(self, process: subprocess.Popen, read: str = "") -> Outcome:
        """Waits for it. `read` is what has been read of its output before."""
        out, errors = process.communicate(timeout=300)
        rows = re.findall(r"^exit_timer (-?\d+) (\d+)$", errors, re.MULTILINE)
        summary = self.folder / f"summary{self.rounds}.json"
        with contextlib.suppress(OSError, ValueError):
            summary = json.loads(summary.read_text())
        outcome = Outcome(
            process.returncode, re.sub(r"half of \d+\n", "", read + out), lines_said(errors),
            [int(delay) for delay, _ in rows if int(delay) >= 0], [int(status) for _, status in rows],
            summary if isinstance(summary, dict) else None, errors,
        )  # fmt: skip
        self.rounds += 1
        return outcome

    def plain(self, *arguments: str, before: tuple[str, ...] = (), **environment: str) -> Outcome:
        return self.end(self.start(self.trainer_line(*arguments, exits=EXITS, before=before), **environment))

    def monitored(
        self,
        *arguments: str,
        before: tuple[str, ...] = (),
        around: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
        **environment: str,
    ) -> Outcome:
        """`before` sets the scene for the trainer alone, `around` for `foreshock run` with all that it starts."""
        trainer = self.trainer_line(*arguments, exits=EXITS, before=before)
        command = [*around, *self.run_line(*options), *trainer]
        return self.end(self.start(command, **environment))

    # -- what is done to a trainer in its middle (DURING "wait") --

    def start_half_way(self, line: list[str], **environment: str) -> subprocess.Popen:
        """Starts `line`; returns when the trainer is half way and waits for go()."""
        self.go_file = self.folder / f"go{self.rounds}"
        process = self.start(line, GO=str(self.go_file), **environment)
        process.read = ""
        while not (found := re.search(r"half of (\d+)\n", process.read)):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            process.read += line
        process.trainer = int(found[1])
        return process

    def go_on(self, process: subprocess.Popen) -> Outcome:
        """Lets the trainer, and those that come after it, go on to their ends."""
        self.go_file.touch()
        return self.end(process, process.read)

    def waiting_line(self) -> list[str]:
        return self.trainer_line("40", "return", "wait", exits=EXITS)

    def plain_half_way(self) -> Outcome:
        return self.go_on(self.start_half_way(self.waiting_line()))

    def agent(self) -> int | None:
        """The pid of the agent; None while one starts or ends."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.base / RUN_ID / "agent.json").read_text())["pid"]
        return None

    def segments(self) -> list[Segment]:
        return segments(self.base / RUN_ID)

    def own_installation(self) -> pathlib.Path:
        """A copy of foreshock that may be damaged; used from now on."""
        root = self.folder / "installation"
        self.foreshock = str(monitored.copy_installation(root))
        return root

    def left_files(self) -> list[str]:
        kept = [path for place in (self.base, self.home, self.cwd) for path in place.rglob("*")]
        return [str(path) for path in kept if path != self.base / "lock"]


def assert_same_result(plain: Outcome, watched: Outcome) -> None:
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout), watched.errors
    assert watched.statuses == plain.statuses


def extra_delay(plain: list[int], watched: list[int]) -> tuple[float, float]:
    """Microseconds by which the median exit got longer, and three standard errors of that."""
    difference = statistics.median(watched) - statistics.median(plain)
    return difference, 3 * (standard_error(plain) ** 2 + standard_error(watched) ** 2) ** 0.5


def assert_conserved(summary: dict | None) -> None:
    assert summary is not None
    assert summary["ranks"]
    for rank in summary["ranks"]:
        monitored.assert_conserved(rank)
