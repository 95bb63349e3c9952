"""A training on a CUDA device, alone and watched. What needs a device is skipped where there is none, saying so; `cpu`
runs the same on the host, so that what is wrong with the tests themselves is found there."""

from __future__ import annotations

import functools
import pathlib
import subprocess

import pytest
from monitored import EVERYTHING, PYTHON, Run, assert_conserved, run_monitored, run_plain
from tiers import keep

TRAINING = str(pathlib.Path(__file__).with_name("cuda_training.py"))
STEPS, LAYERS = 16, 3
BACKENDS = ["cpu", "flash", "efficient", "cudnn"]
OPERATION = {"cpu": "flash_attention_for_cpu"}  # others: their own name

# Scores of 64 products in bf16, which are exact in fp32, and their sum, of a few units: 64 * 2^-24 * 8 is 2^-15; the
# exponential and the logarithm of devices err by 2^-22. A wrong base, scale or mask moves a sum by far more.
SUMS = 2**-12
# Beside the ring of 64 MiB and the 16 MiB that results of weights wait in: what a context takes for code and some
# streams comes in blocks of 2 MiB.
BESIDE = (64 + 16 + 32) << 20


@functools.cache
def missing_device() -> str:
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '', end='')"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 and done.stdout else "torch sees none"


def command(backend: str, how: str) -> list[str]:
    if backend != "cpu" and missing_device():
        pytest.skip(f"no device: {missing_device()}")
    return [PYTHON, TRAINING, backend, how, str(STEPS)]


def told(run: Run) -> dict:
    (facts,) = run.told()
    return facts


@functools.cache
def plain(backend: str, how: str) -> dict:
    """Of a training that gives the same bits when it is repeated."""
    first, again = (told(run_plain(command(backend, how))) for _ in range(2))
    if first["digest"] != again["digest"]:
        pytest.skip(f"{backend}, {how}: two trainings without the monitor differ")
    return first


@functools.cache
def watched(backend: str, how: str, *options: str) -> Run:
    run = run_monitored(command(backend, how), *EVERYTHING, *options)
    assert run.returncode == 0, run.stderr
    assert_conserved(run.rank())
    return run


@pytest.mark.parametrize("backend", keep(BACKENDS, *BACKENDS[1:]))
def test_the_training_is_what_it_was(backend: str) -> None:
    alone, facts = plain(backend, "eager"), told(watched(backend, "eager"))
    assert facts["digest"] == alone["digest"]
    if backend != "cpu":
        assert facts["peak"] == alone["peak"], "of the framework's allocator"
        assert facts["beside"] - alone["beside"] <= BESIDE


@pytest.mark.parametrize("backend", BACKENDS)
def test_its_attention_is_judged(backend: str) -> None:
    run = watched(backend, "eager")
    samples, operation = run.of("sample"), OPERATION.get(backend, backend + "_attention")
    for which, suffix, alarm in (("forward", "", 2), ("backward", "_backward", 3)):
        of = run.rank()["attention"][which]
        assert of["calls"] == STEPS * LAYERS
        # In the first steps the trainer is met and its device set up.
        assert of["judged"] >= (STEPS - 4) * LAYERS, of
        assert {reason for reason, count in of["skipped"].items() if count} <= {"off", "ring_full", "set_up"}
        assert of["deviation_ratio"]["mean"] < alarm
        mine = [sample for sample in samples if sample["pass"] == which]
        assert {sample["op"] for sample in mine} == {f"_scaled_dot_product_{operation}{suffix}"}
        assert {sample["layer_source"] for sample in mine} == {"parameter"}
        assert {sample["nonfinite_values"] for sample in mine} == {0}
    forward = [sample for sample in samples if sample["pass"] == "forward"]
    assert max(sample["lse_error_abs_max"] for sample in forward) < SUMS


@pytest.mark.parametrize("backend", keep(BACKENDS, *BACKENDS[1:]))
def test_its_weights_are_followed(backend: str) -> None:
    """The same bits, and every tensor is shown, wherever it lies."""
    run = watched(backend, "eager", "--weights", "4")
    assert told(run)["digest"] == plain(backend, "eager")["digest"]
    weights, lines = run.rank()["weights"], run.of("tensor")
    assert len(lines) == weights["snapshots"]
    assert len({line["tensor"] for line in lines}) == weights["tensors"]
    assert weights["due"] == weights["snapshots"] + weights["awaited"] + sum(weights["skipped"].values())
    assert {reason for reason, count in weights["skipped"].items() if count} <= {
        "device_full",
        "ring_full",
        "set_up",
        "unknown",
    }
    assert {line["nonfinite_values"] for line in lines} == {0}
    known = [line["rms_staleness"] for line in run.of("optimizer")]
    assert known
    assert all(staleness > 0 for staleness in known)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_graphs_are_recorded_and_counted(backend: str) -> None:
    assert told(watched(backend, "graphs"))["digest"] == plain(backend, "graphs")["digest"]
    coverage = watched(backend, "graphs").rank()["attention_coverage"]
    assert coverage["source"] == "graphs"
    assert coverage["graphs"]["launches"] > 0
    assert coverage["graphs"]["unknown_launches"] == 0
    for calls in coverage["graphs"]["calls"].values():
        assert calls >= (STEPS - 6) * LAYERS  # torch warms up, records, and then launches


@pytest.mark.parametrize("backend", keep(BACKENDS, *BACKENDS[1:]))
def test_kernels_are_counted_and_the_profiler_works_afterwards(backend: str) -> None:
    run = watched(backend, "profile", "--count-kernels", "4")
    kernels = run.rank()["attention_coverage"]["kernels"]
    if backend == "cpu":
        assert kernels["state"] in ("no_library", "refused")  # refused: a CUPTI, but no device
        return
    assert kernels["state"] == "done", kernels
    assert run.rank()["attention_coverage"]["ratio"] == 1
    assert told(run)["kernels"] > 0
