"""Parts that all dashboards have: identity, variables, alerts as annotations, links to the other dashboards."""

import json
import typing

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from panel import OF_CLUSTER, OF_RUN, OF_SCOPE, SOURCE

ALERTS = f'ALERTS{{alertname=~"Foreshock.+",alertstate="firing",{OF_RUN}}}'

# Fields of an alert annotation. Without them Grafana leaves title and tags empty. The builders' schema lacks them.
READ = {"titleFormat": "{{alertname}}", "tagKeys": "severity,detector,pass,site,why"}

ALL = VariableOption(True, ["All"], ["$__all"])


class Row(typing.NamedTuple):
    title: str
    panels: list[typing.Any]


class Board(typing.NamedTuple):
    name: str  # the uid is foreshock-NAME
    title: str
    description: str
    variables: list[typing.Any]
    rows: list[Row]


def asked(name: str, query: str, label: str) -> dashboard.QueryVariable:
    """A variable with values from Prometheus, read again when the time range changes."""
    variable = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
    return variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.NUMERICAL_ASC)


def scope_variables() -> list[dashboard.QueryVariable]:
    """Cluster and namespace, to separate runs with the same id."""
    clusters = asked("cluster", "label_values(foreshock_step, cluster)", "Cluster")
    namespaces = asked("namespace", f"label_values(foreshock_step{{{OF_CLUSTER}}}, namespace)", "Namespace")
    return [each.multi(False).include_all(True).all_value(".*").current(ALL) for each in (clusters, namespaces)]


def run_variable() -> dashboard.QueryVariable:
    return asked("run", f"label_values(foreshock_step{{{OF_SCOPE}}}, run)", "Run").multi(False)


def rank_variable() -> dashboard.QueryVariable:
    ranks = asked("rank", f"label_values(foreshock_step{{{OF_RUN}}}, rank)", "Rank").multi(True)
    return ranks.include_all(True).all_value(".*").current(ALL)


def pass_variable() -> dashboard.CustomVariable:
    options = [VariableOption(name == "forward", name, name) for name in ("forward", "backward")]
    variable = dashboard.CustomVariable("pass").label("Pass").values("forward,backward")
    return variable.options(options).current(options[0])


def source_variable() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus").multi(False)


def alerts_drawn() -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name("Alerts").datasource(SOURCE).enable(True).icon_color("red").expr(ALERTS)


def way_to_the_others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("foreshock").type(DashboardLinkType.DASHBOARDS).tags(["foreshock"])
    return link.as_dropdown(False).include_vars(True).keep_time(True)


def placed(board: Board) -> dashboard.Dashboard:
    builder = (
        dashboard.Dashboard(board.title)
        .uid(f"foreshock-{board.name}")
        .description(board.description)
        .tags(["foreshock"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-3h", "now")
        .refresh("30s")
        .timezone("browser")
        .link(way_to_the_others())
        .annotation(alerts_drawn())
        .with_variable(source_variable())
    )
    for variable in (*scope_variables(), *board.variables):
        builder.with_variable(variable.hide(VariableHide.DONT_HIDE))
    number = 0
    for row in board.rows:
        number += 1
        builder.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            builder.with_panel(panel.id(number))
    return builder


def board_json(board: Board) -> str:
    drawn = json.loads(json.dumps(placed(board).build(), cls=JSONEncoder))
    for annotation in drawn["annotations"]["list"]:
        annotation |= READ
    return json.dumps(drawn, indent=1, sort_keys=True) + "\n"
