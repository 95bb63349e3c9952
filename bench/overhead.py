"""What the monitor costs a training.

    python bench/overhead.py [--windows 200] [--rounds 200]

Two measurements of the same small GPT, on all cores:

default budget  One process under `foreshock run` with default options. Windows with the monitor on and off take turns,
                each as long as the sampling interval, so that every window with it on holds exactly one sampled step;
                the switch is the one that `foreshock pause` and `resume` store. Before a window is timed the agent has
                judged what the window before left. The agent's work is part of the windows: it shares the cores.
unsampled       A plain process and one under `foreshock run` that never samples take turns of a few steps; what
                differs is the preloaded library, the adapter and the helper.

Printed: the median over pairs of neighbouring windows of time with / time without - 1, and its upper 95 % bound (order
statistics of the pairs, no distribution assumed). Aims (DESIGN): at most 1.2 % and 0.5 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
AIM_DEFAULT, AIM_UNSAMPLED = 0.012, 0.005
SETTLE_SECONDS = 15  # for the agent to choose the interval
TURN_STEPS = 4
# Words of the control file, segment/layout.h: struct Control.
COMMAND_SWITCH_OFFSET, INTERVAL_OFFSET = 16, 32


def upper_bound(values: list[float]) -> float:
    """Upper end of the 95 % interval of the median: the order statistic at n/2 + 0.98 sqrt(n)."""
    place = math.ceil(len(values) / 2 + 0.98 * math.sqrt(len(values)))
    return sorted(values)[min(place, len(values) - 1)]


def training() -> Iterator[float]:
    """Trains for ever; yields the seconds each step took."""
    sys.path.insert(0, str(ROOT / "integrations" / "torch" / "demo"))
    import torch
    import train

    text, autocast, size = train.Text(1), train.native_bf16(), train.SIZES[1]
    model = train.Gpt(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [text.batch(size) for _ in range(8)]
    step = 0
    while True:
        begin = time.perf_counter()
        optimizer.zero_grad()
        train.loss_of(model, batches[step % len(batches)], autocast).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        yield time.perf_counter() - begin


def control_file() -> int:
    directory = pathlib.Path(os.environ["FORESHOCK_DIR"]) / os.environ["FORESHOCK_RUN_ID"]
    return os.open(next(directory.glob("*.ctl")), os.O_RDWR)


def serve_windows(windows: int) -> None:
    """Inside the monitored trainer: the windows, printed as JSON [[on, off], ...]."""
    steps = training()
    until = time.monotonic() + SETTLE_SECONDS
    done = 0
    while time.monotonic() < until:
        next(steps)
        done += 1
    control = control_file()

    def interval() -> int:
        return max(8, struct.unpack("<Q", os.pread(control, 8, INTERVAL_OFFSET))[0])

    pairs = []
    for window in range(windows):
        n = interval()
        while (done + 1) % n:  # the next step is number done + 1: the first of a window is the sampled one
            next(steps)
            done += 1
        pair = {}
        for on in (True, False) if window % 2 else (False, True):
            os.pwrite(control, struct.pack("<I", on), COMMAND_SWITCH_OFFSET)
            time.sleep(0.1)  # drained, and the processor as idle before either
            pair[on] = sum(next(steps) for _ in range(n))
            done += n
        pairs.append([pair[True], pair[False]])
    print(json.dumps({"interval": interval(), "pairs": pairs}), flush=True)


def serve_turns() -> None:
    """Answers every line on stdin with the seconds of a turn of steps."""
    steps = training()
    for _ in range(10):
        next(steps)
    for _ in sys.stdin:
        print(sum(next(steps) for _ in range(TURN_STEPS)), flush=True)


def command(base: str, *options: str) -> tuple[list[str], dict[str, str]]:
    environment = os.environ | {"FORESHOCK_DIR": base, "FORESHOCK_CACHE": str(ROOT / "build" / "adapters")}
    return [str(BUILD / "bin" / "foreshock"), "run", "--port", "0", *options, "--"], environment


def report(what: str, ratios: list[float], aim: float) -> None:
    median, bound = statistics.median(ratios), upper_bound(ratios)
    verdict = "met" if bound <= aim else "missed"
    print(
        f"{what:<16} median {median:+.2%}   upper 95 % bound {bound:+.2%}   aim {aim:.1%}: {verdict}"
        f"   ({len(ratios)} pairs)",
        flush=True,
    )


def measure_default(base: str, windows: int) -> None:
    line, environment = command(base)
    line += [sys.executable, __file__, "--serve-windows", str(windows)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"sampling interval settled at {result['interval']} steps")
    report("default budget", [on / off - 1 for on, off in result["pairs"]], AIM_DEFAULT)
    print(done.stderr.strip())


def measure_unsampled(base: str, rounds: int) -> None:
    line, environment = command(base, "--every", str(1 << 40))
    serve = [sys.executable, __file__, "--serve-turns"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    plain = subprocess.Popen(serve, **pipes)
    watched = subprocess.Popen(line + serve, env=environment, stderr=subprocess.DEVNULL, **pipes)

    def turn(process: subprocess.Popen) -> float:
        process.stdin.write("\n")
        return float(process.stdout.readline())

    ratios = []
    for number in range(rounds + 3):
        order = (plain, watched) if number % 2 else (watched, plain)
        taken = {process: turn(process) for process in order}
        if number >= 3:  # the first turns warm up
            ratios.append(taken[watched] / taken[plain] - 1)
    for process in (plain, watched):
        process.stdin.close()
        process.wait()
    report("unsampled", ratios, AIM_UNSAMPLED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=200, help="pairs of windows, default budget (0: leave out)")
    parser.add_argument("--rounds", type=int, default=200, help="pairs of turns, unsampled (0: leave out)")
    parser.add_argument("--serve-windows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve-turns", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_windows:
        return serve_windows(arguments.serve_windows)
    if arguments.serve_turns:
        return serve_turns()
    base = tempfile.mkdtemp(prefix="foreshock-bench-", dir="/dev/shm")
    try:
        if arguments.windows:
            measure_default(base, arguments.windows)
        if arguments.rounds:
            measure_unsampled(base, arguments.rounds)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return None


if __name__ == "__main__":
    main()
