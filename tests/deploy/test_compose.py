"""The compose file as docker-compose reads it (no engine is needed for that), and the Prometheus beside it."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import yaml


@pytest.fixture
def compose(deploy, tmp_path):
    folder = shutil.copytree(deploy / "compose", tmp_path / "compose")
    (folder / "token").write_text("of a test\n")
    return folder


@pytest.fixture
def resolved(compose) -> dict:
    command = ["docker-compose", "-f", compose / "compose.yaml", "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


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
    users = {name: service["user"] for name, service in resolved["services"].items()}
    assert users == {"trainer": "1000:1000", "agent": "1000:1000", "prometheus": "65534:1000"}


def test_options_exist(resolved, assert_known_options):
    assert_known_options(resolved["services"]["agent"]["command"])
    assert_known_options(resolved["services"]["trainer"]["command"][1:])


def test_prometheus_takes_its_configuration(compose, resolved):
    path = compose / "prometheus.yml"
    text = path.read_text()
    assert "/run/secrets/token" in text
    path.write_text(text.replace("/run/secrets/token", str(compose / "token")))
    subprocess.run(["promtool", "check", "config", path], check=True, capture_output=True)
    (target,) = yaml.safe_load(text)["scrape_configs"][0]["static_configs"][0]["targets"]
    agent = resolved["services"]["agent"]["command"]
    assert target == f"agent:{agent[agent.index('--port') + 1]}"
