"""Alerts on incidents: NaN or Inf, and a rising loss. `limits`: an alert's section of values.toml. Arguments of Alert:
name, kind, component, dashboard, expression, summary, description, hold (Prometheus' `for`), keep (`keep_firing_for`),
severity. From rule.py: RUN, AT_STEP, VALUE and ranks() are text templates. RUN_KEY has the labels of a run, CHOICE
selects a run, UNLESS_ENDED excludes ended ranks."""

from rule import AT_STEP, CHOICE, RUN, RUN_KEY, UNLESS_ENDED, VALUE, Alert, Group, Record, Values, ranks

LOSS = "run:foreshock_loss_window:avg"  # the mean loss of the last 64 steps, averaged over ranks


def non_finite(limits: dict) -> Alert:
    window = limits["window"]
    nonfinite, skipped, steps = (f"foreshock_{name}_total" for name in ("nonfinite_values", "skipped_steps", "steps"))
    return Alert(
        "ForeshockNonFinite", "incident", "loss", "overview",
        # The alert fires in four cases:
        # 1. NaN or Inf in the loss or the output of attention.
        # 2. NaN or Inf in gradients, if no step was skipped in the window: a gradient scaler whose scale is too large
        #    makes gradients infinite and skips the step. If the number of skipped steps is unknown, this case is left
        #    out. `unless` excludes ranks whose counter of skipped steps is new in the window and above 0: increase()
        #    misses the steps in the counter's first sample.
        # 3. A loss that is NaN or Inf now, perhaps since before the agent started: only a finite loss times 0 is 0.
        # 4. A gradient scaler skips most steps: skipped / (skipped + steps) is above limits["skipped"].
        # label_replace() adds the label `site`, which the series of the cases 3 and 4 lack.
        f"""
        sum by ({RUN_KEY}, site) (
          increase({nonfinite}{{site=~"loss|attention_output"}}[{window}])
        ) > 0
        or
        sum by ({RUN_KEY}, site) (
          increase({nonfinite}{{site=~"gradient|attention_gradient"}}[{window}])
          and on ({RUN_KEY}, rank) increase({skipped}[{window}]) == 0
          unless on ({RUN_KEY}, rank) ({skipped} > 0 unless {skipped} offset {window})
        ) > 0
        or
        label_replace(
          count by ({RUN_KEY}) (foreshock_loss * 0 != 0 {UNLESS_ENDED}),
          "site", "loss", "", ""
        )
        or
        label_replace(
          sum by ({RUN_KEY}) (increase({skipped}[{window}])) * {1 - limits["skipped"]:g}
          > sum by ({RUN_KEY}) (increase({steps}[{window}])) * {limits["skipped"]:g},
          "site", "loss_scale", "", ""
        )
        """,
        RUN + ': {{ if eq $labels.site "loss_scale" }}the gradient scaler skips most steps'
        "{{ else }}NaN or Inf in {{ $labels.site }}{{ end }}",
        '{{ if eq $labels.site "loss_scale" }}The gradient scaler skipped more than'
        f" {limits['skipped']:.0%} of the steps of the last {window}, because gradients overflowed"
        "{{ else }}NaN or Inf occurred in {{ $labels.site }}"
        + ranks(f"sum by (rank) (increase({nonfinite}{{{CHOICE},site=%q}}[{window}])) > 0", " $labels.site")
        + "{{ end }}"
        + AT_STEP
        + '. {{ if eq $labels.site "loss_scale" }}Skipped steps do not change the weights, so the training makes little'
        " progress. First look in the panel 'Gradient norm by layer' for a layer that grew before the skips. If the"
        " skips continue, resume from a checkpoint before that growth"
        "{{ else }}The training computes with invalid numbers, and a step made with them spoils the weights. First"
        " read the log of the training: if it reports that the framework skipped this step, let the training continue."
        " Otherwise stop it and resume from a checkpoint before the first NaN or Inf; foreshock status prints the"
        " address of the run's page, which shows that step{{ end }}.",
        severity="page",
    )  # fmt: skip


def diverging(limits: dict) -> Alert:
    median = f"quantile_over_time(0.5, {LOSS}[{limits['baseline']}])"
    return Alert(
        "ForeshockLossDiverging", "incident", "loss", "overview",
        f"{LOSS} > {median} + {limits['excess']} * abs({median})",
        f"{RUN}: the loss is rising",
        f"The mean loss of the last 64 steps has risen to {VALUE}{AT_STEP}, which is more than"
        f" {limits['excess'] * 100:g} % above its level (median) of the last {limits['baseline']}. The training loses"
        " what it learned, unless its data or its loss function changed. First check whether they changed at the rise."
        f" If they did, do nothing: the alert ends by itself, after half of {limits['baseline']}. If they did not,"
        " resume from a checkpoint before the rise; the dashboard's row 'Before the loss' shows what moved first.",
        limits["for"], limits["keep"], "page",
    )  # fmt: skip


def loss_rules(values: Values) -> Group:
    return Group(
        "foreshock-loss",
        [
            Record("run:foreshock_run_info:user", f"max by ({RUN_KEY}, user) (foreshock_run_info)"),
            # Excludes ranks whose loss is NaN or infinite, since one of them would make the average NaN or infinite.
            Record(LOSS, f'avg by ({RUN_KEY}) (foreshock_loss_window{{stat="mean"}} < Inf > -Inf {UNLESS_ENDED})'),
            non_finite(values["non_finite"]),
            diverging(values["loss_diverging"]),
        ],
    )
