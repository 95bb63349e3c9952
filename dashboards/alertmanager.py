"""Makes Alertmanager's configuration. A run's owner gets one notification per run. The operators of the cluster get one
per name of an alert. During an incident of a run (NaN, Inf or a rising loss), alerts on precursors of this run
(warnings of detectors) are not sent. The alert rules (rule.py) set the labels "kind" and "severity"."""

from rule import Values

TEXT = """\
# Written by `./dev docs` from dashboards/values.toml. The receivers are placeholders: replace them with e-mail, chat or
# your ticket system. The label `owner` is the user whose run it is. With it, an address may be
# '{{{{ .CommonLabels.owner }}}}@example.org'.
route:
  # One group per run, however many ranks alert; a receiver gets one notification per group.
  group_by: [cluster, namespace, run]
  group_wait: {wait}
  group_interval: {again}
  repeat_interval: {repeat}
  receiver: owner
  routes:
  - matchers: [severity="page"]
    receiver: page
    group_wait: {page_wait}
  # Experimental detectors: visible in Alertmanager and Prometheus, sent to no receiver.
  - matchers: [severity="info"]
    receiver: none
  # Problems of the monitor itself are for the operators of the cluster. Some of these alerts belong to no run.
  - matchers: [kind="monitor"]
    receiver: operators
    group_by: [cluster, alertname]

inhibit_rules:
# During an incident, alerts of the kinds precursor and agreement (several precursors at once) are not sent.
- source_matchers: [kind="incident"]
  target_matchers: [kind=~"precursor|agreement"]
  equal: [cluster, namespace, run]
# If an agent does not answer, ranks and steps only seem to be missing.
- source_matchers: [alertname="ForeshockNoData"]
  target_matchers: [alertname=~"ForeshockRanksMissing|ForeshockTrainingStalled"]
  equal: [cluster, namespace, run]
# If ranks are missing, the others wait for them.
- source_matchers: [alertname="ForeshockRanksMissing"]
  target_matchers: [alertname="ForeshockTrainingStalled"]
  equal: [cluster, namespace, run]

receivers:
- name: none
- name: page
  webhook_configs:
  - url: {page}
- name: owner
  webhook_configs:
  - url: {owner}
- name: operators
  webhook_configs:
  - url: {operators}
"""


def alertmanager_yaml(values: Values) -> str:
    return TEXT.format(**values["notifications"], **values["receivers"])
