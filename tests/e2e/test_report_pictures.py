"""Reports of four recorded trainings, as a browser draws them: what they say first, and nothing covers anything else.
The pictures stay in the build folder; those of docs/report.md are made here."""

import concurrent.futures
import json
import pathlib
import subprocess

import browser
import pytest
from monitored import FORESHOCK, PYTHON, ROOT, Run, run_monitored
from status_page import SCREENSHOTS

pytestmark = [
    pytest.mark.long,  # tests/cli/test_report.py draws reports of made-up records
    pytest.mark.skipif(browser.EXECUTABLE is None, reason="no chromium here"),
]

# Plant: how many steps, and from which on it is wrong. A divergence is told after 128 high losses.
STEPS = {"healthy": 240, "attention": 240, "rate": 300, "batch": 240}
ATTENTION_STEP, RATE_STEP, BATCH_STEP = 121, 141, 181
FROM_STEP = {"healthy": 0, "attention": ATTENTION_STEP, "rate": RATE_STEP, "batch": BATCH_STEP}
SCRIPT = str(pathlib.Path(__file__).with_name("report_training.py"))
OFTEN = ("--every", "1", "--max-slowdown", "100%")
MOST_BYTES = 150_000  # of a picture in docs
DOCUMENTED = (800, 1120)


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> dict[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("reports")
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        words = {name: [PYTHON, SCRIPT, name, str(STEPS[name]), str(FROM_STEP[name])] for name in STEPS}
        runs = {name: two.submit(run_monitored, words[name], "--run-id", name, *OFTEN) for name in STEPS}

    def kept(name: str, run: Run) -> pathlib.Path:
        assert run.returncode == 0, run.stderr
        record = folder / f"{name}.jsonl"
        record.write_text("".join(json.dumps(line) + "\n" for line in run.lines))
        done = subprocess.run([FORESHOCK, "report", record], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return record

    return {name: kept(name, run.result()) for name, run in runs.items()}


@pytest.fixture(scope="module")
def tab():
    one = browser.Browser()
    yield one
    one.close()


def open_page(tab: browser.Browser, record: pathlib.Path, **how: object) -> None:
    tab.open(record.with_suffix(".html").as_uri(), **how)
    tab.wait_for("document.getElementById('limits').children.length > 0")


def test_first_sentence_is_what_happened_and_the_suspect(records, tab):
    said = {}
    for name, record in records.items():
        open_page(tab, record)
        said[name] = tab.value("document.getElementById('verdict').textContent")
    assert f". No loss event in {STEPS['healthy']} steps" in said["healthy"], said
    assert said["attention"].startswith("ATTENTION FAULT: layer 001: "), said
    assert said["batch"].startswith(f"LOSS SPIKE: loss spike at step {BATCH_STEP}"), said
    event, _, suspect = said["rate"].partition(", ")
    onset = int(event.removeprefix("LOSS DIVERGED: loss diverged at step "))
    assert RATE_STEP < onset <= RATE_STEP + 3, said
    assert "after the learning rate went from 0.001 to 1." in suspect, said


def test_fault_of_attention_is_drawn_by_step_and_layer(records, tab):
    open_page(tab, records["attention"])
    (layer,) = tab.value("report.attention.layers.filter((l) => l.error.some((y) => y > 1)).map((l) => l.layer)")
    assert layer == "001"
    first = tab.value("report.findings[0].since_step")
    assert ATTENTION_STEP <= first < ATTENTION_STEP + 40, "one head of four errs, and one is looked at"
    labels = tab.value("[...document.querySelectorAll('#attention canvas')].map((c) => c.getAttribute('aria-label'))")
    assert [label.split(" ")[0] for label in labels] == ["Error", "Map"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("name", STEPS)
def test_nothing_covers_anything_and_nothing_is_empty(records, tab, name, width, dark):
    open_page(tab, records[name], width=width, dark=dark)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(SCREENSHOTS / f"report-{name}-{width}-{'dark' if dark else 'light'}.png")
    assert browser.layout_problems(tab) == []
    assert tab.console == []
    paper = tab.value("getComputedStyle(document.querySelector('section')).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 300) == dark, paper


def test_layout_check_sees_what_is_wrong(records, tab):
    open_page(tab, records["rate"], width=400)
    for change, says in (
        ("document.querySelector('h1').style.marginBottom = '-80px'", "covers"),
        ("document.body.append(Object.assign(document.createElement('p'), {style: 'width: 500px', textContent: 'x'}))",
         "wider"),
        ("document.getElementById('overview').replaceChildren()", "empty"),
        ("(() => { const c = document.querySelector('canvas'); c.getContext('2d').clearRect(0, 0, 9999, 9999) })()",
         "nothing drawn"),
        ("Chart.getChart(document.querySelector('canvas')).labels = "
         "[1, 2].map(() => ({left: 60, right: 90, top: 5, bottom: 15, text: 'a'}))", "covers"),
    ):  # fmt: skip
        open_page(tab, records["rate"], width=400)
        assert browser.layout_problems(tab) == []
        tab.value(change)
        problems = browser.layout_problems(tab)
        assert any(says in problem for problem in problems), (says, problems)
    tab.leave()


def test_two_events_at_one_step_have_labels_beside_each_other(records, tab, tmp_path):
    """A spike, a divergence of another rank elsewhere, and a slow rise: three lines within a few pixels."""
    lines = records["batch"].read_text().splitlines()
    events = [
        {"event": kind, "step": step} for kind, step in (("loss_rise", BATCH_STEP), ("divergence", BATCH_STEP + 12))
    ]
    run = {"schema": 1, "type": "event", "run": "batch", "rank": 0, "value": 9.0}
    crowded = tmp_path / "crowded.jsonl"
    crowded.write_text("\n".join([*lines[:-1], *(json.dumps(run | event) for event in events), lines[-1]]) + "\n")
    subprocess.run([FORESHOCK, "report", crowded], check=True, capture_output=True, timeout=120)
    for width in (1400, 400):
        open_page(tab, crowded, width=width)
        labels = tab.value("Chart.getChart(document.querySelector('canvas')).labels.map((l) => l.text)")
        assert len(labels) == 3, labels
        assert browser.layout_problems(tab) == []
    tab.leave()


@pytest.mark.parametrize("name", STEPS)
def test_pictures_of_the_docs_can_be_made_small(records, tab, name):
    wide, high = DOCUMENTED
    open_page(tab, records[name], width=wide, height=high)
    tab.value("['read', 'facts'].forEach((id) => document.getElementById(id).remove())")  # room for what differs
    picture = SCREENSHOTS / f"docs-report-{name}.png"
    tab.screenshot(picture, whole=False)
    kept = ROOT / "docs" / f"report-{name}.png"
    assert kept.stat().st_size < MOST_BYTES
    assert kept.name in (ROOT / "docs" / "report.md").read_text()
    tab.leave()
