"""Attention that errs more than its precision explains, weights that change too much, replicas that differ."""

from rule import CHOICE, JOB, OF_LABELS, RANK, TARGET, UNLESS_ENDED, Alert, Group, Record, Values, where

KERNEL, CONTROL = 'of="kernel"', 'of="rounded_reference"'
RATIO = "run:foreshock_attention_deviation_ratio:max"
UPDATE = "run:foreshock_optimizer_update_ratio:max"

# Of no rank, but of all that the agent has of the run.
UNLESS_OVER = f'unless on ({TARGET}, run) foreshock_run_state{{state="running"}} == 0'

CHECKSUM, DIFFERS = "rank:foreshock_weight_checksum:newest", "rank:foreshock_weight_checksum:differs"


def newest_checksum() -> Record:
    """Of one step only: a rank that was read a moment earlier may still show the interval before. A rank that ended
    shows what may have been done again since, from a checkpoint."""
    step = f"(foreshock_weight_checksum_step {UNLESS_ENDED})"
    return Record(
        CHECKSUM,
        f"""
        max by ({JOB}, group, rank) (
          foreshock_weight_checksum
          and on ({RANK}, group) (
            {step} == on ({JOB}, group) group_left ()
            max by ({JOB}, group) {step}
          )
        )
        """,
    )


def biased(of: str, values: dict) -> str:
    ulp, z = f"foreshock_attention_bias_ulp{{{of}}}", f"foreshock_attention_bias_zscore{{{of}}}"
    return f"(abs({ulp}) > {values['ulp']}) and (abs({z}) > {values['z']})"


def bias(of: dict) -> Alert:
    return Alert(
        "ForeshockAttentionBias", "precursor", "attention", "attention",
        f"""
        max by ({JOB}, pass) (
          {biased(KERNEL, of)}
          unless ignoring (of) ({biased(CONTROL, of)})
          {UNLESS_ENDED}
        )
        or max by ({JOB}, pass) (foreshock_attention_alarm_layers{{of="bias"}} {UNLESS_ENDED}) > 0
        """,
        "Attention errs in one direction",
        "Run {{ $labels.run }}: {{ $labels.pass }} attention has a bias that rounding does not explain"
        # The detector is fed in the forward pass only: its layers say nothing of backward.
        '{{ if eq $labels.pass "forward" }}' + where('"bias"') + "{{ end }}.",
        of["for"], of["keep"],
    )  # fmt: skip


def deviation(of: dict) -> Alert:
    return Alert(
        "ForeshockAttentionDeviation", "precursor", "attention", "attention",
        f"""
        {RATIO}{{pass="forward"}} > {of["forward"]}
        or {RATIO}{{pass="backward"}} > {of["backward"]}
        or max by ({JOB}, pass) (foreshock_attention_alarm_layers{{of="deviation_ratio"}} {UNLESS_ENDED}) > 0
        """,
        "Attention errs more than its precision explains",
        "Run {{ $labels.run }}: {{ $labels.pass }} attention errs several times as much as unfused attention in the"
        " same precision" + where('(printf "deviation_%s" $labels.pass)') + ".",
        of["for"], of["keep"],
    )  # fmt: skip


def update_ratio(of: dict) -> Alert:
    return Alert(
        "ForeshockUpdateRatio", "precursor", "optimizer", "weights",
        f"""
        {UPDATE} > {of["at_least"]}
        and {UPDATE} > {of["growth"]} * quantile_over_time(0.5, {UPDATE}[{of["window"]}])
        """,
        "Steps change the weights too much",
        "Run {{ $labels.run }}: one step changes a matrix by {{ $value | humanizePercentage }} of its norm, several"
        " times what it was.",
        of["for"], of["keep"],
    )  # fmt: skip


def in_majority() -> str:
    """Ranks that hold what more than half of their group do: the median, if that many hold it."""
    as_median = f"{CHECKSUM} == on ({JOB}, group) group_left () quantile by ({JOB}, group) (0.5, {CHECKSUM})"
    return f"""
          {as_median}
          and on ({JOB}, group)
          count by ({JOB}, group) ({as_median}) > 0.5 * count by ({JOB}, group) ({CHECKSUM})"""


def differing_ranks(of: dict) -> Record:
    return Record(
        DIFFERS,
        f"""
        sum by ({JOB}, rank) (increase(foreshock_weight_checksum_mismatch_total[{of["window"]}])) > 0
        or max by ({JOB}, rank) (
          {CHECKSUM} unless ({in_majority()}
          )
        )
        """,
    )


def replica_mismatch() -> Alert:
    # One alert for a run, however many of its ranks: each would cost the queries of its own texts.
    which = (
        f'{{{{ with printf "topk(8, {DIFFERS}{{{CHOICE}}})" {OF_LABELS} | query }}}}'
        '{{ range . | sortByLabel "rank" }} {{ .Labels.rank }}{{ end }}{{ end }}'
    )
    return Alert(
        "ForeshockReplicaMismatch", "training", "weights", "fleet",
        f"count by ({JOB}) ({DIFFERS})",
        "Replicas of the weights differ",
        "Run {{ $labels.run }}: data-parallel replicas of the weights are not all equal. Ranks that differ from the"
        f" majority, or all where there is none: {{{{ $value }}}}, among them{which}.",
    )  # fmt: skip


def attention_rules(values: Values) -> Group:
    return Group(
        "foreshock-attention",
        [
            Record(RATIO, f'max by ({JOB}, pass) (foreshock_attention_deviation_ratio{{stat="mean"}} {UNLESS_ENDED})'),
            Record(UPDATE, f'max by ({JOB}) (foreshock_optimizer_update_ratio{{stat="max"}} {UNLESS_OVER})'),
            newest_checksum(),
            differing_ranks(values["replica_mismatch"]),
            bias(values["bias"]),
            deviation(values["deviation"]),
            update_ratio(values["update_ratio"]),
            replica_mismatch(),
        ],
    )
