"""Alertmanager's configuration: one notification of a run for each receiver, and no precursors beside the incident they
announced."""

from rule import Values

TEXT = """\
# Written by `./dev docs` from dashboards/values.toml. The receivers are webhooks, for want of yours: put e-mail, chat
# or your ticket system in their place. The label `owner` is the user whose run it is:
# '{{{{ .CommonLabels.owner }}}}@example.org'.
route:
  # However many ranks alert: one group for each run, and of each group one notification for a receiver.
  group_by: [cluster, namespace, run]
  group_wait: {wait}
  group_interval: {again}
  repeat_interval: {repeat}
  receiver: owner
  routes:
  - matchers: [severity="page"]
    receiver: page
    group_wait: {page_wait}
  # Experimental detectors: to be seen in Alertmanager and Prometheus, told to nobody.
  - matchers: [severity="info"]
    receiver: nobody
  # What is of no run, and what is wrong with the monitor, is for those who run the cluster.
  - matchers: [kind="monitor"]
    receiver: operators
    group_by: [cluster, alertname]

inhibit_rules:
# The loss goes wrong: what announced it is in the dashboard, nobody needs to be told of it now.
- source_matchers: [kind="incident"]
  target_matchers: [kind=~"precursor|agreement"]
  equal: [cluster, namespace, run]
# An agent that does not answer makes ranks and steps seem missing.
- source_matchers: [alertname="ForeshockNoData"]
  target_matchers: [alertname=~"ForeshockRanksMissing|ForeshockTrainingStalled"]
  equal: [cluster, namespace, run]
# Where ranks are missing the others wait.
- source_matchers: [alertname="ForeshockRanksMissing"]
  target_matchers: [alertname="ForeshockTrainingStalled"]
  equal: [cluster, namespace, run]

receivers:
- name: nobody
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
