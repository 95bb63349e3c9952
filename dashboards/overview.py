"""The overview dashboard of one run, in Grafana's classic JSON (schema 36: importable from Grafana 9 on)."""

import typing

Json = dict[str, typing.Any]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_RUN = 'run="$run"'
OF_RANKS = 'run="$run",rank=~"$rank"'


class Query(typing.NamedTuple):
    expression: str
    legend: str


class Panel(typing.NamedTuple):
    title: str
    description: str
    kind: str  # Grafana's name of the panel type
    unit: str
    queries: list[Query]
    width: int = 8  # of 24 columns
    height: int = 8
    options: Json = {}
    defaults: Json = {}


def ranks(metric: str, more: str = "") -> str:
    return f"{metric}{{{OF_RANKS}{more}}}"


def per_second(metric: str, labels: str) -> str:
    return f"sum by ({labels}) (rate({ranks(metric)}[$__rate_interval]))"


def moved(since: str) -> str:
    return f'foreshock_layer_weight_wasserstein_distance{{{OF_RUN},ref="{since}"}}'


def limit(*steps: tuple[str, float]) -> Json:
    """Colours from these values on; drawn as lines in time series."""
    colours = [{"color": "green", "value": None}] + [{"color": colour, "value": value} for colour, value in steps]
    return {"thresholds": {"mode": "absolute", "steps": colours}, "custom": {"thresholdsStyle": {"mode": "dashed"}}}


def stat(title: str, description: str, unit: str, query: Query, show: str = "value", **defaults: typing.Any) -> Panel:
    options = {"colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": show}
    return Panel(title, description, "stat", unit, [query], 3, 4, options, defaults)


def panels(values: Json) -> list[Panel]:
    bias = values["bias"]
    every_rank = "rank {{rank}}"
    worst = "max by (layer) (foreshock_layer_attention_deviation_ratio{" + OF_RANKS + ',pass="$pass"})'
    return [
        stat(
            "Run",
            "State of the run, from exit status and signal.",
            "none",
            Query(f"foreshock_run_state{{{OF_RUN}}} == 1", "{{state}}"),
            show="name",
        ),
        stat("Ranks up", "Ranks whose processes live.", "none", Query(f"sum(foreshock_rank_up{{{OF_RUN}}})", "")),
        stat("Step", "The last optimizer step that ended.", "none", Query(f"max({ranks('foreshock_step')})", "")),
        stat(
            "Loss now",
            "Loss of the last step, mean of the ranks.",
            "none",
            Query(f"avg({ranks('foreshock_loss')})", ""),
            decimals=4,
        ),
        stat(
            "Layers in alarm",
            "Layers whose attention errs more than precision explains, or is biased.",
            "none",
            Query(f"sum({ranks('foreshock_attention_alarm_layers')})", ""),
            **limit(("red", 1)),
        ),
        stat(
            "Loss spikes",
            "Spikes so far, by the fixed rule, on the rank with most.",
            "none",
            Query(f"max({ranks('foreshock_loss_spikes_total')})", ""),
            **limit(("orange", 1)),
        ),
        stat(
            "Slowdown",
            "What the monitor costs the slowest rank.",
            "percentunit",
            Query(f"max({ranks('foreshock_slowdown_ratio')})", ""),
            # Of the default of --max-slowdown.
            **limit(("orange", 0.01 * values["degraded"]["slowdown"])),
        ),
        stat(
            "Since last step",
            "Time since any rank ended an optimizer step.",
            "s",
            Query(f"time() - max({ranks('foreshock_last_step_timestamp_seconds')})", ""),
            **limit(("red", values["stalled"]["seconds"])),
        ),
        Panel(
            "Loss",
            "Mean of the last 64 steps and loss of the last step, by rank.",
            "timeseries",
            "none",
            [
                Query(ranks("foreshock_loss"), every_rank),
                Query(ranks("foreshock_loss_window", ',stat="mean"'), "mean, " + every_rank),
            ],
        ),
        Panel(
            "Gradient norm",
            "L2 norm of the whole gradient before clipping, and the largest of the last 64 steps.",
            "timeseries",
            "none",
            [
                Query(ranks("foreshock_gradient_norm"), every_rank),
                Query(ranks("foreshock_gradient_norm_window_max"), "largest, " + every_rank),
            ],
        ),
        Panel(
            "Steps per second",
            "Optimizer steps.",
            "timeseries",
            "none",
            [Query(per_second("foreshock_steps_total", "rank"), every_rank)],
        ),
        Panel(
            "Deviation ratio",
            "Error of the attention kernel over the noise floor; 1 is what plain attention errs. "
            "Above 2 forward or 3 backward something is wrong.",
            "timeseries",
            "none",
            [Query(ranks("foreshock_attention_deviation_ratio", ',stat="mean"'), "{{pass}}, " + every_rank)],
            defaults=limit(("orange", 1), ("red", 2)),
        ),
        Panel(
            "Bias",
            "Signed error of the output, pooled over slices; the rounded reference is the control.",
            "timeseries",
            "none",
            [Query(ranks("foreshock_attention_bias_ulp"), "{{pass}}, {{of}}, " + every_rank)],
            defaults=limit(("red", bias["ulp"])),
        ),
        Panel(
            "Bias, z",
            "The bias in standard errors between slices.",
            "timeseries",
            "none",
            [Query(ranks("foreshock_attention_bias_zscore"), "{{pass}}, {{of}}, " + every_rank)],
            defaults=limit(("red", bias["z"])),
        ),
        Panel(
            "Deviation ratio by layer",
            "Mean of the last samples of each layer, the worst of the ranks.",
            "status-history",
            "none",
            [Query(worst, "{{layer}}")],
            12,
            10,
            defaults=limit(("orange", 1), ("red", 2)),
        ),
        Panel(
            "Gradient norm by layer",
            "Before clipping, the largest of the ranks.",
            "status-history",
            "none",
            [Query(f"max by (layer) ({ranks('foreshock_layer_gradient_norm')})", "{{layer}}")],
            12,
            10,
            defaults={"color": {"mode": "continuous-BlYlRd"}},
        ),
        Panel(
            "Weights, W1",
            "Wasserstein distance of all weights of a node to those one interval before, and to the first ones.",
            "timeseries",
            "none",
            [
                Query(f'foreshock_weight_wasserstein_distance{{{OF_RUN},stat="pooled"}}', "{{ref}}, {{instance}}"),
                Query(
                    f'foreshock_weight_wasserstein_distance{{{OF_RUN},stat="max"}}',
                    "{{ref}}, tensor that moved most, {{instance}}",
                ),
            ],
            defaults={"custom": {"scaleDistribution": {"type": "log", "log": 10}}},
        ),
        Panel(
            "Weights, change in a step",
            "Mean magnitude of what one optimizer step changes: of all weights, and of the tensor that changes most.",
            "timeseries",
            "none",
            [Query(f"foreshock_weight_update_mean_abs{{{OF_RUN}}}", "{{stat}}, {{instance}}")],
            defaults={"custom": {"scaleDistribution": {"type": "log", "log": 10}}},
        ),
        Panel(
            "Replicas that differ",
            "Snapshots of weights in which a rank's bits differed from those of its data-parallel replicas.",
            "timeseries",
            "none",
            [Query(ranks("foreshock_weight_checksum_mismatch_total"), every_rank)],
            defaults=limit(("red", 1)),
        ),
        Panel(
            "W1 by layer, since the interval before",
            "Of the tensor of the layer that moved most.",
            "status-history",
            "none",
            [Query(f"max by (layer) ({moved('previous')})", "{{layer}}")],
            12,
            10,
            defaults={"color": {"mode": "continuous-BlYlRd"}},
        ),
        Panel(
            "W1 by layer, since the start",
            "Of the tensor of the layer that moved most.",
            "status-history",
            "none",
            [Query(f"max by (layer) ({moved('initial')})", "{{layer}}")],
            12,
            10,
            defaults={"color": {"mode": "continuous-BlYlRd"}},
        ),
        Panel(
            "Largest logit",
            "Largest magnitude of a scaled score over the last samples.",
            "timeseries",
            "none",
            [Query(ranks("foreshock_attention_logit_abs_max"), every_rank)],
        ),
        Panel(
            "Entropy",
            "Of the attention weights of a row, least and mean.",
            "timeseries",
            "none",
            [Query(ranks("foreshock_attention_entropy_nats"), "{{stat}}, " + every_rank)],
        ),
        Panel(
            "NaN and Inf",
            "Values that are not finite, since the run began, by where they were.",
            "timeseries",
            "none",
            [Query(f"sum by (site) ({ranks('foreshock_nonfinite_values_total')})", "{{site}}")],
            defaults=limit(("red", 1)),
        ),
        Panel(
            "Attention calls",
            "Every call ends as unsampled, skipped or sampled.",
            "timeseries",
            "cps",
            [
                Query(per_second(f"foreshock_attention_{fate}_total", "pass"), f"{{{{pass}}}} {fate}")
                for fate in ("unsampled", "skipped", "samples")
            ],
            6,
        ),
        Panel(
            "Skipped and lost",
            "Calls that were to be judged and were not, by reason.",
            "timeseries",
            "cps",
            [
                Query(per_second("foreshock_attention_skipped_total", "reason") + " > 0", "skipped, {{reason}}"),
                Query(per_second("foreshock_attention_lost_total", "reason") + " > 0", "lost, {{reason}}"),
            ],
            6,
        ),
        Panel(
            "Cost",
            "Share of wall time that the monitor takes, by place, of each rank.",
            "timeseries",
            "percentunit",
            [Query(per_second("foreshock_overhead_seconds_total", "where, rank"), "{{where}}, " + every_rank)],
            6,
        ),
        Panel(
            "Logged by the training",
            "What the training itself logs with W&B, TensorBoard, Trainer or Lightning.",
            "timeseries",
            "none",
            [Query(ranks("foreshock_logged_value"), "{{name}}, " + every_rank)],
            6,
        ),
    ]


def panel_json(panel: Panel, number: int, x: int, y: int) -> Json:
    targets = [
        {
            "refId": "ABCDEFGH"[n],
            "datasource": SOURCE,
            "expr": query.expression,
            "legendFormat": query.legend or "__auto",
        }
        for n, query in enumerate(panel.queries)
    ]
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.description, "datasource": SOURCE,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y}, "targets": targets, "options": panel.options,
        "fieldConfig": {"defaults": {"unit": panel.unit} | panel.defaults, "overrides": []},
    }  # fmt: skip


def placed(all_panels: list[Panel]) -> list[Json]:
    """From left to right, a new row when the 24 columns are used up."""
    x = y = height = 0
    result = []
    for number, panel in enumerate(all_panels, 1):
        if x + panel.width > 24:
            x, y, height = 0, y + height, 0
        result.append(panel_json(panel, number, x, y))
        x, height = x + panel.width, max(height, panel.height)
    return result


def variable(name: str, query: str, several: bool = False) -> Json:
    return {
        "name": name, "type": "query", "datasource": SOURCE, "query": query, "definition": query,
        "refresh": 2, "sort": 3, "multi": several, "includeAll": several, "allValue": ".*" if several else None,
    }  # fmt: skip


def variables() -> list[Json]:
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        variable("run", "label_values(foreshock_step, run)"),
        variable("rank", 'label_values(foreshock_step{run="$run"}, rank)', several=True),
        {"name": "pass", "type": "custom", "query": "forward,backward",
         "current": {"text": "forward", "value": "forward"},
         "options": [{"text": p, "value": p, "selected": p == "forward"} for p in ("forward", "backward")]},
    ]  # fmt: skip


def overview(values: Json) -> Json:
    alarms = {
        "name": "Alerts", "datasource": SOURCE, "enable": True, "iconColor": "red", "titleFormat": "{{alertname}}",
        "expr": f'ALERTS{{alertname=~"Foreshock.+",alertstate="firing",{OF_RUN}}}', "step": "30s",
    }  # fmt: skip
    return {
        "uid": "foreshock-overview", "title": "foreshock overview", "tags": ["foreshock"], "schemaVersion": 36,
        "editable": False, "graphTooltip": 1, "time": {"from": "now-3h", "to": "now"}, "refresh": "30s", "timezone": "",
        "templating": {"list": variables()}, "annotations": {"list": [alarms]}, "panels": placed(panels(values)),
    }  # fmt: skip
