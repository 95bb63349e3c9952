"""Trainings with --save-flagged, the files they leave, and `foreshock judge` on them."""

import dataclasses
import json
import pathlib
import subprocess

from forked import forked
from monitored import EVERYTHING, FORESHOCK, PYTHON, ROOT, Run, clean_environment, run_monitored

SCRIPT = str(ROOT / "tests" / "e2e" / "planted_training.py")


@dataclasses.dataclass
class Kept:
    """A run and the directory of its flagged slices."""

    run: Run
    folder: pathlib.Path

    def files(self, part: str = "") -> list[pathlib.Path]:
        return sorted(path for path in self.folder.glob("*.slice.safetensors") if part in path.name)


def train(folder: pathlib.Path, plant: str, *options: str, steps: int = 32, **environment: str) -> Kept:
    command = forked(SCRIPT, plant, "1", str(steps))
    run = run_monitored(command, *EVERYTHING, "--save-flagged", str(folder), *options, **environment)
    return Kept(run, folder)


def judge(*arguments: str | pathlib.Path) -> subprocess.CompletedProcess:
    command = [str(FORESHOCK), "judge", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=clean_environment()
    )  # fmt: skip


def rerun(*files: pathlib.Path) -> list[dict]:
    done = judge("--rerun", "--json", "--python", PYTHON, *files)
    assert done.returncode in (0, 1), done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == len(files)
    sound = ("repeats", "does_not_come_back", "another_result")
    assert done.returncode == (0 if all(report["verdict"] in sound for report in reports) else 1)
    return reports
