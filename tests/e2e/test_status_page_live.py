"""The status page of real trainings, in a real browser: what was planted is what it shows."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import monitored
import pytest
from hand_training import BIASED, Training
from scraping import wait_until
from segment_file import segments
from status_page import LIVE, keep, rows

DEMO = [monitored.PYTHON, str(monitored.ROOT / "integrations" / "torch" / "demo" / "train.py")]
# The fault begins at a third of it, and is found some forty steps later: the test ends the training.
STEPS = 600
GUILTY = "001"
# What the page shows of the benchmark when one points at the detector's status.
TOOLTIP = """[...document.querySelectorAll('#detectors tbody tr')]
    .find((row) => row.firstChild.textContent === 'output_error_drift').lastChild.title"""
MEASURED = r"a loss event followed \d+ of \d+ warnings; \d+ of \d+ loss events had a warning before"


def address_of(directory: pathlib.Path) -> str:
    def said() -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((directory / "agent.json").read_text())["port"]
        return None

    return f"http://127.0.0.1:{wait_until(said)}/"


@pytest.fixture
def faulty_training(base, tmp_path):
    """`./dev demo --fault` with the smallest model, as it runs."""
    line = [str(monitored.FORESHOCK), "run", "--run-id", "demo", "--port", "0", *monitored.EVERYTHING]
    line += ["--grafana", "http://localhost:3000/", "--", *DEMO]
    line += ["--seconds", "2", "--steps", str(STEPS), "--fault", "32"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            line, env=monitored.clean_environment(FORESHOCK_DIR=str(base)), stdout=said, stderr=said
        )
    yield base / "demo"
    for segment in segments(base / "demo"):
        os.kill(segment.pid, signal.SIGCONT)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=300)


def test_a_layer_that_errs_is_seen_on_the_page(faulty_training, tab):
    started = time.time()
    tab.open(address_of(faulty_training))
    pid = wait_until(lambda: next((segment.pid for segment in segments(faulty_training) if segment.steps()), None))
    os.kill(pid, signal.SIGSTOP)  # until the page has been seen before the fault
    tab.wait_for(LIVE)
    early = tab.value("ui.state.ranks[0].step")
    assert early < STEPS / 3, "the page came too late to see it begin"
    assert tab.value("byId('verdict').className") != "bad"
    os.kill(pid, signal.SIGCONT)

    warned = "lanesOf(ui.state.ranks).filter((lane) => warningSteps([lane]).length).map((lane) => lane.name)"
    tab.wait_for(
        f"['output_error_drift', 'deviation_backward'].every((name) => {warned}.includes(name))"
        " && byId('verdict').className === 'bad' && ui.heat.map",
        seconds=240,
    )
    assert f"layer {GUILTY}" in tab.value("byId('verdict-text').textContent")
    tab.wait_for("SIGNALS[ui.heat.signal.value].column === 'deviation_ratio_backward'")
    beyond = """(() => {
        show();
        const { map } = ui.heat, kind = SIGNALS[ui.heat.signal.value];
        const steps = (label) => [...map.rows.get(label)].filter(([, cell]) => ui.heat.isBeyond(kind, label, cell));
        return map.labels.map((label) => [label, steps(label).map(([at]) => at * map.width)]);
    })()"""
    tab.wait_for(f"{beyond}.some(([, steps]) => steps.length > 1)")
    marked = {label: steps for label, steps in tab.value(beyond) if steps}
    assert list(marked) == [GUILTY], "the layer that errs, and no other"
    width = tab.value("ui.heat.map.width")
    assert min(marked[GUILTY]) + width > STEPS / 3, "and not before it does"

    detectors = {row[0]: row for row in rows(tab, "Detectors")}
    assert detectors["output_error_drift"][2] == "warn"
    assert detectors["output_error_drift"][6].startswith(GUILTY)
    assert re.search(MEASURED, tab.value(TOOLTIP)), tab.value(TOOLTIP)
    assert detectors["bias"][2] == "quiet"
    assert all(step > STEPS / 3 for step in tab.value("warningSteps(lanesOf(ui.state.ranks))"))

    overview = tab.value("document.querySelector('#grafana a').href")
    began, end = re.fullmatch(
        r"http://localhost:3000/d/foreshock-overview\?var-run=demo&from=(\d+)&to=(\w+)", overview
    ).groups()
    assert end == "now"
    # A minute before the training began, which the fixture has just started.
    assert started - 61 < int(began) / 1000 < time.time() - 60
    assert len(keep(tab, "demo-fault")) > 20_000
    assert tab.console == []


def test_what_came_before_a_spike_is_told(base, start_hand, tab):
    training = Training(base, start_hand("me"))
    training.run(200)
    training.plant(BIASED)
    tab.open(address_of(base / "me"))
    training.run(40)
    training.run(20, gradient=20)
    training.run(10, loss=9)
    tab.wait_for("lossIncidents(ui.state.ranks).length > 0 && document.querySelector('#before tbody tr')")
    before = rows(tab, "Loss events, and what came before")
    assert before[0][:2] == ["spike", "261"]
    spoke = {row[5]: row for row in before}
    assert {"bias", "gradient_norm"} <= set(spoke)
    # The one began with the error at 201, the other with the gradients at 241.
    assert 20 < int(spoke["bias"][9]) <= 60
    assert 15 <= int(spoke["gradient_norm"][9]) <= 20
    assert before.index(spoke["bias"]) < before.index(spoke["gradient_norm"]), "the earliest first"
    tab.wait_for("ui.charts[0].chart?.options.plugins.guides.lossEvents.length")
    assert tab.value("ui.charts[0].chart.options.plugins.guides.lossEvents.map((e) => e.step)") == [261]
    # The time comes from the history, which the page reads at every second poll only.
    tab.wait_for(r"[...document.querySelectorAll('#notes li.alarm')].some((li) => /261 \(/.test(li.textContent))")
    (note,) = (text for text in tab.texts("#notes li.alarm") if text.startswith("Loss:"))
    assert re.match(r"Loss: spike at step 261 \(\d\d:\d\d:\d\d\); before it ", note)
    assert "bias in call00" in note
    assert tab.texts("#grafana a") == [], "nobody told of a Grafana"
    keep(tab, "spike")
