"""Step numbers and layer names of what is recorded: right, or unknown, never wrong.

Each training keeps its own ledger of what call happened in which step and layer; every sample must agree with it.
"""

import concurrent.futures
import pathlib

import pytest
from forked import forked
from monitored import EVERYTHING, Run, assert_conserved, run_monitored, unwrapped
from tiers import keep

SCRIPT = str(pathlib.Path(__file__).with_name("clock_training.py"))


def every(_layer: int) -> bool:
    return True


def none(_layer: int) -> bool:
    return False


def first_model(layer: int) -> bool:
    return layer < 100


# Case: steps in its record, their source, and the layers whose every call must bear the layer's name.
CASES = {
    "accumulation": ([1, 2, 3, 4, 5], "optimizer_state", every),
    "two_optimizers": ([1, 2, 3, 4, 5], "optimizer_state", every),
    "adversaries": ([1, 2, 3, 4, 5], "optimizer_state", first_model),
    "two_models": ([1, 2, 3, 4, 5], "optimizer_state", every),
    "compiled_step": ([1, 2, 3, 4, 5], "optimizer_state", every),
    "compiled_resume": ([1001, 1002, 1003, 1004, 1005], "optimizer_state", every),
    "scaler": ([1, 2, 3, 4, 5, 6], "optimizer_state", every),
    "fused_scaler": ([1, 2, 3, 4, 5, 6], "optimizer_state", every),
    "evaluation": ([1, 2, 3, 4, 5], "optimizer_state", none),
    "resume": ([1001, 1002, 1003, 1004, 1005], "optimizer_state", every),
    "frozen": ([1, 2, 3, 4, 5], "optimizer_state", none),
    "lora": ([1, 2, 3, 4, 5], "optimizer_state", every),
    "lora_low_first": ([1, 2, 3, 4, 5], "optimizer_state", every),
}
# test_small_trainings.py has accumulation and two optimizers too.
KEPT = ("adversaries", "two_models", "compiled_resume", "scaler", "evaluation", "lora")


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest):
    """{case: its run}, two at a time; only the cases that are asked for."""
    wanted = {
        item.callspec.params["case"] if hasattr(item, "callspec") else "evaluation"
        for item in request.session.items
        if item.path == pathlib.Path(__file__)
    }
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        started = {case: two.submit(run_monitored, forked(SCRIPT, case), *EVERYTHING) for case in wanted}
    return {case: run.result() for case, run in started.items()}


def truth(run: Run) -> dict[int, list[list]]:
    (told,) = run.told()
    return {int(step): calls for step, calls in told["calls"].items()}


@pytest.mark.parametrize("case", keep(CASES, *KEPT))
def test_steps_are_the_training_s_own(runs, case):
    run = runs[case]
    steps, source, _ = CASES[case]
    assert [line["step"] for line in run.of("step")] == steps
    assert {line["step_source"] for line in run.of("step")} == {source}
    calls = truth(run)
    assert [line["attention_calls"] for line in run.of("step")] == [len(calls[step]) for step in steps]
    rank = run.rank()
    assert_conserved(rank)
    assert rank["step"] == steps[-1]
    assert rank["skipped_steps"] == (1 if "scaler" in case else 0)
    assert ("1 optimizer step by a gradient scaler" in unwrapped(run.stderr)) == ("scaler" in case)


def label_of(layer: int, case: str) -> str:
    """The name a layer's samples bear; layers of a second model are numbered from 100."""
    if case == "two_models":
        return f"TinyGpt_{layer // 100}.{layer % 100:03d}"
    return f"{layer:03d}"


@pytest.mark.parametrize("case", keep(CASES, *KEPT))
def test_samples_name_their_step_and_layer(runs, case):
    run = runs[case]
    calls = truth(run)
    samples = run.of("sample")
    assert len(samples) >= len(calls[CASES[case][0][-1]])
    places: dict[str, set[int]] = {}
    wrong = []
    for sample in samples:
        which, layer = calls[sample["step"]][sample["call"]]
        label, source = sample["layer"], sample["layer_source"]
        if source == "parameter":
            right = label == label_of(layer, case)
        else:
            right = not CASES[case][2](layer) and (label is None) == (source in ("unknown", "unnamed_parameter"))
        if source == "ordinal":  # a place among a step's calls, which must not stand for two layers
            places.setdefault(label, set()).add(layer)
        if not right or sample["pass"] != which:
            wrong.append((sample["step"], sample["call"], sample["pass"], label, source, "is", which, layer))
    assert not wrong
    assert all(len(layers) == 1 for layers in places.values()), places


def test_evaluation_with_gradients_is_named_like_training(runs):
    run = runs["evaluation"]
    calls = truth(run)
    for sample in run.of("sample"):
        # Six calls without gradients come first in each step after the first one.
        if sample["call"] >= 6:
            assert sample["layer"] == f"{calls[sample['step']][sample['call']][1]:03d}"
        else:
            assert sample["layer_source"] != "parameter"
