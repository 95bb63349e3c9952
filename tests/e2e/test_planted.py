"""An error planted below the monitor, in the kernel of one layer, is found, and that layer is named."""

import functools
import json
import pathlib
import re
import subprocess

import pytest
from forked import forked
from monitored import EVERYTHING, FORESHOCK, Run, assert_conserved, run_monitored, unwrapped
from tiers import keep

GUILTY, INNOCENT = "001", ("000", "002")
SCRIPT = str(pathlib.Path(__file__).with_name("planted_training.py"))
# Plant, micro-batches, steps. One head of four errs in the first; a bias needs 16 clusters of samples to be sure of.
RUNS = {
    "head": ("head", 1, 24),
    "head accumulated": ("head", 4, 8),
    "bias": ("bias", 1, 32),
    "bias accumulated": ("bias", 4, 10),
    "key": ("key", 1, 32),
    "NaN": ("NaN", 1, 40),
    "nothing": ("nothing", 1, 32),
}
KEPT = ("head", "bias", "key", "NaN", "nothing")
WARNED = ("deviation_forward", "warn")
PLANTED_BIAS = 0.3  # ulp: three elements in ten are moved by one


@functools.cache
def run_of(name: str) -> Run:
    return run_monitored(forked(SCRIPT, *map(str, RUNS[name])), *EVERYTHING)


def samples(run: Run, layer: str, which: str = "forward") -> list[dict]:
    return [line for line in run.of("sample") if (line["layer"], line["pass"]) == (layer, which)]


def pooled_bias(run: Run, layer: str) -> float:
    lines = samples(run, layer)
    return sum(line["bias_error_sum"] for line in lines) / sum(line["bias_ulp_sum"] for line in lines)


def alarms(run: Run) -> list[tuple[str, str, str]]:
    return [(alarm["layer"], alarm["pass"], alarm["of"]) for alarm in run.rank()["alarms"]]


@pytest.mark.parametrize("name", keep(RUNS, *KEPT))
def test_the_training_ran_on_the_planted_kernel(name):
    _, micro, steps = RUNS[name]
    run = run_of(name)
    (told,) = run.told()
    assert told["calls"] == run.rank()["attention"]["forward"]["calls"] == 3 * micro * steps
    assert_conserved(run.rank())


@pytest.mark.parametrize("name", keep(["head", "head accumulated"], "head"))
def test_a_head_that_errs_is_found_in_its_layer(name):
    run = run_of(name)
    assert run.rank()["worst_layer"] == GUILTY
    assert (GUILTY, "forward", "fused_ratio") in alarms(run)
    assert {layer for layer, _, _ in alarms(run)} == {GUILTY}
    assert re.search(
        rf"ATTENTION FAULT finding layer {GUILTY}: the output is wrong by up to \S+ % \("
        r"\S+x the error of fused attention.* since step \d+( \(sound at \d+\))?\. Do: ",
        unwrapped(run.stderr),
    )
    # 2^-6 beside the half ulp of bf16, 2^-9 at most: eight times at least what rounding alone costs.
    for sample in samples(run, GUILTY):
        assert (sample["deviation_ratio"] > 3) == (sample["kv_head"] == 2)
    for layer in INNOCENT:
        assert all(sample["deviation_ratio"] < 2 for sample in samples(run, layer))


def test_every_view_has_the_same_finding(tmp_path):
    """Summary as JSON and as text, record, and report: one sentence, one step, one size."""
    run = run_of("head")
    first, *others = run.summary["findings"]
    assert (first["finding"], first["layer"], first["tensor"]) == ("attention_error", GUILTY, "out")
    assert f"ATTENTION FAULT finding {first['text']}. Do: {first['action']}." in unwrapped(run.stderr)
    final = [line for line in run.of("finding") if line["state"] == "final"]
    assert [line["text"] for line in final] == [finding["text"] for finding in (first, *others)]
    began = [line for line in run.of("finding") if line["state"] == "began"]
    assert began[0]["since_step"] == final[0]["since_step"] == first["since_step"]
    # The head errs from the start. The alarm needs two slices of it.
    assert first["since_step"] == min(sample["step"] for sample in samples(run, GUILTY) if sample["kv_head"] == 2)
    of_slices = [sample["relative_error_mean"] for sample in samples(run, GUILTY)]
    assert first["relative_error"] == pytest.approx(max(of_slices))
    (verdict,) = run.of("verdict")
    assert verdict["verdict"] == run.summary["verdict"] == "ATTENTION FAULT"
    assert verdict["findings"] == len(final)
    record = tmp_path / "run.jsonl"
    record.write_text("".join(json.dumps(line) + "\n" for line in run.lines))
    done = subprocess.run([FORESHOCK, "report", "--json", record], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["verdict"].startswith(f"ATTENTION FAULT: {first['text']}. Do: {first['action']}.")
    assert report["findings"][0]["since_step"] == first["since_step"]
    assert report["findings"][0]["largest"] == pytest.approx(first["largest"], rel=1e-5)


@pytest.mark.parametrize("name", ["head", "bias", "nothing"])
def test_a_record_without_a_verdict_gives_the_same_findings(name, tmp_path):
    run = run_of(name)
    record = tmp_path / "run.jsonl"
    lines = [line for line in run.lines if line["type"] not in ("finding", "verdict")]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run([FORESHOCK, "report", "--json", record], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["verdict_from"] == "report"
    figures = ("finding", "layer", "tensor", "rank", "since_step", "last_step", "text", "action")
    found, of_agent = report["findings"], run.summary["findings"]
    assert [[each[name] for name in figures] for each in found] == [
        [each[name] for name in figures] for each in of_agent
    ]
    for each, other in zip(found, of_agent, strict=True):
        assert each["largest"] == pytest.approx(other["largest"], rel=1e-5)


@pytest.mark.parametrize("name", keep(["bias", "bias accumulated"], "bias"))
def test_a_bias_is_found_in_its_layer(name):
    run = run_of(name)
    assert run.rank()["worst_layer"] == GUILTY
    assert (GUILTY, "forward", "bias") in alarms(run)
    assert {layer for layer, _, _ in alarms(run)} == {GUILTY}
    assert re.search(rf"layer {GUILTY}: the output is biased by \+0\.\d+ ulp since step \d+", unwrapped(run.stderr))
    # Standard errors, from the spread between the slices: 0.015 in the guilty layer, 0.008 in the others.
    assert pooled_bias(run, GUILTY) == pytest.approx(PLANTED_BIAS, abs=0.06)
    for layer in INNOCENT:
        assert abs(pooled_bias(run, layer)) < 0.05


@pytest.mark.long
def test_ten_thousand_tensors_keep_no_layer_out():
    """They lie before the five layers in the model, and each has its turn in 64 steps. All five layers are wrong."""
    run = run_monitored(forked(SCRIPT, "head", "1", "64", "10000"), *EVERYTHING, "--weights", "64")
    assert [told["calls"] for told in run.told()] == [5 * 64]
    warned = {line["layer"] for line in run.of("event") if (line["detector"], line["level"]) == WARNED}
    assert warned == {f"blocks.{n:03d}" for n in range(5)}
    text = unwrapped(run.stderr)
    assert " 10 083 tensors followed" in text
    assert re.search(r"not named 9 \d{3} parameters beyond the limit: their layers have no gradient norm", text)


LOST_KEY = 5


def test_a_key_without_gradient_is_found_though_no_slice_samples_it():
    run = run_of("key")
    assert (GUILTY, "backward", "conservation") in alarms(run)
    assert {layer for layer, _, _ in alarms(run)} == {GUILTY}
    lines = [line for line in run.of("sample") if line["tensor"] == "grad_key"]
    elsewhere = [line for line in lines if line["layer"] == GUILTY and LOST_KEY not in line["positions"]]
    assert len(elsewhere) >= 5
    for line in elsewhere:
        assert line["fused_ratio"] < 4, "the sampled keys are right"
        assert line["conservation_ratio"] > 3
    others = [line for line in run.of("sample") if line["tensor"] in ("grad_key", "grad_value")]
    for line in others:
        assert line["conservation_ratio"] < 1 or (line["layer"], line["tensor"]) == (GUILTY, "grad_key")
    assert re.search(rf"layer {GUILTY}: the sum of dK over all keys is wrong by up to ", unwrapped(run.stderr))


def test_one_nan_in_a_gradient_of_values_is_found_where_no_slice_samples_it():
    run = run_of("NaN")
    of_values = [line for line in run.of("sample") if line["tensor"] == "grad_value" and line["nonfinite_values"]]
    assert any(LOST_KEY not in line["positions"] for line in of_values)
    assert (GUILTY, "backward", "nonfinite") in alarms(run)


def test_a_sound_kernel_gives_no_alarm():
    run = run_of("nothing")
    assert alarms(run) == []
    assert " healthy attention mean error " in unwrapped(run.stderr)
    for layer in (GUILTY, *INNOCENT):
        assert abs(pooled_bias(run, layer)) < 0.05
