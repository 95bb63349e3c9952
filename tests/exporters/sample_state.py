"""A state as the agent publishes it: one rank with a broken layer, and names that try to be markup."""

BROKEN_RANK, BROKEN_LAYER = 1, "002"


def attention(calls: int, ratio: float, bias: float | None, z: float | None) -> dict:
    sampled = calls // 16
    return {
        "calls": calls, "unsampled": calls - sampled - 5, "sampled": sampled, "judged": sampled - 2, "in_flight": 1,
        "skipped": {"budget": 0, "ring_full": 5}, "lost": {"torn": 1},
        "relative_error": {"mean": 0.0019, "max": 0.0023}, "fused_ratio": {"mean": ratio, "max": ratio * 1.2},
        "bias_ulp": bias, "bias_z": z, "rounded_reference_bias_ulp": 0.001, "rounded_reference_bias_z": 0.3,
    }  # fmt: skip


def layer(index: int, ratio: float, nonfinite: int) -> dict:
    return {
        "layer": f"{index:03}", "name": f"blocks.{index}.attention.qkv.weight", "fused_ratio": ratio,
        "fused_ratio_backward": ratio * 0.9, "bias_ulp": -0.0003 * index, "bias_z": -0.2, "relative_error": 0.0019,
        "logit_abs_max": 11.5, "entropy_min": 0.4, "gradient_norm": 0.2 + 0.01 * index, "nonfinite_steps": nonfinite,
        "last_nonfinite_step": -1,
    }  # fmt: skip


def hostile_layer() -> dict:
    return dict.fromkeys(layer(0, 0, 0)) | {"layer": "<b>007</b>"}


DETECTOR_VALUES = {
    "bias": {"value": 0.013, "value_layer": "002", "score": 0.2, "look": "drift", "warn": 18, "least": 0.05},
    "max_logit": {"value": 61, "value_layer": "<s>004</s>", "score": 0.61, "look": "limit", "warn": 100, "least": 0},
    "gradient_growth": {"value": 4.2, "value_layer": None, "score": 1.2, "look": "growth", "warn": 5, "least": 0.5},
}


def detector(name: str, level: str, layer: str | None, since: int | None, right: int | None) -> dict:
    figures = {"alarms": 87, "lift": 7.9, "events": 36, "hits": 21, "lead_median": 34.5, "false_per_10k": 0.2}
    measured = None if right is None else figures | {"right": right, "precision": right / 87}
    return {
        "detector": name, "level": level, "layer": layer, "since_step": since, "values": 512, "learning": 64,
        "watches": 2,
        "warnings": 1 if level == "warn" else 0, "last_warn_step": 1415 if level == "warn" else None,
        **DETECTOR_VALUES[name],
        "measured": measured and measured | {"proven": right > 50},
    }  # fmt: skip


def precursors(broken: bool) -> dict:
    detectors = [detector("bias", "quiet", None, None, 3), detector("max_logit", "quiet", None, None, None)]
    if broken:
        detectors[1] = detector("max_logit", "watch", "<s>004</s>", 1402, None)
        detectors.append(detector("gradient_growth", "warn", None, 1409, 69))
    before = [{"detector": "gradient_growth", "layer": None, "level": "warn", "since_step": 1409, "lead_steps": 11}]
    rise = {"event": "loss_rise", "step": 1100, "declared_step": 1196, "preceded_by": []}
    spike = {"event": "loss_spike", "step": 1420, "declared_step": 1422, "preceded_by": before}
    return {"detectors": detectors, "loss_events": [rise, spike] if broken else []}


def rank(number: int, layers: int) -> dict:
    broken = number == BROKEN_RANK
    ratios = [2.41 if broken and f"{i:03}" == BROKEN_LAYER else 0.7 + 0.002 * i for i in range(layers)]
    events = [{"event": "loss_spike", "layer": None, "first_step": 1420, "last_step": 1420, "count": 1, "value": 9.5},
              {"event": "nonfinite_gradient", "layer": "002", "first_step": 1418, "last_step": 1430, "count": 3,
               "value": None},
              {"event": "warn_gradient_growth", "layer": None, "first_step": 1415, "last_step": 1415, "count": 1,
               "value": 6.1},
              {"event": "watch_max_logit", "layer": "<s>004</s>", "first_step": 1402, "last_step": 1410, "count": 2,
               "value": 61},
              {"event": "warn_max_logit", "layer": "<s>004</s>", "first_step": 1421, "last_step": 1421, "count": 1,
               "value": 104}]  # fmt: skip
    return {
        "rank": number, "steps": 512, "steps_lost": 0, "step": 1511, "step_source": "optimizer_state",
        "worst_layer": "002", "layer_source": "parameter", "slowdown_ratio": 0.0082, "max_slowdown": 0.01,
        "host": f"<i>node{number}</i>", "executable": "python3.11", "framework": "torch 2.13.0",
        "started_at": 1795000000.25 + number, "last_step_at": 1795000600.5,
        "state": "running", "alive": True, "on": True, "current": True, "skipped_steps": 0,
        "sample_interval_steps": 8, "step_seconds": 0.41, "learning_rate": 3e-4, "slots_refused": 0,
        "slots": {"given": 12, "wanted": 12}, "overhead_seconds": {"attention": 1.25, "step": 0.5, "agent": 3.75},
        "gradient": {"norm": 1.31, "zscore": 0.2, "nonfinite_layers": ["002"] if broken else []},
        "attention": {"forward": attention(12288, 2.41 if broken else 0.72, 0.004, 1.2),
                      "backward": attention(6144, 0.81, None, None)},
        "alarms": [{"layer": BROKEN_LAYER, "pass": "forward", "of": "fused_ratio", "value": 2.9}] if broken else [],
        "loss": {"first": 5.541, "last": 2.214, "zscore": 0.1, "spikes": int(broken), "source": "nll",
                 "spike_steps": [1420] if broken else []},
        "weights": {
            "tensors": 4 * layers, "interval_steps": 64, "snapshots": 24 * layers, "skipped": {"budget": 0},
            "wasserstein_previous": 3.21e-5, "wasserstein_initial": 0.0017, "step": 1472, "update_mean_abs": 1.2e-6,
            "rms": 0.021, "moved_most": "<u>blocks.2</u>", "moved_most_wasserstein": 8.4e-5, "dropped": 0,
            "replicas": "here", "replica_ranks": 8, "replicas_compared": 96, "mismatches": 2 * int(broken),
        },
        "precursors": precursors(broken), "no_attention_seen": False, "events": events if broken else [],
        "logged": {"<i>accuracy</i>": {"value": 0.5, "step": 1500}, "lost": {"value": None, "step": 1}},
        "layers": [layer(i, ratio, 3 if ratio > 2 else 0) for i, ratio in enumerate(ratios)] + [hostile_layer()],
    }  # fmt: skip


# What the agent says of the run above: its rank 1, if there is one, has an alarm.
FINDING = {
    "finding": "attention_error", "headline": "ATTENTION FAULT",
    "text": "layer 002 on rank 1: the output is wrong by up to 0.4 % (2.9x the error of "
            "fused attention) since step 1396", "action": "use another kernel", "layer": "002", "tensor": "out",
    "rank": 1, "since_step": 1396, "last_step": 1420, "now": 2.9, "largest": 2.9, "unit": "times",
    "relative_error": 0.004,
}  # fmt: skip
SPIKE = FINDING | {
    "finding": "loss_spike", "headline": "LOSS SPIKE", "text": "loss spike at step 1420", "action": "keep a checkpoint",
    "layer": None, "tensor": None, "since_step": 1420, "last_step": None, "now": None, "largest": None, "unit": None,
}  # fmt: skip


def sample_state(ranks: int = 2, layers: int = 6) -> dict:
    return {
        "verdict": "ATTENTION FAULT" if ranks > 1 else "healthy", "healthy": ranks == 1,
        "findings": [FINDING, SPIKE] if ranks > 1 else [],
        "schema": 1, "run": "<img src=x onerror=alert(1)>", "state": "running", "version": "0.1.0",
        "address": "127.0.0.1:9847", "grafana": "https://grafana.example.com/sub",
        "ranks": [rank(n, layers) for n in range(ranks)],
        # As the agent tells all runs that it serves: of each only how many ranks it has.
        "runs": [{"run": "<img src=x onerror=alert(1)>", "state": "running", "owner": "me", "ranks": ranks}],
        "thresholds": {"deviation_ratio_forward": 2, "deviation_ratio_backward": 3, "bias_ulp": 0.05, "bias_z": 6},
        "agent": {"pid": 1, "cpu_seconds": 12.5, "cores": 8, "instruction_set": "AVX2", "series": 812,
                  "series_dropped": 0, "segments_refused": 0},
    }  # fmt: skip
