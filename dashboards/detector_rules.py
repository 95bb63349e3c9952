"""What the agent's detectors see. They count steps; the rules only carry it on, and hold it long enough to be read."""

from rule import JOB, UNLESS_ENDED, VALUE, Alert, Group, Record, Values, where
from standing import Default, remark, severity, told_of

LEVEL, EVENTS = "run:foreshock_precursor_level:max", "run:foreshock_precursor_events:increase"

# Alert, component, dashboard, summary, what each detector sees.
TABLE: list[tuple[str, str, str, str, dict[str, str]]] = [
    (
        "ForeshockAttentionErrorDrift", "attention", "attention",
        "The error of attention drifts",
        {"output_error_drift": "the error of attention's output keeps its sign along the gradient"},
    ),
    (
        "ForeshockAttentionLogitGrowth", "attention", "attention",
        "Attention's logits are, or will soon be, where softmax saturates",
        {
            "max_logit": "the largest scaled score is where softmax saturates",
            "logit_growth": "the largest scaled score grows and will soon be where softmax saturates",
        },
    ),
    (
        "ForeshockGradientGrowth", "optimizer", "overview",
        "The gradient norm grows",
        {
            "gradient_growth": "the gradient norm before clipping grows as it does before a spike",
            "gradient_norm": "the gradient norm before clipping is far above what it was",
        },
    ),
    (
        "ForeshockOptimizerStale", "optimizer", "weights",
        "Adam's second moment is stale",
        {"rms_staleness": "gradients have outgrown the second moment that Adam divides by"},
    ),
    (
        "ForeshockWeightShift", "weights", "weights",
        "Weights move in another way than before",
        {
            "weight_shift": "weights move faster than they used to",
            "update_spectrum": "weights move along fewer directions than they used to",
        },
    ),
]  # fmt: skip


def warned(detectors: str, level: float) -> str:
    """One series for each detector that warns, or did between two scrapes."""
    return f'({LEVEL}{{detector=~"{detectors}"}} >= {level}) or ({EVENTS}{{detector=~"{detectors}"}} > 0)'


def detector_records(told: list[str], window: str) -> list[Record]:
    those = f'detector=~"{"|".join(told)}"'
    return [
        Record(LEVEL, f"max by ({JOB}, detector) (foreshock_precursor_level{{{those}}} {UNLESS_ENDED})"),
        Record(EVENTS, f"sum by ({JOB}, detector) (increase(foreshock_precursor_events_total{{{those}}}[{window}]))"),
    ]


def detector_alert(
    name: str, component: str, dashboard: str, summary: str, seen: dict[str, str], of: dict, default: Default
) -> Alert:
    told = told_of(seen, default)
    return Alert(
        name, "precursor", component, dashboard, warned("|".join(told), of["level"]), summary,
        f"Run {{{{ $labels.run }}}}: {' or '.join(told.values())}{where()}"
        f" (detector {{{{ $labels.detector }}}}{remark(told, default)}).",
        keep=of["keep"], severity=severity(told, default),
    )  # fmt: skip


def entropy_collapse(values: Values, default: Default) -> Alert:
    of, entropy = values["entropy_collapse"], "run:foreshock_attention_entropy_nats:min"
    return Alert(
        "ForeshockAttentionEntropyCollapse", "precursor", "attention", "attention",
        # The detector sees how suddenly, the hour that it lasts: attention that learns to look falls and comes back.
        f"""
        {entropy} < {of["share"]} * avg_over_time({entropy}[{of["window"]}])
        and on ({JOB}) ({warned("entropy_drop", values["detectors"]["level"])})
        """,
        "The entropy of attention collapses",
        f"Run {{{{ $labels.run }}}}: mean entropy of the attention weights fell to {VALUE} nats"
        + where('"entropy_drop"')
        + f" (detector entropy_drop{remark(['entropy_drop'], default)}).",
        keep=of["keep"], severity=severity(["entropy_drop"], default),
    )  # fmt: skip


def logit_forecast(of: dict) -> Alert:
    """Apart from what detectors say of logits: a straight line must hold for minutes, a warning may be brief."""
    logit = "run:foreshock_attention_logit_abs:max"
    return Alert(
        "ForeshockAttentionLogitForecast", "precursor", "attention", "attention",
        f"""
        {logit} > {of["at_least"]}
        and predict_linear({logit}[{of["window"]}], {of["horizon"]}) > {of["limit"]}
        and {logit} > {of["growth"]} * avg_over_time({logit}[{of["window"]}])
        """,
        "Attention's logits grow towards where softmax saturates",
        f"Run {{{{ $labels.run }}}}: the largest scaled score is {VALUE}, and by the line of the last"
        f" {of['window']} beyond what attention bears in {{{{ {of['horizon']} | humanizeDuration }}}}.",
        of["for"], of["keep"],
    )  # fmt: skip


def agreement(of: dict) -> Alert:
    return Alert(
        "ForeshockPrecursorsAgree", "agreement", "precursors", "overview",
        f"""
        count by ({JOB}) (
          count by ({JOB}, component) (ALERTS{{alertstate="firing",kind="precursor",severity="ticket"}})
        ) >= {of["components"]}
        """,
        "Precursors of different kinds agree",
        "Run {{ $labels.run }}: {{ $value }} of attention, optimizer and weights show what comes before a loss event.",
        keep=of["keep"],
    )  # fmt: skip


def detector_rules(values: Values, default: Default) -> Group:
    of = values["detectors"]
    told = sorted({"entropy_drop", *(name for *_, seen in TABLE for name in told_of(seen, default))})
    return Group(
        "foreshock-precursors",
        [
            *detector_records(told, of["window"]),
            Record(
                "run:foreshock_attention_logit_abs:max",
                f"max by ({JOB}) (foreshock_attention_logit_abs_max {UNLESS_ENDED})",
            ),
            Record(
                "run:foreshock_attention_entropy_nats:min",
                f'min by ({JOB}) (foreshock_attention_entropy_nats{{stat="mean"}} {UNLESS_ENDED})',
            ),
            *(detector_alert(*row, of, default) for row in TABLE),
            logit_forecast(values["logit_forecast"]),
            entropy_collapse(values, default),
            agreement(values["precursors_agree"]),
        ],
    )
