"""The Grafana dashboard "fleet": all runs, in the selected run the nodes and ranks that differ, and all agents.
of_run() selects a metric's series in the selected run, of_not_ended() leaves out those of ended ranks. RUN_KEY and
RANK_KEY list the labels that identify a run and a rank. `values` are the thresholds of alerts."""

import panel
from board import Board, Row, run_variable
from panel import DEVIATION, Query, of_not_ended, of_run
from rule import RANK_KEY, RUN_KEY, UNLESS_ENDED, Values

# Restricts series to living ranks, whose rank_up is 1. of_not_ended() excludes only ranks whose rank_up is 0, so it
# also keeps ranks without a rank_up.
AND_UP = f"and on ({RANK_KEY}) {of_run('rank_up')} == 1"
# Prometheus has `up` for every target. Only agents have foreshock_build_info (always 1), which selects their series.
UP = "up * on (job, instance) group_left () max by (job, instance) (foreshock_build_info)"
OF_AGENTS = "and on (job, instance) foreshock_build_info"
RUNNING = 'foreshock_run_state{state="running"} == 1'


def with_node(series: str) -> str:
    """Selects living ranks. Adds labels for the node and for the data-, tensor- and pipeline-parallel coordinates, by a
    product with rank_info, which is always 1."""
    return f"({series} {AND_UP}) * on ({RANK_KEY}) group_left (node, local_rank, dp, tp, pp) {of_run('rank_info')}"


def runs_row() -> Row:
    return Row(
        "All runs",
        [
            panel.table_now(
                "Runs",
                "The highest optimizer step that any rank of each running run has ended.",
                panel.STEPS,
                Query(f"max by ({RUN_KEY}) (foreshock_step) and on ({RUN_KEY}) {RUNNING}"),
            ),
            panel.table_now(
                "Owners",
                "The user that owns each run.",
                panel.NO_UNIT,
                Query(f"max by ({RUN_KEY}, user) (foreshock_run_info)"),
            ),
        ],
    )


def ranks_row(values: Values) -> Row:
    steps_behind = f"scalar(max({of_not_ended('step')})) - {of_run('step')}"
    ratio = of_run("attention_fused_ratio", ',stat="mean"')
    return Row(
        "Ranks of the run",
        [
            panel.number_now(
                "World size",
                "Number of process ranks of the whole job, as its living ranks report it. It does not fall when a rank"
                " dies; 'Seen' does. ForeshockRanksMissing fires if 'Seen' stays lower.",
                Query(f"max({of_run('world_size')} {AND_UP})"),
                panel.RANKS,
            ),
            panel.number_now(
                "Seen",
                "Process ranks that are alive and whose agents Prometheus scrapes. Usual is the world size.",
                Query(f"sum({of_run('rank_up')})"),
                panel.RANKS,
            ),
            panel.number_now(
                "Nodes",
                "Number of nodes that have living process ranks of the run.",
                Query(f"count(count by (node) ({of_run('rank_info')} {AND_UP}))"),
                "suffix: nodes",
            ),
            panel.state_of_run(),
            panel.lines(
                "Steps per second",
                "Optimizer steps per second: the slowest living process rank, the median of all, and the fastest. With"
                " data parallelism all are equal, because the ranks wait for each other.",
                panel.PER_SECOND,
                *(
                    Query(f"quantile({q}, {panel.steps_per_second()})", word)
                    for q, word in ((0, "slowest"), (0.5, "median"), (1, "fastest"))
                ),
                width=12,
            ),
            panel.table_now(
                "Ranks up by node",
                "Number of living process ranks of each node. Usual is the same number on every node.",
                panel.RANKS,
                Query(f"sum by (node) ({of_run('rank_up')} * on ({RANK_KEY}) group_left (node) {of_run('rank_info')})"),
            ),
            panel.table_now(
                "Steps behind",
                "How many optimizer steps a process rank is behind the highest step of the run; the ten slowest ranks."
                " A few are usual, because agents are scraped at different times. If the training hangs, the others"
                " wait for the rank that is furthest behind.",
                panel.STEPS,
                Query(f"topk(10, {with_node(steps_behind)})"),
            ),
            panel.table_now(
                "Worst error ratio",
                f"Ratio: {DEVIATION}. Mean over the last 64 samples of a process rank, of the pass (forward or"
                " backward) where it is higher; the ten ranks with the highest mean. Usual is near 1. One rank that"
                " is much higher than the others points to its device; all ranks high point to the kernel.",
                panel.RATIO,
                Query(f"topk(10, {with_node(f'max by ({RANK_KEY}) ({ratio})')})"),
            ),
            panel.table_now(
                "Largest gradient norms",
                "L2 norm of the whole gradient before clipping at the last step (no unit); the ten process ranks with"
                " the largest. With data parallelism all ranks are equal.",
                panel.NO_UNIT,
                Query(f"topk(10, {with_node(of_run('gradient_norm'))})"),
            ),
            panel.replicas_that_differ(width=12),
            panel.lines(
                "Most expensive ranks",
                "Share of wall time that foreshock costs a process rank, mean of the last minutes; the five ranks"
                " that pay most. Usual is at most --max-slowdown (default 1 %). The dashed line is the limit of the"
                " alert at that default.",
                "percentunit",
                Query(f"topk(5, max by (rank) ({of_not_ended('slowdown_ratio')}))", "rank {{rank}}"),
                width=12,
                dashed=[("orange", 0.01 * values["overhead"]["slowdown"])],  # 0.01: the default --max-slowdown
            ),
        ],
    )


def agents_row() -> Row:
    return Row(
        "All agents",
        [
            panel.lines(
                "Answering",
                "Number of agents, of all runs, that answer Prometheus.",
                "suffix: agents",
                Query(f"sum({UP})", "agents"),
            ),
            panel.lines(
                "Series",
                "Number of series that an agent shows to Prometheus, of all its runs; the five agents with most."
                " Beyond 4096 an agent leaves out series of layers and ranks, and an alert fires.",
                panel.COUNT,
                Query(f"topk(5, scrape_samples_scraped {OF_AGENTS})", "{{instance}}"),
            ),
            panel.lines(
                "Scrape duration",
                "Time that Prometheus takes to read an agent; the five slowest agents. Prometheus gives up at its"
                " scrape_timeout (10 s by default) and then has no values of that agent.",
                "s",
                Query(f"topk(5, scrape_duration_seconds {OF_AGENTS})", "{{instance}}"),
                logarithmic=True,
            ),
            panel.table_now(
                "Series left out",
                "Rows with a detector: tensors or layers that this detector has no room for. Other rows: series that"
                " an agent left out because of its limit of 4096. The ten largest of each; usual is 0.",
                panel.COUNT,
                Query(
                    "topk(10, foreshock_series_dropped_total)"
                    f" or topk(10, foreshock_precursor_series_dropped {UNLESS_ENDED})"
                ),
            ),
            panel.table_now(
                "Versions",
                "Number of agents of each version.",
                "suffix: agents",
                Query("count by (version) (foreshock_build_info)"),
            ),
        ],
    )


def fleet(values: Values) -> Board:
    return Board(
        "fleet",
        "foreshock: fleet",
        "Runs, nodes and ranks that differ from the others, and agents.",
        [run_variable()],
        [runs_row(), ranks_row(values), agents_row()],
    )
