"""Weights, live: what the record says of every tensor against the same computed from the weights themselves."""

from pathlib import Path

import numpy
import pytest
from monitored import EVERYTHING, PYTHON, Run, run_monitored, run_plain
from stored_histogram import fnv1a, stored

TRAINING = str(Path(__file__).with_name("weights_training.py"))
SUPPORT = {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
STEPS = 8


def torchrun(ranks: int) -> list[str]:
    return [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]


def values_of(bits: numpy.ndarray) -> numpy.ndarray:
    if bits.dtype == numpy.int16:
        return (bits.astype(numpy.int32) << 16).view(numpy.float32).astype(float)
    return bits.view(numpy.float32).astype(float)


def w1(a: numpy.ndarray, b: numpy.ndarray) -> float:
    return float(numpy.abs(numpy.sort(a.ravel()) - numpy.sort(b.ravel())).mean())


def train(folder: Path, kind: str, *more: str, ranks: int = 1, interval: int = 1) -> Run:
    start = torchrun(ranks) if ranks > 1 else [PYTHON]
    command = [*start, TRAINING, str(folder), str(STEPS), kind, *more]
    run = run_monitored(command, *EVERYTHING, "--weights", str(interval), **SUPPORT)
    assert run.returncode == 0, run.stderr
    return run


def weights_after(folder: Path, step: int) -> dict[str, numpy.ndarray]:
    return dict(numpy.load(folder / f"{step}.npz"))


def check_lines(folder: Path, run: Run, interval: int) -> None:
    """Every tensor once an interval, each line as the weights of its step say."""
    after = {step: weights_after(folder, step) for step in range(1, STEPS + 1)}
    lines = run.of("tensor")
    seen = [(line["tensor"], line["step"]) for line in lines]
    assert len(seen) == len(set(seen)), "counted once"
    # Nothing is known of the first step; the rest is told but for its start within an interval.
    for name in after[1]:
        steps = sorted(step for tensor, step in seen if tensor == name)
        assert len(steps) >= (STEPS - 1) // interval, name
        assert all(b - a == interval for a, b in zip(steps, steps[1:], strict=False)), (name, steps)
    for line in lines:
        here, before = after[line["step"]][line["tensor"]], after[line["step"] - 1][line["tensor"]]
        assert (line["elements"], line["whole_elements"]) == (here.size, here.size)
        assert line["histogram_hash"] == fnv1a(stored(here)), line["tensor"]
        values, change = values_of(here), values_of(here) - values_of(before)
        # Sums in fp64 in another order: far below 1e-12 relative.
        assert line["rms"] == pytest.approx(numpy.sqrt((values**2).mean()), rel=1e-12)
        assert line["update_mean_abs"] == pytest.approx(numpy.abs(change).mean(), rel=1e-12)
        assert line["update_max_abs"] == numpy.abs(change).max()
        assert line["nonfinite_values"] == 0
        for ref in ("previous", "initial"):
            if line[f"{ref}_step"] is None:
                continue
            distance = w1(values_of(after[line[f"{ref}_step"]][line["tensor"]]), values)
            low, high = line[f"wasserstein_{ref}_low"], line[f"wasserstein_{ref}_high"]
            assert low * (1 - 1e-12) <= distance <= high * (1 + 1e-12), (line["tensor"], ref)
            assert low <= line[f"wasserstein_{ref}"] <= high
    assert any(line["previous_step"] is not None for line in lines)
    assert any(line["initial_step"] not in (None, line["previous_step"]) for line in lines)


def check_models(folder: Path, run: Run, interval: int) -> None:
    """The model and each layer as one distribution: bit for bit that of the gathered weights."""
    lines, tensors = run.of("model"), run.of("tensor")
    layers = {line["tensor"]: line["layer"] for line in tensors}
    assert {line["layer"] for line in lines} == {None, *filter(None, layers.values())}
    pooled = {}
    for line in lines:
        first, layer = line["step"], line["layer"]
        assert first % interval == 0 and line["interval_steps"] == interval
        steps = {
            each["tensor"]: each["step"]
            for each in tensors
            if 0 <= each["step"] - first < interval and layer in (None, each["layer"])
        }
        assert len(steps) == line["tensors"] == (len(layers) if layer is None else list(layers.values()).count(layer))
        parts = [weights_after(folder, step)[name].ravel() for name, step in steps.items()]
        here = pooled[first, layer] = numpy.concatenate(parts)
        assert line["elements"] == here.size
        assert line["histogram_hash"] == fnv1a(stored(here)), (first, layer)
        # Sums in fp64 in another order: far below 1e-12 relative.
        assert line["rms"] == pytest.approx(numpy.sqrt((values_of(here) ** 2).mean()), rel=1e-12)
        before = pooled.get((first - interval, layer))
        if before is None:
            continue
        distance = w1(values_of(before), values_of(here))
        assert line["wasserstein_previous_low"] * (1 - 1e-12) <= distance
        assert distance <= line["wasserstein_previous_high"] * (1 + 1e-12)
        assert line["wasserstein_initial"] is not None and line["moved_most"] in steps
    wholes = [line for line in lines if line["layer"] is None]
    assert len(wholes) >= STEPS // interval - 2, "all but the first interval, in which the tensors become known"


@pytest.mark.parametrize("kind", ["plain", "bf16"])
def test_one_rank(tmp_path, kind):
    run = train(tmp_path, kind)
    check_lines(tmp_path, run, 1)
    check_models(tmp_path, run, 1)
    plain = run_plain([PYTHON, TRAINING, str(tmp_path), str(STEPS), kind], **SUPPORT)
    assert run.told() == plain.told(), "the same bits"
    weights = run.rank()["weights"]
    assert weights["snapshots"] == len(run.of("tensor"))
    assert weights["wasserstein_previous"] > 0
    assert weights["replicas_compared"] == 0
    known = [line for line in run.of("tensor") if line["previous_step"] is not None]
    for line in known if kind == "bf16" else []:  # exact but for the rounding of the distance itself
        low, high = (line[f"wasserstein_previous_{end}"] for end in ("low", "high"))
        assert high == pytest.approx(low, rel=1e-9)


def test_tensors_take_turns(tmp_path):
    run = train(tmp_path, "plain", interval=3)
    check_lines(tmp_path, run, 3)
    check_models(tmp_path, run, 3)
    assert len({line["step"] % 3 for line in run.of("tensor")}) == 3


def test_replicas_count_once_and_agree(tmp_path):
    run = train(tmp_path, "ddp", ranks=2)
    check_lines(tmp_path, run, 1)
    check_models(tmp_path, run, 1)
    compared = run.rank(0)["weights"]["replicas_compared"]
    assert compared == run.rank(1)["weights"]["snapshots"] == len(run.of("tensor"))
    assert [run.rank(rank)["weights"]["mismatches"] for rank in range(2)] == [0, 0]


def test_shards_are_put_together(tmp_path):
    run = train(tmp_path, "fsdp", ranks=2)
    check_lines(tmp_path, run, 1)
    check_models(tmp_path, run, 1)
    assert {line["parts"] for line in run.of("tensor")} == {2}
    assert run.rank(0)["weights"]["replicas_compared"] == 0, "a full shard has no replicas"


def test_one_flipped_bit_is_found_at_the_next_step_and_names_its_rank(tmp_path):
    run = train(tmp_path, "ddp", "flip", "1", "4", ranks=3)
    odd = [line for line in run.of("tensor") if line["odd_ranks"]]
    assert [(line["tensor"], line["step"], line["odd_ranks"]) for line in odd] == [
        ("blocks.1.up.weight", step, [1]) for step in range(5, STEPS + 1)
    ]
    assert [run.rank(rank)["weights"]["mismatches"] for rank in range(3)] == [0, STEPS - 4, 0]
    events = [event for event in run.of("event") if event["event"] == "weight_mismatch"]
    assert [event["step"] for event in events] == list(range(5, STEPS + 1))
    assert {event["layer"] for event in events} == {"001"}
