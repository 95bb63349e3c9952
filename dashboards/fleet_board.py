"""Which run, node or rank is not like the others."""

from board import Board, Row, run_variable
from panel import Query, limited, lines, number_now, of_living, of_run, rows, state_of_run, steps_per_second
from rule import JOB, RANK, Values

# Of ranks that live: of an attempt that ended the last values stay.
LIVING = f"and on ({RANK}) {of_run('rank_up')} == 1"
# What a rank is, beside one of its values.
WITH_NODE = f"* on ({RANK}) group_left (node, local_rank, dp, tp, pp) {of_run('rank_info')}"


def told_apart(values: str) -> str:
    """Those that live, and on which node."""
    return f"({values} {LIVING}) {WITH_NODE}"


def runs() -> Row:
    return Row(
        "All runs",
        [
            rows(
                "Runs",
                "Step of each run that is running.",
                "none",
                Query(f'max by ({JOB}) (foreshock_step) and on ({JOB}) foreshock_run_state{{state="running"}} == 1'),
            ),
            rows("Owners", "The user whose run it is.", "none", Query(f"max by ({JOB}, user) (foreshock_run_info)")),
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
                "Ranks of the whole job, as those that live know it.",
                Query(f"max({of_run('world_size')} {LIVING})"),
            ),
            number_now("Seen", "Ranks whose processes live and are scraped.", Query(f"sum({of_run('rank_up')})")),
            number_now(
                "Nodes",
                "With ranks of the run that live.",
                Query(f"count(count by (node) ({of_run('rank_info')} {LIVING}))"),
            ),
            state_of_run(),
            lines(
                "Steps per second",
                "Of the slowest rank, the median and the fastest.",
                "none",
                *(
                    Query(f"quantile({q}, {steps_per_second()})", word)
                    for q, word in ((0, "slowest"), (0.5, "median"), (1, "fastest"))
                ),
                width=12,
            ),
            rows(
                "Ranks up by node",
                "How many ranks of each node live.",
                "none",
                Query(f"sum by (node) ({of_run('rank_up')} * on ({RANK}) group_left (node) {of_run('rank_info')})"),
            ),
            rows(
                "Steps behind",
                "The ten ranks whose step is lowest: the others wait for them.",
                "none",
                Query(f"topk(10, {told_apart(behind)})"),
            ),
            rows(
                "Worst deviation",
                "The ten ranks whose attention errs most over the noise floor: one alone points to its device.",
                "none",
                Query(f"topk(10, {told_apart(f'max by ({RANK}) ({ratio})')})"),
            ),
            rows(
                "Largest gradient norms",
                "The ten ranks with the largest norm; in data parallelism all are equal.",
                "none",
                Query(f"topk(10, {told_apart(of_run('gradient_norm'))})"),
            ),
            limited(
                lines(
                    "Replicas that differ",
                    "Snapshots in which a rank's bits differed from those of its replicas; the five ranks with most.",
                    "none",
                    Query(f"topk(5, sum by (rank) ({of_run('weight_checksum_mismatch_total')}))", "rank {{rank}}"),
                    width=12,
                ),
                ("red", 1),
            ),
            limited(
                lines(
                    "Dearest ranks",
                    "What the monitor costs, of wall time; the five ranks that pay most.",
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
        "Which run, node or rank is not like the others.",
        [run_variable()],
        [runs(), ranks(values)],
    )
