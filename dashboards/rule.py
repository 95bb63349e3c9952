"""Defines Prometheus' recording rules and alerts as Python objects, templates for their texts, and writes them as YAML.

Templates are in Go's language, which Prometheus expands when an alert fires. In an f-string, {{{{ }}}} is its {{ }}.
"""

import textwrap
import typing

import yaml

Values = dict[str, dict[str, typing.Any]]  # values.toml: section, name, value

# The labels that identify a run; RUN_KEY lists them for by () and on (). Two teams may use one run id, so servers that
# combine several Prometheus set `cluster`, and Kubernetes' discovery sets `namespace`. A missing label is empty.
SCOPE = ("cluster", "namespace")
IDENTITY = (*SCOPE, "run")
RUN_KEY = ", ".join(IDENTITY)
# The labels that identify an agent, which is a scrape target of Prometheus.
TARGET_KEY = ", ".join((*SCOPE, "job", "instance"))

# The labels that identify a rank at one agent. Two agents can export the same rank: one for an ended attempt, whose
# series keep their last values until the agent removes them, and one for the running attempt. If a job continues with
# fewer ranks, the series of the ended ranks remain until the job ends. Alerts on gauges must therefore exclude them.
RANK_KEY = f"{TARGET_KEY}, run, rank"
UNLESS_ENDED = f"unless on ({RANK_KEY}) foreshock_rank_up == 0"


class Record(typing.NamedTuple):
    name: str
    expression: str


class Alert(typing.NamedTuple):
    name: str
    kind: str  # incident, precursor, agreement, training or monitor; Alertmanager routes and inhibits by it
    component: str  # the monitored part: attention, optimizer, weights, ...
    dashboard: str  # uid of the linked dashboard, without its prefix "foreshock-"
    expression: str
    summary: str  # names the run (or agent) and the fact
    description: str  # place, meaning, first action
    hold: str | None = None  # Prometheus' `for`: time that the expression must be true before the alert fires
    keep: str | None = None  # Prometheus' `keep_firing_for`: time for which the alert outlasts the expression
    severity: str = "ticket"  # or page, or info; info is sent to no receiver


class Group(typing.NamedTuple):
    """A group of rules. Prometheus evaluates them in order, so that alerts see recording rules of the same
    evaluation."""

    name: str
    rules: list[Record | Alert]
    interval: str | None = None  # between two evaluations; None: Prometheus' default


# CHOICE is a printf format that selects the series of the alert's run; OF_LABELS are the three arguments for its %q.
CHOICE = ",".join(f"{name}=%q" for name in IDENTITY)
OF_LABELS = " ".join(f"$labels.{name}" for name in IDENTITY)

# OWNER is a template of the user that owns the run: the present one or, if the agent has ended, that of the last day;
# "" if not exactly one user is found. A join in the alert's expression would instead drop alerts with an unknown owner.
# RUN_INFO occurs three times in the query, each with a CHOICE, so OF_LABELS is given three times.
RUN_INFO = f"run:foreshock_run_info:user{{{CHOICE}}}"
OWNER = (
    '{{ with printf "'
    f"{RUN_INFO} or (last_over_time({RUN_INFO}[1d]) unless on ({RUN_KEY}) {RUN_INFO})"
    f'" {OF_LABELS} {OF_LABELS} {OF_LABELS}'
    " | query }}{{ if eq (len .) 1 }}{{ range . }}{{ .Labels.user }}{{ end }}{{ end }}{{ end }}"
)


# A template of the layers in which a detector warned in the last 5 minutes; where() replaces DETECTOR. They are only
# examples: a rank exports one layer per detector, the first by name. (A label `layer` would split the alert by layer.)
LAYERS = (
    '{{ with printf "count by (layer) (last_over_time(foreshock_precursor_layer_info'
    f'{{{CHOICE},detector=%q}}[5m]))" {OF_LABELS} DETECTOR | query }}}}, e.g. in layer'
    '{{ range . | sortByLabel "layer" }} {{ .Labels.layer }}{{ end }}{{ end }}'
)


# The value of an alert's expression. Prometheus' function humanize is not used: it would write a loss of 0.8 as 800m.
VALUE = '{{ $value | printf "%.4g" }}'

RUN = "Run {{ $labels.run }}"

# The step of the run while the alert fires: " (current step 1200)" or "". The step of the cause is in the record.
AT_STEP = (
    f'{{{{ with printf "run:foreshock_step:max{{{CHOICE}}}" {OF_LABELS} | query }}}}'
    "{{ range . }} (current step {{ .Value }}){{ end }}{{ end }}"
)

# Where a detector warned last: ", at step 1200 on process rank 3" or "". warned_at() replaces DETECTOR.
WARNED_AT = (
    f'{{{{ with printf "topk(1, foreshock_precursor_last_event_step{{{CHOICE},detector=%q}})" {OF_LABELS} DETECTOR'
    " | query }}{{ range . }}, at step {{ .Value }} on process rank {{ .Labels.rank }}{{ end }}{{ end }}"
)


def warned_at(detector: str = "$labels.detector") -> str:
    """Returns WARNED_AT for a detector, which is given as a template expression."""
    return WARNED_AT.replace("DETECTOR", detector)


def ranks(expression: str, more: str = "") -> str:
    """Returns the template of " on process rank 3 5": up to eight ranks of the series that `expression` selects.
    `expression` must contain CHOICE once. `more`: printf arguments, each after a space, of the format verbs that follow
    CHOICE."""
    return (
        f'{{{{ with printf "topk(8, {expression})" {OF_LABELS}{more} | query }}}} on process rank'
        '{{ range . | sortByLabel "rank" }} {{ .Labels.rank }}{{ end }}{{ end }}'
    )


def where(detector: str = "$labels.detector") -> str:
    """Returns the template of ", e.g. in layer 003 007" or "". `detector`: a template expression."""
    return LAYERS.replace("DETECTOR", detector)


# The query of a dashboard's URL, which selects the alert's run. It selects cluster and namespace too: runs of two
# clusters or namespaces may have one id, and a dashboard would merge them.
LINK_VARIABLES = "?var-run={{ $labels.run | urlquery }}" + "".join(
    f"{{{{ with $labels.{name} }}}}&var-{name}={{{{ . | urlquery }}}}{{{{ end }}}}" for name in SCOPE
)


class Writer(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


Writer.add_representer(
    str,
    lambda writer, text: writer.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def known(fields: dict[str, typing.Any]) -> dict[str, typing.Any]:
    return {name: value for name, value in fields.items() if value}


def rule_fields(rule: Record | Alert, links: dict[str, str]) -> dict[str, typing.Any]:
    expression = textwrap.dedent(rule.expression).strip()
    if isinstance(rule, Record):
        return {"record": rule.name, "expr": expression}
    is_about_run = "$labels.run" in rule.summary  # false: the alert is about an agent, and has no label `run`
    labels = {"severity": rule.severity, "kind": rule.kind, "component": rule.component}
    annotations = {
        "summary": rule.summary,
        "description": rule.description,
        "runbook_url": f"{links['runbook']}#{rule.name.lower()}",
        "dashboard_url": f"{links['grafana']}/d/foreshock-{rule.dashboard}" + (LINK_VARIABLES if is_about_run else ""),
    }
    return known(
        {"alert": rule.name, "expr": expression, "for": rule.hold, "keep_firing_for": rule.keep}
        | {"labels": known(labels | {"owner": OWNER if is_about_run else ""}), "annotations": annotations}
    )


def yaml_of(groups: list[Group], links: dict[str, str]) -> str:
    """`links`: addresses of the runbook and of Grafana."""
    written = [
        known({"name": each.name, "interval": each.interval, "rules": [rule_fields(r, links) for r in each.rules]})
        for each in groups
    ]
    head = "# Written by `./dev docs` from dashboards/values.toml and dashboards/*_rules.py.\n"
    return head + yaml.dump({"groups": written}, Dumper=Writer, sort_keys=False, width=1 << 20, allow_unicode=True)
