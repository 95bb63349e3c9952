"""`./dev demo --fault`, in short: the layer whose attention errs is named; and a healthy demo warns of nothing."""

import concurrent.futures
import re

import pytest
from forked import forked
from monitored import EVERYTHING, ROOT, Run, run_monitored, unwrapped

STEPS = 180
GUILTY = "001"
# So few seconds choose the smallest model; the steps decide how long it trains.
DEMO = (str(ROOT / "integrations" / "torch" / "demo" / "train.py"), "--steps", str(STEPS), "--seconds", "2")


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    more = {"fault": ("--fault", "32"), "grad_key": ("--fault", "grad_key"), "healthy": ()}
    commands = {name: forked(*DEMO, *words) for name, words in more.items()}
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        started = {name: two.submit(run_monitored, command, *EVERYTHING) for name, command in commands.items()}
    return {name: run.result() for name, run in started.items()}


def warnings_of(run: Run) -> list[dict]:
    assert run.returncode == 0, run.stderr
    return [event for event in run.of("event") if event.get("level") == "warn"]


def test_the_layer_that_errs_is_named(runs):
    run = runs["fault"]
    warnings = warnings_of(run)
    assert {"output_error_drift", "deviation_backward"} <= {event["detector"] for event in warnings}
    assert {event["layer"] for event in warnings if event["layer"]} == {GUILTY}
    assert all(event["step"] > STEPS / 3 for event in warnings)
    assert run.rank()["worst_layer"] == GUILTY
    assert f"from here on attention of layer {GUILTY} is wrong" in run.stdout
    said = unwrapped(run.stderr)
    assert said.count("output_error_drift warned") == 1
    assert re.search(rf"ATTENTION FAULT finding layer {GUILTY}: dQ is wrong by (up to|more than) ", said)


def test_the_printed_size_is_the_largest_of_the_run_and_the_step_that_of_the_first_wrong_sample(runs):
    run = runs["fault"]
    (first, *_) = (each for each in run.summary["findings"] if each["finding"] == "attention_error")
    lines = [line for line in run.of("sample") if (line["layer"], line["tensor"]) == (GUILTY, "grad_query")]
    ratios = [(line["step"], line["fused_ratio"]) for line in lines if line["fused_ratio"] is not None]
    planted = int(re.search(r"^step +(\d+) +from here on attention of layer", run.stdout, re.MULTILINE)[1])
    assert first["largest"] == pytest.approx(max(ratio for _, ratio in ratios))
    assert planted <= first["since_step"] == min(step for step, ratio in ratios if ratio > 3)
    times = f"{first['largest']:.3g}x the error" if first["largest"] <= 1000 else "more than 1000x"
    assert times in unwrapped(run.stderr)


def test_gradient_of_keys_that_errs_is_named_and_nothing_else(runs):
    run = runs["grad_key"]
    assert f"from here on attention of layer {GUILTY} is wrong" in run.stdout
    rank = run.rank()
    alarms = {(alarm["layer"], alarm["pass"], alarm["tensor"]) for alarm in rank["alarms"] + rank["past_alarms"]}
    assert alarms == {(GUILTY, "backward", "grad_key")}
    assert rank["worst_layer"] == GUILTY
    said = unwrapped(run.stderr)
    assert f"ATTENTION FAULT finding layer {GUILTY}: dK is wrong by up to " in said
    assert int(re.search(r" since step (\d+)", said)[1]) > STEPS / 3
    wrong = [line for line in run.of("sample") if (line["fused_ratio"] or 0) > 6]
    assert {(line["layer"], line["tensor"]) for line in wrong} == {(GUILTY, "grad_key")}
    assert all(line["step"] > STEPS / 3 for line in wrong)


def test_gradients_of_keys_and_values_of_a_healthy_demo_are_judged(runs):
    rank = runs["healthy"].rank()
    assert rank["alarms"] == rank["past_alarms"] == []
    lines = [line for line in runs["healthy"].of("sample") if line["tensor"] in ("grad_key", "grad_value")]
    assert len(lines) == 2 * rank["key_gradients"]["judged"] > 50
    assert {line["layer"] for line in lines} == {"000", "001"}
    # Of fewer rows than kLeastEffectiveRows, one row's error is the ratio, and no bound holds for it.
    ratios = [line["fused_ratio"] for line in lines if line["effective_rows"] >= 3]
    assert len(ratios) > 50
    assert max(ratios) < 4


def test_a_healthy_demo_warns_of_nothing(runs):
    assert warnings_of(runs["healthy"]) == []
    assert runs["healthy"].rank()["steps"] == STEPS


def rows_of(text: str) -> list[str]:
    """The names of the summary's rows; what is indented further is what the row above goes on with."""
    _, _, summary = text.partition("foreshock  ")
    summary, _, _ = summary.partition("\nforeshock: ")
    return re.findall(r"^ {2,4}(\S+(?: \S+)*)", summary, re.MULTILINE)


def test_readme_shows_rows_of_a_real_summary(runs):
    """The block is copied by hand from `./dev demo --fault` and cropped: every row in it is one that a run prints."""
    shown = (ROOT / "README.md").read_text().split("<!-- output of a run -->")[1].split("```")[1]
    printed = rows_of(runs["fault"].stderr)
    assert len(rows_of(shown)) >= 3
    assert [row for row in rows_of(shown) if row not in printed] == []
