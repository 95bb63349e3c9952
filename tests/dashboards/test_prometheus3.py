"""Our rules and Alertmanager's file with Prometheus 3, where somebody has fetched one; the rest of the tests take the
distribution's, which is a 2."""

import json
import os
import subprocess
import sys

import monitored
import pytest
from alert_rules import DASHBOARDS, DEFAULT, ROOT, TESTS, VALUES, promtool_tests, rules
from healthy_run import all_series, healthy_file

BIN = ROOT / "build" / "prometheus3" / "usr" / "bin"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (BIN / "promtool").exists(), reason="no Prometheus 3 in build/prometheus3: python dashboards/prometheus3.py"
    ),
]


def test_it_is_prometheus_3():
    told = subprocess.run([BIN / "prometheus", "--version"], capture_output=True, text=True)
    assert (told.stdout + told.stderr).startswith("prometheus, version 3.")


def test_the_rules_are_clean():
    command = [BIN / "promtool", "check", "rules", "--lint=all", "--lint-fatal", DASHBOARDS / "rules" / "foreshock.yml"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.stem)
def test_alerts_fire_and_are_silent_as_with_the_other_generation(tmp_path, test):
    done = promtool_tests(tmp_path, rules.groups(VALUES, DEFAULT), [test], str(BIN / "promtool"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_four_healthy_hours_raise_no_alert(tmp_path):
    file = tmp_path / "healthy_test.yml"
    file.write_text(healthy_file(all_series(0), []))
    done = promtool_tests(tmp_path / "rules", rules.groups(VALUES), [file], str(BIN / "promtool"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_routes_are_right():
    command = [BIN / "amtool", "check-config", DASHBOARDS / "alertmanager" / "alertmanager.yml"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_server_scrapes_agents_and_evaluates_every_rule(tmp_path):
    """The bench ends with an error when a rule has one."""
    command = [sys.executable, str(ROOT / "bench" / "fleet.py"), "--agents", "3", "--interval", "5", "--seconds", "10"]
    command += ["--json", str(tmp_path / "figures.json")]
    environment = os.environ | {"FORESHOCK_BUILD": str(monitored.BUILD), "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["agents"] == 3
    assert figures["rules_seconds"] > 0
