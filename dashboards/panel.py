"""Builds the panels of the Grafana dashboards, and the queries that they share.

Built with Grafana's typed builders for version 10.4. Later versions read these dashboards too.
"""

import typing

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, statetimeline, table, timeseries, trend
from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.models import common as option
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from rule import RANK_KEY

# $datasource, $cluster, $namespace, $run and $rank are variables of a dashboard, which the user selects.
SOURCE = model.DataSourceRef("prometheus", "${datasource}")
# The user's choice "All" has the value ".*", which also matches series without the label: a missing label is empty.
OF_CLUSTER = 'cluster=~"$cluster"'
OF_SCOPE = f'{OF_CLUSTER},namespace=~"$namespace"'
OF_RUN = f'{OF_SCOPE},run="$run"'
OF_RANKS = f'{OF_RUN},rank=~"$rank"'
# Excludes ranks (by their labels, RANK_KEY) that have ended: their series keep the last values until the run ends.
UNLESS_ENDED_IN_RUN = f"unless on ({RANK_KEY}) foreshock_rank_up{{{OF_RUN}}} == 0"
MOST_POINTS = 300  # per series: enough for a wide screen. More points would only cost server time.

# Units, as Grafana writes them behind a value. If the axis cannot show the unit, the title names it.
RATIO = "suffix:x"
ULP = "suffix: ulp"
SIGMA = "suffix: sigma"
NATS = "suffix: nats"
STEPS = "suffix: steps"
RANKS = "suffix: ranks"
LAYERS = "suffix: layers"
COUNT = "short"
PER_SECOND = "cps"
NO_UNIT = "none"  # norms, weights, learning rates, step numbers and states

# Colours of the states of a run. Its series has the value 1 in every state, so thresholds do not show which it is.
STATE_COLOURS = {
    "running": "green",
    "finished": "green",
    "interrupted": "orange",
    "preempted": "orange",
    "failed": "red",
}

# The definition of the error ratio in the descriptions of panels.
DEVIATION = "error of the kernel divided by the error of sound attention in the same precision"


class Query(typing.NamedTuple):
    expression: str
    legend: str = "__auto"  # Grafana then writes the labels


def of_run(metric: str, more: str = "") -> str:
    """Selects the series of a metric in the selected run. `more`: further matchers, each after a comma."""
    return f"foreshock_{metric}{{{OF_RUN}{more}}}"


def of_not_ended(metric: str, more: str = "") -> str:
    """Selects the series of a metric in the selected run, without those of ended ranks."""
    return f"({of_run(metric, more)} {UNLESS_ENDED_IN_RUN})"


def of_ranks(metric: str, more: str = "") -> str:
    """Selects the series of a metric of the ranks that the user has selected, without those of ended ranks."""
    return f"(foreshock_{metric}{{{OF_RANKS}{more}}} {UNLESS_ENDED_IN_RUN})"


def per_second(counter: str, labels: str) -> str:
    return f"sum by ({labels}) (rate({counter}[$__rate_interval]))"


def steps_per_second() -> str:
    """Steps per second of living ranks. A dead rank must not look like a slow one."""
    return f"{per_second(of_run('steps_total'), 'rank')} and on (rank) {of_run('rank_up')} == 1"


def target(index: int, query: Query) -> prometheus.Dataquery:
    """The query at `index` (0 to 7) of a panel, over the time range of the dashboard."""
    return (
        prometheus.Dataquery()
        .ref_id("ABCDEFGH"[index])
        .datasource(SOURCE)
        .expr(query.expression)
        .legend_format(query.legend)
        .range()
    )


def threshold_config(*marks: tuple[str, float]) -> ThresholdsConfig:
    """Thresholds. `marks`: colours, and the values from which they hold. Below the first value the colour is green."""
    config = ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE)
    return config.steps([model.Threshold(None, "green"), *(model.Threshold(value, colour) for colour, value in marks)])


def set_common_parts(builder: typing.Any, title: str, description: str, queries: typing.Iterable[Query]) -> typing.Any:
    """Sets the parts that panels of all kinds have, and returns the builder."""
    builder.title(title).description(description).datasource(SOURCE)
    for index, query in enumerate(queries):
        builder.with_target(target(index, query))
    return builder


def number(title: str, description: str, unit: str, query: Query, *marks: tuple[str, float]) -> stat.Panel:
    """Shows one value: the last one in the time range. `marks`: see threshold_config()."""
    builder = set_common_parts(stat.Panel(), title, description, [query])
    builder.unit(unit).span(3).height(4).thresholds(threshold_config(*marks))  # span: of the 24 columns of a dashboard
    builder.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return builder.color_mode(option.BigValueColorMode.VALUE).text_mode(option.BigValueTextMode.VALUE)


def show_at_end(panel: stat.Panel, query: Query, otherwise: str) -> stat.Panel:
    """Makes a panel show the query's value at the end of the time range, or the text `otherwise` if the query has no
    value then. number() would show the last value before the agent ended with its run, which would look current."""
    return panel.targets([target(0, query).instant()]).no_value(otherwise)


def number_now(
    title: str, description: str, query: Query, unit: str = NO_UNIT, *marks: tuple[str, float]
) -> stat.Panel:
    """As number(), but shows the value at the end of the time range (show_at_end())."""
    return show_at_end(number(title, description, unit, query, *marks), query, "none seen")


def legend(title: str, description: str, query: Query) -> stat.Panel:
    """Shows the legends of the series (usually one) instead of their values."""
    return number(title, description, NO_UNIT, query).text_mode(option.BigValueTextMode.NAME)


def state_of_run() -> stat.Panel:
    query = Query(f"max by (state) ({of_run('run_state')} == 1)", "{{state}}")
    description = (
        "State of the run at the end of the time range. finished, failed, preempted and interrupted come from the exit"
        " status or the signal that ended it."
    )
    panel = show_at_end(legend("State", description, query), query, "no longer seen")
    panel.thresholds(ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps([model.Threshold(None, "text")]))
    for state, colour in STATE_COLOURS.items():
        fixed = model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
        panel.with_override(model.MatcherConfig("byName", state), [fixed])
    return panel


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = 8,
    dashed: typing.Sequence[tuple[str, float]] = (),
    logarithmic: bool = False,
) -> timeseries.Panel:
    """Draws the queries over time. `width`: of the 24 columns of a dashboard. `dashed`: colours and values of dashed
    lines, the limits of alerts."""
    builder = set_common_parts(timeseries.Panel(), title, description, queries)
    builder.unit(unit).span(width).height(8).show_points(option.VisibilityMode.NEVER)
    if dashed:
        style = common.GraphThresholdsStyleConfig().mode(option.GraphThresholdsStyleMode.DASHED)
        builder.thresholds(threshold_config(*dashed)).thresholds_style(style)
    if logarithmic:
        builder.scale_distribution(common.ScaleDistributionConfig().type(option.ScaleDistribution.LOG).log(10))
    return builder


def learning_rate(width: int = 8) -> timeseries.Panel:
    query = Query(f"max({of_not_ended('learning_rate')})", "learning rate")
    return lines("Learning rate", "Learning rate of the last step (no unit).", NO_UNIT, query, width=width)


def replicas_that_differ(width: int = 8) -> timeseries.Panel:
    description = (
        "How often a tensor of a process rank differed in at least one bit from the same tensor of its data-parallel"
        " replicas on the same node, since the start of the run; the five ranks with most. Usual is 0. Any new"
        " difference raises ForeshockReplicaMismatch."
    )
    query = Query(f"topk(5, sum by (rank) ({of_run('weight_checksum_mismatch_total')}))", "rank {{rank}}")
    return lines("Replicas that differ", description, COUNT, query, width=width, dashed=[("red", 1)])


# The x axis of panels over training steps. Grafana draws no line over an x axis that does not increase. Steps do not
# increase while a trainer evaluates, and they decrease when it resumes from a checkpoint. So ASCENDING leaves out a
# point if a point at a later time (a negative offset looks ahead) has the same or an earlier step: the panel shows the
# final history of the run. Ended ranks are included: excluding them in the subquery would cost several times as much.
STEP = f"max({of_run('step')})"
WITHOUT_TIES = f"({STEP} - time() / 1e6)"  # slightly smaller at later times, so of equal steps the last one is kept
SHOWN = f"({WITHOUT_TIES} and on () vector(time()) <= ${{__to}} / 1000)"  # up to the time range's end, __to (in ms)
ASCENDING = f"({STEP} unless min_over_time({SHOWN}[$__range:$__interval] offset -$__range) < {WITHOUT_TIES})"


def by_step(title: str, description: str, unit: str, *queries: Query, width: int = 12) -> trend.Panel:
    """Draws over training steps instead of time. Grafana joins ASCENDING and the queries by time, then drops time."""
    kept = [Query(f"({query.expression}) and on () {ASCENDING}", query.legend) for query in queries]
    builder = set_common_parts(trend.Panel(), title, description, [Query(ASCENDING, "step"), *kept])
    builder.unit(unit).span(width).height(8).x_field("step").show_points(option.VisibilityMode.NEVER)
    builder.with_override(model.MatcherConfig("byName", "step"), [model.DynamicConfigValue("unit", NO_UNIT)])
    join = model.DataTransformerConfig(id_val="joinByField", options={"byField": "Time", "mode": "outer"})
    drop = model.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}})
    return builder.transformations([join, drop])


def layer_heatmap(
    title: str,
    description: str,
    expression: str,
    unit: str,
    colours_from: float | None = None,
    colours_to: float | None = None,
) -> heatmap.Panel:
    """Draws a heat map of layers over time. The colour scale goes from `colours_from` to `colours_to`."""
    query = Query(f"max by (layer) ({expression})", "{{layer}}")
    builder = set_common_parts(heatmap.Panel(), title, description, [query])
    colours = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Turbo").steps(64)
    colours.scale(HeatmapColorScale.EXPONENTIAL).exponent(0.5)  # more colours for small values
    for set_end, value in ((colours.min, colours_from), (colours.max, colours_to)):
        if value is not None:
            set_end(value)
    builder.calculate(False).color(colours).cell_gap(0).max_data_points(MOST_POINTS)
    return builder.unit(unit).span(12).height(10)


def states(title: str, description: str, query: Query, names: dict[str, tuple[str, str]]) -> statetimeline.Panel:
    """Draws the states of each series over time as coloured bars. `names`: {value: (word, colour)}."""
    builder = set_common_parts(statetimeline.Panel(), title, description, [query])
    results = {value: model.ValueMappingResult(word, colour) for value, (word, colour) in names.items()}
    builder.mappings([model.ValueMap(results)])
    builder.color_scheme(FieldColor().mode(model.FieldColorModeId.THRESHOLDS)).thresholds(threshold_config())
    return builder.unit(NO_UNIT).span(12).height(10).max_data_points(MOST_POINTS)


def table_now(title: str, description: str, unit: str, query: Query, width: int = 12) -> table.Panel:
    """Draws a table of the values at the end of the time range: a row for each series, a column for most labels."""
    builder = set_common_parts(table.Panel(), title, description, [])
    builder.with_target(target(0, query).instant().format(PromQueryFormat.TABLE))
    dropped = {"Time": True, "__name__": True, "job": True, "instance": True}
    builder.with_transformation(model.DataTransformerConfig(id_val="organize", options={"excludeByName": dropped}))
    return builder.unit(unit).span(width).height(9)
