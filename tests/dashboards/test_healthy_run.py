"""Four hours of a healthy training: no alert at all."""

import re

import pytest
from alert_rules import VALUES, promtool_tests, rules
from healthy_run import DETECTORS, SAMPLES, all_series, healthy_file
from scraping import needs
from tiers import keep

FROM = 200  # the sample at which faults begin
# Attention that no hook sees, series that detectors had no room for: a healthy run has neither.
ONLY_WHEN_UNWELL = {"foreshock_attention_unseen", "foreshock_condition", "foreshock_precursor_series_dropped"}


@needs["promtool"]
@pytest.mark.parametrize("seed", [0, 1])
def test_four_healthy_hours_raise_no_alert_not_even_a_pending_one(tmp_path, seed):
    file = tmp_path / "healthy_test.yml"
    file.write_text(healthy_file(all_series(seed), []))
    done = promtool_tests(tmp_path / "rules", rules.groups(VALUES), [file])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_healthy_run_has_all_metrics_of_the_rules():
    """Of what it lacks no alert could fire."""
    expressions = [rule.expression for group in rules.groups(VALUES) for rule in group.rules]
    asked = {name for text in expressions for name in re.findall(r"(?<![\w:])foreshock_\w+", text)}
    series = all_series(0)
    assert asked - {name.partition("{")[0] for name in series} == ONLY_WHEN_UNWELL
    named = {
        name for text in expressions for found in re.findall(r'detector=~"([^"]+)"', text) for name in found.split("|")
    }
    for metric in ("level", "events_total"):
        shown = {re.search(r'detector="(\w+)"', name)[1] for name in series if f"precursor_{metric}{{" in name}
        assert shown == set(DETECTORS) >= named


def warned(detector: str) -> dict[str, float]:
    return {f'foreshock_precursor_level{{run="r",rank="1",detector="{detector}"}}': 2}


BIAS = 'foreshock_attention_alarm_layers{run="r",rank="1",pass="forward",of="bias"}'
# What is so from then on, the alert, and of how many series: an alert that waits is pending first.
FAULTS = {
    "bias": ({BIAS: 1}, "AttentionBias", 2),
    "output_error_drift": (warned("output_error_drift"), "AttentionErrorDrift", 1),
    "max_logit": (warned("max_logit"), "AttentionLogitGrowth", 1),
    "gradient_growth": (warned("gradient_growth"), "GradientGrowth", 1),
    "weight_shift": (warned("weight_shift"), "WeightShift", 1),
    "replicas": ({'foreshock_weight_checksum{run="r",rank="1",group="a"}': 5}, "ReplicaMismatch", 1),
}


@needs["promtool"]
@pytest.mark.parametrize("fault", keep(FAULTS, "bias", "weight_shift", "replicas"))
def test_the_same_hours_with_a_fault_raise_alerts(tmp_path, fault):
    values, alert, states = FAULTS[fault]
    series = all_series(0)
    for name, value in values.items():
        series[name][FROM:] = [value] * (SAMPLES - FROM)
    file = tmp_path / "faulty_test.yml"
    file.write_text(healthy_file(series, [{"labels": f'{{alertname="Foreshock{alert}"}}', "value": states}]))
    done = promtool_tests(tmp_path / "rules", rules.groups(VALUES), [file])
    assert done.returncode == 0, done.stdout + done.stderr
