"""A state as the agent publishes it: two ranks, one of them with a broken layer, names that try to be markup."""

import math


def attention(calls, ratio, bias, z):
    sampled = calls // 16
    return {
        "calls": calls, "unsampled": calls - sampled - 5, "sampled": sampled, "judged": sampled - 2, "in_flight": 1,
        "skipped": {"budget": 0, "ring_full": 5}, "lost": {"torn": 1},
        "relative_error": {"mean": 0.0019, "max": 0.0023}, "deviation_ratio": {"mean": ratio, "max": ratio * 1.2},
        "bias_ulp": bias, "bias_z": z, "rounded_reference_bias_ulp": 0.001, "rounded_reference_bias_z": 0.3,
    }  # fmt: skip


def layer(index, ratio, nonfinite):
    return {
        "layer": f"{index:03}", "name": f"blocks.{index}.attention.qkv.weight", "deviation_ratio": ratio,
        "deviation_ratio_backward": ratio * 0.9, "bias_ulp": -0.003 * index, "relative_error": 0.0019,
        "gradient_norm": 0.2 + 0.01 * index, "nonfinite_steps": nonfinite,
    }  # fmt: skip


def rank(number, broken):
    steps = list(range(0, 512, 2))
    ratios = [0.7 + 0.03 * math.sin(step / 9) if step % 8 == 0 else None for step in steps]
    return {
        "rank": number, "steps": 512, "step": 1511, "step_source": "optimizer_state", "worst_layer": "002",
        "layer_source": "parameter", "slowdown_ratio": 0.0082, "state": "running", "sample_interval_steps": 8,
        "gradient": {"norm": 1.31, "nonfinite_layers": ["002"] if broken else []}, "no_attention_seen": False,
        "attention": {"forward": attention(12288, 2.41 if broken else 0.72, 0.004, 1.2),
                      "backward": attention(6144, 0.81, None, None)},
        "loss": {"first": 5.541, "last": 2.214, "spikes": 1 if broken else 0, "source": "nll",
                 "spike_steps": [1420] if broken else []},
        "history": {
            "step": [step + 1000 for step in steps],
            "loss": [2.1 + 3.4 * math.exp(-step / 90) + 0.05 * math.sin(step * 1.7) for step in steps],
            "gradient_norm": [1.3 + 0.4 * math.cos(step / 5) for step in steps],
            "deviation_ratio": ratios,
        },
        "layers": [layer(i, 2.41 if broken and i == 2 else 0.7 + 0.01 * i, 3 if broken and i == 2 else 0)
                   for i in range(6)] + [{"layer": "<b>007</b>", "name": None, "deviation_ratio": None,
                                          "deviation_ratio_backward": None, "bias_ulp": None, "relative_error": None,
                                          "gradient_norm": None, "nonfinite_steps": None}],
    }  # fmt: skip


def sample_state():
    return {
        "schema": 1, "run": "<img src=x onerror=alert(1)>", "state": "running", "version": "0.1.0",
        "address": "127.0.0.1:9847", "agent": {"pid": 1}, "ranks": [rank(0, False), rank(1, True)],
    }  # fmt: skip
