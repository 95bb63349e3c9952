"""Builds a Grafana dashboard from its rows of panels and the parts that all dashboards have: variables (selectors),
alerts as annotations, links. The label matcher OF_CLUSTER selects the series of the chosen cluster, OF_SCOPE those of
the chosen cluster and namespace, OF_RUN those of the chosen cluster, namespace and run."""

import json
import typing

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from panel import OF_CLUSTER, OF_RUN, OF_SCOPE, SOURCE

ALERTS = f'ALERTS{{alertname=~"Foreshock.+",alertstate="firing",{OF_RUN}}}'

# Fields of an alert annotation that the SDK's builders cannot set. Without them Grafana leaves title and tags empty.
ANNOTATION_FIELDS = {"titleFormat": "{{alertname}}", "tagKeys": "severity,detector,pass,site,why"}

ALL = model.VariableOption(True, ["All"], ["$__all"])  # selected, text, value


class Row(typing.NamedTuple):
    title: str
    panels: list[typing.Any]


class Board(typing.NamedTuple):
    name: str  # the uid is foreshock-NAME
    title: str
    description: str
    variables: list[typing.Any]  # beside those that all dashboards have: data source, cluster, namespace
    rows: list[Row]


def query_variable(name: str, query: str, label: str) -> dashboard.QueryVariable:
    """A variable whose values Grafana reads from Prometheus, and reads again when the time range changes."""
    variable = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
    return variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.NUMERICAL_ASC)


def scope_variables() -> list[dashboard.QueryVariable]:
    """Cluster and namespace, to separate runs with the same id. "All" matches series without these labels too."""
    clusters = query_variable("cluster", "label_values(foreshock_step, cluster)", "Cluster")
    namespaces = query_variable("namespace", f"label_values(foreshock_step{{{OF_CLUSTER}}}, namespace)", "Namespace")
    return [each.multi(False).include_all(True).all_value(".*").current(ALL) for each in (clusters, namespaces)]


def run_variable() -> dashboard.QueryVariable:
    return query_variable("run", f"label_values(foreshock_step{{{OF_SCOPE}}}, run)", "Run").multi(False)


def rank_variable() -> dashboard.QueryVariable:
    ranks = query_variable("rank", f"label_values(foreshock_step{{{OF_RUN}}}, rank)", "Rank").multi(True)
    return ranks.include_all(True).all_value(".*").current(ALL)


def pass_variable() -> dashboard.CustomVariable:
    options = [model.VariableOption(name == "forward", name, name) for name in ("forward", "backward")]
    variable = dashboard.CustomVariable("pass").label("Pass").values("forward,backward")
    return variable.options(options).current(options[0])


def source_variable() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus").multi(False)


def alert_annotations() -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name("Alerts").datasource(SOURCE).enable(True).icon_color("red").expr(ALERTS)


def links_to_other_boards() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("foreshock").type(model.DashboardLinkType.DASHBOARDS).tags(["foreshock"])
    return link.as_dropdown(False).include_vars(True).keep_time(True)


def dashboard_of(board: Board) -> dashboard.Dashboard:
    builder = (
        dashboard.Dashboard(board.title)
        .uid(f"foreshock-{board.name}")
        .description(board.description)
        .tags(["foreshock"])
        .readonly()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-3h", "now")
        .refresh("30s")
        .timezone("browser")
        .link(links_to_other_boards())
        .annotation(alert_annotations())
        .with_variable(source_variable())
    )
    for variable in (*scope_variables(), *board.variables):
        builder.with_variable(variable.hide(model.VariableHide.DONT_HIDE))
    panel_id = 0  # rows are panels too
    for row in board.rows:
        panel_id += 1
        builder.with_row(dashboard.Row(row.title).id(panel_id))
        for panel in row.panels:
            panel_id += 1
            builder.with_panel(panel.id(panel_id))
    return builder


def board_json(board: Board) -> str:
    built = json.loads(json.dumps(dashboard_of(board).build(), cls=JSONEncoder))
    for annotation in built["annotations"]["list"]:
        annotation |= ANNOTATION_FIELDS
    return json.dumps(built, indent=1, sort_keys=True) + "\n"
