"""Lines of a record on weights, against the weights themselves: FOLDER/STEP.npz of tests/e2e/weights_training.py."""

from pathlib import Path

import numpy
import pytest
from monitored import Run
from stored_histogram import fnv1a, stored


def values_of(bits: numpy.ndarray) -> numpy.ndarray:
    if bits.dtype == numpy.int16:
        return (bits.astype(numpy.int32) << 16).view(numpy.float32).astype(float)
    return bits.view(numpy.float32).astype(float)


def w1(a: numpy.ndarray, b: numpy.ndarray) -> float:
    return float(numpy.abs(numpy.sort(a.ravel()) - numpy.sort(b.ravel())).mean())


def weights_after(folder: Path, step: int) -> dict[str, numpy.ndarray]:
    return dict(numpy.load(folder / f"{step}.npz"))


def check_lines(folder: Path, run: Run, interval: int, steps: int) -> None:
    """Every tensor once an interval, each line as the weights of its step say."""
    after = {step: weights_after(folder, step) for step in range(1, steps + 1)}
    lines = run.of("tensor")
    seen = [(line["tensor"], line["step"]) for line in lines]
    assert len(seen) == len(set(seen)), "counted once"
    # Nothing is known of the first step; the rest is told but for its start within an interval.
    for name in after[1]:
        taken = sorted(step for tensor, step in seen if tensor == name)
        assert len(taken) >= (steps - 1) // interval, name
        assert all(b - a == interval for a, b in zip(taken, taken[1:], strict=False)), (name, taken)
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


def check_models(folder: Path, run: Run, interval: int, steps: int) -> None:
    """The model and each layer as one distribution: bit for bit that of the gathered weights."""
    lines, tensors = run.of("model"), run.of("tensor")
    layers = {line["tensor"]: line["layer"] for line in tensors}
    assert {line["layer"] for line in lines} == {None, *filter(None, layers.values())}
    pooled = {}
    for line in lines:
        first, layer = line["step"], line["layer"]
        assert first % interval == 0
        assert line["interval_steps"] == interval
        taken = {
            each["tensor"]: each["step"]
            for each in tensors
            if 0 <= each["step"] - first < interval and layer in (None, each["layer"])
        }
        assert len(taken) == line["tensors"] == (len(layers) if layer is None else list(layers.values()).count(layer))
        parts = [weights_after(folder, step)[name].ravel() for name, step in taken.items()]
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
        assert line["wasserstein_initial"] is not None
        assert line["moved_most"] in taken
    wholes = [line for line in lines if line["layer"] is None]
    assert len(wholes) >= steps // interval - 2, "all but the first interval, in which the tensors become known"
