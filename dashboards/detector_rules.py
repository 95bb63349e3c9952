"""Prometheus rules for the agent's detectors, which warn before a loss event. Their alerts have the kind "precursor". A
warning may last only a few steps; the rules keep its alert long enough to be noticed. In this file, `limits` is the
section of values.toml with an alert's limits and times. `default_names` are the detectors that the benchmark has found
useful; others are experimental. From rule.py: RUN, VALUE, AT_STEP, where() and warned_at() are templates of texts. The
arguments of Alert are name, kind, component, dashboard, expression, summary, description, hold (Prometheus' `for`),
keep (`keep_firing_for`) and severity."""

from rule import AT_STEP, RUN, RUN_KEY, UNLESS_ENDED, VALUE, Alert, Group, Record, Values, warned_at, where
from standing import DetectorNames, findings_used, remark, severity

# Series of detector_records(): the level of a detector (0 quiet, 1 watch, 2 warn), and its number of warnings.
LEVEL, WARNINGS = "run:foreshock_precursor_level:max", "run:foreshock_precursor_events:increase"

RESTART_FOR_LOGITS = (
    "Saturated attention learns slowly and can make the loss diverge. First see whether the loss rises. If it does,"
    " stop, and resume from a checkpoint before the rise with a lower learning rate. If it does not, let the training"
    " run, and lower the learning rate at its next restart. If the logits grow again, add QK-norm (normalized"
    " queries and keys) or a softcap (a bound on the logits) to the model."
)

# A row: alert, component, dashboard, summary, finding by detector, and the description's end: meaning and first action.
TABLE: list[tuple[str, str, str, str, dict[str, str], str]] = [
    (
        "ForeshockAttentionErrorDrift", "attention", "attention",
        "the attention error follows the gradient",
        {"output_error_drift": "the error of attention's output keeps its sign along the gradient of that output"},
        "Such an error pushes the weights in one direction at every step and can end in a loss explosion. First keep"
        " the newest checkpoint, so that no later one replaces it. Then change the attention kernel or its precision"
        " at the next restart.",
    ),
    (
        "ForeshockAttentionLogitGrowth", "attention", "attention",
        "attention logits saturate softmax",
        {
            "max_logit": "the largest attention logit (scaled score before softmax) has reached 100, where softmax"
            " saturates",
            "logit_growth": "the largest attention logit (scaled score before softmax) grows towards 100, where softmax"
            " saturates",
        },
        RESTART_FOR_LOGITS,
    ),
    (
        "ForeshockGradientGrowth", "optimizer", "overview",
        "the gradient norm grows",
        {
            "gradient_growth": "the gradient norm before clipping grows steadily, as it does before a loss spike",
            "gradient_norm": "the gradient norm before clipping is far above its usual range",
        },
        "The steps of the optimizer may have become too large. First watch the loss on the dashboard. A single spike"
        " that recovers needs no action. If this alert fires again, resume with a lower learning rate.",
    ),
    (
        "ForeshockWeightShift", "weights", "weights",
        "weights move differently than before",
        {"weight_shift": "the weights of a tensor change faster than before"},
        "A change of the learning rate causes this too. First look at the panel 'Learning rate'. If the rate changed,"
        " do nothing. If it did not, keep an earlier checkpoint and compare it with the newest: foreshock compare"
        " BEFORE NOW. In its output, W1 / mean |d| near 1 means that the values of a tensor drift together; near 0"
        " means noise.",
    ),
]  # fmt: skip


def warned(detectors: str, level: float) -> str:
    """A PromQL expression with one series for each detector whose level is at least `level` now, or that began to warn
    within the window of WARNINGS. `detectors`: a regular expression of names."""
    return f'({LEVEL}{{detector=~"{detectors}"}} >= {level}) or ({WARNINGS}{{detector=~"{detectors}"}} > 0)'


def detector_records(detectors: list[str], window: str) -> list[Record]:
    """Recording rules for each detector, over all ranks of a run: highest level, and number of warnings in `window`."""
    matcher = f'detector=~"{"|".join(detectors)}"'
    return [
        Record(LEVEL, f"max by ({RUN_KEY}, detector) (foreshock_precursor_level{{{matcher}}} {UNLESS_ENDED})"),
        Record(
            WARNINGS,
            f"sum by ({RUN_KEY}, detector) (increase(foreshock_precursor_events_total{{{matcher}}}[{window}]))",
        ),
    ]


def detector_alert(
    row: tuple[str, str, str, str, dict[str, str], str], limits: dict, default_names: DetectorNames
) -> Alert:
    """The alert of a row of TABLE. It uses the default detectors of the row. If there are none, it uses all."""
    name, component, dashboard, summary, findings, meaning_and_action = row
    used = findings_used(findings, default_names)
    fact = " or ".join(used.values())
    return Alert(
        name, "precursor", component, dashboard, warned("|".join(used), limits["level"]), f"{RUN}: {summary}",
        f"{fact[0].upper()}{fact[1:]}{where()}"
        f" (detector {{{{ $labels.detector }}}}{warned_at()}{remark(used, default_names)}). {meaning_and_action}",
        keep=limits["keep"], severity=severity(used, default_names),
    )  # fmt: skip


def entropy_collapse(values: Values, default_names: DetectorNames) -> Alert:
    limits, entropy = values["entropy_collapse"], "run:foreshock_attention_entropy_nats:min"
    at = warned_at('"entropy_drop"')
    return Alert(
        "ForeshockAttentionEntropyCollapse", "precursor", "attention", "attention",
        # The detector finds a sudden fall. In a healthy training the entropy recovers, so the fall must also last.
        f"""
        {entropy} < {limits["share"]} * avg_over_time({entropy}[{limits["window"]}])
        and on ({RUN_KEY}) ({warned("entropy_drop", values["detectors"]["level"])})
        """,
        f"{RUN}: the attention entropy collapsed",
        f"The entropy of the attention weights, averaged over the sampled rows of a process rank, suddenly fell to"
        f" {VALUE} nats"
        + where('"entropy_drop"')
        + f" (detector entropy_drop{at}{remark(['entropy_drop'], default_names)})."
        f" It is more than {1 - limits['share']:.0%} below its mean of the last {limits['window']}: heads attend to"
        " single tokens. First look at the panel 'Largest logit' of the attention dashboard. If the logit grows, resume"
        " with a lower learning rate. If it does not, do nothing: attention that learns to copy does this once.",
        keep=limits["keep"], severity=severity(["entropy_drop"], default_names),
    )  # fmt: skip


def logit_forecast(limits: dict) -> Alert:
    """Forecasts logits with a straight line over minutes. This is a separate alert, because the warnings of the logit
    detectors may last too short a time for such a forecast."""
    logit = "run:foreshock_attention_logit_abs:max"
    return Alert(
        "ForeshockAttentionLogitForecast", "precursor", "attention", "attention",
        f"""
        {logit} > {limits["at_least"]}
        and predict_linear({logit}[{limits["window"]}], {limits["horizon"]}) > {limits["limit"]}
        and {logit} > {limits["growth"]} * avg_over_time({logit}[{limits["window"]}])
        """,
        f"{RUN}: attention logits will saturate softmax",
        f"The largest attention logit (scaled score before softmax) has grown to {VALUE}{AT_STEP}. A straight line"
        f" through the last {limits['window']} passes {limits['limit']}, where softmax saturates, within"
        f" {{{{ {limits['horizon']} | humanizeDuration }}}}. {RESTART_FOR_LOGITS}",
        limits["for"], limits["keep"],
    )  # fmt: skip


def agreement(limits: dict) -> Alert:
    """Fires if enough components (attention, optimizer, weights) have a firing precursor alert. Alerts of experimental
    detectors, with the severity info, do not count. Must come after the precursor alerts in the group, because
    Prometheus evaluates rules in order."""
    return Alert(
        "ForeshockPrecursorsAgree", "agreement", "precursors", "overview",
        f"""
        count by ({RUN_KEY}) (
          count by ({RUN_KEY}, component) (ALERTS{{alertstate="firing",kind="precursor",severity="ticket"}})
        ) >= {limits["components"]}
        """,
        f"{RUN}: precursors of different kinds agree",
        f"Alerts on {{{{ $value }}}} components (of attention, optimizer and weights) fire at once{AT_STEP}."
        " Each often comes before a loss spike or a divergence, and together they are stronger evidence than each"
        " alone. First make sure that an earlier checkpoint is kept. Then watch the loss for the next hour; the panel"
        " 'Alerts' names the alerts, and the text of each has its own first action.",
        keep=limits["keep"],
    )  # fmt: skip


def detector_rules(values: Values, default_names: DetectorNames) -> Group:
    limits = values["detectors"]
    used = {name for *_, findings, _ in TABLE for name in findings_used(findings, default_names)}
    used |= {"entropy_drop"}  # has no row in TABLE; entropy_collapse() reads its records
    return Group(
        "foreshock-precursors",
        [
            *detector_records(sorted(used), limits["window"]),
            Record(
                "run:foreshock_attention_logit_abs:max",
                f"max by ({RUN_KEY}) (foreshock_attention_logit_abs_max {UNLESS_ENDED})",
            ),
            Record(
                "run:foreshock_attention_entropy_nats:min",
                f'min by ({RUN_KEY}) (foreshock_attention_entropy_nats{{stat="mean"}} {UNLESS_ENDED})',
            ),
            *(detector_alert(row, limits, default_names) for row in TABLE),
            logit_forecast(values["logit_forecast"]),
            entropy_collapse(values, default_names),
            agreement(values["precursors_agree"]),
        ],
    )
