"""The compose file as docker-compose reads it (no engine is needed for that), and the Prometheus beside it."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

pytestmark = pytest.mark.quick


@pytest.fixture
def compose(deploy, tmp_path):
    # As in the tree: the dashboards are three folders up.
    folder = shutil.copytree(deploy / "compose", tmp_path / "integrations" / "deploy" / "compose")
    shutil.copytree(deploy.parents[1] / "dashboards", tmp_path / "dashboards")
    (folder / "token").write_text("of a test\n")
    return folder


@pytest.fixture
def resolved(compose) -> dict:
    command = ["docker-compose", "-f", compose / "compose.yaml", "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def source_of(resolved: dict, service: str, target: str) -> pathlib.Path:
    """What is mounted there; it must be there."""
    # docker-compose 1 writes SOURCE:TARGET:ro, 2 a mapping.
    mounted = dict(
        (one["target"], one["source"]) if isinstance(one, dict) else one.split(":")[1::-1]
        for one in resolved["services"][service]["volumes"]
    )
    assert pathlib.Path(mounted[target]).exists()
    return pathlib.Path(mounted[target])


def test_a_wrong_file_would_be_found(compose):
    text = (compose / "compose.yaml").read_text()
    (compose / "compose.yaml").write_text(text.replace("    cap_drop:", "    cap_dropped:"))
    command = ["docker-compose", "-f", compose / "compose.yaml", "config"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_trainer_and_agent_share_memory(resolved):
    volume = resolved["volumes"]["runs"]
    assert volume["driver_opts"]["type"] == "tmpfs"
    services = resolved["services"]
    assert all(any("runs" in str(one) for one in services[name]["volumes"]) for name in ("trainer", "agent"))
    assert services["trainer"]["user"] == services["agent"]["user"]
    assert services["trainer"]["environment"]["FORESHOCK_DIR"] == "/run/foreshock"


def test_who_may_read_the_token(resolved):
    """It is user 1000's with mode 640; the image of Prometheus gives its data directory to 65534 alone."""
    users = {name: service["user"] for name, service in resolved["services"].items() if "user" in service}
    assert users == {"trainer": "1000:1000", "agent": "1000:1000", "prometheus": "65534:1000"}
    assert [name for name, service in resolved["services"].items() if "token" in str(service.get("secrets"))] == [
        "agent",
        "prometheus",
    ]


def test_options_exist(resolved, assert_known_options):
    assert_known_options(resolved["services"]["agent"]["command"])
    assert_known_options(resolved["services"]["trainer"]["command"][1:])


def test_prometheus_takes_its_configuration(compose, resolved):
    path = compose / "prometheus.yml"
    text = path.read_text()
    assert "/run/secrets/token" in text
    local = text.replace("/run/secrets/token", str(compose / "token"))
    path.write_text(local.replace("rules/", str(source_of(resolved, "prometheus", "/etc/prometheus/rules")) + "/"))
    subprocess.run(["promtool", "check", "config", path], check=True, capture_output=True)
    (target,) = yaml.safe_load(text)["scrape_configs"][0]["static_configs"][0]["targets"]
    agent = resolved["services"]["agent"]["command"]
    assert target == f"agent:{agent[agent.index('--port') + 1]}"


def test_prometheus_tells_the_alertmanager_of_this_file(resolved, compose):
    (alertmanager,) = yaml.safe_load((compose / "prometheus.yml").read_text())["alerting"]["alertmanagers"]
    (target,) = alertmanager["static_configs"][0]["targets"]
    assert target.partition(":")[0] in resolved["services"]
    configuration = source_of(resolved, "alertmanager", "/etc/alertmanager/alertmanager.yml")
    assert "group_by: [cluster, namespace, run]" in configuration.read_text()


def test_grafana_finds_the_data_source_with_its_interval_and_every_dashboard(resolved, compose):
    provisioning = source_of(resolved, "grafana", "/etc/grafana/provisioning")
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    prometheus = yaml.safe_load((compose / "prometheus.yml").read_text())
    # Grafana makes $__rate_interval of it.
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    assert "scrape_interval" not in prometheus["scrape_configs"][0]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "foreshock.yaml").read_text())["providers"]
    folder = source_of(resolved, "grafana", provider["options"]["path"])
    # A file that is no JSON, or has the uid of another, is left out by Grafana without a word.
    boards = [json.loads(file.read_text()) for file in folder.glob("*")]
    assert len(boards) == len({board["uid"] for board in boards}) == 4
    links = yaml.safe_load((folder.parent / "rules" / "foreshock.yml").read_text())
    urls = re.findall(r"/d/([\w-]+)", json.dumps(links))
    assert set(urls) <= {board["uid"] for board in boards}


def test_what_listens_is_for_this_machine_only(resolved):
    for name, service in resolved["services"].items():
        for port in service.get("ports", []):
            host = port["host_ip"] if isinstance(port, dict) else port.partition(":")[0]
            assert host == "127.0.0.1", name
