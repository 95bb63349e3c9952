"""The dashboards: what two generations of Grafana accept, and the rules of good ones."""

import copy
import itertools
import json
import pathlib
import re

import jsonschema
import pytest
import yaml
from alert_rules import DASHBOARDS, ROOT, VALUES, promtool_tests
from board import ANNOTATION_FIELDS
from generate import texts
from scraping import needs

pytestmark = pytest.mark.quick

FILES = sorted((DASHBOARDS / "grafana").glob("*.json"))
BOARDS = {file.stem: json.loads(file.read_text()) for file in FILES}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
QUERIES = [(f"{name}: {panel['title']}", target["expr"]) for name, panel in PANELS for target in panel["targets"]]
TYPES = dict(re.findall(r"\| `(foreshock_\w+)` \| (\w+)", (ROOT / "docs" / "metrics.md").read_text()))
SCHEMAS = sorted((ROOT / "tests" / "dashboards" / "schemas").glob("grafana-*.json"))
# What Prometheus itself knows of each target.
OTHERS = {"up", "scrape_samples_scraped", "scrape_duration_seconds", "ALERTS"}

each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
each_panel = pytest.mark.parametrize(("board", "panel"), PANELS, ids=[f"{b}: {p['title']}" for b, p in PANELS])


def test_committed_dashboards_match_the_generator():
    made = {name: text for name, text in texts(VALUES).items() if name.startswith("grafana/")}
    assert {file.name: file.read_text() for file in FILES} == {
        name.removeprefix("grafana/"): text for name, text in made.items()
    }, "run ./dev docs"
    assert len(FILES) == 4


def complaints(schema: dict, definition: str, value: object) -> list[str]:
    validator = jsonschema.Draft7Validator(schema | {"$ref": f"#/definitions/{definition}"})
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(value)]


def all_complaints(schema: dict, board: dict) -> list[str]:
    """Of the dashboard itself, and of what its schema leaves to the kinds of panels."""
    query = "prometheus.Dataquery" if "prometheus.Dataquery" in schema["definitions"] else "prometheus.dataquery"
    # One by one: of "a panel or a row" a validator only says that it is neither.
    known = schema["definitions"]["dashboard.AnnotationQuery"]["properties"]
    drawn = [
        # Of 10.4 the description says nothing of what its data source reads (public/app/plugins/datasource/prometheus).
        {name: value for name, value in each.items() if name in known or name not in ANNOTATION_FIELDS}
        for each in board["annotations"]["list"]
    ]
    told = complaints(schema, "dashboard.Dashboard", board | {"panels": [], "annotations": {"list": drawn}})
    for panel in board["panels"]:
        told += complaints(schema, f"dashboard.{'Row' if panel['type'] == 'row' else ''}Panel", panel)
        if panel["type"] == "row":
            continue
        kind = panel["type"].replace("-", "")
        told += complaints(schema, f"{kind}.Options", panel.get("options", {}))
        if f"{kind}.FieldConfig" in schema["definitions"]:
            told += complaints(schema, f"{kind}.FieldConfig", panel["fieldConfig"]["defaults"].get("custom", {}))
        for target in panel["targets"]:
            told += complaints(schema, query, target)
    return told


@pytest.mark.parametrize("file", SCHEMAS, ids=lambda file: file.stem)
@each_board
def test_two_generations_of_grafana_accept_it(board, file):
    schema = json.loads(file.read_text())
    assert all_complaints(schema, board) == []
    for spoil in (
        lambda wrong: wrong.update(titel="x"),
        lambda wrong: wrong["panels"][1]["gridPos"].update(h="8"),
        lambda wrong: wrong["panels"][1]["targets"][0].update(legend="x"),
        lambda wrong: wrong["templating"]["list"][0].update(type="guess"),
    ):
        wrong = copy.deepcopy(board)
        spoil(wrong)
        assert all_complaints(schema, wrong) != []


@each_board
def test_dashboards_have_a_uid_a_tag_links_and_alerts(board):
    assert re.fullmatch(r"foreshock-\w{1,30}", board["uid"])
    assert board["editable"] is False
    assert board["tags"] == ["foreshock"]
    (link,) = board["links"]
    assert link["type"] == "dashboards"
    assert link["tags"] == ["foreshock"]
    assert link["includeVars"]
    (alerts,) = board["annotations"]["list"]
    assert "ALERTS{" in alerts["expr"]
    assert alerts["titleFormat"] == "{{alertname}}"
    assert alerts["tagKeys"].split(",")[0] == "severity"
    assert 'cluster=~"$cluster",namespace=~"$namespace",run="$run"' in alerts["expr"]


@each_board
def test_nothing_names_a_data_source(board):
    """A stranger imports it without editing anything: the source is asked for, and everything uses that."""
    assert "__inputs" not in board
    assert board.get("id") is None
    first = board["templating"]["list"][0]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    sources = re.findall(r'"uid": "([^"]+)"', json.dumps(board))
    assert set(sources) == {"${datasource}", board["uid"]}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["datasource"]["uid"] == "${datasource}"
            assert variable["refresh"] == 2  # asked anew when the time range changes


@each_board
def test_panels_lie_beside_each_other_below_their_rows(board):
    taken = set()
    assert board["panels"][0]["type"] == "row"
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert len({panel["title"] for panel in board["panels"]}) == len(board["panels"])


@each_panel
def test_a_panel_explains_itself(board, panel):
    assert panel["description"].endswith(".")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    is_word = panel["type"] == "state-timeline" or panel.get("options", {}).get("textMode") == "name"
    # A value without a unit (a norm, the loss) is described as such.
    assert unit != "none" or is_word or "unit" in panel["description"] or panel["title"] == "Owners"
    assert unit != "suffix:x" or re.search(r"Ratio: |divided by", panel["description"])
    assert panel["targets"]
    for part in (panel, *panel["targets"]):
        assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for target in panel["targets"]:
        assert target["legendFormat"] if panel["type"] != "table" else target["format"] == "table"


@pytest.mark.parametrize(("title", "expression"), QUERIES, ids=[title for title, _ in QUERIES])
def test_a_query_uses_each_metric_as_its_type_allows(title, expression):
    bare = re.sub(r'"[^"]*"', "", expression)
    for name in re.findall(r"\b(foreshock_\w+)", bare):
        assert name in TYPES
    for name in re.findall(r"(?:rate|increase)\((\w+)", bare):
        assert TYPES[name] == "counter"
    assert ("rate(" in bare) == ("[$__rate_interval]" in bare)
    for name in re.findall(r"\b([A-Za-z_]\w+)\{", bare):
        assert name in TYPES or name in OTHERS
    assert "le=" not in bare


def test_counters_are_rates_unless_the_count_itself_is_meant():
    """Counts of what should never be (NaN, errors, replicas that differ) are read as they are."""
    counts = {"nonfinite_values", "weight_checksum_mismatch", "weight_skipped", "weight_snapshots_dropped"}
    counts |= {"monitor_errors", "steps_lost", "series_dropped"}
    for title, expression in QUERIES:
        for name in re.findall(r"foreshock_(\w+)_total", expression):
            assert name in counts or f"rate(foreshock_{name}_total" in expression, title


@each_board
def test_variables_are_declared_and_runs_not_mixed(board):
    declared = {variable["name"] for variable in board["templating"]["list"]}
    declared |= {"__rate_interval", "__range", "__interval", "__to"}  # Grafana's own
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            used = set(re.findall(r"\$\{?(\w+)", target["expr"]))
            assert used <= declared, panel["title"]
            assert {"cluster", "namespace", "run"} <= used or re.search(
                r"(?:All runs|All agents)", row_of(board, panel)
            ), panel["title"]


def row_of(board: dict, panel: dict) -> str:
    """The title of the row that a panel is in."""
    above = [each for each in board["panels"] if each["type"] == "row" and each["gridPos"]["y"] < panel["gridPos"]["y"]]
    return above[-1]["title"]


@each_panel
def test_panels_aggregate_or_limit_ranks(board, panel):
    """Either the ranks are summed up, or only the first few are shown."""
    for target in panel["targets"]:
        per_rank = re.search(r"\brank=|\{\{rank\}\}|by \([^)]*rank\b[^)]*\)", target["expr"] + target["legendFormat"])
        if "{{rank}}" in target["legendFormat"] or panel["type"] == "table" and per_rank:
            assert re.search(r"^(topk|bottomk)\(\d+|^(sum|max|min|count) by \((run|node)", target["expr"])
        aggregated = r"^\(*(topk|sum|max|min|avg|count|quantile|time\(\) - max|scalar)\b"
        exempt = r"^foreshock_run_(state|info)\{"
        assert re.search(aggregated, target["expr"]) or re.search(exempt, target["expr"]), target["expr"]


MOVED = {
    'foreshock_rank_info{run="r",rank="0",instance="a",node="old",attempt="0",local_rank="0",dp="0",tp="0",pp="0"}': 1,
    'foreshock_rank_info{run="r",rank="0",instance="b",node="new",attempt="1",local_rank="1",dp="0",tp="0",pp="0"}': 1,
} | {
    f'foreshock_{metric}{{run="r",rank="0",instance="{agent}"{more}}}': value
    for agent, values in (("a", (0, 4, 10, 9, 90)), ("b", (1, 2, 20, 1, 1)))
    for (metric, more), value in zip(
        (
            ("rank_up", ""), ("world_size", ""), ("step", ""),
            ("attention_fused_ratio", ',stat="mean",pass="forward"'), ("gradient_norm", ""),
        ),
        values, strict=True,
    )
}  # fmt: skip
RANK = 'run="r", rank="0", instance="b", node="new", local_rank="1", dp="0", tp="0", pp="0"'


@needs["promtool"]
def test_a_rank_that_moved_is_shown_where_it_lives(tmp_path):
    """An agent keeps what it knew of an attempt that ended: two series of each kind for one rank."""
    shown = {
        "World size": [("{}", 2)],
        "Nodes": [("{}", 1)],
        "Ranks up by node": [('{node="old"}', 0), ('{node="new"}', 1)],
        "Steps behind": [(f"{{{RANK}}}", 0)],
        "Worst error ratio": [(f"{{{RANK}}}", 1)],
        "Largest gradient norms": [(f"{{{RANK}}}", 1)],
    }
    questions = [
        {
            "expr": target["expr"].replace("$run", "r").replace("$cluster", "a|").replace("$namespace", "b|"),
            "eval_time": "1m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in shown[panel["title"]]],
        }
        for name, panel in PANELS
        if name == "fleet" and panel["title"] in shown
        for target in panel["targets"]
    ]
    assert len(questions) == len(shown)
    series = [{"series": name, "values": f"{value}x4"} for name, value in MOVED.items()]
    # Of another cluster, that is not the one chosen: the same run and rank.
    series += [{"series": name.replace("{", '{cluster="other",'), "values": "77x4"} for name in MOVED]
    series += [{"series": name.replace("{", '{namespace="other",'), "values": "77x4"} for name in MOVED]
    case = {"interval": "30s", "input_series": series, "promql_expr_test": questions}
    file = tmp_path / "moved_test.yml"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "30s", "tests": [case]}))
    done = promtool_tests(tmp_path / "rules", [], [file])
    assert done.returncode == 0, done.stdout + done.stderr


def gauges_of_ranks() -> list[str]:
    """A selector of each series of a rank, without its braces, for one value of labels that are free."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    found = []
    for name, labels in re.findall(r"\| `(foreshock_\w+)` \| gauge \| [^|]+ \| (`run`, `rank`.*?) \| ", page):
        of = dict(re.findall(r"`(\w+)`(?: = ([\w \\|]+))?", labels))
        values = [[f'{label}="{each}"' for each in re.findall(r"\w+", of[label]) or ["x"]] for label in of]
        found += [f"{name}{{{','.join(chosen[2:])}" for chosen in itertools.product(*values)]
    return found


def asked_of(folder: pathlib.Path, series: list[dict], questions: dict[str, list[dict]]) -> str:
    """What promtool complains of, who is asked these expressions after four minutes; empty when all is as expected."""
    chosen = {"$run": "r", "$cluster": ".*", "$namespace": ".*", "$rank": ".*", "$pass": "forward", "${__to}": "240000"}
    chosen |= {"$__rate_interval": "2m", "$__range": "4m", "$__interval": "30s"}
    asked = []
    for expression, samples in questions.items():
        for name, value in chosen.items():
            expression = expression.replace(name, value)
        asked.append({"expr": expression, "eval_time": "4m", "exp_samples": samples})
    case = {"interval": "30s", "input_series": series, "promql_expr_test": asked}
    file = folder / "boards_test.yml"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "30s", "tests": [case]}))
    done = promtool_tests(folder / "rules", [], [file])
    return "" if done.returncode == 0 else done.stdout + done.stderr


@needs["promtool"]
@pytest.mark.parametrize("last", [100, -100])
def test_gauges_leave_out_ended_ranks(tmp_path, last):
    """A job that has gone on with fewer ranks: what the other one showed last is neither drawn nor in any mean."""
    gauges = [each for each in gauges_of_ranks() if not each.startswith("foreshock_rank_up{")]
    assert len(gauges) > 60
    series = [
        {"series": f'{gauge},run="r",rank="{rank}",instance="a"}}'.replace("{,", "{"), "values": f"{value}x8"}
        for gauge in gauges
        for rank, value in ((0, 1), (1, last))
    ]
    series += [
        {"series": f'foreshock_rank_up{{run="r",rank="{rank}",instance="a"}}', "values": f"{1 - rank}x8"}
        for rank in (0, 1)
    ]
    # The one is what the agents said last, also of a run that is gone; the others are no values, but the axis of some.
    axes = {target["expr"] for _, panel in PANELS if panel["type"] == "trend" for target in panel["targets"][:1]}
    judged = [each for title, each in QUERIES if title != "overview: Since last step" and each not in axes]
    names = {gauge.partition("{")[0] for gauge in gauges} | {"foreshock_rank_up"}
    shown = [each for each in judged if "foreshock_" in each and names.issuperset(re.findall(r"foreshock_\w+", each))]
    assert len(shown) > 35
    questions = {f"abs({each}) > 50": [] for each in judged}
    questions |= {f"count(abs({each}) <= 50) > bool 0": [{"labels": "{}", "value": 1}] for each in shown}
    assert asked_of(tmp_path, series, questions) == ""


@needs["promtool"]
def test_an_ended_rank_is_not_the_slowest(tmp_path):
    series = [
        {"series": f'foreshock_{name}{{run="r",rank="{rank}",instance="a"}}', "values": values}
        for name, rank, values in (
            ("steps_total", 0, "0+60x8"), ("steps_total", 1, "7x8"), ("rank_up", 0, "1x8"), ("rank_up", 1, "0x8"),
        )
    ]  # fmt: skip
    speeds = [expression for title, expression in QUERIES if "Steps per second" in title]
    assert len(speeds) == 5
    assert asked_of(tmp_path, series, {each: [{"labels": "{}", "value": 2}] for each in speeds}) == ""


@needs["promtool"]
def test_a_run_on_many_nodes_has_one_state_and_one_owner(tmp_path):
    series = [
        {"series": f'foreshock_run_{what},run="r",instance="{node}"}}', "values": f"{value}x8"}
        for node in "abc"
        for what, value in (('state{state="running"', 1), ('state{state="failed"', 0), ('info{user="eve"', 1))
    ]
    of = {title: expression for title, expression in QUERIES if re.search(": (State|Owner)$", title)}
    assert len(of) == 3
    labels = {"State": '{state="running"}', "Owner": '{user="eve"}'}
    questions = {of[title]: [{"labels": labels[title.split(": ")[1]], "value": 1}] for title in of}
    assert asked_of(tmp_path, series, questions) == ""


def test_panels_of_the_present_show_no_old_values():
    """The agent of a run goes with it, mostly before Prometheus could see the end: its last words would stand there."""
    present = {(name, p["title"]) for name, p in PANELS if p["type"] == "stat" and p["targets"][0]["instant"]}
    assert present == {
        ("overview", "State"), ("overview", "Ranks up"), ("overview", "Since last step"), ("fleet", "World size"),
        ("fleet", "Seen"), ("fleet", "Nodes"), ("fleet", "State"), ("overview", "At work"),
    }  # fmt: skip
    for name, panel in PANELS:
        if (name, panel["title"]) in present:
            assert panel["targets"][0]["range"] is False
            assert panel["fieldConfig"]["defaults"]["noValue"]


def test_a_run_that_failed_is_not_green():
    (listed,) = re.findall(r"kRunStates\[\] = \{(.*)\}", (ROOT / "exporters" / "metrics.cpp").read_text())
    for name, panel in PANELS:
        if panel["title"] != "State":
            continue
        of = {each["matcher"]["options"]: each["properties"][0]["value"] for each in panel["fieldConfig"]["overrides"]}
        assert set(of) == set(re.findall(r"\w+", listed)), name
        assert all(colour["mode"] == "fixed" for colour in of.values())
        green = {state for state, colour in of.items() if colour["fixedColor"] == "green"}
        assert green == {"running", "finished"}, name
        assert of["failed"]["fixedColor"] == "red"


@each_board
def test_trend_panels_have_a_step_axis(board):
    for panel in board["panels"]:
        if panel["type"] != "trend":
            continue
        assert panel["options"]["xField"] == "step"
        assert panel["targets"][0]["legendFormat"] == "step"
        assert [each["id"] for each in panel["transformations"]] == ["joinByField", "organize"]


def test_the_boards_of_a_run_have_a_step_axis():
    kinds = {name: {panel["type"] for panel in board["panels"]} for name, board in BOARDS.items()}
    assert all("trend" in kinds[name] for name in ("overview", "attention", "weights"))


def test_drawn_limits_match_the_alerts():
    rules = yaml.safe_load((DASHBOARDS / "rules" / "foreshock.yml").read_text())
    assert rules["groups"]
    panel = next(panel for name, panel in PANELS if (name, panel["title"]) == ("attention", "Bias"))
    steps = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    assert steps == [None, VALUES["verdict"]["ulp"]]


def test_the_runbook_names_panels_that_exist():
    text = (ROOT / "docs" / "runbook.md").read_text()
    titles = {panel["title"] for _, panel in PANELS} | {p["title"] for b in BOARDS.values() for p in b["panels"]}
    for paragraph in re.findall(r"\*\*Look at\*\*(.*?)\n\n", text, re.S):
        for named in re.findall(r'"([^"]+)"', paragraph):
            assert any(title.startswith(named) for title in titles), named
