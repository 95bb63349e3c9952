"""A training under the monitor, and what its record says to the scorer."""

from __future__ import annotations

import csv
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import alarms
import recipes
import scoring

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
FORESHOCK = BUILD / "bin" / "foreshock"
CACHE = os.environ.get("FORESHOCK_CACHE", str(ROOT / "build" / "adapters"))
MONITOR = ("--port", "0", "--every", "4", "--weights", "8", "--max-slowdown", "100%")
LOSS_EVENTS = ("loss_spike", "divergence", "loss_rise")
# Thresholds that are tried where one is learned, as multiples of what ships; the null's are steps.
GRID = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
NULL = "step index"


class RecordingError(Exception):
    """Ends the program with one line."""


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FORESHOCK", "WANDB", "SLURM"))}
    return kept | {"OMP_NUM_THREADS": "1", "FORESHOCK_CACHE": CACHE}


def record(
    what: recipes.Recipe, arm: str, seed: int, steps: int, path: pathlib.Path, seconds: float, nice: int
) -> bool:
    """Trains under `foreshock run` and leaves the record at `path`; false if there was no time for it. It has a
    directory of its own in shared memory."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    training = [sys.executable, str(ROOT / "bench" / "precursors" / "training.py"), what.name, arm, str(seed)]
    with tempfile.TemporaryDirectory(prefix="foreshock-precursors-", dir="/dev/shm") as base:
        command = [str(FORESHOCK), "run", "--run-id", f"{what.name}-{arm}-{seed}", "--record", str(part), *MONITOR]
        process = subprocess.Popen(
            ["nice", "-n", str(nice), *command, "--", *training, str(steps)],
            env=environment() | {"FORESHOCK_DIR": base}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            problem = process.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # which `run` passes on
            process.communicate()
            part.unlink(missing_ok=True)
            return False
    if process.returncode != 0:
        raise RecordingError(f"{what.name} {arm} {seed} ended with {process.returncode}: {problem.strip()[-500:]}")
    part.rename(path)
    return True


def readings(path: pathlib.Path) -> tuple[list[dict], dict[str, alarms.Series], dict[str, list[int]]]:
    """What `foreshock detect` makes of a record: its events; scores of each detector; and the steps at which each began
    to warn by its levels."""
    with tempfile.TemporaryDirectory() as folder:
        scores = pathlib.Path(folder) / "scores.csv"
        command = [str(FORESHOCK), "detect", "--json", "--scores", str(scores), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RecordingError(f"foreshock detect ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        series: dict[str, alarms.Series] = {}
        warned: dict[str, list[int]] = {}
        warning: dict[str, set[str]] = {}
        with scores.open(newline="") as lines:
            for row in csv.DictReader(lines):
                name, place, step = row["detector"], row["place"], int(row["step"])
                series.setdefault(name, []).append((step, place, float(row["score"])))
                now, begun = warning.setdefault(name, set()), warned.setdefault(name, [])
                if row["level"] == "warn":
                    if not now:
                        begun.append(step)
                    now.add(place)
                else:
                    now.discard(place)
    return json.loads(done.stdout)["events"], series, warned


def finite(value: float | None) -> float:
    return math.nan if value is None else value


def reduced(path: pathlib.Path, what: recipes.Recipe, arm: str, seed: int) -> dict:
    """All that scoring and the page need of a record."""
    with path.open() as file:
        lines = [json.loads(text) for text in file]
    steps = [line for line in lines if line["type"] == "step"]
    if not steps:
        raise RecordingError(f"{path}: no step in it")
    losses = {line["step"]: finite(line["loss"]) for line in steps}
    staleness = [(o["step"], o["tensor"], finite(o["rms_staleness"])) for o in lines if o["type"] == "optimizer"]
    events, series, warned = readings(path)
    series |= alarms.of_others(
        list(losses), list(losses.values()), [finite(line["gradient_norm"]) for line in steps], staleness
    )
    last = max(losses)
    onsets, masked = scoring.masks(losses, [e["step"] for e in events if e["event"] in LOSS_EVENTS], last)
    found = {name: {str(at): alarms.alarms(of, at) for at in GRID} for name, of in series.items()}
    for name, begun in warned.items():
        if begun != found[name]["1.0"]:
            raise RecordingError(f"{path}: {name} warned at {begun} by its levels, at {found[name]['1.0']} by scores")
    found[NULL] = {str(step): [step] if step <= last else [] for step in range(scoring.FIRST_STEP, what.steps, 40)}
    sampled = {kind: sum(line["type"] == kind for line in lines) for kind in ("sample", "tensor", "optimizer")}
    return {
        "recipe": what.name, "arm": arm, "seed": seed, "last_step": last, "steps_seen": len(losses), "lines": sampled,
        "events": [[e["step"], e["event"]] for e in events if e["event"] in LOSS_EVENTS],
        "onsets": onsets, "masked": masked, "alarms": found, "losses": [list(losses), list(losses.values())],
    }  # fmt: skip
