"""The status page in a real browser: what it shows of states large and hostile, what it says, and whom it asks."""

import json
import urllib.parse

import browser
import pytest
from monitored import ROOT
from status_page import LIVE, rows, sample_state
from tiers import keep

RANKS, LAYERS = 8, 96  # of page() without words


def time_of(tab: browser.Browser, step: int, rank: int = 1) -> str:
    """As the clock of the browser shows it: the sample trains a second a step, two steps a point from 1000 on."""
    seconds = 1795000000.25 + rank + 2 * ((step - 1000) // 2 + 1)
    return tab.value(f"new Date({1000 * seconds}).toLocaleTimeString('en-GB')")


def test_job_names_host_user_program_and_framework(page):
    tab = page(2, 2)
    assert tab.value("byId('job').textContent") == "<i>node0</i>, <i>node1</i>, user me, python3.11, torch 2.13.0"
    assert tab.value("jobText({}, [{ host: null, executable: null, framework: null }])") == ""


def test_time_stands_beside_steps(page):
    tab = page(1, 2)
    last = tab.value("new Date(1795000600500).toLocaleTimeString('en-GB')")
    assert tab.texts("#figures .quiet")[0].endswith(f"; 10 min since the start; last at {last}")
    assert tab.value("stepText(1421)") == f"step 1,421, {time_of(tab, 1421, rank=0)}"
    assert tab.value("stepText(900)") == "step 900", "before the history"
    assert tab.value("clock(1795000000, 1795200000)").split()[0] == str(tab.value("new Date(1795000000000).getDate()"))


def test_slowdown_above_the_budget_is_marked_wherever_it_is_shown(page):
    state = sample_state(2, 2)
    state["ranks"][1]["slowdown_ratio"] = 0.0121
    tab = page(2, 2, state)
    assert tab.texts("#figures .alarm")[-1] == "1.21 %"
    assert tab.texts("#tables td .alarm").count("1.21 %") == 2, "in the table of ranks and in that of the monitor"
    state["ranks"][1]["max_slowdown"] = 1
    tab = page(2, 2, state)
    assert "1.21 %" not in tab.texts(".alarm"), "no limit was given"


def test_the_verdict_names_the_layer(page):
    tab = page()
    assert tab.value("byId('verdict').className") == "bad"
    assert tab.value("byId('verdict-text').textContent") == (
        "ATTENTION FAULT: layer 002 on rank 1: the output is wrong by up to 0.4 % (2.9x the "
        "error of fused attention) since step 1396. Do: use another kernel. (and 1 more)"
    )
    assert tab.texts("#notes li.alarm")[0] == "loss spike at step 1420."
    assert [note for note in tab.texts("#notes li.alarm") if note.startswith(("Loss", "NaN"))] == [
        f"Loss: spike at step 1,420 ({time_of(tab, 1420)}) on rank 1; before it gradient_growth (11 steps)",
        f"Loss: slow rise at step 1,100 ({time_of(tab, 1100)}) on rank 1; no detector warned before it",
        "NaN or Inf in the gradient of 002 on rank 1",
    ]
    assert rows(tab, "Layers")[0][:4] == ["002", "blocks.2.attention.qkv.weight", "1", "2.41"]
    marks = tab.texts("#tables .alarm")
    assert "2.41" in marks, "an alarm is a mark and not only a colour"


def test_failed_run_is_not_good(page):
    state = sample_state(1, 4)
    state["ranks"][0]["state"] = "failed"
    tab = page(1, 4, state)
    assert tab.value("byId('verdict').className") == "bad"
    assert tab.value("document.title").startswith("\u25b2 ")
    assert tab.value("byId('verdict-text').textContent") == "RUN FAILED on rank 0. healthy"


def test_one_onset_is_one_incident(page):
    state = sample_state(1, 4)
    event = {"event": "loss_spike", "step": 1500, "declared_step": 1502, "preceded_by": []}
    state["ranks"][0]["precursors"]["loss_events"] = [event, event | {"event": "divergence", "step": 1502}]
    tab = page(1, 4, state)
    assert len(tab.texts("#notes li.alarm")) == 1


def test_healthy_run_has_a_healthy_headline(page):
    tab = page(ranks=1, layers=4)
    assert tab.value("byId('verdict').className") == "good"
    assert tab.value("document.title") == "<img src=x onerror=alert(1)> – foreshock"
    assert tab.value("byId('verdict-text').textContent") == "healthy"
    assert tab.texts("#tables td .alarm") == ["1", "1"], "the lost slices, and nothing else"
    assert rows(tab, "Ranks") == []
    assert tab.value("byId('legend').hidden")


def test_conditions_worth_a_look_are_below_a_healthy_headline(page):
    look = {"condition": "rate_zero", "kind": "look", "text": "the learning rate is 0 since step 12", "action": "wait"}
    tab = page(1, 4, sample_state(1, 4) | {"conditions": [look]})
    assert tab.value("byId('verdict').className") == "good"
    assert tab.value("byId('verdict-text').textContent") == "healthy; 1 thing worth a look"
    assert "Worth a look: the learning rate is 0 since step 12. Do: wait." in tab.texts("#notes li")
    tab = page(2, 4, sample_state(2, 4) | {"conditions": [look, look]})
    assert "worth a look" not in tab.value("byId('verdict-text').textContent"), "the run has a finding"
    assert len([note for note in tab.texts("#notes li") if note.startswith("Worth a look")]) == 2


def test_work_that_the_trainer_stopped_is_marked(page):
    state = sample_state(2, 4)
    state["ranks"][0]["tensors_given_up_step"] = None
    state["ranks"][1]["tensors_given_up_step"] = 1096
    state["ranks"][1]["tensors_given_up_reason"] = "failure"
    tab = page(2, 4, state)
    told = "on; names, norms and weights given up at step 1,096: could not be named"
    assert [row[1] for row in rows(tab, "The monitor itself")] == ["on", told]
    assert told in tab.texts("#tables .alarm")


def test_unjudged_values_are_not_called_healthy(page):
    state = sample_state(1, 4) | {"verdict": "attention output not checked", "healthy": False}
    tab = page(1, 4, state)
    assert tab.value("byId('verdict').className") == "waiting"
    assert tab.value("byId('verdict-text').textContent") == "attention output not checked"


def test_layers_that_were_not_checked_are_in_the_headline_with_what_to_do(page):
    texts = ["layer 001: dQ not judged; foreshock did not see its backward pass. Do: add foreshock.tap",
             "layer 002: dK and dV not judged; too few samples yet. Do: train longer"]  # fmt: skip
    gaps = {"attention_layers": {"gaps": [{"text": text} for text in texts]}}
    tab = page(1, 4, sample_state(1, 4) | {"verdict": "PARTLY CHECKED", "healthy": False} | gaps)
    assert tab.value("byId('verdict').className") == "waiting"
    assert tab.value("byId('verdict-text').textContent") == f"PARTLY CHECKED: {texts[0]}. (and 1 more)"
    assert f"Not checked: {texts[1]}." in tab.texts("#notes li")
    tab = page(2, 4, sample_state(2, 4) | gaps)
    assert tab.value("byId('verdict').className") == "bad"
    assert [f"Not checked: {text}." for text in texts] == [
        note for note in tab.texts("#notes li") if note.startswith("Not checked")
    ]


def test_detectors_are_sorted_by_level(page):
    tab = page()
    found = rows(tab, "Detectors")
    assert found[0][:9] == [
        "gradient_growth", "gradient norm grows steadily", "warn", "4.20", "grows 1.65 ×", "120 %", "–", "1,409", "1",
    ]  # fmt: skip
    assert found[0][12:] == ["default"]
    assert found[1][:9] == [
        "max_logit", "largest logit at 100: softmax saturates", "watch", "61.0", "100, twice", "61 %", "<s>004</s>",
        "1,402", "1",
    ]  # fmt: skip
    assert found[1][12:] == ["not measured"]
    assert found[2][:8] == [
        "bias", "attention output is biased", "quiet", "0.0130", "0.05 that lasts", "20 %",
        "002 (blocks.2.attention.qkv.weight)", "–",
    ]  # fmt: skip
    assert found[2][12:] == ["experimental"]
    assert [row[:3] for row in found[3:5]] == [
        ["output_error_drift", "attention error follows the gradient", "waits for a judged backward slice"],
        ["deviation_forward", "attention error above its limit, forward", "waits for a judged forward slice"],
    ]
    assert len(found) == 10, "every detector"
    tooltip = tab.value("document.querySelector('#detectors tbody tr td:last-child').title")
    assert "a loss event followed 69 of 87 warnings; 21 of 36 loss events had a warning before, 34.5 steps" in tooltip
    assert "not whether the finding is true" in tooltip
    assert "warn" in tab.texts("#detectors .alarm"), "a mark and not only a colour"
    assert tab.texts("#detectors .watch") == ["watch"]


def test_detector_that_learns_says_so(page):
    state = sample_state(1, 2)
    drift, limit = state["ranks"][0]["precursors"]["detectors"]
    drift |= {"values": 45, "series": 3, "learning": 32, "score": 0}
    limit |= {"values": 5, "learning": 64}
    shares = [row[5] for row in rows(page(1, 2, state), "Detectors")[:2]]
    assert shares == ["learns, 15 of 32", "61 %"], "each of three layers learns; a fixed limit needs none"


def test_empty_cards_say_when_they_fill(serve, tab):
    state = sample_state(1, 0)
    (rank,) = state["ranks"]
    rank |= {"layers": [], "events": [], "logged": {}, "precursors": {"detectors": [], "loss_events": []}}
    tab.open(serve(state, 0, 0) + "/")
    tab.wait_for("byId('fresh').textContent === 'live' && ui.history")
    visible = (
        "[...document.querySelectorAll('main p.quiet')].filter((p) => p.checkVisibility()).map((p) => p.textContent)"
    )
    said = tab.value(visible)
    for text in (
        "None so far. A spike is three losses in a row far above the 128 before them.",
        "Fills with the first attention slice of a layer that is judged.",
        "Fills when the training logs a number to W&B, TensorBoard, Lightning or Hugging Face.",
        "Fills with the first loss that is seen.",
        "Fills with two snapshots of the weights.",
        "None so far.",
    ):
        assert text in said, said
    assert {row[2].split()[0] for row in rows(tab, "Detectors")} == {"waits"}
    empty = """[...document.querySelectorAll('main section')].filter((s) => s.checkVisibility()
        && s.id !== 'verdict' && !s.querySelector('details:not([open])') && s.innerText.trim().split('\\n').length < 2)
        .map((s) => s.innerText)"""
    assert tab.value(empty) == []
    assert tab.console == []
    tab.leave()


def test_loss_events_and_warnings_are_marked_on_the_loss(page):
    tab = page()
    events = "ui.charts.map((c) => c.chart?.options.plugins.guides.lossEvents.map((e) => [e.step, e.what])).slice(0, 2)"
    assert tab.value(events) == [[[1100, "slow rise"], [1420, "spike"]]] * 2
    named = "ui.charts.filter((c) => c.chart?.options.plugins.guides.isNamed).map((c) => c.kind.name)"
    assert tab.value(named) == ["loss"]
    lanes = "ui.charts[0].chart.options.plugins.laneMarks.lanes"
    assert tab.value(f"{lanes}.map((l) => [l.name, l.marks.map((m) => [m.level, m.from])])") == [
        ["gradient_growth", [["warn", 1415]]],
        ["max_logit", [["watch", 1402], ["warn", 1421]]],
    ]
    assert tab.value("ui.charts[1].chart.options.plugins.guides.warnings") == [1415, 1421]
    said = "; slow rise at step 1,100, spike at step 1,420"
    said += "; warned: gradient_growth at step 1,415, max_logit at step 1,421"
    assert tab.value("ui.charts[0].canvas.getAttribute('aria-label')").endswith(said)


def test_labels_of_near_loss_events_do_not_cover_each_other(page):
    tab = page(1, 2)
    placed = tab.value(
        "placedLabels([['spike', 100, 30], ['divergence', 104, 60], ['spike', 300, 30], ['spike', 395, 30]], 400)"
    )
    assert [label["row"] for label in placed] == [0, 1, 0, 0]
    assert placed[3]["left"] == 361, "left of its line, inside the chart"


def test_what_came_before_each_loss_event(page):
    tab = page()
    assert rows(tab, "Loss events, and what came before") == [
        ["spike", "1,420", time_of(tab, 1420), "1,422", "1", "gradient_growth", "warn", "–", "1,409", "11"],
        ["", "", "", "", "", "max_logit", "warn", "<s>004</s>", "1,421", "1 after the onset"],
        ["slow rise", "1,100", time_of(tab, 1100), "1,196", "1", "no detector warned before it", "–", "–", "–", "–"],
    ]
    assert tab.value("document.querySelectorAll('#before .bar').length") == 1, "what came after has no lead to draw"


def test_ranks_that_see_the_same_event_are_one_row(page):
    state = sample_state(3, 2)
    for rank in state["ranks"][:2]:
        rank["precursors"] = state["ranks"][1]["precursors"]
    tab = page(3, 2, state)
    before = rows(tab, "Loss events, and what came before")
    named = [row[:2] + row[3:5] for row in before if row[0]]
    assert named == [["spike", "1,420", "1,422", "0 to 1"], ["slow rise", "1,100", "1,196", "0 to 1"]]


def test_a_lead_counts_to_the_first_onset_of_an_event_on_several_ranks(page):
    """Each rank's signals have leads to the onset on that rank."""
    state = sample_state(3, 2)
    ranks = [json.loads(json.dumps(state["ranks"][1]["precursors"])) for _ in range(2)]
    for rank, onset, since in ((0, 1420, 1414), (1, 1427, 1415)):
        signal = {"detector": "gradient_growth", "layer": None, "level": "warn"}
        ranks[rank]["loss_events"] = [
            {
                "event": "loss_spike",
                "step": onset,
                "declared_step": onset + 2,
                "preceded_by": [signal | {"since_step": since, "lead_steps": onset - since}],
            }
        ]
        state["ranks"][rank]["precursors"] = ranks[rank]
    (row,) = [row for row in rows(page(3, 2, state), "Loss events, and what came before") if row[0]]
    assert row[8:] == ["1,414", "6"]


def test_a_proven_warning_is_a_note(page):
    state = sample_state(1, 4)
    state["ranks"][0]["precursors"] = sample_state(2, 4)["ranks"][1]["precursors"]
    detectors = state["ranks"][0]["precursors"]["detectors"]
    state["ranks"][0]["precursors"]["loss_events"] = []
    assert "gradient_growth warns." in page(1, 4, state).texts("#notes li.alarm")
    detectors[2]["measured"]["proven"] = False
    notes = page(1, 4, state).texts("#notes li.alarm")
    assert not any("gradient_growth" in note for note in notes), "what has not proven itself is in the table only"


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
    charts = tab.value(
        "ui.charts.filter((c) => !c.frame.hidden).map((c) => [c.kind.name, c.chart.data.datasets.length])"
    )
    assert charts == [[name, RANKS] for name in ("loss", "gradient norm before clipping", "error ratio, forward",
                      "error ratio, backward", "bias, ulp", "weights, W1 in an interval",
                      "weights, mean change in a step", "slowdown in the trainer")]  # fmt: skip


def test_charts_say_in_words_what_they_show(page):
    labels = page(1, 4).value(
        "ui.charts.filter((c) => !c.frame.hidden).map((c) => c.canvas.getAttribute('aria-label'))"
    )
    assert labels[0].startswith("loss, steps 1001 to 1511: from 1.760 to 2.640, last ")


def test_lines_have_gaps_at_unseen_steps(page):
    tab = page(1, 2)
    ends = "((chart) => chart?.data.datasets[0].data.filter((p) => Number.isNaN(p.y)).map((p) => p.x) ?? [])"
    everywhere = tab.value(f"ui.charts.flatMap((c) => {ends}(c.chart))")
    assert everywhere == [], "of what is sampled evenly, however seldom, the line is whole"
    tab.value("""(() => {
        const { columns } = ui.history.tables.find((t) => t.layer === null);
        columns.deviation_ratio_forward.fill(null, 100, 180);
        show();
    })()""")
    chart = "ui.charts.find((c) => c.kind.column === 'deviation_ratio_forward').chart"
    assert tab.value(f"{ends}({chart})") == [1194], "after the point of the steps 1,192 and 1,193"
    assert tab.value(f"{chart}.options.spanGaps") is False


def test_something_is_drawn(page):
    tab = page()
    painted = """[...document.querySelectorAll('main canvas:not(.swatch)')].filter((c) => c.offsetParent && c.width)
        .map((c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data)
        .map((data) => new Set(new Uint32Array(data.buffer)).size)"""
    colours = tab.value(painted)
    assert len(colours) == 10, "eight charts, the map and its scale"
    assert min(colours) > 8, colours


@pytest.mark.parametrize(
    ("width", "dark"),
    keep([(1400, False), (400, True), (1400, True), (400, False)], (1400, False), (400, True), several=True),
)
def test_nothing_covers_anything_and_nothing_is_cut(page, width, dark):
    tab = page(2, 4, width=width, dark=dark)
    assert browser.layout_problems(tab) == []
    cut = """[...document.querySelectorAll('main td, main th')].filter((cell) =>
        cell.checkVisibility() && cell.scrollWidth > cell.clientWidth + 1).map((cell) => cell.textContent)"""
    assert tab.value(cut) == []


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
    name = "layer 002 (blocks.2.attention.qkv.weight), steps 1,528 to 1,535: 2.40, beyond the limit, rank 1"
    assert tab.value("byId('heat-cell').textContent") == name
    for _ in range(30):
        tab.press("ArrowLeft")
    assert "rank 1" not in tab.value("byId('heat-cell').textContent")


def two_runs() -> dict:
    first, second = (sample_state(1, 2) | {"run": name, "runs": None} for name in ("first", "second"))
    second["state"] = "finished"
    return first | {"runs": [first, second]}


def test_several_runs_are_shown_separately(serve, tab):
    tab.open(serve(two_runs(), 1, 2, "first", "second") + "/")
    tab.wait_for(LIVE)
    highest = "Math.max(...ui.charts[0].chart.data.datasets[0].data.map((p) => p.y))"
    assert tab.texts("#runs option") == ["first", "second"]
    assert tab.value(highest) == pytest.approx(2.2 * 1.2, rel=1e-3)
    assert tab.value("ui.charts[0].chart.data.datasets.length") == 1, "of the other run nothing is drawn"
    tab.value("byId('runs').value = 'second', byId('runs').dispatchEvent(new Event('change'))")
    tab.wait_for(f"byId('state').textContent === 'finished' && {highest} > 3")
    assert tab.value(highest) == pytest.approx(3.2 * 1.2, rel=1e-3)
    assert tab.value("ui.heat.map.labels.length") == 2
    address = tab.value("location.href")
    assert address.endswith("#run=second")
    tab.open(address)
    tab.wait_for(LIVE)
    assert tab.value("byId('runs').value") == "second", "the address leads to the same run"
    assert tab.value(highest) == pytest.approx(3.2 * 1.2, rel=1e-3)
    assert {request for request in tab.requests if "history" in request} == {
        address.split("/#")[0] + "/api/v1/history?run=second"
    }
    assert tab.console == []
    tab.leave()


READINGS = "['step-values', 'heat-cell'].map((id) => byId(id).textContent)"
CURSORS = "[ui.reader.step, ui.charts[1].chart.options.plugins.guides.cursor ?? null, ui.heat.cursor]"


def read_somewhere(tab: browser.Browser) -> None:
    """A step of the charts and a cell of the map."""
    tab.value("ui.charts[0].canvas.focus()")
    tab.press("ArrowLeft")
    tab.value("byId('heat-map').focus()")
    tab.press("ArrowDown")
    assert all(tab.value(READINGS)), "both are said"
    assert None not in tab.value(CURSORS)


def test_values_of_one_run_are_not_shown_for_another(serve, tab):
    tab.open(serve(two_runs(), 1, 2, "first", "second") + "/")
    tab.wait_for(LIVE)
    read_somewhere(tab)
    tab.value("show()")
    assert None not in tab.value(CURSORS), "of the same run it stays"
    tab.value("byId('runs').value = 'second', byId('runs').dispatchEvent(new Event('change'))")
    tab.wait_for("byId('state').textContent === 'finished'")
    assert tab.value(READINGS) == ["", ""]
    assert tab.value(CURSORS) == [None, None, None]
    tab.leave()


def test_values_of_all_ranks_are_not_shown_for_one(page):
    tab = page(2, 2)
    read_somewhere(tab)
    tab.value("document.querySelector('#legend button[data-rank=\"1\"]').click()")
    assert tab.value(READINGS) == ["", ""]
    assert tab.value(CURSORS) == [None, None, None]


def test_a_bias_of_few_slices_is_not_beyond_the_limit(page):
    tab = page(1, 2)

    def marked_with(z: str) -> list[bool]:
        return tab.value(f"""(() => {{
            for (const table of ui.history.tables.filter((t) => known(t.layer)))
                table.columns.bias_ulp = [...Array(64).keys()].map((n) => n === 60 ? 0.2 : 0.001);
            for (const layer of ui.state.ranks[0].layers) layer.bias_z = layer.layer === "001" ? {z} : 3;
            ui.heat.signal.value = 2;
            show();
            const {{ map }} = ui.heat;
            return map.labels.map((label) =>
                [...map.rows.get(label).values()].some((cell) => ui.heat.isBeyond(SIGNALS[2], label, cell)));
        }})()""")

    assert marked_with("null") == [True, False], "layer 001 has no z yet"
    assert marked_with("1.5") == [True, True]


def links(tab: browser.Browser) -> dict[str, str]:
    return dict(tab.value("[...document.querySelectorAll('#grafana a')].map((a) => [a.textContent, a.href])"))


def test_grafana_is_linked_with_the_run_and_its_time(page):
    tab = page(2, 2)
    times = "&from=1794999940250&to=now"
    run = "var-run=%3Cimg+src%3Dx+onerror%3Dalert%281%29%3E"
    found = links(tab)
    assert found == {
        board: f"https://grafana.example.com/sub/d/foreshock-{board}?{run}{times}"
        for board in ("overview", "attention", "weights", "fleet")
    }
    relations = tab.value("[...document.querySelectorAll('#grafana a')].map((a) => a.rel + ' ' + a.target)")
    assert set(relations) == {"noopener noreferrer _blank"}
    tab.value("document.querySelector('#legend button[data-rank=\"1\"]').click()")
    assert links(tab)["attention"] == found["attention"].replace("&from", "&var-rank=1&from")
    assert links(tab)["fleet"] == found["fleet"]


def test_links_to_grafana_end_with_the_run(page):
    state = sample_state(1, 2) | {"state": "finished"}
    assert links(page(1, 2, state))["overview"].endswith("&from=1794999940250&to=1795000660500")


def test_linked_dashboards_exist(page):
    shipped = {json.loads(file.read_text())["uid"] for file in (ROOT / "dashboards" / "grafana").glob("*.json")}
    assert {urllib.parse.urlsplit(to).path.split("/")[-1] for to in links(page(1, 2)).values()} == shipped


@pytest.mark.parametrize("address", [None, "javascript:alert(1)//", "//grafana", "ftp://grafana.example.com"])
def test_without_a_web_address_there_are_no_links(page, address):
    tab = page(1, 2, sample_state(1, 2) | {"grafana": address})
    assert links(tab) == {}
    assert tab.value("byId('grafana').hidden")


def test_reports_that_the_agent_has_ended(serve, tab):
    address = serve(sample_state(1, 2), 1, 2)
    tab.open(address + "/")
    tab.wait_for("byId('fresh').textContent === 'live'")
    tab.value("window.fetch = () => Promise.reject(new Error('gone'))")
    tab.wait_for("byId('fresh').textContent === 'agent not reachable; these are the last values'")
    assert tab.value("byId('state').textContent") == "running when last seen", "whether it still runs is not known"
    assert len(rows(tab, "Layers")) == 3
    tab.leave()
