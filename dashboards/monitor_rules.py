"""Prometheus alerts on foreshock itself: coverage, lost samples, cost. `limits` is an alert's section of values.toml.
From rule.py: RUN and VALUE are text templates for the run and the value of the alert's expression; RUN_KEY, RANK_KEY
and TARGET_KEY list the labels of a run, rank or agent; UNLESS_ENDED excludes ended ranks. The arguments of Alert are
name, kind, component, dashboard, expression, summary, description, hold (Prometheus' `for`) and keep
(`keep_firing_for`)."""

from rule import RANK_KEY, RUN, RUN_KEY, TARGET_KEY, UNLESS_ENDED, VALUE, Alert, Group, Record, Values

SLOWDOWN = "run:foreshock_slowdown_over_limit:max"  # names of recording rules
SKIPPED, SAMPLED = "run:foreshock_attention_skipped:rate5m", "run:foreshock_attention_samples:rate5m"


def any_of(*reasons: tuple[str, str]) -> str:
    """Joins expressions with `or`. Each reason is (text, expression); the text becomes the label `why`."""
    return "\nor ".join(f'label_replace({expression}, "why", "{why}", "", "")' for why, expression in reasons)


def increase(metric: str, window: str) -> str:
    return f"sum by ({RUN_KEY}) (increase(foreshock_{metric}_total[{window}]))"


def call_rates() -> list[Record]:
    """Records the rates of skipped and sampled calls, summed over ranks: coverage() reads half an hour of the rates,
    which would be expensive for every rank. Counts only forward calls, since every backward call follows one. Excludes
    calls skipped for the budget ("budget") or by --slices ("off"), which the user intended."""
    skipped, sampled = (f"foreshock_attention_{what}_total" for what in ("skipped", "samples"))
    return [
        Record(SKIPPED, f'sum by ({RUN_KEY}) (rate({skipped}{{pass="forward",reason!~"budget|off"}}[5m]))'),
        Record(SAMPLED, f'sum by ({RUN_KEY}) (rate({sampled}{{pass="forward"}}[5m]))'),
    ]


def coverage(limits: dict) -> Alert:
    skipped, sampled = (f"avg_over_time({rate}[{limits['window']}])" for rate in (SKIPPED, SAMPLED))
    reasons = any_of(
        ("no attention seen", f"max by ({RUN_KEY}) (foreshock_no_attention_seen {UNLESS_ENDED}) > 0"),
        (  # The training uses an attention function that foreshock does not hook.
            "attention that no hook sees",
            f'count by ({RUN_KEY}) (foreshock_attention_unseen{{evidence="used"}} {UNLESS_ENDED})',
        ),
        (  # The hooks saw a small share of the calls that an independent source counted.
            "calls that no hook saw",
            f'min by ({RUN_KEY}) (foreshock_attention_coverage_ratio{{source!="none"}} {UNLESS_ENDED})'
            f" < {limits['ratio']}",
        ),
        ("calls that had to be skipped", f"{skipped} / ({skipped} + {sampled}) > {limits['skipped']}"),
    )
    return Alert(
        "ForeshockCoverageLow", "monitor", "monitor", "overview",
        f"({reasons})\nand on ({RUN_KEY}) max by ({RUN_KEY}) (foreshock_run_state{{state=\"running\"}}) == 1",
        f"{RUN}: much of its attention is not judged",
        "Much of the attention of this running training is not checked, for this reason: {{ $labels.why }}. Attention"
        " that is not checked raises no alarm, so the silence of other alerts means little. First read the reasons in"
        " the panel 'Skipped and lost', and run foreshock doctor -- COMMAND with the command of the training. The"
        " runbook has the remedy for each reason.",
        limits["for"],
    )  # fmt: skip


def degraded(limits: dict) -> Alert:
    """Fires if samples or steps were lost on the way to the agent, or a part of foreshock failed or is switched off."""
    lost, taken = (increase(f"attention_{what}", limits["window"]) for what in ("lost", "samples"))
    missed, made = (increase(what, limits["window"]) for what in ("steps_lost", "steps"))
    return Alert(
        "ForeshockMonitorDegraded", "monitor", "monitor", "overview",
        any_of(
            ("lost samples", f"{lost} / {taken} > {limits['lost']}"),
            ("lost steps", f"{missed} / {made} > {limits['lost']}"),
            ("errors", f"{increase('monitor_errors', limits['window'])} > 0"),
            (
                "switched off",
                f'count by ({RUN_KEY}) (foreshock_monitor_enabled{{component="trainer"}} == 0'
                f" and on ({RANK_KEY}) foreshock_rank_up == 1)",
            ),
            (
                "names, norms and weights given up",
                f'count by ({RUN_KEY}) (foreshock_monitor_enabled{{component="tensors"}} == 0'
                f" and on ({RANK_KEY}) foreshock_rank_up == 1)",
            ),
        ),
        RUN + ": foreshock has a problem ({{ $labels.why }})",
        "foreshock itself has a problem: {{ $labels.why }}. The training is not affected, but figures of foreshock may"
        " be incomplete. First run foreshock status on the node and read the end of the agent's log. The runbook has"
        " the remedy for each reason.",
        limits["for"],
    )  # fmt: skip


def overhead(limits: dict) -> Alert:
    return Alert(
        "ForeshockOverheadHigh", "monitor", "monitor", "overview",
        f"{SLOWDOWN} > {limits['slowdown']}",
        f"{RUN}: foreshock costs more than allowed",
        f"On the slowest process rank foreshock takes {VALUE} times the share of time that --max-slowdown allows. The"
        " training is slower than necessary. First stop the sampling on its node: foreshock pause --run-id"
        " ID. To lower the cost permanently, restart with a larger --every.",
        limits["for"], limits["keep"],
    )  # fmt: skip


def series_dropped(limits: dict) -> Alert:
    return Alert(
        "ForeshockSeriesDropped", "monitor", "monitor", "fleet",
        f"sum by ({TARGET_KEY}) (increase(foreshock_series_dropped_total[{limits['window']}])) > 0",
        "Agent {{ $labels.instance }}: series limit reached",
        "The agent has more series than its limit and does not export some layers or process ranks to Prometheus. The"
        " training is still checked, and the run's page and record have the rest. First count its runs in Prometheus:"
        ' count(foreshock_run_info{instance="{{ $labels.instance }}"}).'
        " If it serves several, start the next ones with an agent each (foreshock run --agent own, the default)."
        " If it serves one, read the missing layers on the run's page.",
    )  # fmt: skip


def detector_series_dropped() -> Alert:
    return Alert(
        "ForeshockDetectorSeriesDropped", "monitor", "monitor", "fleet",
        f"max by ({RUN_KEY}, detector) (foreshock_precursor_series_dropped {UNLESS_ENDED}) > 0",
        "Run {{ $labels.run }}: detector {{ $labels.detector }} does not follow all of its series",
        f"The detector has no room for {VALUE} tensors or layers of a process rank, so it cannot warn of them. It"
        " watches all others. First see in the panel 'Series left out' whether the number still grows. If it does not,"
        " the model has many tensors and no action is needed. If it grows, the training makes up new names of layers:"
        " give layers names that do not change.",
    )  # fmt: skip


def monitor_rules(values: Values) -> Group:
    return Group(
        "foreshock-monitor",
        [
            Record(
                SLOWDOWN,
                f"max by ({RUN_KEY}) (foreshock_slowdown_ratio / foreshock_slowdown_limit_ratio {UNLESS_ENDED})",
            ),
            *call_rates(),
            coverage(values["coverage"]),
            degraded(values["degraded"]),
            overhead(values["overhead"]),
            series_dropped(values["series_dropped"]),
            detector_series_dropped(),
        ],
        # Evaluated less often than the other groups: this group reads the most series, and most of its alerts wait
        # minutes.
        interval="1m",
    )
