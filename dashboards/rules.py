"""Collects all recording rules and alerts. `values`: content of values.toml. `default_names`: detectors that the
benchmark bench/precursors found useful; the others are experimental. An alert on experimental detectors alone has the
severity info."""

from attention_rules import attention_rules
from detector_rules import detector_rules
from fleet_rules import fleet_rules
from loss_rules import loss_rules
from monitor_rules import monitor_rules
from rule import Alert, Group, Values, yaml_of
from standing import DetectorNames, default_detectors

MEASURED = default_detectors()  # read from the committed results of bench/precursors


def groups(values: Values, default_names: DetectorNames = MEASURED) -> list[Group]:
    return [
        loss_rules(values),
        attention_rules(values),
        detector_rules(values, default_names),
        fleet_rules(values),
        monitor_rules(values),
    ]


def alerts(values: Values) -> list[Alert]:
    return [rule for group in groups(values) for rule in group.rules if isinstance(rule, Alert)]


def rules_yaml(values: Values, default_names: DetectorNames = MEASURED) -> str:
    return yaml_of(groups(values, default_names), values["links"])
