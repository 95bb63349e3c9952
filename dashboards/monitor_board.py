"""What the monitor sees of one run, what it leaves out, and what it costs."""

from board import Board, Row, run_variable
from panel import Query, limited, lines, logarithmic, number, number_now, of_living, of_run, per_second, rows
from rule import Values

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
                "Ranks that made ten steps without a call that can be seen.",
                "none",
                Query(f"sum({of_living('no_attention_seen')})"),
                ("red", 1),
            ),
            number_now(
                "At work",
                "Ranks that live and whose part of the monitor in the trainer is on.",
                Query(f"sum({of_living('monitor_enabled', TRAINER)})"),
            ),
            number(
                "Sampled every",
                "Steps between two sampled ones.",
                "none",
                Query(f"max({of_living('sample_interval_steps')})"),
            ),
            number(
                "Steps lost",
                "Step records overwritten before the agent read them.",
                "none",
                Query(f"sum({of_run('steps_lost_total')})"),
                ("orange", 1),
            ),
            lines(
                "Attention calls",
                "Every call ends as unsampled, skipped or sampled.",
                "cps",
                *(
                    Query(per_second(of_run(f"attention_{fate}_total"), "pass"), f"{{{{pass}}}} {fate}")
                    for fate in ("unsampled", "skipped", "samples")
                ),
                width=12,
            ),
            lines(
                "Skipped and lost",
                "Calls that were to be judged and were not, by reason.",
                "cps",
                Query(skipped, "skipped, {{reason}}"),
                Query(lost, "lost, {{reason}}"),
                width=12,
            ),
            lines(
                "In flight",
                "Slices taken and not judged yet.",
                "none",
                Query(f"sum by (pass) ({of_living('attention_in_flight')})", "{{pass}}"),
                width=6,
            ),
            lines(
                "Judged",
                "Slices compared with the reference.",
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
                    "Of the slowest rank; 1 is what --max-slowdown allows.",
                    "none",
                    Query(over, "slowest rank"),
                ),
                ("red", values["overhead"]["slowdown"]),
            ),
            lines(
                "Cost",
                "Share of a rank's wall time that the monitor takes, by place, of the dearest rank.",
                "percentunit",
                Query(f"max by (where) ({per_second(of_run('overhead_seconds_total'), 'where, rank')})", "{{where}}"),
            ),
            lines(
                "Errors",
                "Failures of the monitor itself, since the run began.",
                "none",
                Query(f"sum by (component) ({of_run('monitor_errors_total')})", "{{component}}"),
            ),
        ],
    )


def agents() -> Row:
    return Row(
        "All agents",
        [
            lines("Answering", "Agents that answer Prometheus.", "none", Query(f"sum({UP})", "agents")),
            lines(
                "Series",
                "Of the agents with most; 4096 is the budget.",
                "none",
                Query(f"topk(5, scrape_samples_scraped {OF_AGENTS})", "{{instance}}"),
            ),
            logarithmic(
                lines(
                    "Scrape",
                    "How long Prometheus waited, for the five slowest agents.",
                    "s",
                    Query(f"topk(5, scrape_duration_seconds {OF_AGENTS})", "{{instance}}"),
                )
            ),
            rows(
                "Series left out",
                "Agents that were over their budget.",
                "none",
                Query("topk(10, foreshock_series_dropped_total)"),
            ),
            rows("Versions", "How many agents of each.", "none", Query("count by (version) (foreshock_build_info)")),
        ],
    )


def monitor(values: Values) -> Board:
    return Board(
        "monitor",
        "foreshock: monitor",
        "What the monitor sees, leaves out and costs.",
        [run_variable()],
        [sees(), costs(values), agents()],
    )
