"""The dashboard: rules of good dashboards, and every query of it on a real Prometheus that scraped a real training."""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import monitored
import pytest
from scraping import ended, needs, prometheus, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "dashboards" / "grafana" / "overview.json").read_text())
PANELS = DASHBOARD["panels"]
KNOWN = re.findall(r"\| `(foreshock_\w+)` \| (\w+)", (ROOT / "docs" / "metrics.md").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
# What a healthy training without a logger has nothing to show for.
MAY_BE_EMPTY = {"Skipped and lost", "Logged by the training"}


def test_every_panel_explains_itself():
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"]["uid"] == "${datasource}", panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_panels_lie_beside_each_other():
    taken = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_is_in_the_catalog_and_used_as_its_type_allows():
    types = dict(KNOWN)
    for title, expression in QUERIES:
        for name in re.findall(r"foreshock_\w+", expression):
            assert name in types, f"{title}: {name}"
        for name in re.findall(r"rate\((foreshock_\w+)", expression):
            assert types[name] == "counter", f"{title}: a rate of {name}"
            assert "[$__rate_interval]" in expression, title


def test_every_variable_is_declared():
    declared = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    for title, expression in QUERIES:
        used = set(re.findall(r"\$\{?(\w+)", expression))
        assert used <= declared, title
        assert "run" in used, f"{title} mixes runs"


def filled(expression: str) -> str:
    for name, value in {"$__rate_interval": "10s", "$run": "me", "$rank": ".*", "$pass": "forward"}.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def queried(server: object, expression: str, seconds: float = 0) -> list[dict]:
    """Its result, as soon as there is one; an error of Prometheus is one here."""
    end = time.monotonic() + seconds
    while not (result := server.query(expression)) and time.monotonic() < end:
        time.sleep(0.5)
    return result


TRAINING = """
import sys, time
sys.path.insert(0, {support!r})
import torch
from tiny_gpt import Batches, TinyGpt, loss_of, set_up
set_up()
model, batches = TinyGpt(), Batches()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
while True:
    optimizer.zero_grad()
    loss_of(model, batches()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """A Prometheus with our rules that scrapes a live training, once both have got going."""
    folder = tmp_path_factory.mktemp("scraped")
    base = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-dash-", dir="/dev/shm"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        program = TRAINING.format(support=str(ROOT / "tests" / "support"))
        command = [
            str(monitored.FORESHOCK),
            "run",
            "--run-id",
            "me",
            "--port",
            "0",
            "--every",
            "8",
            "--max-slowdown",
            "100%",
        ]
        environment = monitored.clean_environment(FORESHOCK_DIR=str(base))
        stack.enter_context(
            ended(
                subprocess.Popen(
                    [*command, "--", monitored.PYTHON, "-c", program],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
            )
        )
        agent = wait_until(lambda: json.loads((base / "me" / "agent.json").read_text()))
        rules = ROOT / "dashboards" / "rules" / "foreshock.yml"
        server = stack.enter_context(prometheus(f"127.0.0.1:{agent['port']}", folder, rules=rules))
        wait_until(lambda: server.query('foreshock_attention_bias_zscore{of="kernel"}'))
        wait_until(lambda: server.query("count_over_time(foreshock_step[30s]) > 20"))
        yield server


@needs["prometheus"]
def test_every_query_has_something_to_show(scraped):
    empty = []
    for title, expression in QUERIES:
        patience = 0 if title in MAY_BE_EMPTY else 20
        if not queried(scraped, filled(expression), patience) and patience > 0:
            empty.append((title, filled(expression)))
    assert empty == []


@needs["prometheus"]
def test_every_variable_has_values(scraped):
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()
        values = {row["metric"][label] for row in scraped.query(filled(selector))}
        assert values == {"run": {"me"}, "rank": {"0"}}[variable["name"]]


@needs["prometheus"]
def test_a_healthy_training_raises_no_alert(scraped):
    loaded = scraped.get("/api/v1/rules")["data"]["groups"]
    rules = [rule for group in loaded for rule in group["rules"]]
    rules_file = (ROOT / "dashboards" / "rules" / "foreshock.yml").read_text()
    assert len(rules) == len(re.findall(r"- (?:alert|record):", rules_file)) > 5
    wait_until(
        lambda: all(
            rule["health"] == "ok" for g in scraped.get("/api/v1/rules")["data"]["groups"] for rule in g["rules"]
        )
    )
    assert scraped.query("ALERTS") == []
