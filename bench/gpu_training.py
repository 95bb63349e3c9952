"""Measures how much the monitor slows down a training on a CUDA device.

    python bench/gpu_training.py [--windows 100] [--steps 32] [--device cuda]

Runs one training under `foreshock run` with default options. `foreshock pause` pauses the monitor in every other window
of --steps steps. The device is idle when a window begins and ends. Each pair of windows gives a slowdown: time with the
monitor / time without - 1. Prints the median over the pairs with its 95 % bounds (goal: at most 1 %), the slowdown that
the monitor reports, and the number of checked attention calls. `--device cpu` only tests that the bench runs.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from adapter_overhead import median_bounds

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
RUN_ID = "gpu-training"
WARM_UP = 64  # steps until the monitor has chosen the sampling interval and set up the device


def train(device: str, windows: int, steps: int) -> None:
    """The training, in a process of its own (--train). Pauses its monitor, measures windows, prints the slowdown."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import torch
    from tiny_gpt import Batches, TinyGpt, loss_of

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # TF32, as usual for trainings on CUDA devices
    on_device = device != "cpu"
    model = TinyGpt(*((12, 1024, 16) if on_device else (2, 32, 4))).to(device)  # layers, width, heads
    batches = Batches(batch=8 if on_device else 2, length=1024 if on_device else 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def seconds_of(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):  # steps
            loss_of(model, batches().to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
        if on_device:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    seconds_of(WARM_UP)
    slowdowns = []
    for _ in range(windows // 2):
        times = {}
        for command in ("pause", "resume"):
            subprocess.run([BUILD / "bin" / "foreshock", command, "--run-id", RUN_ID], check=True, capture_output=True)
            seconds_of(1)  # not measured: pause and resume take effect at the next step
            times[command] = seconds_of(steps)
        slowdowns.append(times["resume"] / times["pause"] - 1)
    median, low, high = median_bounds(slowdowns)
    pairs = f"{len(slowdowns)} pairs of {steps} steps"
    print(f"with / without: {median:+.3%} [{low:+.3%}, {high:+.3%}] of {pairs}", flush=True)


def missing_device() -> str:
    """The reason why no CUDA device can be used; "" if one can."""
    try:
        import torch
    except ImportError:
        return "no torch"
    return "" if torch.cuda.is_available() else "torch sees none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.device, options.windows, options.steps)
        return 0
    if options.device != "cpu" and (missing := missing_device()):
        print(f"nothing was measured: no device: {missing}")
        return 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base, tempfile.TemporaryDirectory() as scratch:
        summary = pathlib.Path(scratch) / "summary.json"
        words = ["--windows", options.windows, "--steps", options.steps, "--device", options.device]
        command = [BUILD / "bin" / "foreshock", "run", "--run-id", RUN_ID, "--port", 0, "--summary", summary, "--"]
        command += [sys.executable, __file__, "--train", *words]
        environment = os.environ | {"FORESHOCK_DIR": base}
        status = subprocess.run([str(word) for word in command], env=environment, check=False).returncode
        if status == 0:
            (rank,) = json.loads(summary.read_text())["ranks"]
            forward = rank["attention"]["forward"]
            checked = f"checked {forward['judged']} of {forward['calls']} forward calls"
            print(f"the monitor reports {rank['slowdown_ratio']:.3%}; {checked}")
    return status


if __name__ == "__main__":
    sys.exit(main())
