"""What the README of the deployment tells an administrator to type and to configure fits the files beside it."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

pytestmark = pytest.mark.quick


@pytest.fixture
def text(deploy) -> str:
    return (deploy / "README.md").read_text()


def test_every_file_is_named(deploy, text):
    rows = set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))
    files = [path.relative_to(deploy) for path in deploy.rglob("*") if path.is_file() and path.name != "README.md"]
    assert files
    assert all(str(file) in rows or f"{file.parts[0]}/" in rows for file in files)
    assert all((deploy / row).exists() for row in rows)


def test_what_is_copied_is_there(deploy, text):
    """The folder is installed as share/foreshock/deploy."""
    installed = re.findall(r"/opt/foreshock/share/foreshock/deploy/(\S+)", text)
    assert installed
    assert all((deploy / name).exists() for name in installed)
    rule = "install(DIRECTORY deploy DESTINATION share/foreshock USE_SOURCE_PERMISSIONS)"  # the scripts are run there
    assert rule in (deploy.parent / "CMakeLists.txt").read_text()


def test_prometheus_takes_the_example(deploy, text, tmp_path):
    (example,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    token = tmp_path / "token"
    token.write_text("of a test\n")
    path = tmp_path / "prometheus.yml"
    path.write_text(re.sub(r"credentials_file: [^}]+", f"credentials_file: {token}", example))
    subprocess.run(["promtool", "check", "config", path], check=True, capture_output=True)
    (job,) = yaml.safe_load(example)["scrape_configs"]
    ports = {target.rpartition(":")[2] for target in job["static_configs"][0]["targets"]}
    unit = (deploy / "systemd" / "foreshock-agent.service").read_text()
    assert ports == set(re.findall(r"--port (\d+)", unit)) == {re.search(r"on port (\d+)", text).group(1)}
    assert re.search(r"--token-file (\S+)", unit).group(1) in text
    assert re.search(r"EnvironmentFile=-(\S+)", unit).group(1) in text
