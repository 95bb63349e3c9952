"""The manifests hold only fields of the API, with its types (lightkube's models come from its OpenAPI description),
and what refers to something refers to what is there."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
import typing

import pytest
import yaml
from lightkube.models import batch_v1, core_v1

pytestmark = pytest.mark.quick

KINDS = {"Secret": core_v1.Secret, "Job": batch_v1.Job}
# Of the Prometheus operator's API reference, monitoring.coreos.com/v1; a string is a scalar of any kind.
SELECTOR = {"matchLabels": {str: str}}
KEY = {"name": str, "key": str, "optional": bool}
RELABELING = {"sourceLabels": [str], "targetLabel": str, "regex": str, "replacement": str, "action": str}
ENDPOINT = {
    "port": str, "path": str, "scheme": str, "interval": str, "scrapeTimeout": str, "honorLabels": bool,
    "authorization": {"type": str, "credentials": KEY}, "relabelings": [RELABELING], "metricRelabelings": [RELABELING],
}  # fmt: skip
POD_MONITOR = {
    "apiVersion": str, "kind": str, "metadata": {"name": str, "namespace": str, "labels": {str: str}},
    "spec": {"selector": SELECTOR, "podMetricsEndpoints": [ENDPOINT], "jobLabel": str, "podTargetLabels": [str]},
}  # fmt: skip


def check(value: object, kind: object, path: str) -> None:
    """`kind` is a class of lightkube, a type hint, or a description like POD_MONITOR."""
    origin = typing.get_origin(kind)
    if origin is typing.Union:
        choices = [choice for choice in typing.get_args(kind) if choice is not type(None)]
        if len(choices) > 1:  # IntOrString
            assert isinstance(value, (int, str)), path
            return
        check(value, choices[0], path)
    elif isinstance(kind, dict) and str in kind or origin is dict:
        assert isinstance(value, dict), path
        for key, one in value.items():
            check(one, kind[str] if isinstance(kind, dict) else typing.get_args(kind)[1], f"{path}.{key}")
    elif isinstance(kind, dict):
        assert set(value) <= set(kind), f"{path} has no field {set(value) - set(kind)}"
        for key, one in value.items():
            check(one, kind[key], f"{path}.{key}")
    elif isinstance(kind, list) or origin is list:
        assert isinstance(value, list), path
        for number, one in enumerate(value):
            check(one, kind[0] if isinstance(kind, list) else typing.get_args(kind)[0], f"{path}[{number}]")
    elif dataclasses.is_dataclass(kind):
        fields = {field.name: field for field in dataclasses.fields(kind)}
        assert isinstance(value, dict), path
        assert set(value) <= set(fields), f"{path} has no field {set(value) - set(fields)}"
        required = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
        required = {name for name in required if fields[name].default_factory is dataclasses.MISSING}
        assert required <= set(value), f"{path} lacks {required - set(value)}"
        hints = typing.get_type_hints(kind)
        for key, one in value.items():
            check(one, hints[key], f"{path}.{key}")
    else:
        assert isinstance(value, kind), f"{path} is {value!r}, not {kind}"


@pytest.fixture
def manifests(deploy) -> dict[str, dict]:
    files = ("job.yaml", "podmonitor.yaml")
    loaded = [one for name in files for one in yaml.safe_load_all((deploy / "kubernetes" / name).read_text())]
    return {one["kind"]: one for one in loaded}


@pytest.fixture
def pod(manifests) -> dict:
    return manifests["Job"]["spec"]["template"]["spec"]


def test_fields_and_types(manifests):
    assert set(manifests) == {"Secret", "Job", "PodMonitor"}
    for name, kind in KINDS.items():
        check(manifests[name], kind, name)
    check(manifests["PodMonitor"], POD_MONITOR, "PodMonitor")
    versions = {name: one["apiVersion"] for name, one in manifests.items()}
    assert versions == {"Secret": "v1", "Job": "batch/v1", "PodMonitor": "monitoring.coreos.com/v1"}


def test_a_wrong_field_would_be_found(manifests, pod):
    pod["containers"][0]["volumeMount"] = []
    with pytest.raises(AssertionError, match="has no field"):
        check(manifests["Job"], batch_v1.Job, "Job")
    del pod["containers"][0]["volumeMount"]
    del pod["containers"][0]["name"]
    with pytest.raises(AssertionError, match="lacks"):
        check(manifests["Job"], batch_v1.Job, "Job")
    manifests["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["bearer"] = "x"
    with pytest.raises(AssertionError, match="has no field"):
        check(manifests["PodMonitor"], POD_MONITOR, "PodMonitor")


def test_trainer_and_agent_share_memory(pod):
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    agent = next(one for one in pod["initContainers"] if one["name"] == "foreshock-agent")
    (trainer,) = pod["containers"]
    places = [{mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]} for one in (agent, trainer)]
    assert places[0]["runs"] == places[1]["runs"] == "/run/foreshock"
    assert volumes["runs"]["emptyDir"]["medium"] == "Memory"
    assert {"name": "FORESHOCK_DIR", "value": places[1]["runs"]} in trainer["env"]
    assert agent["args"][agent["args"].index("--tree") + 1] == places[0]["runs"]
    assert agent["restartPolicy"] == "Always"  # what makes it a sidecar
    mounts = [mount["name"] for one in (*pod["initContainers"], trainer) for mount in one["volumeMounts"]]
    assert set(mounts) == set(volumes)


def test_run_id_is_unique_per_job_and_shared_by_its_pods(pod):
    """The name of a Job is used again, and other namespaces have Jobs of that name."""
    (trainer,) = pod["containers"]
    run_id = next(one for one in trainer["env"] if one["name"] == "FORESHOCK_RUN_ID")
    path = run_id["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['batch.kubernetes.io/controller-uid']"


def test_the_monitor_finds_the_agent(manifests, pod):
    agent = next(one for one in pod["initContainers"] if one["name"] == "foreshock-agent")
    (endpoint,) = manifests["PodMonitor"]["spec"]["podMetricsEndpoints"]
    (port,) = agent["ports"]
    assert endpoint["port"] == port["name"] == agent["readinessProbe"]["httpGet"]["port"]
    assert agent["args"][agent["args"].index("--port") + 1] == str(port["containerPort"])
    labels = manifests["Job"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == manifests["Secret"]["metadata"]["name"]
    assert credentials["key"] in manifests["Secret"]["stringData"]


def test_the_installation_is_copied_by_a_user_without_rights(pod):
    """The root of an emptyDir belongs to root and is open to the group of the pod."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    source = pathlib.Path("/dev/shm") / f"installation-{os.getpid()}"  # where any user may look
    install = next(one for one in pod["initContainers"] if one["name"] == "foreshock-install")
    (mount,) = install["volumeMounts"]
    user, group = (pod["securityContext"][key] for key in ("runAsUser", "fsGroup"))
    volume = source.with_name(source.name + "-volume")
    places = {"/opt/foreshock": str(source), mount["mountPath"]: str(volume)}
    try:
        (source / "bin").mkdir(parents=True)
        (source / "bin" / "foreshock").write_text("")
        (source / "bin" / "foreshock").chmod(0o755)
        volume.mkdir()
        os.chown(volume, 0, group)
        volume.chmod(0o2777)
        words = install["command"]
        for inside, outside in places.items():
            words = [word.replace(inside, outside, 1) if word.startswith(inside) else word for word in words]
        subprocess.run(words, user=user, group=group, extra_groups=[], cwd="/", check=True)
        assert os.access(volume / "bin" / "foreshock", os.X_OK)
    finally:
        for folder in (source, volume):
            shutil.rmtree(folder, ignore_errors=True)


def test_options_exist(pod, assert_known_options):
    agent = next(one for one in pod["initContainers"] if one["name"] == "foreshock-agent")
    assert_known_options(agent["args"])
    assert_known_options(pod["containers"][0]["command"][1:])
