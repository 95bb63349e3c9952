"""Runs a training under the monitor, and extracts from its record (the JSON lines that the agent writes) the data that
scoring needs. A recipe (recipes.py) describes the training and its fault. A series is a list of (step, place, score) of
one detector, which warns at a score of 1. A place is a layer, a tensor, or "" for the whole model."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

import alarms
import provenance
import recipes
import scoring

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
FORESHOCK = BUILD / "bin" / "foreshock"
CACHE = os.environ.get("FORESHOCK_CACHE", str(ROOT / "build" / "adapters"))
LOSS_EVENTS = ("loss_spike", "divergence", "loss_rise")
# Names of the events that `foreshock detect` can find in a record; a "precursor" is a change of a detector's level.
FOUND_BY_DETECTORS = (*LOSS_EVENTS, "precursor", "nonfinite_gradient_norm", "resumed")
EVENT_FIELDS = ("rank", "step", "event", "layer", "value", "detector", "level", "score")
# Thresholds that are tried when one is learned, as multiples of the shipped threshold: GRID for detectors of foreshock,
# GRID_OF_OTHERS for published detection rules of other projects (alarms.py).
GRID, GRID_OF_OTHERS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0), (1.0, 2.0, 4.0)
# Runs a command at idle priority: only when no other process needs the processor.
IDLE = ("chrt", "--idle", "0", "nice", "-n", "19")


class RecordingError(Exception):
    """Ends the program with one line."""


# Without the caller's settings of foreshock, Weights & Biases and Slurm, which would change what the monitor does.
def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FORESHOCK", "WANDB", "SLURM"))}
    return kept | {"OMP_NUM_THREADS": "1", "FORESHOCK_CACHE": CACHE}


def record(what: recipes.Recipe, seed: int, steps: int, path: pathlib.Path, seconds: float, idle: bool) -> bool:
    """Trains under `foreshock run`, with a temporary FORESHOCK_DIR in shared memory. Writes the record to `path`, and
    its provenance to made_of(path). If the training takes longer than `seconds`, stops it and returns false."""
    part = path.with_suffix(".part")  # renamed to `path` when it is complete
    part.unlink(missing_ok=True)
    training = [sys.executable, str(provenance.HERE / "training.py"), what.name, str(seed), str(steps)]
    with tempfile.TemporaryDirectory(prefix="foreshock-precursors-", dir="/dev/shm") as base:
        name = f"{what.name}-{seed}"
        command = [str(FORESHOCK), "run", "--run-id", name, "--record", str(part), *provenance.MONITOR]
        process = subprocess.Popen(
            [*(IDLE if idle else ()), *command, "--", *training],
            env=environment() | {"FORESHOCK_DIR": base}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            problem = process.communicate(timeout=max(seconds, 0))[1]  # the text of stderr
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # `run` forwards it to the training
            process.communicate()
            part.unlink(missing_ok=True)
            return False
    if process.returncode != 0:
        raise RecordingError(f"{what.name} {seed} ended with {process.returncode}: {problem.strip()[-500:]}")
    if not part.exists():  # the training went on without the monitor
        raise RecordingError(f"{what.name} {seed} left no record: {problem.strip()[-500:]}")
    made_of(path).write_text(json.dumps(made_by(what, part)))
    part.rename(path)
    return True


def made_of(path: pathlib.Path) -> pathlib.Path:
    """The path of the file with the provenance of a record: versions, and hashes of the code that made it."""
    return path.with_suffix(".made.json")


def made_by(what: recipes.Recipe, path: pathlib.Path) -> dict:
    """The provenance of a record. `replays`: whether `foreshock detect` finds the same events in it as the agent."""
    version = subprocess.run([FORESHOCK, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    live = [tuple(line[key] for key in EVENT_FIELDS) for line in lines_of(path) if is_found_by_detectors(line)]
    replayed = [tuple(event[key] for key in EVENT_FIELDS) for event in detected(path)]
    return {
        "training": provenance.of_training(what), "judges": provenance.of_judges(), "foreshock": version,
        "torch": importlib.metadata.version("torch"),
        "live_events": len(live), "replays": live == replayed,
    }  # fmt: skip


def is_found_by_detectors(line: dict) -> bool:
    return line["type"] == "event" and line["event"] in FOUND_BY_DETECTORS


def lines_of(path: pathlib.Path) -> list[dict]:
    with path.open() as file:
        return [json.loads(text) for text in file]


def detected(path: pathlib.Path, *options: str) -> list[dict]:
    """The events that `foreshock detect` finds in a record."""
    command = [str(FORESHOCK), "detect", "--json", *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RecordingError(f"foreshock detect ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)["events"]


def readings(path: pathlib.Path) -> tuple[list[dict], dict[str, alarms.Series], dict[str, list[int]]]:
    """Runs `foreshock detect` on a record. Returns the events it finds, the series of each detector, and the steps at
    which each detector begins to warn: a place reaches level "warn" while no other place has this level."""
    with tempfile.TemporaryDirectory() as folder:
        scores = pathlib.Path(folder) / "scores.csv"
        events = detected(path, "--scores", str(scores))
        series: dict[str, alarms.Series] = {}
        warned: dict[str, list[int]] = {}
        warning: dict[str, set[str]] = {}  # by detector: the places at level "warn" after the rows read so far
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
    return events, series, warned


def finite(value: float | None) -> float:
    """A number of a record, in which null stands for NaN and infinities."""
    return math.nan if value is None else value


def means(losses: dict[int, float], last: int) -> list[float | None]:
    """The mean loss of each block of scoring.BLOCK consecutive steps, from step 1 on. A block that the last step
    (`last`) cuts off is left out. None: a loss of the block is missing or not finite."""
    blocks = [[losses.get(s, math.nan) for s in range(b, b + scoring.BLOCK)] for b in range(1, last + 1, scoring.BLOCK)]
    whole = [of for n, of in enumerate(blocks) if (n + 1) * scoring.BLOCK <= last]
    # Five digits, since the means are stored as text.
    return [float(f"{statistics.fmean(of):.5g}") if all(map(math.isfinite, of)) else None for of in whole]


def found_alarms(path: pathlib.Path, ours: dict[str, alarms.Series], others: dict[str, alarms.Series]) -> dict:
    """The steps of alarms, by name and by threshold as text ("1.0"). A name is that of a detector (`ours`) or of a rule
    of another project (`others`). Thresholds without alarms are left out."""
    found = {
        name: {str(at): [step for step, _ in alarms.alarms(of, at)] for at in grid}
        for series, grid in ((ours, GRID), (others, GRID_OF_OTHERS))
        for name, of in series.items()
    }
    return {name: {at: steps for at, steps in by.items() if steps} for name, by in found.items()}


def reduced(path: pathlib.Path, what: recipes.Recipe, seed: int, made: dict) -> dict:
    """Extracts the data of a record that scoring and the page of results need. Checks that the alarms computed from the
    scores are those of the detectors' levels. `made`: the provenance. In the result, `onsets` are the steps at which
    loss events begin, and `masked` the steps after them that are not scored (scoring.masks()). `places` has the alarms
    of the detectors whose places are all attention layers. `losses` is the result of means()."""
    lines = lines_of(path)
    steps = [line for line in lines if line["type"] == "step"]
    if not steps:
        raise RecordingError(f"{path}: no step in it")
    losses = {line["step"]: finite(line["loss"]) for line in steps}
    staleness = [(o["step"], o["tensor"], finite(o["rms_staleness"])) for o in lines if o["type"] == "optimizer"]
    events, series, warned = readings(path)
    norms = [finite(line["gradient_norm"]) for line in steps]
    found = found_alarms(path, series, alarms.of_others(list(losses), list(losses.values()), norms, staleness))
    for name, begun in warned.items():
        if begun != found[name].get("1.0", []):
            raise RecordingError(f"{path}: {name} warned at {begun} by its levels, not so by its scores")
    last = max(losses)
    onsets, masked = scoring.masks(losses, [e["step"] for e in events if e["event"] in LOSS_EVENTS], last)
    of_layers = {line["layer"] for line in lines if line["type"] == "sample"}
    places = {name: alarms.alarms(of, 1.0) for name, of in series.items() if {place for _, place, _ in of} <= of_layers}
    sampled = {kind: sum(line["type"] == kind for line in lines) for kind in ("sample", "tensor", "optimizer")}
    return {
        "recipe": what.name, "seed": seed, "last_step": last, "steps_seen": len(losses), "lines": sampled,
        "layers": sorted(of_layers), "made": made | {"detectors": provenance.of_detectors()},
        "events": [[e["step"], e["event"]] for e in events if e["event"] in LOSS_EVENTS],
        "onsets": onsets, "masked": masked, "alarms": found,
        "places": {name: of for name, of in places.items() if of}, "losses": means(losses, last),
    }  # fmt: skip
