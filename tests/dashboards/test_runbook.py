"""The runbook: for each alert all that one needs at night, figures as measured, links that lead somewhere."""

import json
import re

import pytest
from alert_rules import ROOT, VALUES, alerts
from runbook import PAGE, RESULTS, runbook

pytestmark = pytest.mark.quick

SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.S | re.M))
PAGES = [ROOT / "docs" / name for name in ("runbook.md", "alerts.md")]


def test_figures_match_the_bench():
    assert PAGE.read_text() == runbook(), "run ./dev docs"


def test_stated_delays_match_rules_and_bench():
    page = PAGES[1].read_text()
    results = json.loads(RESULTS.read_text())
    ours = {name: results["shipped"][name]["all"] for name in results["ours"]}
    best = max(ours, key=lambda name: ours[name]["hits"])
    lead = (
        f"`{best}`, the detector that foretold most events on the bench, leads by {ours[best]['lead_median']:g} steps"
    )
    assert lead in " ".join(page.split())
    told = VALUES["notifications"]
    assert (
        f"| {told['page_wait'].removesuffix('s')} for pages, {told['wait'].removesuffix('s')} s for tickets |" in page
    )
    (holds,) = re.findall(r"^\| `for` \| (.+) \|$", page, re.M)
    assert holds.startswith("0 for NaN and for all detectors, 2 min for a rising loss, 5 to 15 min for other alerts")
    held = {alert.name: alert.hold for alert in alerts()}
    asking = [alert for alert in alerts() if 'detector=~"' in alert.expression]
    assert {alert.hold for alert in asking} == {held["ForeshockNonFinite"]} == {None}
    assert held["ForeshockLossDiverging"] == "2m"
    assert {hold for hold in held.values() if hold} - {"2m"} == {"5m", "10m", "15m"}
    assert {alert.hold for alert in alerts() if alert.kind == "precursor"} == {None, "5m"}


def test_there_is_a_section_for_each_alert_and_no_other():
    assert SECTIONS.keys() == {alert.name for alert in alerts()}


def test_the_action_of_a_finding_is_the_first_step_of_its_section():
    sections = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.S | re.M))
    table = (ROOT / "agent" / "findings.h").read_text().split("kFindingTable[] = {")[1].split("};")[0]
    findings = re.findall(r'\{FindingKind::\w+, "(\w+)", "[A-Z ]+",\s+"([^"]+)"\}', table)
    assert len(findings) == table.count("FindingKind::")
    assert [name for name, _ in findings] == list(sections), "one section for each kind, in the order of the table"
    for name, action in findings:
        first = " ".join(sections[name].split()).removeprefix("**Do** ")
        assert first.startswith(f"{action[0].upper()}{action[1:]}."), name


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_a_section_says_what_it_means_how_sure_where_to_look_and_what_to_do(alert):
    section = SECTIONS[alert.name]
    positions = [section.find(f"**{part}**") for part in ("Means", "Sure?", "Look at", "Do")]
    assert -1 not in positions
    assert positions == sorted(positions)
    named = {name for each in re.findall(r'detector=~"([^"]+)"', alert.expression) for name in each.split("|")}
    measured = {name for each in re.findall(r"<!-- measured: ([\w ]+) -->", section) for name in each.split()}
    assert named <= measured
    for name in measured:
        assert f"- `{name}`: " in section


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", page.read_text())
    assert links
    for target, anchor in links:
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), anchor
