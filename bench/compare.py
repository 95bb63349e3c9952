"""Measures `foreshock compare` on two checkpoints, relative to the time to read them (`cat` of both, from memory)."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "lab"))

import stored_tensors  # noqa: E402

BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release"))
REPETITIONS = 7
BOUND = 2.5  # printed: compare should take at most this many times as long as cat


def write_pair(directory: pathlib.Path, megabytes: int, encode, value_bytes: int) -> list[pathlib.Path]:
    """Writes a model of about `megabytes`, and the same model after a step of training; returns the two files. `encode`
    converts the values of a tensor to (dtype, shape, bytes); an encoded value has `value_bytes` bytes."""
    count = 1 << 25  # values of a tensor; all tensors of a model have the same values
    weights = np.random.default_rng(1).normal(0, 0.02, count).astype(np.float32)
    update = np.random.default_rng(2).normal(0, 1e-5, count).astype(np.float32)
    paths = []
    for name, values in (("a", weights), ("b", weights + update)):
        dtype, shape, data = encode(values)
        layers = max(1, (megabytes << 20) // (count * value_bytes))
        tensors = {f"layers.{i}.weight": (dtype, shape, data) for i in range(layers)}
        paths.append(stored_tensors.write(directory / f"{name}.safetensors", tensors))
    return paths


def timed(command: list[str]) -> tuple[float, float]:
    """Runs the command; returns its wall and CPU seconds."""
    before, start = os.times(), time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.monotonic() - start, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu


def measure(name: str, paths: list[pathlib.Path]) -> None:
    """Prints the shortest wall and CPU seconds of each command."""
    files = [str(path) for path in paths]
    # The two commands alternate, so that other work on the machine affects both. Each gives (wall, CPU) seconds.
    runs = [
        (timed(["cat", *files]), timed([str(BUILD / "bin" / "foreshock"), "compare", *files]))
        for _ in range(REPETITIONS)
    ]
    reading, comparing = (min(run[side][0] for run in runs) for side in (0, 1))
    reading_cpu, comparing_cpu = (min(run[side][1] for run in runs) for side in (0, 1))
    gigabytes = sum(path.stat().st_size for path in paths) / 1e9
    print(
        f"{name}: {gigabytes:.2f} GB, cat {reading:.3f} s, compare {comparing:.3f} s on {os.cpu_count()} cores = "
        f"{comparing / reading:.2f} times (bound {BOUND}); CPU {comparing_cpu:.3f} s = "
        f"{comparing_cpu / reading_cpu:.1f} times, {gigabytes / comparing_cpu:.2f} GB per second and core",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048, help="of each file")
    parser.add_argument("--directory", help="where the files are written; by default /dev/shm")
    options = parser.parse_args()
    for name, encode, value_bytes in (("bf16", stored_tensors.bf16, 2), ("fp32", stored_tensors.fp32, 4)):
        with tempfile.TemporaryDirectory(prefix="foreshock-bench-", dir=options.directory or "/dev/shm") as directory:
            measure(name, write_pair(pathlib.Path(directory), options.megabytes, encode, value_bytes))


if __name__ == "__main__":
    main()
