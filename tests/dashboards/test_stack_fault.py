"""`./dev stack --fault`: attention of one layer errs, a real Prometheus fires, a real Alertmanager tells the run's
owner all of it in one notification, and says which run, which layer and where to read on. (Nothing would be told again
within the minute that this takes: `again` and `repeat` are longer.)"""

import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import types

import monitored
import pytest
from scraping import needs

pytestmark = pytest.mark.long

SECONDS = 90  # of training; it errs from a third of it on, and Alertmanager waits for half a minute
FAULTY_LAYER = "001"


@pytest.fixture
def dev(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("dev", str(monitored.ROOT / "dev"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("dev", loader))
    loader.exec_module(module)
    return module


@needs["prometheus-alertmanager"]
@needs["prometheus"]
def test_an_attention_error_sends_one_notification_with_run_layer_and_runbook(dev, tmp_path, base, show_line):
    words = ["--fault", f"--seconds={SECONDS}", "--expect-silence", "--folder", str(tmp_path / "stack")]
    options = types.SimpleNamespace(fault=True, seconds=SECONDS, training=[])
    command, environment = dev.stack_command(options, words)
    kept = monitored.clean_environment(FORESHOCK_DIR=str(base), FORESHOCK_BUILD=str(monitored.BUILD))
    kept |= {name: text for name, text in environment.items() if name not in os.environ}
    command = [sys.executable if word == dev.PYTHON else str(word) for word in command]
    done = subprocess.run(command, env=kept, cwd=monitored.ROOT, capture_output=True, text=True, timeout=600)
    assert "from here on attention of layer 001 is wrong" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1, "an alert fired, and none was expected"

    told = [json.loads(line) for line in (tmp_path / "stack" / "notifications.jsonl").read_text().splitlines()]
    ours = [each for each in told if each["to"] == "owner"]
    assert len(ours) == 1, done.stdout
    (notification,) = ours
    assert notification["status"] == "firing"
    run = notification["groupLabels"]["run"]
    assert f"foreshock: run {run}, page at" in done.stderr
    of = {each["labels"]["alertname"]: each for each in notification["alerts"]}
    drift = of["ForeshockAttentionErrorDrift"]
    assert drift["labels"]["run"] == run
    assert drift["annotations"]["summary"].startswith(f"Run {run}: ")
    assert f" in layer {FAULTY_LAYER} (" in drift["annotations"]["description"]
    assert re.search(r", at step \d+ on process rank 0\)", drift["annotations"]["description"])
    _, _, anchor = drift["annotations"]["runbook_url"].partition("#")
    runbook = (monitored.ROOT / "docs" / "runbook.md").read_text()
    titles = [line.strip("# ").lower() for line in runbook.splitlines() if "## " in line]
    assert anchor in titles
    show_line("alerts", f"attention of a layer errs: one notification, of {', '.join(sorted(of))}")
