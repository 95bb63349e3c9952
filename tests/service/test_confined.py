"""The agent under the confinement of the systemd unit: it does for other users what it has to do, and has not more."""

import pathlib
import subprocess

import confined
import pytest
from scraping import wait_until
from service import runs_as

UNIT = pathlib.Path(__file__).resolve().parents[2] / "integrations" / "deploy" / "systemd" / "foreshock-agent.service"


@pytest.fixture
def confine():
    if not runs_as(4321):
        pytest.skip("needs root, and a build that other users can read")
    return confined.confine(UNIT)


def test_the_confinement_is_one(confine, tmp_path):
    """What no agent does: this process has neither the capability nor the call."""
    for command in (["mount", "-t", "tmpfs", "none", tmp_path], ["date", "-s", "12:00"]):
        assert subprocess.run(command, preexec_fn=confine, capture_output=True, check=False).returncode != 0
    subprocess.run(["true"], preexec_fn=confine, check=True)


def test_runs_of_others_are_followed_and_summarised(confine, start_service, start_trainer, tree):
    tree.chmod(0o1777)  # RuntimeDirectoryMode
    service = start_service(confine=confine)
    trainer = start_trainer("ada", "job", uid=4321)
    trainer.do("hand.step(20)")
    wait_until(lambda: service.process.poll() is not None or service.metric("attention_judged_total", run="ada/job"))
    assert service.process.poll() is None, "the agent was ended by its own confinement"
    assert trainer.finish() == 0
    assert " finished, 20 steps in " in trainer.stderr()
    assert service.process.poll() is None
    assert service.metric("monitor_errors_total", run="ada/job") in (0, None)
    assert not (tree / "ada" / "job").exists()
