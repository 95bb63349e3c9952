"""Alerts on attention errors larger than the precision explains, on too large weight changes, and on replicas (equal
weights on data-parallel ranks) that differ. `limits` is the section of values.toml with an alert's limits and times.
From rule.py: RUN_KEY, RANK_KEY, TARGET_KEY list labels that identify a run, a rank at one agent, an agent. CHOICE
selects the alert's run, UNLESS_ENDED excludes ended ranks. AT_STEP, where(), ranks(): texts on the step, layers, ranks.
An Alert has name, kind, component, dashboard, expression, summary, description, and Prometheus' times `for` (hold) and
`keep_firing_for` (keep)."""

from rule import AT_STEP, CHOICE, RANK_KEY, RUN, RUN_KEY, TARGET_KEY, UNLESS_ENDED, Alert, Group, Record, ranks, where

UPDATE = "run:foreshock_optimizer_update_ratio:max"  # this and the names below are of recording rules

# Excludes runs that have ended. For series without a rank; UNLESS_ENDED is for series of ranks.
UNLESS_RUN_ENDED = f'unless on ({TARGET_KEY}, run) foreshock_run_state{{state="running"}} == 0'

CHECKSUM, DIFFERS = "rank:foreshock_weight_checksum:newest", "rank:foreshock_weight_checksum:differs"


def newest_checksum() -> Record:
    """Records the checksums of the newest step of each group (ranks that hold replicas of the same tensors), so that
    only checksums of one step are compared. A rank that was scraped a moment before the others may still have the
    checksum of an earlier step. Ended ranks are excluded: the run may have repeated their steps from a checkpoint."""
    step = f"(foreshock_weight_checksum_step {UNLESS_ENDED})"
    return Record(
        CHECKSUM,
        f"""
        max by ({RUN_KEY}, group, rank) (
          foreshock_weight_checksum
          and on ({RANK_KEY}, group) (
            {step} == on ({RUN_KEY}, group) group_left ()
            max by ({RUN_KEY}, group) {step}
          )
        )
        """,
    )


def layers_in_alarm(kind: str) -> str:
    """Selects passes with layers in alarm. The agent judges, because its limits depend on the number format, which a
    rule does not know. `kind`: a value of the label `of`."""
    series = f'foreshock_attention_alarm_layers{{of="{kind}"}}'
    return f"max by ({RUN_KEY}, pass) ({series} {UNLESS_ENDED}) > 0"


def bias(limits: dict) -> Alert:
    return Alert(
        "ForeshockAttentionBias", "precursor", "attention", "attention",
        layers_in_alarm("bias"),
        RUN + ": {{ $labels.pass }} attention is biased",
        "The signed error of {{ $labels.pass }} attention does not average out to zero"
        # The detector checks only the forward pass, so its layers are not shown for backward.
        '{{ if eq $labels.pass "forward" }}' + where('"bias"') + "{{ end }}" + AT_STEP
        + ". The bias is above the limit of its number format, and neither rounding nor fused attention has it. A bias"
        " alone is often harmless. First see whether ForeshockAttentionErrorDrift fires for this run. If it does,"
        " change the kernel. If it does not, nothing is urgent: test the kernel with foreshock judge --function"
        " MODULE:NAME.",
        limits["for"], limits["keep"],
    )  # fmt: skip


def deviation(limits: dict, verdict: dict) -> Alert:
    return Alert(
        "ForeshockAttentionDeviation", "precursor", "attention", "attention",
        layers_in_alarm("error"),
        RUN + ": the error of {{ $labels.pass }} attention is above its limit",
        # The detector is deviation_forward or deviation_backward.
        "The error of {{ $labels.pass }} attention is above its limit" + where('(printf "deviation_%s" $labels.pass)')
        + AT_STEP + '. The limit is {{ if eq $labels.pass "forward" }}'
        f'{verdict["forward"]}{{{{ else }}}}{verdict["backward"]}{{{{ end }}}} times the error of sound attention in'
        " the same precision, and twice that in fp32 and fp64. dK, dV and the log-sum-exp have limits of their own; the"
        " run's page names the tensor. The kernel computes less exactly than its precision explains. First look at the"
        " panel 'Worst error ratio' of the fleet dashboard. If one process rank alone is high, test its device"
        " (dcgmi diag). If all are high, update or change the kernel.",
        limits["for"], limits["keep"],
    )  # fmt: skip


def update_ratio(limits: dict) -> Alert:
    return Alert(
        "ForeshockUpdateRatio", "precursor", "optimizer", "weights",
        f"""
        {UPDATE} > {limits["at_least"]}
        and {UPDATE} > {limits["growth"]} * quantile_over_time(0.5, {UPDATE}[{limits["window"]}])
        """,
        RUN + ": a step changed a matrix by {{ $value | humanizePercentage }}",
        f"One optimizer step changes a matrix of the weights by {{{{ $value | humanizePercentage }}}} of its norm"
        f"{AT_STEP}. For {limits['for']} the largest such change has been above {limits['at_least']:.0%} and above"
        f" {limits['growth']} times its median of the last {limits['window']}."
        " Such steps can undo what was learned. First look at the panel 'Learning rate'. If the rate jumped, correct"
        " its schedule. If it did not, look for a process rank that resumed without its optimizer state.",
        limits["for"], limits["keep"],
    )  # fmt: skip


def in_majority() -> str:
    """Selects ranks whose checksum is that of more than half of their group. A checksum that more than half of a group
    have is the median of the group's checksums, so only ranks with the median are counted."""
    as_median = f"{CHECKSUM} == on ({RUN_KEY}, group) group_left () quantile by ({RUN_KEY}, group) (0.5, {CHECKSUM})"
    return f"""
          {as_median}
          and on ({RUN_KEY}, group)
          count by ({RUN_KEY}, group) ({as_median}) > 0.5 * count by ({RUN_KEY}, group) ({CHECKSUM})"""


def differing_ranks(limits: dict) -> Record:
    """Records the ranks that differ from their replicas. The first half of the expression has the differences that an
    agent has found between ranks of its node; the second half compares checksums of ranks on several nodes."""
    return Record(
        DIFFERS,
        f"""
        sum by ({RUN_KEY}, rank) (increase(foreshock_weight_checksum_mismatch_total[{limits["window"]}])) > 0
        or max by ({RUN_KEY}, rank) (
          {CHECKSUM} unless ({in_majority()}
          )
        )
        """,
    )


def replica_mismatch() -> Alert:
    # One alert per run, not per rank, since each alert costs the queries in its texts. ranks() returns the template of
    # " on process rank 3 5", which becomes ": 3 5" here.
    return Alert(
        "ForeshockReplicaMismatch", "training", "weights", "fleet",
        f"count by ({RUN_KEY}) ({DIFFERS})",
        f"{RUN}: replicas of the weights differ",
        "Data-parallel replicas of the weights must be equal bit for bit, but {{ $value }} process ranks differ"
        f"{ranks(f'{DIFFERS}{{{CHOICE}}}').replace(' on process rank', ':')}{AT_STEP}. A device computes or stores"
        " wrong values, or the replicas started unequal. First stop the training; the newest checkpoint may be wrong"
        " already. Then resume from a checkpoint before the first difference. If only some ranks are named, they"
        " differ from the majority: leave out their devices. If all are named, there is no majority: see the runbook.",
        severity="page",
    )  # fmt: skip


def attention_rules(values: dict) -> Group:
    return Group(
        "foreshock-attention",
        [
            Record(UPDATE, f'max by ({RUN_KEY}) (foreshock_optimizer_update_ratio{{stat="max"}} {UNLESS_RUN_ENDED})'),
            newest_checksum(),
            differing_ranks(values["replica_mismatch"]),
            bias(values["bias"]),
            deviation(values["deviation"], values["verdict"]),
            update_ratio(values["update_ratio"]),
            replica_mismatch(),
        ],
    )
