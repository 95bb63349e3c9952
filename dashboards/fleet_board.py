"""Runs, nodes and ranks that differ from the others."""

from board import Board, Row, run_variable
from panel import (
    COUNT,
    NO_UNIT,
    PER_SECOND,
    RANKS,
    RATIO,
    STEPS,
    Query,
    limited,
    lines,
    number_now,
    of_living,
    of_run,
    rows,
    state_of_run,
    steps_per_second,
)
from rule import JOB, RANK, Values

# Selects ranks that are alive; an ended attempt keeps its last values.
LIVING = f"and on ({RANK}) {of_run('rank_up')} == 1"
# Adds node and coordinates of a rank to one of its values.
WITH_NODE = f"* on ({RANK}) group_left (node, local_rank, dp, tp, pp) {of_run('rank_info')}"


def with_node(values: str) -> str:
    """Selects ranks that are alive, and adds their node."""
    return f"({values} {LIVING}) {WITH_NODE}"


def runs() -> Row:
    return Row(
        "All runs",
        [
            rows(
                "Runs",
                "Last step of each running run.",
                STEPS,
                Query(f'max by ({JOB}) (foreshock_step) and on ({JOB}) foreshock_run_state{{state="running"}} == 1'),
            ),
            rows(
                "Owners", "The user that owns each run.", NO_UNIT, Query(f"max by ({JOB}, user) (foreshock_run_info)")
            ),
        ],
    )


def ranks(values: Values) -> Row:
    behind = f"scalar(max({of_living('step')})) - {of_run('step')}"
    ratio = of_run("attention_deviation_ratio", ',stat="mean"')
    return Row(
        "Ranks of the run",
        [
            number_now(
                "World",
                "Ranks of the whole job, as reported by ranks that are alive.",
                Query(f"max({of_run('world_size')} {LIVING})"),
                RANKS,
            ),
            number_now(
                "Seen", "Ranks whose processes are alive and scraped.", Query(f"sum({of_run('rank_up')})"), RANKS
            ),
            number_now(
                "Nodes",
                "Nodes with living ranks of the run.",
                Query(f"count(count by (node) ({of_run('rank_info')} {LIVING}))"),
                "suffix: nodes",
            ),
            state_of_run(),
            lines(
                "Steps per second",
                "Optimizer steps per second of the slowest rank, the median and the fastest.",
                PER_SECOND,
                *(
                    Query(f"quantile({q}, {steps_per_second()})", word)
                    for q, word in ((0, "slowest"), (0.5, "median"), (1, "fastest"))
                ),
                width=12,
            ),
            rows(
                "Ranks up by node",
                "Number of living ranks of each node.",
                RANKS,
                Query(f"sum by (node) ({of_run('rank_up')} * on ({RANK}) group_left (node) {of_run('rank_info')})"),
            ),
            rows(
                "Steps behind",
                "Distance to the highest step, of the ten slowest ranks. The other ranks wait for them.",
                STEPS,
                Query(f"topk(10, {with_node(behind)})"),
            ),
            rows(
                "Worst deviation",
                "The ten ranks with the largest mean error of the kernel over the error of unfused attention, of the"
                " worse pass. A single high rank points to its device.",
                RATIO,
                Query(f"topk(10, {with_node(f'max by ({RANK}) ({ratio})')})"),
            ),
            rows(
                "Largest gradient norms",
                "The ten ranks with the largest gradient norm (no unit); with data parallelism all are equal.",
                NO_UNIT,
                Query(f"topk(10, {with_node(of_run('gradient_norm'))})"),
            ),
            limited(
                lines(
                    "Replicas that differ",
                    "Snapshots in which a rank's weights differed from its replicas; the five ranks with most.",
                    COUNT,
                    Query(f"topk(5, sum by (rank) ({of_run('weight_checksum_mismatch_total')}))", "rank {{rank}}"),
                    width=12,
                ),
                ("red", 1),
            ),
            limited(
                lines(
                    "Most expensive ranks",
                    "Share of wall time that foreshock costs, of the five ranks that pay most.",
                    "percentunit",
                    Query(f"topk(5, max by (rank) ({of_living('slowdown_ratio')}))", "rank {{rank}}"),
                    width=12,
                ),
                ("orange", 0.01 * values["overhead"]["slowdown"]),
            ),
        ],
    )


def fleet(values: Values) -> Board:
    return Board(
        "fleet",
        "foreshock: fleet",
        "Runs, nodes and ranks that differ from the others.",
        [run_variable()],
        [runs(), ranks(values)],
    )
