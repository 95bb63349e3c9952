"""The monitor itself: what it does not see, what it loses, what it costs."""

from rule import JOB, RANK, TARGET, UNLESS_ENDED, VALUE, Alert, Group, Record, Values

SLOWDOWN = "run:foreshock_slowdown_over_limit:max"
SKIPPED, SAMPLED = "run:foreshock_attention_skipped:rate5m", "run:foreshock_attention_samples:rate5m"


def because(why: str, expression: str) -> str:
    return f'label_replace({expression}, "why", "{why}", "", "")'


def any_of(*reasons: tuple[str, str]) -> str:
    return "\nor ".join(because(why, expression) for why, expression in reasons)


def increase(metric: str, window: str) -> str:
    return f"sum by ({JOB}) (increase(foreshock_{metric}_total[{window}]))"


def calls() -> list[Record]:
    """Summed up over the ranks first: half an hour of each of them would be much to read. Of forward, which has all the
    calls that backward has; what the budget or the owner leaves out is meant to be left out."""
    skipped, sampled = (f"foreshock_attention_{what}_total" for what in ("skipped", "samples"))
    return [
        Record(SKIPPED, f'sum by ({JOB}) (rate({skipped}{{pass="forward",reason!~"budget|off"}}[5m]))'),
        Record(SAMPLED, f'sum by ({JOB}) (rate({sampled}{{pass="forward"}}[5m]))'),
    ]


def coverage(of: dict) -> Alert:
    skipped, sampled = (f"avg_over_time({calls}[{of['window']}])" for calls in (SKIPPED, SAMPLED))
    reasons = any_of(
        ("no attention seen", f"max by ({JOB}) (foreshock_no_attention_seen {UNLESS_ENDED}) > 0"),
        (
            "attention that no hook sees",
            f'count by ({JOB}) (foreshock_attention_unseen{{evidence="used"}} {UNLESS_ENDED})',
        ),
        (
            "calls that no hook saw",
            f'min by ({JOB}) (foreshock_attention_coverage_ratio{{source!="none"}} {UNLESS_ENDED}) < {of["ratio"]}',
        ),
        (
            "calls that had to be skipped",
            f"{skipped} / ({skipped} + {sampled}) > {of['skipped']}",
        ),
    )
    return Alert(
        "ForeshockCoverageLow", "monitor", "monitor", "monitor",
        f"({reasons})\nand on ({JOB}) max by ({JOB}) (foreshock_run_state{{state=\"running\"}}) == 1",
        "Much of a training's attention is not judged",
        "Run {{ $labels.run }}: {{ $labels.why }}. What is not seen raises no alarm.",
        of["for"],
    )  # fmt: skip


def degraded(of: dict) -> Alert:
    lost, taken = (increase(f"attention_{what}", of["window"]) for what in ("lost", "samples"))
    missed, made = (increase(what, of["window"]) for what in ("steps_lost", "steps"))
    return Alert(
        "ForeshockMonitorDegraded", "monitor", "monitor", "monitor",
        any_of(
            ("lost samples", f"{lost} / {taken} > {of['lost']}"),
            ("lost steps", f"{missed} / {made} > {of['lost']}"),
            ("errors", f"{increase('monitor_errors', of['window'])} > 0"),
            (
                "switched off",
                f'count by ({JOB}) (foreshock_monitor_enabled{{component="trainer"}} == 0'
                f" and on ({RANK}) foreshock_rank_up == 1)",
            ),
            (
                "names, norms and weights given up",
                f'count by ({JOB}) (foreshock_monitor_enabled{{component="tensors"}} == 0'
                f" and on ({RANK}) foreshock_rank_up == 1)",
            ),
        ),
        "foreshock itself is not well",
        "Run {{ $labels.run }}: {{ $labels.why }}. The training is not affected; its figures may be incomplete.",
        of["for"],
    )  # fmt: skip


def overhead(of: dict) -> Alert:
    return Alert(
        "ForeshockOverheadHigh", "monitor", "monitor", "monitor",
        f"{SLOWDOWN} > {of['slowdown']}",
        "foreshock costs more than it may",
        f"Run {{{{ $labels.run }}}}: the slowest rank pays {VALUE} times what --max-slowdown allows.",
        of["for"], of["keep"],
    )  # fmt: skip


def series_dropped(of: dict) -> Alert:
    return Alert(
        "ForeshockSeriesDropped", "monitor", "monitor", "monitor",
        f"sum by ({TARGET}) (increase(foreshock_series_dropped_total[{of['window']}])) > 0",
        "An agent leaves series out",
        "Agent {{ $labels.instance }} has more series than its budget: some layers or ranks are not shown.",
    )  # fmt: skip


def monitor_rules(values: Values) -> Group:
    return Group(
        "foreshock-monitor",
        [
            Record(
                SLOWDOWN,
                f"max by ({JOB}) (foreshock_slowdown_ratio / foreshock_slowdown_limit_ratio {UNLESS_ENDED})",
            ),
            *calls(),
            coverage(values["coverage"]),
            degraded(values["degraded"]),
            overhead(values["overhead"]),
            series_dropped(values["series_dropped"]),
        ],
        # They read more series than any other group, and none of it is urgent: all but the last waits for minutes.
        interval="1m",
    )
