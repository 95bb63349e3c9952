"""The unit is one that systemd takes, without warnings, and is as confined as it says."""

from __future__ import annotations

import pathlib
import re
import subprocess

import monitored
import pytest

pytestmark = pytest.mark.quick


@pytest.fixture
def unit(deploy, tmp_path) -> pathlib.Path:
    """The unit with the executable of this build, since systemd looks whether it is there."""
    text = (deploy / "systemd" / "foreshock-agent.service").read_text()
    assert text.count("ExecStart=/opt/foreshock/bin/foreshock ") == 1
    path = tmp_path / "foreshock-agent.service"
    path.write_text(text.replace("/opt/foreshock/bin/foreshock", str(monitored.FORESHOCK)))
    return path


def test_systemd_takes_it(unit):
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_wrong_unit_would_be_found(unit):
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=nonsense"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert "nonsense" in done.stderr


def test_it_is_confined(unit):
    """systemd's own score from 0 to 10, in tenths; a unit without any of these settings has 9.6."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:]


def test_its_options_exist(unit, assert_known_options):
    (command,) = re.findall(r"^ExecStart=\S+ (.*)$", unit.read_text(), re.M)
    assert_known_options(command.split())


def test_what_it_serves_is_what_it_makes(unit):
    text = unit.read_text()
    assert "--tree /run/foreshock " in text
    assert "RuntimeDirectory=foreshock\n" in text  # below /run
