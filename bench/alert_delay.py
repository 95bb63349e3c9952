"""Measures the delay of an alert: from the step of a detector's warning until the alert is true in Prometheus.

    python bench/alert_delay.py [--servers 6] [--intervals 1 5 15] [--faults 3]

A small training runs under `foreshock run`, which starts an agent. For each interval several Prometheus servers scrape
the agent and evaluate the alert rules once per interval, each server at a moment of its own. Then a fault begins: the
gradients are multiplied by 1e-4 and grow from there, as before a loss spike with Adam. The detector `gradient_growth`
warns of this growth. Two delays are printed: from the step that the warning names until the agent exports the warning,
and from the export until the alert's rule is true in Prometheus. The second delay is also computed from the interval
alone: one interval on average (half for the scrape, half for the evaluation), and at most two.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
RULES = ROOT / "dashboards" / "rules" / "foreshock.yml"
LEARNING_SECONDS = 30  # training before the fault, in which the detector learns from its first 64 steps
# After the fault the gradients are multiplied by LOW_FACTOR for LOW_STEPS steps, then grow by GROWTH per step. They
# reach their usual size after 76 steps of growth.
LOW_FACTOR, GROWTH, LOW_STEPS = 1e-4, 1.13, 40
MAX_WAIT_SECONDS = 90  # for the warning, and for the alert

# The program of the training. It prints the time at each end of a step. The fault begins once the file `fault` exists.
# Its clip_grad_norm_ has so high a limit that no gradient is clipped: the call only gives foreshock the gradient norm.
TRAINING = """
import os, sys, time
sys.path.insert(0, {support!r})
import torch
from tiny_gpt import Batches, TinyGpt, loss_of, set_up
set_up()
model, batches = TinyGpt(), Batches()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fault_steps = 0
while True:
    optimizer.zero_grad()
    fault_steps += os.path.exists({fault!r})
    factor = {low_factor} * {growth} ** max(fault_steps - {low_steps}, 0) if fault_steps else 1
    (loss_of(model, batches()) * factor).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    print(time.time(), flush=True)
    time.sleep(0.02)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


@contextlib.contextmanager
def terminated_at_exit(process: subprocess.Popen):
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def start_prometheus(folder: pathlib.Path, agent_port: int, interval: int) -> tuple[subprocess.Popen, int]:
    """Starts a server that scrapes the agent every `interval` seconds. Returns the server's process and its port."""
    folder.mkdir()
    port = free_port()
    shutil.copy(RULES, folder / "rules.yml")  # Prometheus derives the moment of evaluation from the path
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s, evaluation_interval: {interval}s,"
        f" external_labels: {{server: '{folder.name}'}}}}\n"  # Prometheus derives the moment of scraping from them
        f"rule_files: ['{folder}/rules.yml']\n"
        f"scrape_configs: [{{job_name: foreshock, static_configs: [{{targets: ['127.0.0.1:{agent_port}']}}]}}]\n"
    )
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        command.append(f"--web.listen-address=127.0.0.1:{port}")
        return subprocess.Popen(command, stdout=log, stderr=log), port


def warned_at(agent_port: int) -> float:
    """The time at which the agent first exports that the detector has warned."""
    end = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < end:
        metrics = get(f"http://127.0.0.1:{agent_port}/metrics")
        now = time.time()
        if re.search(r'foreshock_precursor_events_total\{[^}]*detector="gradient_growth"\} [1-9]', metrics):
            return now
        time.sleep(0.05)
    raise SystemExit("alert_delay: the detector did not warn")


def step_of_warning(record: pathlib.Path) -> int:
    """The step of the first warning in the record. The first step is 1."""
    events = (json.loads(line) for line in record.read_text().splitlines() if '"gradient_growth"' in line)
    return next(event["step"] for event in events if event.get("level") == "warn")


def true_at(port: int) -> float:
    """The time of the evaluation at which the rule became true in this Prometheus."""
    end = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < end:
        for alert in json.loads(get(f"http://127.0.0.1:{port}/api/v1/alerts"))["data"]["alerts"]:
            if alert["labels"]["alertname"] == "ForeshockGradientGrowth":
                text = alert["activeAt"][:26].rstrip("Z")  # without nanoseconds and zone (UTC)
                return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()
        time.sleep(0.2)
    raise SystemExit("alert_delay: no alert")


def one_fault(intervals: list[int], servers: int) -> tuple[float, dict[int, list[float]]]:
    """Runs one training with a fault. Returns the seconds from the step of the warning until the agent exports the
    warning, and for each interval the seconds from the export until the rule is true, one value per server."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-delay-", dir="/dev/shm"))
    environment = os.environ | {"FORESHOCK_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    fault = folder / "fault"
    program = TRAINING.format(
        support=str(ROOT / "tests" / "support"),
        fault=str(fault),
        low_factor=LOW_FACTOR,
        growth=GROWTH,
        low_steps=LOW_STEPS,
    )
    command = [str(BUILD / "bin" / "foreshock"), "run", "--run-id", "delay", "--port", "0"]
    command += ["--record", str(folder / "record.jsonl"), "--", sys.executable, "-c"]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        steps = stack.enter_context((folder / "steps").open("w"))
        training = subprocess.Popen([*command, program], env=environment, stdout=steps, stderr=subprocess.DEVNULL)
        stack.enter_context(terminated_at_exit(training))
        address = folder / "delay" / "agent.json"
        while not address.exists():
            time.sleep(0.2)
        agent_port = json.loads(address.read_text())["port"]
        ports: dict[int, list[int]] = {interval: [] for interval in intervals}
        for interval in intervals:
            for number in range(servers):
                server, port = start_prometheus(folder / f"server-{interval}-{number}", agent_port, interval)
                stack.enter_context(terminated_at_exit(server))
                ports[interval].append(port)
        time.sleep(max(LEARNING_SECONDS, 2 * max(intervals)))  # each server has scraped at least once
        fault.touch()
        export = warned_at(agent_port)
        step_end = float((folder / "steps").read_text().split()[step_of_warning(folder / "record.jsonl") - 1])
        until_true = {interval: [true_at(port) - export for port in ports[interval]] for interval in intervals}
        return export - step_end, until_true


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=6, help="for each interval")
    parser.add_argument("--intervals", type=int, nargs="+", default=[1, 5, 15], help="seconds")
    parser.add_argument("--faults", type=int, default=3)
    options = parser.parse_args()
    export_delays, alert_delays = [], {interval: [] for interval in options.intervals}
    for _ in range(options.faults):
        until_export, until_true = one_fault(options.intervals, options.servers)
        export_delays.append(until_export)
        for interval, seconds in until_true.items():
            alert_delays[interval] += seconds
    print(
        f"from the step to the agent's page: {statistics.mean(export_delays):.1f} s in the mean,"
        f" {max(export_delays):.1f} s at most"
    )
    for interval, seconds in alert_delays.items():
        print(
            f"then, scraped and evaluated every {interval:2} s: {statistics.mean(seconds):5.1f} s in the mean,"
            f" {max(seconds):5.1f} s at most of {len(seconds)}; by the intervals {interval} s, at most {2 * interval} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
