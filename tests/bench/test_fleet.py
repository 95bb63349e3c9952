"""The bench of the fleet runs: agents with their real exposition, one Prometheus with all our rules, its figures."""

import json
import os
import re
import subprocess
import sys

import monitored
from scraping import needs


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
