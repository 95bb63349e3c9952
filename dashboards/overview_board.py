"""How is the training? The first dashboard that one opens, of one run."""

from board import ALERTS, Board, Row, run_variable
from panel import (
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
            name("Owner", "The user whose run it is.", Query(f"max by (user) ({of_run('run_info')})", "{{user}}")),
            number_now("Ranks up", "Ranks whose processes live.", Query(f"sum({of_run('rank_up')})")),
            number("Step", "The last optimizer step that ended.", "none", Query(f"max({of_living('step')})")),
            number(
                "Last loss", "Loss of the last step, mean of the ranks.", "none", Query(f"avg({of_living('loss')})")
            ).decimals(4),
            number(
                "Layers in alarm",
                "Layers whose attention errs more than precision explains, or is biased: of the rank, pass and kind of"
                " error that have most.",
                "none",
                Query(f"max({of_living('attention_alarm_layers')})"),
                ("red", 1),
            ),
            number(
                "Slowdown",
                "What the monitor costs the slowest rank, of its time.",
                "percentunit",
                Query(f"max({of_living('slowdown_ratio')})"),
                ("orange", 0.01 * values["overhead"]["slowdown"]),
            ),
            number_now(
                "Since last step",
                "Time since any rank ended an optimizer step, also where that was before the run ended.",
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
                "Loss of the last step, and mean of the last 64; means of the ranks.",
                "none",
                Query(f"avg({of_living('loss')})", "loss"),
                Query(f"avg({mean})", "mean of 64"),
            ),
            by_step(
                "Gradient norm",
                "L2 norm of the whole gradient before clipping, and the largest of the last 64 steps.",
                "none",
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
                "How loud each detector is, on the loudest rank and layer; the runbook says which are experimental.",
                Query(f"max by (detector) ({of_living('precursor_level')})", "{{detector}}"),
                DETECTOR_LEVELS,
            ),
            states(
                "Alerts",
                "Alerts of this run that fire.",
                Query(f"max by (alertname) ({ALERTS})", "{{alertname}}"),
                FIRING,
            ).no_value("none"),
            limited(
                lines(
                    "Deviation ratio",
                    "Error of the attention kernel over the noise floor, which is 1; the worst rank.",
                    "none",
                    Query(f"max by (pass) ({ratio})", "{{pass}}"),
                ),
                ("orange", values["deviation"]["forward"]),
                ("red", values["deviation"]["backward"]),
            ),
            limited(
                lines(
                    "Bias",
                    "Signed error of the output in standard errors between slices; the rounded reference is the"
                    " control.",
                    "none",
                    Query(f"max by (pass, of) (abs({of_living('attention_bias_zscore')}))", "{{pass}}, {{of}}"),
                ),
                ("red", bias["z"]),
            ),
            limited(
                lines(
                    "Largest logit",
                    "Largest magnitude of a scaled score over the last samples.",
                    "none",
                    Query(f"max({of_living('attention_logit_abs_max')})", "largest"),
                ),
                ("red", values["logit_forecast"]["limit"]),
            ),
            layers(
                "Gradient norm by layer",
                "Before clipping, the largest of the ranks.",
                of_living("layer_gradient_norm"),
            ),
            limited(
                lines(
                    "NaN and Inf",
                    "Values that are not finite, since the run began, by where they were.",
                    "none",
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
                "Optimizer steps, of the slowest and the fastest rank.",
                "none",
                Query(f"min({steps_per_second()})", "slowest"),
                Query(f"max({steps_per_second()})", "fastest"),
            ),
            lines(
                "Learning rate",
                "Of the last step.",
                "none",
                Query(f"max({of_living('learning_rate')})", "learning rate"),
            ),
            lines(
                "Logged by the training",
                "What the training itself logs with W&B, TensorBoard, Trainer or Lightning.",
                "none",
                Query(f"avg by (name) ({of_living('logged_value')})", "{{name}}"),
            ),
        ],
    )


def overview(values: Values) -> Board:
    return Board(
        "overview",
        "foreshock: overview",
        "How a training is, and what moved before its loss did.",
        [run_variable()],
        [now(values), loss(), before(values), progress()],
    )
