"""State of one training: the first dashboard to open."""

from board import ALERTS, Board, Row, run_variable
from panel import (
    COUNT,
    LAYERS,
    NATS,
    NO_UNIT,
    PER_SECOND,
    RANKS,
    RATIO,
    SIGMA,
    STEPS,
    Query,
    by_step,
    layers,
    limited,
    lines,
    name,
    number,
    number_now,
    of_living,
    of_run,
    state_of_run,
    states,
    steps_per_second,
)
from rule import Values

DETECTOR_LEVELS = {"0": ("quiet", "green"), "1": ("watch", "yellow"), "2": ("warn", "red")}
FIRING = {"1": ("firing", "red")}


def now(values: Values) -> Row:
    return Row(
        "Now",
        [
            state_of_run(),
            name("Owner", "The user that owns the run.", Query(f"max by (user) ({of_run('run_info')})", "{{user}}")),
            number_now("Ranks up", "Ranks whose processes are alive.", Query(f"sum({of_run('rank_up')})"), RANKS),
            number("Step", "The last optimizer step that ended.", STEPS, Query(f"max({of_living('step')})")),
            number(
                "Last loss",
                "Loss of the last step, mean over the ranks, in its own unit.",
                NO_UNIT,
                Query(f"avg({of_living('loss')})"),
            ).decimals(4),
            number(
                "Layers in alarm",
                "Layers whose attention error is beyond a limit, for the rank, pass and kind of error with most.",
                LAYERS,
                Query(f"max({of_living('attention_alarm_layers')})"),
                ("red", 1),
            ),
            number(
                "Slowdown",
                f"Largest share of time that foreshock costs a rank. Orange above {values['overhead']['slowdown']:g} %,"
                " the limit of the alert at the default --max-slowdown.",
                "percentunit",
                Query(f"max({of_living('slowdown_ratio')})"),
                ("orange", 0.01 * values["overhead"]["slowdown"]),
            ),
            number_now(
                "Since last step",
                "Time since the most recent optimizer step of any rank. It grows after the run has ended too.",
                Query(f"time() - max(last_over_time({of_run('last_step_timestamp_seconds')}[$__range]))"),
                "s",
                ("red", values["stalled"]["seconds"]),
            ),
        ],
    )


def loss() -> Row:
    mean = of_living("loss_window", ',stat="mean"')
    return Row(
        "Loss, by step",
        [
            by_step(
                "Loss",
                "Loss of the last step, and mean loss of the last 64 steps, both averaged over the ranks, in the unit"
                " of the loss.",
                NO_UNIT,
                Query(f"avg({of_living('loss')})", "loss"),
                Query(f"avg({mean})", "mean of 64"),
            ),
            by_step(
                "Gradient norm",
                "L2 norm of the whole gradient before clipping (no unit), and the largest of the last 64 steps.",
                NO_UNIT,
                Query(f"max({of_living('gradient_norm')})", "norm"),
                Query(f"max({of_living('gradient_norm_window_max')})", "largest of 64"),
            ),
        ],
    )


def before(values: Values) -> Row:
    ratio, bias = of_living("attention_deviation_ratio", ',stat="mean"'), values["bias"]
    return Row(
        "Before the loss",
        [
            states(
                "Precursors",
                "Level of each detector, the highest of all ranks and layers. The runbook says which are experimental.",
                Query(f"max by (detector) ({of_living('precursor_level')})", "{{detector}}"),
                DETECTOR_LEVELS,
            ),
            states(
                "Alerts",
                "Firing alerts of this run.",
                Query(f"max by (alertname) ({ALERTS})", "{{alertname}}"),
                FIRING,
            ).no_value("none"),
            limited(
                lines(
                    "Deviation ratio",
                    "Error of the kernel over the error of unfused attention in the same precision, of the worst rank."
                    " Healthy is below 1. An alert fires above the line of the pass.",
                    RATIO,
                    Query(f"max by (pass) ({ratio})", "{{pass}}"),
                ),
                ("orange", values["deviation"]["forward"]),
                ("red", values["deviation"]["backward"]),
            ),
            limited(
                lines(
                    "Bias",
                    "Mean signed error of the output in standard errors between slices. The rounded reference is the"
                    " control.",
                    SIGMA,
                    Query(f"max by (pass, of) (abs({of_living('attention_bias_zscore')}))", "{{pass}}, {{of}}"),
                ),
                ("red", bias["z"]),
            ),
            limited(
                lines(
                    "Largest logit",
                    "Largest magnitude of a scaled score over the last samples. Softmax saturates near 100.",
                    NATS,
                    Query(f"max({of_living('attention_logit_abs_max')})", "largest"),
                ),
                ("red", values["logit_forecast"]["limit"]),
            ),
            layers(
                "Gradient norm by layer",
                "L2 norm of each layer's gradient before clipping (no unit), largest of the ranks.",
                of_living("layer_gradient_norm"),
                NO_UNIT,
            ),
            limited(
                lines(
                    "NaN and Inf",
                    "Number of values that are NaN or infinite since the start of the run, by place.",
                    COUNT,
                    Query(f"sum by (site) ({of_run('nonfinite_values_total')})", "{{site}}"),
                    width=12,
                ),
                ("red", 1),
            ),
        ],
    )


def progress() -> Row:
    return Row(
        "Progress",
        [
            lines(
                "Steps per second",
                "Optimizer steps per second of the slowest and the fastest rank.",
                PER_SECOND,
                Query(f"min({steps_per_second()})", "slowest"),
                Query(f"max({steps_per_second()})", "fastest"),
            ),
            lines(
                "Learning rate",
                "Learning rate of the last step (no unit).",
                NO_UNIT,
                Query(f"max({of_living('learning_rate')})", "learning rate"),
            ),
            lines(
                "Logged by the training",
                "Values that the training itself logs with W&B, TensorBoard, Trainer or Lightning, in its own units.",
                NO_UNIT,
                Query(f"avg by (name) ({of_living('logged_value')})", "{{name}}"),
            ),
        ],
    )


def overview(values: Values) -> Board:
    return Board(
        "overview",
        "foreshock: overview",
        "State of a training, and what moved before its loss did.",
        [run_variable()],
        [now(values), loss(), before(values), progress()],
    )
