"""Four hours of a healthy training: no alert at all."""

import pytest
from alert_rules import VALUES, promtool_tests, rules
from healthy_run import SAMPLES, all_series, healthy_file
from scraping import needs


@needs["promtool"]
@pytest.mark.parametrize("seed", [0, 1])
def test_four_healthy_hours_raise_no_alert_not_even_a_pending_one(tmp_path, seed):
    file = tmp_path / "healthy_test.yml"
    file.write_text(healthy_file(all_series(seed), []))
    done = promtool_tests(tmp_path / "rules", rules.groups(VALUES), [file])
    assert done.returncode == 0, done.stdout + done.stderr


@needs["promtool"]
def test_the_same_hours_with_a_fault_are_told_from_them(tmp_path):
    series = all_series(0)
    name = 'foreshock_attention_bias_ulp{run="r",rank="1",pass="forward",of="kernel"}'
    z = name.replace("ulp", "zscore")
    assert name in series
    series[name][200:] = [0.08] * (SAMPLES - 200)
    series[z][200:] = [9.0] * (SAMPLES - 200)
    file = tmp_path / "faulty_test.yml"
    file.write_text(healthy_file(series, [{"labels": '{alertname="ForeshockAttentionBias"}', "value": 2}]))
    done = promtool_tests(tmp_path / "rules", rules.groups(VALUES), [file])
    # Pending and firing.
    assert done.returncode == 0, done.stdout + done.stderr
