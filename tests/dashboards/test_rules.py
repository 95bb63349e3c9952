"""The alerts: written from the values, clean to promtool, each with a case that fires and one that is silent."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
import yaml
from alert_rules import DASHBOARDS, DEFAULT, ROOT, TESTS, VALUES, alerts, detector_rules, promtool_tests, rules
from scraping import needs

pytestmark = pytest.mark.quick

RULES = yaml.safe_load((DASHBOARDS / "rules" / "foreshock.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
EXPRESSIONS = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]


def test_committed_rules_match_the_values():
    assert (DASHBOARDS / "rules" / "foreshock.yml").read_text() == rules.rules_yaml(VALUES), "run ./dev docs"


@needs["promtool"]
def test_promtool_accepts_the_rules():
    command = ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(DASHBOARDS / "rules" / "foreshock.yml")]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(EXPRESSIONS)} rules found" in checked.stdout


def test_every_metric_is_in_the_catalog():
    catalog = dict(re.findall(r"\| `(foreshock_\w+)` \| (\w+)", (ROOT / "docs" / "metrics.md").read_text()))
    records = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
    for expression in EXPRESSIONS:
        for name in re.findall(r"(?<![\w:])foreshock_\w+", expression):
            assert name in catalog, expression
        for name in re.findall(r"(?:increase|rate)\((\w+)", expression):
            assert catalog[name] == "counter", expression
        assert set(re.findall(r"(?:run|rank):\w+:\w+", expression)) <= records, expression


def test_rules_avoid_what_prometheus_3_changed():
    for expression in EXPRESSIONS:
        # 3 writes whole bounds of buckets as le="1.0"; and a window as short as a scrape holds one sample less there.
        assert "le=" not in expression
        for number, unit in re.findall(r"\[(\d+)([smhd])\]", expression):
            assert int(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] >= 300, expression
        # What other versions than 2.42 know, or what 3 has renamed.
        assert not re.search(r"holt_winters|double_exponential|sort_by_label|\binfo\(|limitk|@", expression)
    text = (DASHBOARDS / "rules" / "foreshock.yml").read_text()
    assert not re.search(r"^\s+(query_offset|limit):|^  labels:", text, re.M)


@needs["promtool"]
def test_every_alert_fires_and_is_silent_as_it_should(tmp_path):
    done = promtool_tests(tmp_path, rules.groups(VALUES, DEFAULT), TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_beside_one_that_does_not():
    """Each case says all that fires, so a time without an alert is one at which it is silent."""
    fires: dict[str, set[bool]] = {alert.name: set() for alert in alerts()}
    for file in TESTS:
        for case in yaml.safe_load(file.read_text())["tests"]:
            for time in case.get("promql_expr_test", []):
                seen = " ".join(sample["labels"] for sample in time["exp_samples"])
                for name, found in fires.items():
                    if file.name in FILES_OF[name]:
                        found.add(f'"{name}"' in seen)
    assert {name: found for name, found in fires.items() if found != {True, False}} == {}


FILES_OF = {alert.name: [f.name for f in TESTS if alert.name in f.read_text()] for alert in alerts()}


def detectors_of(expression: str) -> set[str]:
    return {name for each in re.findall(r'detector=~"([^"]+)"', expression) for name in each.split("|")}


def test_tickets_come_from_default_detectors_only():
    default = set(json.loads((ROOT / "bench" / "precursors" / "results.json").read_text())["default"])
    of_detectors = [rule for rule in ALERTS if detectors_of(rule["expr"])]
    assert of_detectors
    for rule in of_detectors:
        named = detectors_of(rule["expr"])
        # An alert of both would be a ticket of what is not proven.
        assert named <= default or not named & default, f"{rule['alert']}: run ./dev docs"
        assert rule["labels"]["severity"] == ("ticket" if named <= default else "info"), rule["alert"]
        assert (", experimental" in rule["annotations"]["description"]) == (not named <= default), rule["alert"]
    assert all(rule["labels"]["severity"] != "info" for rule in ALERTS if rule not in of_detectors)


def test_incidents_and_wrong_weights_page():
    incidents = {"ForeshockNonFinite", "ForeshockLossDiverging"}
    pages = {rule["alert"] for rule in ALERTS if rule["labels"]["severity"] == "page"}
    assert pages == incidents | {"ForeshockReplicaMismatch"}
    assert {rule["labels"]["severity"] for rule in ALERTS} == {"page", "ticket", "info"}
    assert incidents == {rule["alert"] for rule in ALERTS if rule["labels"]["kind"] == "incident"}


def test_absence_alerts_need_a_running_run():
    absent = {"ForeshockTrainingStalled", "ForeshockRanksMissing", "ForeshockNoData", "ForeshockCoverageLow"}
    for rule in ALERTS:
        asks = "foreshock_running:max == 1" in rule["expr"] or 'state="running"' in rule["expr"]
        assert asks == (rule["alert"] in absent), rule["alert"]


def test_every_alert_names_run_fact_meaning_and_action():
    anchors = {title.lower() for title in re.findall(r"^##+ (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.M)}
    boards = {file.stem for file in (DASHBOARDS / "grafana").glob("*.json")}
    for rule in ALERTS:
        texts = rule["annotations"]
        assert re.match(r"(Run {{ \$labels\.run }}|Agent {{ \$labels\.instance }}): ", texts["summary"]), rule["alert"]
        assert not texts["summary"].endswith(".")
        # The fact, what it means, what to do first.
        assert len(re.findall(r"[.)] [A-Z]", texts["description"])) >= 2, rule["alert"]
        assert re.search(r"[.}] ?First ", texts["description"]), rule["alert"]
        assert texts["description"].endswith(".")
        page, _, anchor = texts["runbook_url"].partition("#")
        assert re.match(r"(https?|file)://", page)
        assert re.match(r"https?://", texts["dashboard_url"])
        assert page == VALUES["links"]["runbook"]
        assert anchor in anchors, rule["alert"]
        board = re.search(r"/d/foreshock-(\w+)", texts["dashboard_url"]).group(1)
        assert board in boards, rule["alert"]


def test_values_match_the_limits_of_the_verdict():
    header = (ROOT / "detect" / "detector.h").read_text()
    constants = dict(re.findall(r"(k\w+) = ([\d.]+);", header))
    assert VALUES["verdict"]["ulp"] == float(constants["kBiasUlp"])
    assert VALUES["verdict"]["z"] == float(constants["kBiasZ"])
    assert VALUES["verdict"]["forward"] == float(constants["kDeviationRatioForward"])
    assert VALUES["verdict"]["backward"] == float(constants["kDeviationRatioBackward"])


def test_rules_know_every_detector():
    header = (ROOT / "detect" / "detector.h").read_text()
    known = set(re.findall(r'\{DetectorId::\w+, "(\w+)"', header))
    could = {"entropy_drop", *(name for *_, seen, _ in detector_rules.TABLE for name in seen)}
    # Of these the rules read the values themselves.
    assert could == known - {"bias", "deviation_forward", "deviation_backward"}

    def told(default: set[str]) -> set[str]:
        made = rules.groups(VALUES, frozenset(default))
        return {name for group in made for rule in group.rules for name in detectors_of(rule.expression)}

    assert told(could) == told(set()) == could
    for name in could:
        assert name in told({name})
        assert name not in told(could - {name}) or name in {"entropy_drop", *alone()}


def alone() -> set[str]:
    return {name for *_, seen, _ in detector_rules.TABLE if len(seen) == 1 for name in seen}


@pytest.mark.parametrize("folder", ["", "other"])
def test_the_generator_writes_what_is_committed(tmp_path, folder):
    into = tmp_path / folder
    command = [sys.executable, str(DASHBOARDS / "generate.py"), "--into", str(into)]
    subprocess.run(command, check=True, capture_output=True)
    written = sorted(file.relative_to(into) for file in into.rglob("*") if file.is_file())
    assert pathlib.Path("rules/foreshock.yml") in written
    for file in written:
        assert (into / file).read_text() == (DASHBOARDS / file).read_text(), f"{file}: run ./dev docs"
