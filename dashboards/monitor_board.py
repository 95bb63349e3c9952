"""The dashboard "monitor": coverage, lost samples and cost of foreshock itself in one run, and all agents. of_run()
selects the series of a metric in the chosen run, of_not_ended() leaves out those of ended ranks. per_second() is the
rate of a counter, summed for each value of the named labels. `values`: limits of the alert rules (values.toml)."""

import panel
from board import Board, Row, run_variable
from panel import Query, of_not_ended, of_run, per_second
from rule import UNLESS_ENDED, Values

TRAINER = ',component="trainer"'  # a further label matcher for of_not_ended()
# Prometheus has `up` for every target. Only agents have foreshock_build_info (always 1), which selects their series.
UP = "up * on (job, instance) group_left () max by (job, instance) (foreshock_build_info)"
OF_AGENTS = "and on (job, instance) foreshock_build_info"


def coverage(values: Values) -> Row:
    most_lost = f"{values['degraded']['lost']:.0%}"
    skipped, lost = (per_second(of_run(f"attention_{what}_total"), "reason") for what in ("skipped", "lost"))
    return Row(
        "What it sees",
        [
            panel.number(
                "No attention seen",
                "Process ranks that made ten optimizer steps without an attention call that foreshock sees. Usual is 0;"
                " from 1 on ForeshockCoverageLow fires.",
                panel.RANKS,
                Query(f"sum({of_not_ended('no_attention_seen')})"),
                ("red", 1),
            ),
            panel.number_now(
                "At work",
                "Living process ranks in which foreshock is switched on. Usual is all ranks of the run.",
                Query(f"sum({of_not_ended('monitor_enabled', TRAINER)})"),
                panel.RANKS,
            ),
            panel.number(
                "Sampled every",
                "Optimizer steps from one sampled step to the next, of the process rank that samples least often. It"
                " grows if samples would cost more than --max-slowdown.",
                panel.STEPS,
                Query(f"max({of_not_ended('sample_interval_steps')})"),
            ),
            panel.number(
                "Steps lost",
                "Steps whose records were overwritten before the agent read them, since the start of the run. Usual is"
                f" 0. An alert fires if more than {most_lost} of the steps of {values['degraded']['window']} are lost.",
                panel.STEPS,
                Query(f"sum({of_run('steps_lost_total')})"),
                ("orange", 1),
            ),
            panel.lines(
                "Attention calls",
                "Attention calls per second of all ranks, by pass and by what foreshock did. unsampled: not chosen."
                " samples: a slice was copied to be checked. skipped: chosen, but not copied (see 'Skipped and lost').",
                "cps",
                *(
                    Query(per_second(of_run(f"attention_{fate}_total"), "pass"), f"{{{{pass}}}} {fate}")
                    for fate in ("unsampled", "skipped", "samples")
                ),
                width=12,
            ),
            panel.lines(
                "Skipped and lost",
                "skipped: calls per second that were chosen and not copied. lost: copied slices per second that could"
                " not be compared. Each by reason. The reasons budget (--max-slowdown) and off (--slices off) are"
                f" intended. An alert fires if more than {values['coverage']['skipped']:.0%} of the chosen forward"
                f" calls are skipped for other reasons, or {most_lost} of the slices are lost.",
                "cps",
                Query(skipped, "skipped, {{reason}}"),
                Query(lost, "lost, {{reason}}"),
                width=12,
            ),
            panel.lines(
                "In flight",
                "Number of slices that were copied and not compared yet, over all ranks. It returns to 0 between"
                " sampled steps if the agent keeps up.",
                panel.COUNT,
                Query(f"sum by (pass) ({of_not_ended('attention_in_flight')})", "{{pass}}"),
                width=6,
            ),
            panel.lines(
                "Judged",
                "Slices per second that were compared with the fp64 reference, over all ranks, by pass.",
                "cps",
                Query(per_second(of_run("attention_judged_total"), "pass"), "{{pass}}"),
                width=6,
            ),
        ],
    )


def costs(values: Values) -> Row:
    slowdown_over_limit = f"max({of_not_ended('slowdown_ratio')} / {of_run('slowdown_limit_ratio')})"
    return Row(
        "What it costs",
        [
            panel.lines(
                "Slowdown over its limit",
                "Share of time that foreshock costs, divided by the share that --max-slowdown allows; of the process"
                f" rank that pays most. Usual is at most 1. An alert fires above {values['overhead']['slowdown']}.",
                panel.RATIO,
                Query(slowdown_over_limit, "slowest rank"),
                dashed=[("red", values["overhead"]["slowdown"])],
            ),
            panel.lines(
                "Cost",
                "Share of wall time that foreshock takes from a process rank, by place; for each place, of the rank"
                " that pays most. attention: at attention calls; step: at optimizer steps; agent: processor time of"
                " the agent.",
                "percentunit",
                Query(f"max by (where) ({per_second(of_run('overhead_seconds_total'), 'where, rank')})", "{{where}}"),
            ),
            panel.lines(
                "Errors",
                "Failures of foreshock itself in the chosen run, since that run started. segment: reading the shared"
                " memory of a rank; record: writing the file of --record. Usual is 0; any new failure raises an alert.",
                panel.COUNT,
                Query(f"sum by (component) ({of_run('monitor_errors_total')})", "{{component}}"),
            ),
        ],
    )


def agents() -> Row:
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


def monitor(values: Values) -> Board:
    return Board(
        "monitor",
        "foreshock: monitor",
        "Coverage, losses and cost of foreshock.",
        [run_variable()],
        [coverage(values), costs(values), agents()],
    )
