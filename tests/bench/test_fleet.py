"""Two hundred agents, 1600 ranks, and one Prometheus with all our rules: it keeps up."""

import json
import os
import subprocess
import sys

import monitored
from scraping import needs


@needs["prometheus"]
def test_one_prometheus_serves_two_hundred_agents(tmp_path, show_line):
    command = [sys.executable, str(monitored.ROOT / "bench" / "fleet.py"), "--agents", "200"]
    # Scraped every five seconds, so that it takes a minute; three times as many samples as in earnest.
    command += ["--interval", "5", "--seconds", "30", "--json", str(tmp_path / "figures.json")]
    environment = os.environ | {"FORESHOCK_BUILD": str(monitored.BUILD)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    for line in done.stdout.splitlines():
        show_line("fleet", line)
    assert figures["agents"] == 200
    # 8 ranks of 96 layers are some 1830 series (docs/metrics.md).
    assert figures["series"] > 200 * 1500
    # docs/operations.md says that one server evaluates the rules for 10 000 ranks every 15 s: with 1600 of them one
    # evaluation may take a core no longer than their share of that. It is CPU time, so that a busy machine passes too.
    assert figures["rules_seconds"] < 15 * 1600 / 10_000
