"""Alerts from the agent's detectors. Detectors count steps; the rules keep a warning long enough to be read."""

from rule import AT_STEP, JOB, RUN, UNLESS_ENDED, VALUE, Alert, Group, Record, Values, warned_at, where
from standing import Default, alerting, remark, severity

LEVEL, EVENTS = "run:foreshock_precursor_level:max", "run:foreshock_precursor_events:increase"

# Alert, component, dashboard, summary, what each detector sees, what it means and what to do first.
TABLE: list[tuple[str, str, str, str, dict[str, str], str]] = [
    (
        "ForeshockAttentionErrorDrift", "attention", "attention",
        "the attention error follows the gradient",
        {"output_error_drift": "the error of attention's output keeps its sign along the gradient"},
        "Such an error pushes the training in one direction and can end in a loss explosion. Keep checkpoints from now"
        " on, and plan a change of the attention kernel or its precision.",
    ),
    (
        "ForeshockAttentionLogitGrowth", "attention", "attention",
        "attention logits saturate softmax",
        {
            "max_logit": "the largest scaled score has reached 100, where softmax saturates",
            "logit_growth": "the largest scaled score grows towards 100, where softmax saturates",
        },
        "Saturated attention learns slowly and can make the loss diverge. Lower the learning rate, or add QK-norm or a"
        " softcap before the next restart.",
    ),
    (
        "ForeshockGradientGrowth", "optimizer", "overview",
        "the gradient norm grows",
        {
            "gradient_growth": "the gradient norm before clipping grows steadily, as before a loss spike",
            "gradient_norm": "the gradient norm before clipping is far above its usual range",
        },
        "Once, before a spike that recovers, it needs no action. If it repeats, lower the learning rate, lengthen the"
        " warm-up or raise eps.",
    ),
    (
        "ForeshockOptimizerStale", "optimizer", "weights",
        "Adam's second moment is stale",
        {"rms_staleness": "squared gradients are much larger than the second moment v of Adam"},
        "Steps are larger than intended. Lower beta2 (0.95), clip updates, or lower the learning rate.",
    ),
    (
        "ForeshockWeightShift", "weights", "weights",
        "weights move differently than before",
        {
            "weight_shift": "weights change faster than before",
            "update_spectrum": "updates of W_Q W_K^T have a lower rank than before",
        },
        "A change of the learning rate does this too. If it did not change, keep an earlier checkpoint and compare it"
        " with the newest (foreshock compare).",
    ),
]  # fmt: skip


def warned(detectors: str, level: float) -> str:
    """One series for each detector that warns, or did between two scrapes."""
    return f'({LEVEL}{{detector=~"{detectors}"}} >= {level}) or ({EVENTS}{{detector=~"{detectors}"}} > 0)'


def detector_records(detectors: list[str], window: str) -> list[Record]:
    those = f'detector=~"{"|".join(detectors)}"'
    return [
        Record(LEVEL, f"max by ({JOB}, detector) (foreshock_precursor_level{{{those}}} {UNLESS_ENDED})"),
        Record(EVENTS, f"sum by ({JOB}, detector) (increase(foreshock_precursor_events_total{{{those}}}[{window}]))"),
    ]


def detector_alert(
    name: str,
    component: str,
    dashboard: str,
    summary: str,
    seen: dict[str, str],
    action: str,
    of: dict,
    default: Default,
) -> Alert:
    used = alerting(seen, default)
    fact = " or ".join(used.values())
    return Alert(
        name, "precursor", component, dashboard, warned("|".join(used), of["level"]), f"{RUN}: {summary}",
        f"{fact[0].upper()}{fact[1:]}{where()}"
        f" (detector {{{{ $labels.detector }}}}{warned_at()}{remark(used, default)}). {action}",
        keep=of["keep"], severity=severity(used, default),
    )  # fmt: skip


def entropy_collapse(values: Values, default: Default) -> Alert:
    of, entropy = values["entropy_collapse"], "run:foreshock_attention_entropy_nats:min"
    at = warned_at('"entropy_drop"')
    return Alert(
        "ForeshockAttentionEntropyCollapse", "precursor", "attention", "attention",
        # The detector finds the sudden fall, the hour that it lasts: the entropy of attention that learns recovers.
        f"""
        {entropy} < {of["share"]} * avg_over_time({entropy}[{of["window"]}])
        and on ({JOB}) ({warned("entropy_drop", values["detectors"]["level"])})
        """,
        f"{RUN}: the attention entropy collapsed",
        f"The mean entropy of the attention weights fell to {VALUE} nats"
        + where('"entropy_drop"')
        + f" (detector entropy_drop{at}{remark(['entropy_drop'], default)}). Heads attend to single tokens."
        " If the loss falls too, the model is learning; if logits grow, lower the learning rate.",
        keep=of["keep"], severity=severity(["entropy_drop"], default),
    )  # fmt: skip


def logit_forecast(of: dict) -> Alert:
    """Separate from the detectors of logits: a straight line must hold for minutes, a warning may be brief."""
    logit = "run:foreshock_attention_logit_abs:max"
    return Alert(
        "ForeshockAttentionLogitForecast", "precursor", "attention", "attention",
        f"""
        {logit} > {of["at_least"]}
        and predict_linear({logit}[{of["window"]}], {of["horizon"]}) > {of["limit"]}
        and {logit} > {of["growth"]} * avg_over_time({logit}[{of["window"]}])
        """,
        f"{RUN}: attention logits will saturate softmax",
        f"The largest scaled score is {VALUE}{AT_STEP}. A straight line through the last {of['window']} passes"
        f" {of['limit']}, where softmax saturates, within {{{{ {of['horizon']} | humanizeDuration }}}}. Lower the"
        " learning rate, or add QK-norm or a softcap before the next restart.",
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
        f"{RUN}: precursors of different kinds agree",
        f"{{{{ $value }}}} of attention, optimizer and weights show signs that often come before a loss event{AT_STEP}."
        " Together they are stronger evidence than each alone."
        " Make sure that an earlier checkpoint is kept, and watch the loss for the next hour.",
        keep=of["keep"],
    )  # fmt: skip


def detector_rules(values: Values, default: Default) -> Group:
    of = values["detectors"]
    used = sorted({"entropy_drop", *(name for *_, seen, _ in TABLE for name in alerting(seen, default))})
    return Group(
        "foreshock-precursors",
        [
            *detector_records(used, of["window"]),
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
