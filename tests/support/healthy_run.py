"""Four hours of a healthy training of two ranks, with its noise, a restart and a long evaluation, for promtool."""

import json
import math
import random

INTERVAL, MINUTES = 30, 240
SAMPLES = MINUTES * 60 // INTERVAL
STEPS_PER_SAMPLE = 30
RESTART = SAMPLES // 2  # at once, from a checkpoint of 200 steps before


# All that the rules ask for. Where one warns it names a layer too; none does here.
DETECTORS = (
    "gradient_growth", "gradient_norm", "weight_shift",
    "output_error_drift", "max_logit", "logit_growth", "entropy_drop",
)  # fmt: skip


def step_at(sample: int) -> int:
    return STEPS_PER_SAMPLE * sample - (200 if sample >= RESTART else 0)


def loss_at(step: int) -> float:
    """As byte-level models learn: fast, then as a power of the step."""
    return 1.2 + 4.3 / (1 + step / 300) ** 0.7


def wavering(value: float, share: float, noise: random.Random) -> float:
    return value * math.exp(share * noise.gauss(0, 1))


def series_of_rank(rank: int, noise: random.Random) -> dict[str, list[float]]:
    steps = [step_at(sample) for sample in range(SAMPLES)]
    of = f'run="r",rank="{rank}"'
    each = {
        f"foreshock_step{{{of}}}": steps,
        f"foreshock_steps_total{{{of}}}": [STEPS_PER_SAMPLE * sample for sample in range(SAMPLES)],
        f"foreshock_steps_lost_total{{{of}}}": [sample // 240 for sample in range(SAMPLES)],
        f"foreshock_rank_up{{{of}}}": [1] * SAMPLES,
        f"foreshock_world_size{{{of}}}": [2] * SAMPLES,
        # An evaluation of six minutes in which no step ends.
        f"foreshock_last_step_timestamp_seconds{{{of}}}": [
            INTERVAL * (300 if 300 <= sample < 312 else sample) for sample in range(SAMPLES)
        ],
        f"foreshock_loss{{{of}}}": [wavering(loss_at(step), 0.05, noise) for step in steps],
        f'foreshock_loss_window{{{of},stat="mean"}}': [wavering(loss_at(step), 0.05 / 8, noise) for step in steps],
        # Scores grow from nothing and settle; entropy falls as heads learn where to look.
        f"foreshock_attention_logit_abs_max{{{of}}}": [
            wavering(2 + 12 * (1 - math.exp(-step / 3000)), 0.08, noise) for step in steps
        ],
        f'foreshock_attention_entropy_nats{{{of},stat="mean"}}': [
            wavering(2 + 3 * math.exp(-step / 2000), 0.02, noise) for step in steps
        ],
        f"foreshock_slowdown_ratio{{{of}}}": [wavering(0.008, 0.1, noise) for _ in steps],
        f"foreshock_slowdown_limit_ratio{{{of}}}": [0.01] * SAMPLES,
        f"foreshock_no_attention_seen{{{of}}}": [0] * SAMPLES,
        f'foreshock_attention_coverage_ratio{{{of},source="none"}}': [math.nan] * SAMPLES,
        f'foreshock_monitor_enabled{{{of},component="trainer"}}': [1] * SAMPLES,
        # A gradient scaler that tries a larger scale now and then, and the step that it leaves out.
        f'foreshock_skipped_steps_total{{{of},reason="overflow"}}': [sample // 70 for sample in range(SAMPLES)],
        f'foreshock_nonfinite_values_total{{{of},site="gradient"}}': [sample // 70 for sample in range(SAMPLES)],
        f'foreshock_nonfinite_values_total{{{of},site="loss"}}': [0] * SAMPLES,
        f"foreshock_weight_checksum_mismatch_total{{{of}}}": [0] * SAMPLES,
    }
    for name, typical in (("forward", 0.6), ("backward", 0.9)):
        both = f'{of},pass="{name}"'
        each[f'foreshock_attention_fused_ratio{{{both},stat="mean"}}'] = [wavering(typical, 0.2, noise) for _ in steps]
        for whose in ("kernel", "rounded_reference"):
            each[f'foreshock_attention_bias_ulp{{{both},of="{whose}"}}'] = [noise.gauss(0, 0.01) for _ in steps]
            each[f'foreshock_attention_bias_zscore{{{both},of="{whose}"}}'] = [noise.gauss(0, 1.2) for _ in steps]
        for what in ("bias", "error"):
            each[f'foreshock_attention_alarm_layers{{{both},of="{what}"}}'] = [0] * SAMPLES
        each[f"foreshock_attention_samples_total{{{both}}}"] = [12 * sample for sample in range(SAMPLES)]
        each[f'foreshock_attention_lost_total{{{both},reason="torn"}}'] = [sample // 60 for sample in range(SAMPLES)]
        each[f'foreshock_attention_skipped_total{{{both},reason="budget"}}'] = [
            40 * sample for sample in range(SAMPLES)
        ]
    # Snapshots of the weights, which rank 1 shows one scrape later; they take no part in the noise.
    seen = [step_at(max(0, sample - rank)) // 128 * 128 for sample in range(SAMPLES)]
    each[f'foreshock_weight_checksum_step{{{of},group="a"}}'] = seen
    each[f'foreshock_weight_checksum{{{of},group="a"}}'] = [random.Random(step).randrange(100_000) for step in seen]
    for detector in DETECTORS:
        # They watch now and then, which is nobody's business.
        level = [int(noise.random() < 0.03) for _ in steps]
        each[f'foreshock_precursor_level{{{of},detector="{detector}"}}'] = level
        each[f'foreshock_precursor_events_total{{{of},detector="{detector}"}}'] = [0] * SAMPLES
    return each


def all_series(seed: int) -> dict[str, list[float]]:
    noise = random.Random(seed)
    return series_of_rank(0, noise) | series_of_rank(1, noise) | {
        'foreshock_run_state{run="r",state="running",job="foreshock",instance="a:9846"}': [1] * SAMPLES,
        'up{job="foreshock",instance="a:9846"}': [1] * SAMPLES,
        'foreshock_run_info{run="r",user="eve"}': [1] * SAMPLES,
        'foreshock_optimizer_update_ratio{run="r",stat="max"}': [
            wavering(0.004 / (1 + step_at(sample) / 2000), 0.15, noise) for sample in range(SAMPLES)
        ],
        'foreshock_series_dropped_total{instance="a:9846"}': [0] * SAMPLES,
        'foreshock_monitor_errors_total{run="r",component="record"}': [0] * SAMPLES,
    }  # fmt: skip


def healthy_file(series: dict[str, list[float]], expected: list[dict]) -> str:
    """Of promtool; JSON is YAML."""
    inputs = [
        {"series": name, "values": " ".join("NaN" if math.isnan(value) else f"{value:.6g}" for value in values)}
        for name, values in series.items()
    ]
    question = {
        "expr": f"count by (alertname) (count_over_time(ALERTS[{MINUTES}m]))",
        "eval_time": f"{MINUTES - 1}m",
        "exp_samples": expected,
    }
    case = {"interval": f"{INTERVAL}s", "input_series": inputs, "promql_expr_test": [question]}
    return json.dumps({"rule_files": ["../foreshock.yml"], "evaluation_interval": "30s", "tests": [case]})
