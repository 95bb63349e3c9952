"""The whole way, as `./dev stack` sets it up: a training whose loss becomes NaN, agent, Prometheus, Alertmanager, and
who is told. test_stack_ends.py: that all of it ends."""

import json
import re
import subprocess
import sys
import threading
import time

import monitored
import pytest
from scraping import get, needs, wait_until

pytestmark = pytest.mark.long

TRAINING = """
import math, os, sys, time
sys.path.insert(0, {support!r})
import torch
from tiny_gpt import Batches, TinyGpt, loss_of, set_up
set_up()
model, batches = TinyGpt(), Batches()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
while not os.path.exists({end!r}):
    optimizer.zero_grad()
    loss = loss_of(model, batches()) * (math.nan if os.path.exists({fault!r}) else 1)
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
"""


class Stack:
    """The running program; what it says is kept with the time at which it said it."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process, self.said = process, []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.process.stdout:
            self.said.append((time.time(), line.rstrip()))

    def wait_for(self, pattern: str) -> tuple[float, re.Match]:
        def seen() -> tuple[float, re.Match] | None:
            return next(((at, found) for at, line in self.said if (found := re.search(pattern, line))), None)

        return wait_until(seen)


@pytest.fixture
def stack(tmp_path, base):
    fault, end = tmp_path / "fault", tmp_path / "end"
    program = TRAINING.format(support=str(monitored.ROOT / "tests" / "support"), fault=str(fault), end=str(end))
    command = [sys.executable, str(monitored.ROOT / "dashboards" / "stack.py"), "--interval", "1"]
    command += ["--expect-silence", "--folder", str(tmp_path / "stack"), "--", monitored.PYTHON, "-c", program]
    environment = monitored.clean_environment(FORESHOCK_DIR=str(base), FORESHOCK_BUILD=str(monitored.BUILD))
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield Stack(process), fault, end
    finally:
        process.terminate()
        process.wait(timeout=60)


@needs["prometheus-alertmanager"]
@needs["prometheus"]
def test_a_failing_training_raises_an_alert_within_seconds(stack, show_line):
    running, fault, end = stack
    _, prometheus = running.wait_for(r"Prometheus +(http://127.0.0.1:\d+)")
    _, alertmanager = running.wait_for(r"Alertmanager +(http://127.0.0.1:\d+)")

    def query(expression: str) -> list[dict]:
        reply = get(f"{prometheus.group(1)}/api/v1/query?query={expression}")
        return json.loads(reply)["data"]["result"]

    wait_until(lambda: query("foreshock_loss_window"))
    rules = json.loads(get(f"{prometheus.group(1)}/api/v1/rules"))["data"]["groups"]
    assert len(rules) == 5
    connected = json.loads(get(f"{prometheus.group(1)}/api/v1/alertmanagers"))["data"]["activeAlertmanagers"]
    assert [each["url"].rpartition("/api")[0] for each in connected] == [alertmanager.group(1)]
    assert not [line for _, line in running.said if "firing" in line]

    fault.touch()
    broken = time.time()
    told, found = running.wait_for(
        r"stack:   (\w+): Run (\S+): NaN or Inf in (?:loss|gradient|attention_\w+)\. .* See (\S+)"
    )
    assert found.group(1, 3) == ("ForeshockNonFinite", "docs/runbook.md#foreshocknonfinite")
    running.wait_for(f"stack: a notification to page, firing, run {found.group(2)}:")
    show_line("alerts", f"NaN to the page, scraped and evaluated once a second: {told - broken:.1f} s")
    end.touch()
    assert running.process.wait(timeout=60) == 1, "an alert fired, and none was expected"
    with pytest.raises(OSError, match="refused"):
        get(f"{prometheus.group(1)}/-/ready")


@needs["prometheus-alertmanager"]
@needs["prometheus"]
def test_expect_silence_passes_without_alerts(stack):
    running, _, end = stack
    _, prometheus = running.wait_for(r"Prometheus +(http://127.0.0.1:\d+)")
    query = f"{prometheus.group(1)}/api/v1/query?query=run:foreshock_step:max"
    wait_until(lambda: json.loads(get(query))["data"]["result"])
    end.touch()
    assert running.process.wait(timeout=60) == 0
    running.wait_for(r"stack: [1-9]\d* evaluations over the run, 0 failures; alerts: 0 fired")


@needs["prometheus-alertmanager"]
@needs["prometheus"]
def test_expect_silence_fails_if_no_metrics_were_seen(tmp_path):
    """A command that makes no step: no series of a run, so nothing could have fired."""
    command = [sys.executable, str(monitored.ROOT / "dashboards" / "stack.py"), "--interval", "1", "--expect-silence"]
    command += ["--folder", str(tmp_path / "stack"), "--", "true"]
    environment = monitored.clean_environment(FORESHOCK_BUILD=str(monitored.BUILD), FORESHOCK_DIR=str(tmp_path))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "stack: 0 evaluations over the run, " in done.stdout


@needs["prometheus-alertmanager"]
@needs["prometheus"]
def test_two_stacks_started_together_use_different_ports(tmp_path):
    command = [sys.executable, str(monitored.ROOT / "dashboards" / "stack.py"), "--interval", "1", "--folder"]
    environment = monitored.clean_environment(FORESHOCK_BUILD=str(monitored.BUILD), FORESHOCK_DIR=str(tmp_path))
    both = [
        subprocess.Popen([*command, str(tmp_path / name), "--", "sleep", "15"], env=environment, stdout=subprocess.PIPE)
        for name in ("one", "other")
    ]
    told = [process.communicate(timeout=120)[0].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    ports = [re.findall(r"(?:Prometheus|Alertmanager) +http://127.0.0.1:(\d+)", text) for text in told]
    assert len({port for each in ports for port in each}) == 4
