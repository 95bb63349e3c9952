"""The status page in a real browser: what it shows of states large and hostile, what it says, and whom it asks."""

import importlib.util
import json
import os
import pathlib
import subprocess

import browser
import pytest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", HERE.parents[1] / "build" / "release"))
RANKS, LAYERS = 8, 96

pytestmark = pytest.mark.skipif(browser.EXECUTABLE is None, reason="no chromium here")


def sample_state(ranks: int, layers: int) -> dict:
    spec = importlib.util.spec_from_file_location("sample_state", HERE / "sample_state.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sample_state(ranks, layers)


@pytest.fixture
def serve(tmp_path):
    """serve(state, ranks, layers): the address of a page with this state and histories of that size."""
    servers = []

    def start(state: dict, ranks: int = 0, layers: int = 0) -> str:
        file = tmp_path / "state.json"
        file.write_text(json.dumps(state))
        words = [str(BUILD / "bin" / "serve_sample"), str(file), str(ranks), str(layers)]
        servers.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        host, port = servers[-1].stdout.readline().split()
        return f"http://{host}:{port}"

    yield start
    for server in servers:
        server.terminate()
        server.wait(timeout=20)
        server.stdin.close()
        server.stdout.close()


@pytest.fixture(scope="module")
def tab():
    one = browser.Browser()
    yield one
    one.close()


@pytest.fixture
def page(serve, tab):
    """page(ranks, layers, **how): the tab with such a page, once it is live and has drawn."""

    def open_page(ranks: int = RANKS, layers: int = LAYERS, **how: object) -> browser.Browser:
        address = serve(sample_state(ranks, layers), ranks, layers)
        tab.open(address + "/", **how)
        tab.wait_for("byId('fresh').textContent === 'live' && ui.history && ui.charts[0].chart")
        return tab

    yield open_page
    tab.value("0")  # whatever it has said meanwhile
    tab.leave()
    assert tab.console == []
    origins = {"/".join(address.split("/")[:3]) for address in tab.requests}
    assert len(origins) == 1, f"something outside was asked for: {origins}"


def rows(tab: browser.Browser, name: str) -> list[list[str]]:
    """The cells of a table, as text."""
    script = f"""[...document.querySelectorAll('#tables section')]
        .filter((s) => s.querySelector('h2').textContent === {json.dumps(name)})
        .flatMap((s) => [...s.querySelectorAll('tbody tr')])
        .map((row) => [...row.cells].map((cell) => cell.textContent))"""
    return tab.value(script)


def test_the_verdict_names_the_layer(page):
    tab = page()
    assert tab.value("byId('verdict').className") == "bad"
    expected = "attention of rank 1 layer 002 (blocks.2.attention.qkv.weight) forward errs up to 2.9 times "
    expected += "what its precision explains"
    assert tab.value("byId('verdict-text').textContent") == expected
    assert tab.texts("#notes li.alarm") == [
        "Loss spikes at step 1,420 on rank 1",
        "NaN or Inf in the gradient of 002 on rank 1",
    ]
    assert rows(tab, "Layers")[0][:4] == ["002", "blocks.2.attention.qkv.weight", "1", "2.41"]
    marks = tab.texts("#tables .alarm")
    assert "2.41" in marks, "an alarm is a mark and not only a colour"


def test_a_healthy_run_is_said_to_be_so(page):
    tab = page(ranks=1, layers=4)
    assert tab.value("byId('verdict').className") == "good"
    assert tab.value("byId('verdict-text').textContent") == "attention errs no more than its precision explains"
    assert tab.texts("#tables td .alarm") == ["1", "1"], "the lost slices, and nothing else"
    assert rows(tab, "Ranks") == []
    assert tab.value("byId('legend').hidden")


def test_detectors_are_told_the_loudest_first(page):
    tab = page()
    found = rows(tab, "Detectors")
    assert found[0][:5] == ["gradient_growth", "warn", "–", "1,409", "1"]
    assert found[0][9] == "69 of 87 warnings"
    assert found[1][:5] == ["max_logit", "watch", "<s>004</s>", "1,402", "1"]
    assert found[1][9] == "not measured"
    assert found[2][:4] == ["bias", "quiet", "–", "–"]
    assert found[2][9] == "3 of 87 warnings, experimental"
    assert "warn" in tab.texts("#tables .alarm"), "a mark and not only a colour"


def test_loss_events_are_marked_on_the_loss_and_nowhere_else(page):
    tab = page()
    marked = "ui.charts.map((c) => c.chart?.options.plugins.guides.lossEvents.map((e) => [e.step, e.what])).slice(0, 2)"
    assert tab.value(marked) == [[[1420, "spike"]], []]
    assert tab.value("ui.charts[0].canvas.getAttribute('aria-label')").endswith("; spike at step 1,420")
    assert 1420 not in tab.value("ui.charts[0].chart.options.plugins.guides.events"), "not marked twice"
    assert 1420 in tab.value("ui.charts[1].chart.options.plugins.guides.events")


def test_names_stay_text(page):
    tab = page()
    assert tab.value("byId('run').textContent") == "<img src=x onerror=alert(1)>"
    assert "<b>007</b>" in [row[0] for row in rows(tab, "Layers")]
    assert rows(tab, "What the training logs")[0] == ["<i>accuracy</i>", "0", "0.50000", "1,500"]
    assert tab.value("document.querySelectorAll('img, b, i, s').length") == 0


def test_unknown_is_a_dash(page):
    tab = page()
    (hostile,) = [row for row in rows(tab, "Layers") if row[0] == "<b>007</b>"]
    assert set(hostile[3:]) == {"–"}
    text = tab.value("document.body.innerText")
    assert not any(word in text for word in ("null", "undefined", "NaN<", "NaN\n", "[object"))


def test_every_rank_and_layer_is_there(page):
    tab = page()
    assert [row[0] for row in rows(tab, "Ranks")] == [str(n) for n in range(RANKS)]
    assert len(rows(tab, "Layers")) == LAYERS + 1
    assert tab.value("ui.heat.map.labels.length") == LAYERS
    charts = tab.value("ui.charts.filter((c) => !c.box.hidden).map((c) => [c.kind.name, c.chart.data.datasets.length])")
    assert charts == [[name, RANKS] for name in ("loss", "gradient norm before clipping", "deviation ratio, forward",
                      "deviation ratio, backward", "bias, ulp", "weights, W1 in an interval",
                      "weights, mean change in a step", "slowdown in the trainer")]  # fmt: skip


def test_charts_say_in_words_what_they_show(page):
    labels = page(1, 4).value("ui.charts.filter((c) => !c.box.hidden).map((c) => c.canvas.getAttribute('aria-label'))")
    assert labels[0].startswith("loss, steps 1001 to 1511: from 1.760 to 2.640, last ")


def test_something_is_drawn(page):
    tab = page()
    painted = """[...document.querySelectorAll('main canvas')].filter((c) => c.offsetParent && c.width).map((c) =>
        new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size)"""
    colours = tab.value(painted)
    assert len(colours) == 10, "eight charts, the map and its scale"
    assert min(colours) > 8, colours


def test_the_weights_of_each_layer_are_a_map(page):
    tab = page()
    tab.value("byId('heat-signal').value = '4', byId('heat-signal').dispatchEvent(new Event('change'))")
    assert "W1 in an interval" in tab.value("byId('heat-map').getAttribute('aria-label')")
    cells = tab.value("ui.heat.map.labels.map((label) => ui.heat.map.rows.get(label).size)")
    assert cells == [8] * LAYERS, "a snapshot every 64 of 512 steps"
    assert tab.value("[ui.heat.map.columns, ui.heat.map.width]") == [8, 64], "an interval a column: no holes"
    painted = "[...new Uint32Array(byId('heat-map').getContext('2d').getImageData(0, 0, 2000, 2000).data.buffer)]"
    assert tab.value(f"new Set({painted}).size") > 50, "values of one to a hundred are told apart by colour"


def test_weights_are_among_the_figures(page):
    tab = page()
    figure = tab.value(
        "[...document.querySelectorAll('#figures > *')].map((f) => f.innerText).find((t) => t.includes('W1'))"
    )
    for part in (
        "3.21e−5",
        "W1 in 64 steps",
        "<u>blocks.2</u> moved most, 8.40e−5",
        "rank 1 differs from its replicas",
    ):
        assert part in figure, figure


def test_a_rank_can_be_chosen_with_the_keyboard(page):
    tab = page()
    tab.value("document.querySelector('#legend button[data-rank=\"1\"]').focus()")
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    tab.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    assert tab.texts("#legend button[aria-pressed=true]") == ["rank 1"]
    assert tab.value("ui.charts[1].chart.data.datasets.map((d) => d.label)") == ["rank 1"]
    assert {row[2] for row in rows(tab, "Layers")} == {"1"}


def test_a_cell_of_the_map_can_be_read_with_the_keyboard(page):
    tab = page()
    tab.value("byId('heat-map').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        tab.press(key)
    name = "layer 002 (blocks.2.attention.qkv.weight), steps 1,528 to 1,535: 2.40, rank 1"
    assert tab.value("byId('heat-cell').textContent") == name
    for _ in range(30):
        tab.press("ArrowLeft")
    assert "rank 1" not in tab.value("byId('heat-cell').textContent")


def test_dark_and_narrow(page):
    tab = page(dark=True, width=390)
    background = tab.value("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(20, 23, 26)"
    assert tab.value("document.documentElement.scrollWidth") <= 390, "nothing makes a phone scroll sideways"


def test_several_runs_are_told_apart(serve, tab):
    state = sample_state(1, 2)
    first, second = state | {"run": "first"}, state | {"run": "second", "state": "finished"}
    tab.open(serve({"schema": 1, "version": "0.1.0", "runs": [first, second]}) + "/")
    tab.wait_for("byId('fresh').textContent === 'live'")
    assert tab.texts("#runs option") == ["first", "second"]
    tab.value("byId('runs').value = 'second', byId('runs').dispatchEvent(new Event('change'))")
    assert tab.value("byId('state').textContent") == "finished"
    assert tab.console == []
    tab.leave()


def test_an_agent_that_has_gone_is_said_to_be(serve, tab):
    address = serve(sample_state(1, 2), 1, 2)
    tab.open(address + "/")
    tab.wait_for("byId('fresh').textContent === 'live'")
    tab.value("window.fetch = () => Promise.reject(new Error('gone'))")
    tab.wait_for("byId('fresh').textContent === 'not reachable; these are the last values'")
    assert len(rows(tab, "Layers")) == 3
    tab.leave()
