"""The bench of the fleet runs: agents with their real exposition, one Prometheus with all our rules, its figures."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import monitored
import pytest
from scraping import needs

pytestmark = pytest.mark.long


@needs["prometheus"]
def test_one_prometheus_scrapes_agents_and_evaluates_our_rules_over_them(tmp_path, show_line):
    """Of a few agents: what two hundred ask of it is for `./dev bench fleet` on a quiet machine to say."""
    command = [sys.executable, str(monitored.ROOT / "bench" / "fleet.py"), "--agents", "20"]
    command += ["--interval", "5", "--seconds", "15", "--json", str(tmp_path / "figures.json")]
    environment = os.environ | {"FORESHOCK_BUILD": str(monitored.BUILD)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    for line in done.stdout.splitlines():
        show_line("fleet", line)
    assert figures["agents"] == 20
    # 8 ranks of 96 layers are some 1890 series (docs/metrics.md).
    assert figures["series"] > 20 * 1500
    assert figures["rules_seconds"] > 0, "they were evaluated"
    rules = (monitored.ROOT / "dashboards" / "rules" / "foreshock.yml").read_text()
    assert figures["groups_seconds"].keys() == set(re.findall(r"^- name: (\S+)", rules, re.M))
    assert min(figures["groups_seconds"].values()) > 0


@pytest.fixture
def fleet():
    specification = importlib.util.spec_from_file_location("fleet", monitored.ROOT / "bench" / "fleet.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_a_rule_costs_what_it_takes_once_its_range_has_data(fleet, monkeypatch):
    """An evaluation of empty ranges is short and tells nothing; of the later ones a busy machine lengthens some."""
    times = fleet.EvaluationTimes()
    for seconds in (0.001, 0.002, 0.004, 0.008, 0.016, None, 0.064, 0.032):
        rules = [{"name": "a", "evaluationTime": seconds}, {"name": "a", "evaluationTime": 1}]
        groups = [] if seconds is None else [{"name": "trend", "rules": rules}]
        monkeypatch.setattr(fleet, "groups_of_rules", lambda groups=groups: groups)
        times.read()
    assert times.by_group() == {"trend": 0.016 + 1}, "of seven looks the last three"
    assert times.most_expensive(2) == [("a", 1), ("a", 0.016)]
