"""The Grafana dashboard "overview", which users open first: the state of the selected run. of_run() selects a metric's
series in that run, of_not_ended() leaves out those of ended ranks, per_second() is the rate of a counter, summed for
each value of the named labels. `values` are the thresholds of alerts."""

import panel
from board import ALERTS, Board, Row, run_variable
from panel import DEVIATION, Query, of_not_ended, of_run, per_second
from rule import Values

DETECTOR_LEVELS = {"0": ("quiet", "green"), "1": ("watch", "yellow"), "2": ("warn", "red")}
FIRING = {"1": ("firing", "red")}
TRAINER = ',component="trainer"'  # a further label matcher for of_not_ended()


def now_row(values: Values) -> Row:
    owner = Query(f"max by (user) ({of_run('run_info')})", "{{user}}")
    return Row(
        "Now",
        [
            panel.state_of_run(),
            panel.legend("Owner", "The user that owns the run.", owner),
            panel.number_now(
                "Ranks up",
                "Process ranks that are alive and whose agents Prometheus scrapes.",
                Query(f"sum({of_run('rank_up')})"),
                panel.RANKS,
            ),
            panel.number(
                "Step",
                "The last optimizer step that ended, of the process rank that is furthest ahead.",
                panel.STEPS,
                Query(f"max({of_not_ended('step')})"),
            ),
            panel.number(
                "Last loss",
                "Loss of the last optimizer step, averaged over the process ranks, in the unit of the loss.",
                panel.NO_UNIT,
                Query(f"avg({of_not_ended('loss')})"),
            ).decimals(4),
            panel.number(
                "Layers in alarm",
                "Number of layers whose last 64 samples exceed an alarm limit of the attention error; of the process"
                " rank, pass and kind of limit with most. Usual is 0.",
                panel.LAYERS,
                Query(f"max({of_not_ended('attention_alarm_layers')})"),
                ("red", 1),
            ),
            panel.number(
                "Slowdown",
                f"Share of wall time that foreshock costs the process rank that pays most. Orange above"
                f" {values['overhead']['slowdown']:g} %, the limit of the alert at the default --max-slowdown.",
                "percentunit",
                Query(f"max({of_not_ended('slowdown_ratio')})"),
                ("orange", 0.01 * values["overhead"]["slowdown"]),  # 0.01: the default --max-slowdown
            ),
            panel.number_now(
                "Since last step",
                "Time since the most recent optimizer step of any rank. It grows after the run has ended too.",
                Query(f"time() - max(last_over_time({of_run('last_step_timestamp_seconds')}[$__range]))"),
                "s",
                ("red", values["stalled"]["seconds"]),
            ),
        ],
    )


def loss_row() -> Row:
    mean = of_not_ended("loss_window", ',stat="mean"')
    return Row(
        "Loss, by step",
        [
            panel.by_step(
                "Loss",
                "loss: of the last optimizer step. mean of 64: of the last 64 steps. Both are averaged over the process"
                " ranks, in the unit of the loss. An alert fires if the mean stays above its earlier level.",
                panel.NO_UNIT,
                Query(f"avg({of_not_ended('loss')})", "loss"),
                Query(f"avg({mean})", "mean of 64"),
            ),
            panel.by_step(
                "Gradient norm",
                "norm: L2 norm of the whole gradient before clipping (no unit). largest of 64: the largest norm of the"
                " last 64 steps. Both of the process rank where they are largest. There is no fixed limit: the detector"
                " gradient_growth warns if the norm grows steadily.",
                panel.NO_UNIT,
                Query(f"max({of_not_ended('gradient_norm')})", "norm"),
                Query(f"max({of_not_ended('gradient_norm_window_max')})", "largest of 64"),
            ),
        ],
    )


def precursors_row(values: Values) -> Row:
    ratio, limit = of_not_ended("attention_fused_ratio", ',stat="mean"'), values["verdict"]
    return Row(
        "Before the loss",
        [
            panel.states(
                "Precursors",
                "Level of each detector over time, the highest of all process ranks and layers. quiet is usual; warn"
                " raises an alert if the detector is not experimental. The runbook explains each detector.",
                Query(f"max by (detector) ({of_not_ended('precursor_level')})", "{{detector}}"),
                DETECTOR_LEVELS,
            ),
            panel.states(
                "Alerts",
                "Alerts of this run that fire, over time.",
                Query(f"max by (alertname) ({ALERTS})", "{{alertname}}"),
                FIRING,
            ).no_value("none"),
            panel.lines(
                "Error ratio",
                f"Ratio: {DEVIATION}, on the same inputs. forward: of the output; backward: of dQ. Mean over the"
                " last 64 samples, of the worst process rank. Usual is near 1. A layer is in alarm if"
                f" two of its samples are above {limit['forward']} (forward) or {limit['backward']} (backward), in fp32"
                " and fp64 above twice as much.",
                panel.RATIO,
                Query(f"max by (pass) ({ratio})", "{{pass}}"),
                dashed=[("orange", limit["forward"]), ("red", limit["backward"])],
            ),
            panel.lines(
                "Bias",
                "Mean signed error of attention (forward: of the output; backward: of dQ), divided by its standard"
                " error between samples; of the worst process rank. rounded_reference: the fp64 result rounded"
                f" once, a control. Below 3 is chance. An alarm needs more than {limit['z']} here, and more than"
                " the limit in the panel 'Bias' of the attention dashboard.",
                panel.SIGMA,
                Query(f"max by (pass, of) (abs({of_not_ended('attention_bias_zscore')}))", "{{pass}}, {{of}}"),
                dashed=[("red", limit["z"])],
            ),
            panel.lines(
                "Largest logit",
                "Largest magnitude of an attention logit (scaled score before softmax), over the last 64 samples"
                " of all layers and ranks. Softmax saturates near 100, where an alert fires.",
                panel.NATS,
                Query(f"max({of_not_ended('attention_logit_abs_max')})", "largest"),
                dashed=[("red", values["logit_forecast"]["limit"])],
            ),
            panel.layer_heatmap(
                "Gradient norm by layer",
                "L2 norm of the gradient of each layer before clipping (no unit), of the process rank where it is"
                " largest, over time. Empty if ranks hold only shards of the parameters (FSDP, tensor parallelism,"
                " ZeRO): a shard's norm is not that of the layer. There is no fixed limit: look for a layer that grows"
                " alone.",
                of_not_ended("layer_gradient_norm"),
                panel.NO_UNIT,
            ),
            panel.lines(
                "NaN and Inf",
                "Values that are NaN or Inf since the start of the run, over all ranks, by place; for the loss and"
                " gradients, the number of steps that had any. Usual is 0; any new one raises ForeshockNonFinite.",
                panel.COUNT,
                Query(f"sum by (site) ({of_run('nonfinite_values_total')})", "{{site}}"),
                width=12,
                dashed=[("red", 1)],
            ),
        ],
    )


def progress_row() -> Row:
    return Row(
        "Progress",
        [
            panel.lines(
                "Steps per second",
                "Optimizer steps per second of the slowest and of the fastest living process rank.",
                panel.PER_SECOND,
                Query(f"min({panel.steps_per_second()})", "slowest"),
                Query(f"max({panel.steps_per_second()})", "fastest"),
            ),
            panel.learning_rate(),
            panel.lines(
                "Logged by the training",
                "Numbers that the training script itself logs with W&B, TensorBoard, Hugging Face Trainer or"
                " Lightning, under their own names and in their own units; averaged over the ranks that log them. Up"
                " to 16 names.",
                panel.NO_UNIT,
                Query(f"avg by (name) ({of_not_ended('logged_value')})", "{{name}}"),
            ),
        ],
    )


def monitor_row(values: Values) -> Row:
    most_lost = f"{values['degraded']['lost']:.0%}"
    skipped, lost = (per_second(of_run(f"attention_{what}_total"), "reason") for what in ("skipped", "lost"))
    slowdown_over_limit = f"max({of_not_ended('slowdown_ratio')} / {of_run('slowdown_limit_ratio')})"
    return Row(
        "Foreshock itself",
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
                "Slowdown over its limit",
                "Share of time that foreshock costs, divided by the share that --max-slowdown allows; of the process"
                f" rank that pays most. Usual is at most 1. An alert fires above {values['overhead']['slowdown']}.",
                panel.RATIO,
                Query(slowdown_over_limit, "slowest rank"),
                width=12,
                dashed=[("red", values["overhead"]["slowdown"])],
            ),
            panel.lines(
                "Cost",
                "Share of wall time that foreshock takes from a process rank, by place; for each place, of the rank"
                " that pays most. attention: at attention calls; step: at optimizer steps; agent: processor time of"
                " the agent.",
                "percentunit",
                Query(f"max by (where) ({per_second(of_run('overhead_seconds_total'), 'where, rank')})", "{{where}}"),
                width=12,
            ),
            panel.lines(
                "Errors",
                "Failures of foreshock itself in the chosen run, since that run started. segment: reading the shared"
                " memory of a rank; record: writing the file of --record. Usual is 0; any new failure raises an alert.",
                panel.COUNT,
                Query(f"sum by (component) ({of_run('monitor_errors_total')})", "{{component}}"),
                width=12,
            ),
        ],
    )


def overview(values: Values) -> Board:
    return Board(
        "overview",
        "foreshock: overview",
        "State of a training, and what moved before its loss did.",
        [run_variable()],
        [now_row(values), loss_row(), precursors_row(values), progress_row(), monitor_row(values)],
    )
