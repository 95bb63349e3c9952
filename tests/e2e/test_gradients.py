"""Gradient norms are those before clipping, of the whole model and of each layer; a NaN names its layer."""

import functools
import pathlib

import pytest
from forked import forked
from monitored import EVERYTHING, Run, run_monitored, unwrapped
from tiers import keep

SCRIPT = str(pathlib.Path(__file__).with_name("gradient_training.py"))
FINITE = ["clipped", "one_by_one", "accumulation", "unclipped"]
NAN = ["nan", "nan_unclipped"]
STEPS, LARGE = 5, 50.0


@functools.cache
def run_of(case: str) -> Run:
    return run_monitored(forked(SCRIPT, case), *EVERYTHING)


def by_layer(told: dict, key: str) -> dict:
    return {layer["layer"]: layer[key] for layer in told["state"]["layers"]}


@pytest.mark.parametrize("case", keep(FINITE, "clipped", "unclipped"))
def test_norms_are_torch_s_own_before_clipping(case):
    (told,) = run_of(case).told()
    seen = {line["step"]: line["gradient_norm"] for line in run_of(case).of("step")}
    assert sorted(seen) == list(range(1, STEPS + 1))
    # Nobody computes norms where nobody clips, and the first step, whose number is unknown, is not sampled.
    steps = range(2 if case == "unclipped" else 1, STEPS + 1)
    assert seen[1] is None or 1 in steps
    # torch adds up squares in fp32 and rounds every tensor's norm to it: 6e-8 each, beside 1e-6.
    for step in steps:
        assert seen[step] == pytest.approx(told["torch"][step - 1], rel=1e-6)
        assert seen[step] == pytest.approx(told["norms"][step - 1], rel=1e-6)


@pytest.mark.parametrize("case", keep(FINITE, "clipped", "unclipped"))
def test_a_large_norm_is_shown_as_it_was(case):
    (told,) = run_of(case).told()
    assert told["torch"][-1] == pytest.approx(LARGE, rel=1e-5)
    assert all(norm < 10 for norm in told["torch"][:-1])
    assert run_of(case).rank()["gradient"]["norm"] == pytest.approx(LARGE, rel=1e-5)


@pytest.mark.parametrize("case", keep(FINITE, "clipped", "unclipped"))
def test_norms_of_layers(case):
    (told,) = run_of(case).told()
    seen = by_layer(told, "gradient_norm")
    assert seen.keys() == told["layers"].keys()
    for layer, norm in told["layers"].items():
        assert seen[layer] == pytest.approx(norm, rel=1e-6), layer
    assert run_of(case).rank()["gradient"]["nonfinite_layers"] == []
    assert not run_of(case).of("event")


@pytest.mark.parametrize("case", keep(NAN, "nan"))
def test_a_nan_names_its_layer_and_no_other(case):
    run = run_of(case)
    (told,) = run.told()
    assert run.rank()["gradient"]["nonfinite_layers"] == ["001"]
    events = [line for line in run.of("event") if line["event"] == "nonfinite_gradient"]
    assert [(event["layer"], event["step"]) for event in events] == [("001", STEPS)]
    bad = {layer: steps for layer, steps in by_layer(told, "last_nonfinite_step").items() if steps is not None}
    assert bad == {"001": STEPS}
    assert "not finite at times in layer 001 " in unwrapped(run.stderr)
