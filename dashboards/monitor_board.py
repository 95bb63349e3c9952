"""Coverage, losses and cost of the monitor in one run."""

from board import Board, Row, run_variable
from panel import (
    COUNT,
    RANKS,
    RATIO,
    STEPS,
    Query,
    limited,
    lines,
    logarithmic,
    number,
    number_now,
    of_living,
    of_run,
    per_second,
    rows,
)
from rule import UNLESS_ENDED, Values

TRAINER = ',component="trainer"'
UP = "up * on (job, instance) group_left () max by (job, instance) (foreshock_build_info)"
OF_AGENTS = "and on (job, instance) foreshock_build_info"


def sees() -> Row:
    skipped, lost = (per_second(of_run(f"attention_{what}_total"), "reason") for what in ("skipped", "lost"))
    return Row(
        "What it sees",
        [
            number(
                "No attention seen",
                "Ranks that made ten steps without a visible attention call.",
                RANKS,
                Query(f"sum({of_living('no_attention_seen')})"),
                ("red", 1),
            ),
            number_now(
                "At work",
                "Living ranks in which foreshock is switched on.",
                Query(f"sum({of_living('monitor_enabled', TRAINER)})"),
                RANKS,
            ),
            number(
                "Sampled every",
                "Steps from one sampled step to the next.",
                STEPS,
                Query(f"max({of_living('sample_interval_steps')})"),
            ),
            number(
                "Steps lost",
                "Step records that were overwritten before the agent read them.",
                STEPS,
                Query(f"sum({of_run('steps_lost_total')})"),
                ("orange", 1),
            ),
            lines(
                "Attention calls",
                "Attention calls per second. Every call ends as unsampled, skipped or sampled.",
                "cps",
                *(
                    Query(per_second(of_run(f"attention_{fate}_total"), "pass"), f"{{{{pass}}}} {fate}")
                    for fate in ("unsampled", "skipped", "samples")
                ),
                width=12,
            ),
            lines(
                "Skipped and lost",
                "skipped: calls per second that were not sampled; lost: samples that could not be judged. budget and"
                " off are normal reasons.",
                "cps",
                Query(skipped, "skipped, {{reason}}"),
                Query(lost, "lost, {{reason}}"),
                width=12,
            ),
            lines(
                "In flight",
                "Number of slices taken and not judged yet.",
                COUNT,
                Query(f"sum by (pass) ({of_living('attention_in_flight')})", "{{pass}}"),
                width=6,
            ),
            lines(
                "Judged",
                "Slices per second that were compared with the reference.",
                "cps",
                Query(per_second(of_run("attention_judged_total"), "pass"), "{{pass}}"),
                width=6,
            ),
        ],
    )


def costs(values: Values) -> Row:
    over = f"max({of_living('slowdown_ratio')} / {of_run('slowdown_limit_ratio')})"
    return Row(
        "What it costs",
        [
            limited(
                lines(
                    "Slowdown over its limit",
                    "Measured slowdown of the slowest rank over its limit --max-slowdown; 1 is the limit.",
                    RATIO,
                    Query(over, "slowest rank"),
                ),
                ("red", values["overhead"]["slowdown"]),
            ),
            lines(
                "Cost",
                "Share of a rank's wall time that foreshock takes, by place, of the most expensive rank.",
                "percentunit",
                Query(f"max by (where) ({per_second(of_run('overhead_seconds_total'), 'where, rank')})", "{{where}}"),
            ),
            lines(
                "Errors",
                "Number of failures of foreshock itself since the start of the run.",
                COUNT,
                Query(f"sum by (component) ({of_run('monitor_errors_total')})", "{{component}}"),
            ),
        ],
    )


def agents() -> Row:
    return Row(
        "All agents",
        [
            lines(
                "Answering", "Number of agents that answer Prometheus.", "suffix: agents", Query(f"sum({UP})", "agents")
            ),
            lines(
                "Series",
                "Number of series of the five largest agents; 4096 is the limit.",
                COUNT,
                Query(f"topk(5, scrape_samples_scraped {OF_AGENTS})", "{{instance}}"),
            ),
            logarithmic(
                lines(
                    "Scrape",
                    "Duration of a scrape, of the five slowest agents.",
                    "s",
                    Query(f"topk(5, scrape_duration_seconds {OF_AGENTS})", "{{instance}}"),
                )
            ),
            rows(
                "Series left out",
                "Series that agents left out because of their limit, and series that detectors have no room for.",
                COUNT,
                Query(
                    "topk(10, foreshock_series_dropped_total)"
                    f" or topk(10, foreshock_precursor_series_dropped {UNLESS_ENDED})"
                ),
            ),
            rows(
                "Versions",
                "Number of agents of each version.",
                "suffix: agents",
                Query("count by (version) (foreshock_build_info)"),
            ),
        ],
    )


def monitor(values: Values) -> Board:
    return Board(
        "monitor",
        "foreshock: monitor",
        "Coverage, losses and cost of foreshock.",
        [run_variable()],
        [sees(), costs(values), agents()],
    )
