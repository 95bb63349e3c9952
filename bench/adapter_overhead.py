"""Measures the time that the PyTorch adapter adds to an unsampled attention call, and to calls of other operations.

    python bench/adapter_overhead.py [--library LIB] [--cache DIR] [--rounds 200]

Two processes run this file: a plain one, and one with libforeshock.so preloaded and the adapter loaded. The adapter
passes PyTorch's attention calls to libforeshock.so. The processes take turns of a few milliseconds of calls; a round is
one turn of each. Prints the median time per call over the rounds for both processes, and the median of their difference
with its 95 % bounds (order statistics of the rounds). The aim is at most +0.6 us for an attention call.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
CACHE = os.environ.get("FORESHOCK_CACHE", str(ROOT / "build" / "adapters"))
NAMES = (
    "attention op", "scaled_dot_product_attention", "ones_like", ".item() on the CPU", "detach", "clamp_",
    "add (not hooked)",
)  # fmt: skip
TARGET_US = 0.6  # the aim above, in microseconds
TURN_SECONDS = 0.004


def workloads() -> dict:
    """The calls that are timed, by NAMES. The adapter hooks the operation, or one that it calls, in all but add."""
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 2, 8) for _ in range(3))  # as small as possible, so that nearly all time is dispatch
    x, scalar = torch.randn(4), torch.tensor(1.0)
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {
        "attention op": lambda: op(q, k, v),
        "scaled_dot_product_attention": lambda: sdpa(q, k, v),
        "ones_like": lambda: torch.ones_like(scalar),
        ".item() on the CPU": scalar.item,
        "detach": x.detach,
        "clamp_": lambda: x.clamp_(max=1.0),
        "add (not hooked)": lambda: torch.add(x, x),
    }


def serve(adapter: str) -> None:
    """Reads the name of a workload from each line of stdin, and prints the microseconds per call of one turn."""
    import ctypes

    import torch

    torch.set_num_threads(1)
    if adapter:
        hooked_operations = ctypes.CDLL(adapter).foreshock_adapter_start()
        assert hooked_operations > 0
        fake = getattr(ctypes.CDLL(None), "fake_sample", None)
        if fake:  # a test of this bench preloads a fake monitor, which must neither sample nor record here
            fake(0)
            ctypes.CDLL(None).fake_record(0)
    calls = workloads()
    repeats = dict.fromkeys(calls, 100)  # calls per turn; changes so that a turn lasts TURN_SECONDS
    for line in sys.stdin:
        work, count = calls[line.strip()], repeats[line.strip()]
        with torch.no_grad():
            begin = time.perf_counter()
            for _ in range(count):
                work()
            seconds = time.perf_counter() - begin
        repeats[line.strip()] = max(10, int(count * TURN_SECONDS / seconds))
        print(seconds / count * 1e6, flush=True)


class Child:
    """One of the two processes. An empty `adapter` makes it the plain one."""

    def __init__(self, adapter: str, library: str) -> None:
        # Without the caller's settings of the monitor, which could change what is measured.
        env = {k: v for k, v in os.environ.items() if not k.startswith("FORESHOCK")}
        env |= {"LD_PRELOAD": library} if adapter else {}
        command = [sys.executable, __file__, "--serve", adapter]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, bufsize=1
        )

    def turn(self, name: str) -> float:
        """Runs one turn of the workload `name`. Returns microseconds per call."""
        self.process.stdin.write(name + "\n")
        return float(self.process.stdout.readline())


def median_bounds(values: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval, from the binomial distribution of the number of rounds below the median."""
    ranked = sorted(values)
    # 1.96 standard deviations of Binomial(n, 1/2), each of sqrt(n) / 2, are 0.98 sqrt(n); one more round is added.
    reach = math.ceil(0.98 * math.sqrt(len(ranked))) + 1
    middle = len(ranked) // 2
    return statistics.median(ranked), ranked[max(0, middle - reach)], ranked[min(len(ranked) - 1, middle + reach)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the PyTorch adapter per call.")
    parser.add_argument("--library", default=str(BUILD / "lib" / "libforeshock.so"))
    parser.add_argument("--cache", default=CACHE, help="directory of built adapters")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve)
        return
    builder = [sys.executable, str(ROOT / "integrations" / "torch" / "build_adapter.py"), "--cache", arguments.cache]
    builder += ["--library", arguments.library, "--include", str(ROOT / "libmonitor" / "include")]
    answer = json.loads(subprocess.run(builder, check=True, capture_output=True, text=True).stdout)
    if not answer["path"]:
        sys.exit(f"no adapter: {answer['reason']}")
    children = [Child("", ""), Child(answer["path"], os.path.abspath(arguments.library))]
    worst = 0.0  # largest upper bound of the attention calls
    for name in NAMES:
        for child in children * 3:  # three turns to warm up, in which serve() adapts the number of calls per turn
            child.turn(name)
        rounds = [[child.turn(name) for child in children] for _ in range(arguments.rounds)]
        plain, hooked = (statistics.median(column) for column in zip(*rounds, strict=True))
        added, low, high = median_bounds([with_adapter - without for without, with_adapter in rounds])
        print(f"{name:30s} {plain:7.2f} -> {hooked:7.2f} us   added {added:+.3f} us [{low:+.3f}, {high:+.3f}]")
        worst = max(worst, high) if "attention" in name else worst
    verdict = "met" if worst <= TARGET_US else "missed"
    print(f"attention calls: at most {worst:+.3f} us, target {TARGET_US:+.1f} us: {verdict}")
    for child in children:
        child.process.stdin.close()
        child.process.wait()


if __name__ == "__main__":
    main()
