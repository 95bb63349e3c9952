"""The incidents: values that are no numbers, and a loss that rises. Only these two page."""

from rule import JOB, UNLESS_ENDED, VALUE, Alert, Group, Record, Values

LOSS = "run:foreshock_loss_window:avg"


def non_finite(of: dict) -> Alert:
    window = of["window"]
    values, skipped, steps = (f"foreshock_{name}_total" for name in ("nonfinite_values", "skipped_steps", "steps"))
    return Alert(
        "ForeshockNonFinite", "incident", "loss", "overview",
        # A gradient scaler that tries too large a scale makes gradients infinite and leaves the step out: no incident,
        # unless it does so all the time; where one decides on a device, nobody knows. The first that it tells, with the
        # first step, may be that it has left some out, which is no increase. A loss that is NaN now may
        # have been so when the agent came; of what is finite nothing is left times 0, and of an attempt that ended
        # the last loss stays.
        f"""
        sum by ({JOB}, site) (
          increase({values}{{site=~"loss|attention_output"}}[{window}])
        ) > 0
        or
        sum by ({JOB}, site) (
          increase({values}{{site=~"gradient|attention_gradient"}}[{window}])
          and on ({JOB}, rank) increase({skipped}[{window}]) == 0
          unless on ({JOB}, rank) ({skipped} > 0 unless {skipped} offset {window})
        ) > 0
        or
        label_replace(
          count by ({JOB}) (foreshock_loss * 0 != 0 {UNLESS_ENDED}),
          "site", "loss", "", ""
        )
        or
        label_replace(
          sum by ({JOB}) (increase({skipped}[{window}])) * {1 - of["skipped"]:g}
          > sum by ({JOB}) (increase({steps}[{window}])) * {of["skipped"]:g},
          "site", "loss_scale", "", ""
        )
        """,
        "NaN or Inf in a training",
        "Run {{ $labels.run }}: values that are not finite in {{ $labels.site }}.",
        severity="page",
    )  # fmt: skip


def diverging(of: dict) -> Alert:
    median = f"quantile_over_time(0.5, {LOSS}[{of['baseline']}])"
    return Alert(
        "ForeshockLossDiverging", "incident", "loss", "overview",
        f"{LOSS} > {median} + {of['excess']} * abs({median})",
        "The loss is rising",
        f"Run {{{{ $labels.run }}}}: the mean loss of the last 64 steps, {VALUE}, is well above the median"
        f" of {of['baseline']}.",
        of["for"], of["keep"], "page",
    )  # fmt: skip


def loss_rules(values: Values) -> Group:
    return Group(
        "foreshock-loss",
        [
            Record("run:foreshock_run_info:user", f"max by ({JOB}, user) (foreshock_run_info)"),
            # Without the ranks whose loss is no number: one would hide all others.
            Record(LOSS, f'avg by ({JOB}) (foreshock_loss_window{{stat="mean"}} < Inf > -Inf {UNLESS_ENDED})'),
            non_finite(values["non_finite"]),
            diverging(values["loss_diverging"]),
        ],
    )
