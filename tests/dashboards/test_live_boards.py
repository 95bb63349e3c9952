"""Every query of the dashboards on a real Prometheus with our rules, which scrapes a real training: first a healthy
one, then the same once its loss is NaN."""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse

import monitored
import pytest
from alert_rules import DASHBOARDS, ROOT
from scraping import Prometheus, ended, needs, prometheus, wait_until

pytestmark = pytest.mark.long

RULES = DASHBOARDS / "rules" / "foreshock.yml"
BOARDS = {file.stem: json.loads(file.read_text()) for file in sorted((DASHBOARDS / "grafana").glob("*.json"))}
TARGETS = [
    (f"{name}: {panel['title']}", target)
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel.get("targets", [])
]
# A healthy training has no alerts to show, and says so; asked again once it is not healthy.
ONLY_WHEN_FIRING = {"overview: Alerts"}

TRAINING = """
import math, os, sys, tempfile, time
sys.path.insert(0, {support!r})
import torch
from torch.utils.tensorboard import SummaryWriter
from tiny_gpt import Batches, TinyGpt, loss_of, set_up
set_up()
model, batches = TinyGpt(), Batches()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
writer = SummaryWriter({logs!r})
for step in range(10**9):
    optimizer.zero_grad()
    loss = loss_of(model, batches())
    if os.path.exists({fault!r}):
        loss = loss * math.nan
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    writer.add_scalar("train/loss", float(loss), step)
    time.sleep(0.01)
"""


class Scene:
    """A live training, the Prometheus that scrapes it, and the way to break the training."""

    def __init__(self, server: Prometheus, fault: pathlib.Path) -> None:
        self.server, self.fault = server, fault

    def shown(self, target: dict, seconds: float = 0) -> list[dict]:
        """What Grafana would get for a panel, as soon as that is something; an error of Prometheus is one here."""
        expression = filled(target["expr"])
        end = time.monotonic() + seconds
        while True:
            now = time.time()
            query = {"query": expression, "start": now - 30, "end": now, "step": 1}
            path = "/api/v1/query_range?"
            if target.get("instant"):
                path, query = "/api/v1/query?", {"query": expression}
            reply = self.server.get(path + urllib.parse.urlencode(query))
            assert reply["status"] == "success"
            assert not reply.get("warnings")
            if reply["data"]["result"] or time.monotonic() > end:
                return reply["data"]["result"]
            time.sleep(0.5)


# All clusters: this Prometheus gives no series such a label.
CHOSEN = {
    "$__rate_interval": "10s",
    "$__range": "30s",
    "$__interval": "1s",
    "$cluster": ".*",
    "$namespace": ".*",
    "$run": "me",
    "$rank": ".*",
    "$pass": "forward",
}


def filled(expression: str) -> str:
    for name, value in {**CHOSEN, "${__to}": str(round(1000 * time.time()))}.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Once training and monitor have got going."""
    folder = tmp_path_factory.mktemp("scraped")
    base = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-dash-", dir="/dev/shm"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        fault = folder / "fault"
        program = TRAINING.format(
            support=str(ROOT / "tests" / "support"), fault=str(fault), logs=str(folder / "tensorboard")
        )
        options = ["--run-id", "me", "--port", "0", "--every", "8", "--weights", "16", "--max-slowdown", "100%"]
        command = [str(monitored.FORESHOCK), "run", *options, "--", monitored.PYTHON, "-c", program]
        environment = monitored.clean_environment(FORESHOCK_DIR=str(base))
        with (folder / "training.log").open("w") as log:
            stack.enter_context(ended(subprocess.Popen(command, env=environment, stdout=log, stderr=log)))
        agent = wait_until(lambda: json.loads((base / "me" / "agent.json").read_text()))
        server = stack.enter_context(prometheus(f"127.0.0.1:{agent['port']}", folder, rules=RULES))
        wait_until(lambda: server.query('foreshock_attention_bias_zscore{of="kernel"}'))
        wait_until(lambda: server.query("count_over_time(foreshock_step[30s]) > 20"))
        yield Scene(server, fault)


@needs["prometheus"]
def test_no_panel_of_a_healthy_training_is_empty(scene):
    empty = [
        (title, filled(target["expr"]))
        for title, target in TARGETS
        if not scene.shown(target, 0 if title in ONLY_WHEN_FIRING else 30) and title not in ONLY_WHEN_FIRING
    ]
    assert empty == []


@needs["prometheus"]
def test_queries_over_steps_have_one_value_for_each_time(scene):
    for title, target in TARGETS:
        board, panel = title.split(": ", 1)
        kind = next(each["type"] for each in BOARDS[board]["panels"] if each["title"] == panel)
        if kind == "trend":
            assert len(scene.shown(target, 30)) == 1, f"{title}: {target['expr']}"


@needs["prometheus"]
def test_every_variable_has_values(scene):
    found = set()
    for name, board in BOARDS.items():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()
            match = urllib.parse.urlencode({"match[]": filled(selector)})
            values = scene.server.get(f"/api/v1/label/{label}/values?{match}")["data"]
            assert values == {"cluster": [], "namespace": [], "run": ["me"], "rank": ["0"]}[variable["name"]], name
            found.add(variable["name"])
    assert found == {"cluster", "namespace", "run", "rank"}


@needs["prometheus"]
def test_a_healthy_training_raises_no_alert(scene):
    def rules() -> list[dict]:
        return [rule for group in scene.server.get("/api/v1/rules")["data"]["groups"] for rule in group["rules"]]

    assert len(rules()) == len(re.findall(r"- (?:alert|record):", RULES.read_text())) > 30
    wait_until(lambda: all(rule["health"] == "ok" for rule in rules()))
    assert scene.server.query('ALERTS{alertstate="firing"}') == []


@needs["prometheus"]
def test_a_loss_that_is_nan_pages_and_is_drawn_into_every_dashboard(scene, show_line):
    scene.fault.touch()
    begin = time.time()
    firing = wait_until(lambda: scene.server.query('ALERTS{alertname="ForeshockNonFinite",alertstate="firing"}'))
    late = time.time() - begin
    show_line("alerts", f"NaN to ForeshockNonFinite, scraped twice and evaluated once a second: {late:.1f} s")
    labels = firing[0]["metric"]
    assert labels["severity"] == "page"
    assert labels["run"] == "me"
    assert labels["owner"]
    for name, board in BOARDS.items():
        for annotation in board["annotations"]["list"]:
            assert scene.shown(annotation, 10), name
    for title, target in TARGETS:
        if title in ONLY_WHEN_FIRING:
            assert scene.shown(target, 10), title
