"""The alerts: written from the values, clean to promtool, and held by tests that no other value would pass."""

import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from scraping import needs

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "dashboards"
VALUES = tomllib.loads((DASHBOARDS / "values.toml").read_text())
DURATION = re.compile(r"(\d+)m")


def generate(folder: pathlib.Path, values: pathlib.Path = DASHBOARDS / "values.toml") -> pathlib.Path:
    command = [sys.executable, str(DASHBOARDS / "generate.py"), "--into", str(folder), "--values", str(values)]
    subprocess.run(command, check=True)
    return folder


def test_what_is_committed_is_what_is_generated(tmp_path):
    made = generate(tmp_path)
    for file in ("rules/foreshock.yml", "grafana/overview.json"):
        assert (made / file).read_text() == (DASHBOARDS / file).read_text(), "run ./dev docs"


@needs["promtool"]
def test_the_rules_are_clean():
    rules = str(DASHBOARDS / "rules" / "foreshock.yml")
    command = ["promtool", "check", "rules", "--lint=all", "--lint-fatal", rules]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "6 rules found" in checked.stdout


def run_rule_tests(rules: pathlib.Path) -> subprocess.CompletedProcess:
    """Of the committed tests on the rules in that folder."""
    shutil.copy(DASHBOARDS / "rules" / "foreshock_test.yml", rules)
    command = ["promtool", "test", "rules", "foreshock_test.yml"]
    return subprocess.run(command, cwd=rules, capture_output=True, text=True)


@needs["promtool"]
def test_every_alert_fires_and_is_silent_as_it_should(tmp_path):
    tested = run_rule_tests(generate(tmp_path) / "rules")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    text = (DASHBOARDS / "rules" / "foreshock_test.yml").read_text()
    for name in re.findall(r"alert: (\w+)", (DASHBOARDS / "rules" / "foreshock.yml").read_text()):
        assert re.search(rf"alertname: {name}}}", text), f"{name} has no case in which it is silent"
        assert re.search(rf"alertname: {name}(,|\n +)\s*exp_alerts", text), f"{name} has no case in which it fires"


def scaled(value: object, factor: float) -> object:
    if isinstance(value, str):
        (minutes,) = DURATION.fullmatch(value).groups()
        return f"{round(int(minutes) * 60 * factor)}s"
    return value * factor


def written(values: dict[str, dict[str, object]]) -> str:
    lines = []
    for section, entries in values.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {value!r}" for name, value in entries.items()]
    return "\n".join(lines).replace("'", '"')


EVERY_VALUE = [(section, name) for section, entries in VALUES.items() for name in entries]


@needs["promtool"]
@pytest.mark.parametrize("factor", [1.5, 1 / 1.5], ids=["half_more", "a_third_less"])
@pytest.mark.parametrize(("section", "name"), EVERY_VALUE)
def test_no_other_value_passes(tmp_path, section, name, factor):
    changed = {key: dict(entries) for key, entries in VALUES.items()}
    changed[section][name] = scaled(VALUES[section][name], factor)
    (tmp_path / "values.toml").write_text(written(changed))
    tested = run_rule_tests(generate(tmp_path, tmp_path / "values.toml") / "rules")
    assert tested.returncode == 1, f"{section}.{name} = {changed[section][name]} passes every test"
    assert "FAILED" in tested.stdout + tested.stderr
    assert "got:" in tested.stdout + tested.stderr, "the rules could not be read at all"


def test_the_values_are_those_of_the_verdict():
    header = (ROOT / "detect" / "thresholds.h").read_text()
    constants = dict(re.findall(r"(k\w+) = ([\d.]+);", header))
    assert VALUES["bias"]["ulp"] == float(constants["kBiasUlp"])
    assert VALUES["bias"]["z"] == float(constants["kBiasZ"])


def test_every_runbook_entry_exists():
    anchors = {title.lower() for title in re.findall(r"^## (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.M)}
    pointed = re.findall(r'runbook_url: "docs/alerts.md#(\w+)"', (DASHBOARDS / "rules" / "foreshock.yml").read_text())
    assert len(pointed) == 6
    assert set(pointed) == anchors
