"""Checks whether anything grows in a long training: 10^6 steps through the C ABI, and 10^4 restarts, in minutes.

    python bench/soak.py [--short] [--steps 1000000] [--restarts 10000] [--json FILE]

A trainer without a framework (soak.cpp) runs under `foreshock run --record`. Every eighth step is sampled, and up to
10^5 names of layers and of scalars are used, one after the other. In a second run, the trainer is a chain of short
processes, each a restart of the one before. The trainer pauses after each part, a tenth of its run. In each pause the
trainer, the agent, the run directory, the HTTP pages and the record are measured. Prints for each quantity its value at
the start (after three parts, when all tables are full) and at the end, its growth per 10^5 steps or 10^3 restarts, and
the growth that BOUNDS or RESTART_BOUNDS allow. A quantity without a bound must not grow. Exits with 1 if a quantity
grows by more than is allowed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
PARTS, WARM_UP = 10, 3  # parts of a run; growth is measured from the end of part WARM_UP on
RATE = 4000  # steps per second: slow enough for an agent on a busy core
SETTLE_SECONDS = 4.0  # after this time the agent has published the end of a process


class Bound(NamedTuple):
    """The growth allowed between the warm-up and the end of a run: once + each x (number of steps or restarts)."""

    once: float
    each: float = 0
    why: str = ""  # the reason why it may grow


KIB, MIB = 1024, 1024**2
RECORD_SIZE = 64 * MIB
# The agent keeps the statistics of this many ended processes (kMostReplaced in agent/run.cpp), 80 KiB each.
KEPT_PROCESSES = 256
# A segment is the shared file of a trainer process, with a second file for control. At most this many segments of
# ended processes exist at a time.
ENDED_SEGMENTS = 64
BOUNDS = {  # in bytes or a number; "files" are those in the run directory
    "files": Bound(2, why="the spool (the last lines of the record) and its marker come and go"),
    "trainer RSS": Bound(256 * KIB, why="pages that are touched for the first time"),
    "agent RSS": Bound(3 * MIB, why="free lists of malloc"),
    "run directory": Bound(512 * KIB, why="the saved state, whose detectors fill their windows"),
    "agent.log": Bound(512 * KIB, why="rotated at 256 KiB, one older part"),
    "/metrics": Bound(2 * KIB, why="digits of numbers"),
    "/api/v1/state": Bound(16 * KIB, why="digits, and events of which 64 are kept"),
    "record": Bound(RECORD_SIZE, why="--record-size"),
}
RESTART_BOUNDS = BOUNDS | {
    "segments": Bound(128 * MIB, why="segments stay for two seconds after a process ended, longer on a busy machine"),
    "files": Bound(2 + 2 * ENDED_SEGMENTS, why="two for each of the segments of ended processes"),
    "agent descriptors": Bound(2 * ENDED_SEGMENTS, why="two for each of the segments of ended processes"),
    "agent RSS": Bound(8 * MIB, why="free lists of malloc"),
    "/api/v1/state": Bound(64 * KIB, why="the last processes of each rank"),
}


def anonymous_bytes(pid: int) -> int:
    """Anonymous memory in bytes; excludes the segment, which is shared memory of fixed size."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * KIB for line in status.splitlines() if line.startswith("RssAnon:"))


def count_entries(folder: str) -> int:
    return len(os.listdir(folder))


def page_bytes(address: str, port: int, path: str) -> int:
    with urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=30) as answer:
        return len(answer.read())


def total_bytes(paths: list[pathlib.Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


class Soak:
    """One run of the trainer under `foreshock run`, and its measurements."""

    def __init__(self, scratch: pathlib.Path, base: pathlib.Path, *command: str) -> None:
        self.directory, self.record = base / "soak", scratch / "record.jsonl"
        self.summary = scratch / "summary.json"
        words = [str(BUILD / "bin" / "foreshock"), "run", "--preload", "--run-id", "soak", "--port", "0"]
        words += ["--every", "8", "--max-slowdown", "100%"]
        words += ["--record", str(self.record), "--record-size", str(RECORD_SIZE), "--summary", str(self.summary)]
        words += ["--", str(BUILD / "bin" / "bench_soak"), *command]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FORESHOCK")}
        self.process = subprocess.Popen(
            words, env=kept | {"FORESHOCK_DIR": str(base)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def measure(self, with_trainer: bool) -> tuple[int, dict[str, int]] | None:
        """Waits for the end of the next part and measures. Returns the number of steps or restarts so far, and every
        quantity by its name; None if the run has ended. `with_trainer`: the trainer process itself is measured too."""
        line = self.process.stdout.readline()  # "PID DONE"
        if not line:
            return None
        pid, done = map(int, line.split())
        time.sleep(SETTLE_SECONDS)
        agent = json.loads((self.directory / "agent.json").read_text())
        files = list(self.directory.iterdir())
        quantities = {}
        if with_trainer:
            quantities |= {
                "trainer RSS": anonymous_bytes(pid),
                "trainer descriptors": count_entries(f"/proc/{pid}/fd"),
                "trainer threads": count_entries(f"/proc/{pid}/task"),
            }
        quantities |= {
            "agent RSS": anonymous_bytes(agent["pid"]),
            "agent descriptors": count_entries(f"/proc/{agent['pid']}/fd"),
            "agent threads": count_entries(f"/proc/{agent['pid']}/task"),
            "files": len(files),
            "run directory": total_bytes([path for path in files if path.suffix not in (".seg", ".ctl", ".log")]),
            "segments": total_bytes([path for path in files if path.suffix in (".seg", ".ctl")]),
            "agent.log": total_bytes([path for path in files if path.name.startswith("agent.log")]),
            "/metrics": page_bytes(agent["address"], agent["port"], "/metrics"),
            "/api/v1/state": page_bytes(agent["address"], agent["port"], "/api/v1/state"),
            "record": total_bytes([self.record, self.record.with_name(self.record.name + ".1")]),
        }
        self.process.stdin.write("\n")  # ends the trainer's pause
        self.process.stdin.flush()
        return done, quantities

    def end(self) -> dict:
        _, errors = self.process.communicate(timeout=120)
        if self.process.returncode != 0 or not self.summary.exists():
            sys.exit(f"the training did not end well ({self.process.returncode}):\n{errors}")
        return json.loads(self.summary.read_text())


def growth_rows(measured: list[tuple[int, dict[str, int]]], bounds: dict[str, Bound], per: int) -> list[dict]:
    """One row for each quantity. `measured`: the results of Soak.measure() after each part. `per`: number of steps or
    restarts to which the printed growth is scaled; "ok" compares the unscaled growth."""
    (first, start), (last, end) = measured[WARM_UP - 1], measured[-1]
    rows = []
    for name, value in end.items():
        bound = bounds.get(name, Bound(0))
        growth, allowed = value - start[name], bound.once + bound.each * (last - first)
        rows.append(
            {"what": name, "start": start[name], "end": value, "growth": growth * per / (last - first),
             "allowed": allowed * per / (last - first), "ok": growth <= allowed}
        )  # fmt: skip
    return rows


def show(title: str, unit: str, rows: list[dict]) -> None:
    print(f"{title}\n{'':22}{'start':>14}{'end':>14}{'growth':>14}{'allowed':>14}  {unit}")
    for row in rows:
        numbers = "".join(f"{row[key]:14,.0f}" for key in ("start", "end", "growth", "allowed"))
        print(f"{row['what']:22}{numbers}  {'' if row['ok'] else 'GROWS'}")


def soak(kind: str, count: int, per: int, bounds: dict[str, Bound]) -> list[dict]:
    """Runs and judges `count` "steps" or "restarts" (`kind`). Prints and returns the rows of growth_rows()."""
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-soak-"))
    base = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-soak-", dir="/dev/shm"))
    try:
        rate = [str(RATE)] if kind == "steps" else []
        run = Soak(scratch, base, kind, str(count), str(PARTS), *rate)
        measured = []
        # With restarts, the waiting process is the one that starts the trainers. That process is not measured.
        while (part := run.measure(kind == "steps")) is not None:
            measured.append(part)
        summary = run.end()
        if len(measured) != PARTS:
            sys.exit(f"{len(measured)} of {PARTS} parts ran")
        rows = growth_rows(measured, bounds, per)
        size = len(json.dumps(summary))
        # The summary exists only at the end, so that only its size can be checked, not its growth.
        rows.append({"what": "summary", "start": 0, "end": size, "growth": 0, "allowed": 0, "ok": size < MIB})
        show(f"{count:,} {kind}", f"bytes or a number; growth for each {per:,} {kind}", rows)
        return rows
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(base, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="40,000 steps and 1,500 restarts")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--restarts", type=int, default=10_000)
    parser.add_argument("--json", type=pathlib.Path, help="write the rows there")
    options = parser.parse_args()
    if options.short:
        options.steps, options.restarts = 40_000, 1500
    # Growth is measured after WARM_UP parts. By then the agent's table of ended processes must be full.
    if 0 < options.restarts * WARM_UP // PARTS < KEPT_PROCESSES:
        least = -(-KEPT_PROCESSES * PARTS // WARM_UP)  # rounded up
        parser.error(f"--restarts must be 0 or at least {least}, to fill the table of processes")
    rows = {}
    if options.steps:
        rows["steps"] = soak("steps", options.steps, 100_000, BOUNDS)
    if options.restarts:
        rows["restarts"] = soak("restarts", options.restarts, 1000, RESTART_BOUNDS)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    grows = [row["what"] for each in rows.values() for row in each if not row["ok"]]
    print(f"soak: {'grows: ' + ', '.join(grows) if grows else 'nothing grows'}")
    return 1 if grows else 0


if __name__ == "__main__":
    sys.exit(main())
