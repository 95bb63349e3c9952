"""The alerts as Prometheus rules, from the values of values.toml."""

import json
import textwrap
import typing

Values = dict[str, dict[str, typing.Any]]

RUNBOOK = "docs/alerts.md"
KERNEL, CONTROL = 'of="kernel"', 'of="rounded_reference"'


class Alert(typing.NamedTuple):
    name: str
    severity: str
    expression: str
    hold: str | None  # how long it must be so
    summary: str
    description: str


def biased(of: str, values: dict[str, typing.Any]) -> str:
    ulp, z = f"foreshock_attention_bias_ulp{{{of}}}", f"foreshock_attention_bias_zscore{{{of}}}"
    return f"(abs({ulp}) > {values['ulp']}) and (abs({z}) > {values['z']})"


def because(why: str, expression: str) -> str:
    return f'label_replace({expression}, "why", "{why}", "", "")'


def share_lost(window: str) -> str:
    lost, taken = (f"foreshock_attention_{name}_total[{window}]" for name in ("lost", "samples"))
    return f"sum by (run) (increase({lost})) / sum by (run) (increase({taken}))"


SLOWDOWN = "foreshock_slowdown_ratio / foreshock_slowdown_limit_ratio"

# Of one step only: a rank that was read a moment earlier may still show the interval before.
CHECKSUM = (
    "(foreshock_weight_checksum and on (run, rank, group) (foreshock_weight_checksum_step"
    " == on (run, group) group_left () max by (run, group) (foreshock_weight_checksum_step)))"
)


def alerts(values: Values) -> list[Alert]:
    loss = 'foreshock_loss_window{stat="mean"}'
    non_finite, diverging, bias, mismatch, stalled, degraded = (
        values[name] for name in ("non_finite", "loss_diverging", "bias", "mismatch", "stalled", "degraded")
    )
    median = f"(quantile_over_time(0.5, {loss}[{diverging['baseline']}]) < Inf)"
    return [
        Alert(
            "ForeshockNonFinite", "critical",
            f"""\
            sum by (run, site) (increase(foreshock_nonfinite_values_total[{non_finite["window"]}])) > 0
            or label_replace(
              count by (run) ((foreshock_loss != foreshock_loss) or (abs(foreshock_loss) == Inf)),
              "site", "loss", "", "")""",
            None, "NaN or Inf in a training",
            "Run {{ $labels.run }}: values that are not finite in {{ $labels.site }}.",
        ),
        Alert(
            "ForeshockLossDiverging", "critical",
            f"""\
            avg by (run) ({loss} < Inf)
            > avg by (run) ({median} + {diverging["excess"]} * abs{median})""",
            diverging["for"], "The loss is rising",
            "Run {{ $labels.run }}: the mean loss of the last 64 steps, {{ $value | humanize }}, is well above the"
            f" median of {diverging['baseline']}.",
        ),
        Alert(
            "ForeshockAttentionBias", "warning",
            f"""\
            max by (run, pass) (
              {biased(KERNEL, bias)}
              unless ignoring (of) ({biased(CONTROL, bias)})
            )
            or max by (run, pass) (foreshock_attention_alarm_layers{{of="bias"}}) > 0""",
            bias["for"], "Attention errs in one direction",
            "Run {{ $labels.run }}: {{ $labels.pass }} attention has a bias that rounding does not explain.",
        ),
        Alert(
            "ForeshockWeightMismatch", "critical",
            f"""\
            sum by (run, rank) (increase(foreshock_weight_checksum_mismatch_total[{mismatch["window"]}])) > 0
            or max by (run, rank) (
              {CHECKSUM}
              != on (run, group) group_left () quantile by (run, group) (0.5, {CHECKSUM})
              and on (run, group) count by (run, group) ({CHECKSUM}) > 2
            )""",
            None, "Replicas of the weights differ",
            "Run {{ $labels.run }}: rank {{ $labels.rank }} holds other bits than its data-parallel replicas.",
        ),
        Alert(
            "ForeshockTrainingStalled", "critical",
            f"""\
            time() - max by (run) (foreshock_last_step_timestamp_seconds) > {stalled["seconds"]}
            and on (run) (max by (run) (foreshock_rank_up) == 1)
            and on (run) (foreshock_run_state{{state="running"}} == 1)""",
            None, "A training makes no steps",
            "Run {{ $labels.run }}: no optimizer step for {{ $value | humanizeDuration }}, though its processes live.",
        ),
        Alert(
            "ForeshockMonitorDegraded", "warning",
            "\nor ".join([
                because("slowdown", f"max by (run) ({SLOWDOWN}) > {degraded['slowdown']}"),
                because("lost samples", f"{share_lost(degraded['window'])} > {degraded['lost']}"),
                because("errors", f"sum by (run) (increase(foreshock_monitor_errors_total[{degraded['window']}])) > 0"),
            ]),
            degraded["for"], "foreshock itself is not well",
            "Run {{ $labels.run }}: {{ $labels.why }}. The training is not affected; its figures may be incomplete.",
        ),
    ]  # fmt: skip


def anchor(name: str) -> str:
    return f"{RUNBOOK}#{name.lower()}"


def rule(alert: Alert) -> str:
    lines = [f"  - alert: {alert.name}", "    expr: |"]
    lines += textwrap.indent(textwrap.dedent(alert.expression), " " * 6).splitlines()
    if alert.hold:
        lines.append(f"    for: {alert.hold}")
    texts = {"summary": alert.summary, "description": alert.description, "runbook_url": anchor(alert.name)}
    lines += ["    labels:", f"      severity: {alert.severity}", "    annotations:"]
    lines += [f"      {name}: {json.dumps(text)}" for name, text in texts.items()]
    return "\n".join(lines)


def rules_yaml(values: Values) -> str:
    head = (
        "# Written by `./dev docs` from dashboards/values.toml and dashboards/rules.py.\ngroups:\n- name: foreshock\n"
    )
    return head + "  rules:\n" + "\n".join(rule(alert) for alert in alerts(values)) + "\n"
