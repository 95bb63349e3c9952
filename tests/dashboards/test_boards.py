"""The dashboards: what two generations of Grafana accept, and the rules of good ones."""

import copy
import json
import re

import jsonschema
import pytest
import yaml
from alert_rules import DASHBOARDS, ROOT, VALUES, promtool_tests
from generate import texts
from scraping import needs

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


def test_the_dashboards_are_those_of_the_generator():
    made = {name: text for name, text in texts(VALUES).items() if name.startswith("grafana/")}
    assert {file.name: file.read_text() for file in FILES} == {
        name.removeprefix("grafana/"): text for name, text in made.items()
    }, "run ./dev docs"
    assert len(FILES) == 5


def complaints(schema: dict, definition: str, value: object) -> list[str]:
    validator = jsonschema.Draft7Validator(schema | {"$ref": f"#/definitions/{definition}"})
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(value)]


def all_complaints(schema: dict, board: dict) -> list[str]:
    """Of the dashboard itself, and of what its schema leaves to the kinds of panels."""
    query = "prometheus.Dataquery" if "prometheus.Dataquery" in schema["definitions"] else "prometheus.dataquery"
    # One by one: of "a panel or a row" a validator only says that it is neither.
    told = complaints(schema, "dashboard.Dashboard", board | {"panels": []})
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
def test_it_is_found_and_leads_to_the_others(board):
    assert re.fullmatch(r"foreshock-\w{1,30}", board["uid"])
    assert board["editable"] is False
    assert board["tags"] == ["foreshock"]
    (link,) = board["links"]
    assert link["type"] == "dashboards"
    assert link["tags"] == ["foreshock"]
    assert link["includeVars"]
    (alerts,) = board["annotations"]["list"]
    assert "ALERTS{" in alerts["expr"]
    assert 'cluster=~"$cluster",run="$run"' in alerts["expr"]


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
    assert panel["fieldConfig"]["defaults"]["unit"]
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
            assert {"cluster", "run"} <= used or re.search(r"(?:All runs|All agents)", row_of(board, panel)), panel[
                "title"
            ]


def row_of(board: dict, panel: dict) -> str:
    """The title of the row that a panel is in."""
    above = [each for each in board["panels"] if each["type"] == "row" and each["gridPos"]["y"] < panel["gridPos"]["y"]]
    return above[-1]["title"]


@each_panel
def test_ten_thousand_ranks_do_not_make_ten_thousand_lines(board, panel):
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
            ("attention_deviation_ratio", ',stat="mean",pass="forward"'), ("gradient_norm", ""),
        ),
        values, strict=True,
    )
}  # fmt: skip
RANK = 'run="r", rank="0", instance="b", node="new", local_rank="1", dp="0", tp="0", pp="0"'


@needs["promtool"]
def test_a_rank_that_moved_is_shown_where_it_lives(tmp_path):
    """An agent keeps what it knew of an attempt that ended: two series of each kind for one rank."""
    shown = {
        "World": [("{}", 2)],
        "Nodes": [("{}", 1)],
        "Ranks up by node": [('{node="old"}', 0), ('{node="new"}', 1)],
        "Steps behind": [(f"{{{RANK}}}", 0)],
        "Worst deviation": [(f"{{{RANK}}}", 1)],
        "Largest gradient norms": [(f"{{{RANK}}}", 1)],
    }
    questions = [
        {
            "expr": target["expr"].replace("$run", "r").replace("$cluster", "a|"),
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
    case = {"interval": "30s", "input_series": series, "promql_expr_test": questions}
    file = tmp_path / "moved_test.yml"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "30s", "tests": [case]}))
    done = promtool_tests(tmp_path / "rules", [], [file])
    assert done.returncode == 0, done.stdout + done.stderr


@each_board
def test_step_is_an_axis_where_there_is_something_to_read_by_it(board):
    for panel in board["panels"]:
        if panel["type"] != "trend":
            continue
        assert panel["options"]["xField"] == "step"
        assert panel["targets"][0]["legendFormat"] == "step"
        assert [each["id"] for each in panel["transformations"]] == ["joinByField", "organize"]


def test_the_boards_of_a_run_have_a_step_axis():
    kinds = {name: {panel["type"] for panel in board["panels"]} for name, board in BOARDS.items()}
    assert all("trend" in kinds[name] for name in ("overview", "attention", "weights"))


def test_the_limits_drawn_are_those_of_the_alerts():
    rules = yaml.safe_load((DASHBOARDS / "rules" / "foreshock.yml").read_text())
    assert rules["groups"]
    panel = next(panel for name, panel in PANELS if (name, panel["title"]) == ("attention", "Bias"))
    steps = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    assert steps == [None, VALUES["bias"]["ulp"]]


def test_the_runbook_names_panels_that_exist():
    text = (ROOT / "docs" / "runbook.md").read_text()
    titles = {panel["title"] for _, panel in PANELS} | {p["title"] for b in BOARDS.values() for p in b["panels"]}
    for paragraph in re.findall(r"\*\*Look at\*\*(.*?)\n\n", text, re.S):
        for named in re.findall(r'"([^"]+)"', paragraph):
            assert any(title.startswith(named) for title in titles), named
