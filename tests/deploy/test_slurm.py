"""The task prolog is run as slurmd runs it; what it prints makes a trainer a watched one, or it prints nothing."""

from __future__ import annotations

import os
import pathlib
import pwd
import shutil
import subprocess

import monitored
import pytest
from scraping import ended, wait_until
from service import Service

pytestmark = pytest.mark.quick


@pytest.fixture
def node(base, tmp_path) -> dict[str, str]:
    """Environment of a task on a node with foreshock installed and prepared."""
    prefix = tmp_path / "prefix"
    (prefix / "lib").mkdir(parents=True)
    shutil.copy(monitored.LIBRARY, prefix / "lib" / "libforeshock.so")
    (prefix / "share" / "foreshock" / "python").mkdir(parents=True)
    (prefix / "cache" / "adapters-0.1.0-0123").mkdir(parents=True)
    return {
        "PATH": "/usr/bin:/bin", "FORESHOCK_PREFIX": str(prefix), "FORESHOCK_TREE": str(base),
        "SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "5", "SLURM_JOB_USER": "ada",
    }  # fmt: skip


def prolog(deploy: pathlib.Path, environment: dict[str, str]) -> dict[str, str]:
    """What slurmd takes from it: the lines `export NAME=value`. Any other line would go to the user."""
    script = deploy / "slurm" / "task_prolog.sh"
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert all(line.startswith("export ") for line in lines)
    return dict(line.removeprefix("export ").split("=", 1) for line in lines)


def preload(node: dict[str, str]) -> dict[str, str]:
    """What the script of a job sets for a C program that is not linked with the library."""
    return {"LD_PRELOAD": node["FORESHOCK_PREFIX"] + "/lib/libforeshock.so"}


def epilog(deploy: pathlib.Path, environment: dict[str, str], uid: int) -> None:
    """As slurmd runs it when the job's last task on the node has ended."""
    given = environment | {"SLURM_JOB_UID": str(uid), "SLURM_JOB_GID": str(os.getgid())}
    done = subprocess.run([deploy / "slurm" / "epilog.sh"], env=given, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("name", ["task_prolog.sh", "epilog.sh"])
def test_shell_and_shellcheck(deploy, name):
    script = deploy / "slurm" / name
    subprocess.run(["sh", "-n", script], check=True)
    done = subprocess.run(["shellcheck", "--severity=style", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_task_is_watched(deploy, node, base, hand_trainer):
    more = prolog(deploy, node)
    assert set(more) == {"FORESHOCK_DIR", "FORESHOCK_RUN_ID", "FORESHOCK_ADAPTERS", "PYTHONPATH"}
    assert more["FORESHOCK_ADAPTERS"] == node["FORESHOCK_PREFIX"] + "/cache/adapters-0.1.0-0123"
    run = base / "ada" / "1234.5"
    assert (run.stat().st_mode & 0o777, run.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    given = node | more | preload(node)
    done = subprocess.run([hand_trainer, "6", "2"], env=given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "enabled 1"
    assert list(run.glob("*.seg"))


def test_a_service_follows_the_task_and_the_epilog_clears_up(deploy, node, base, hand_trainer, tmp_path):
    """Without a launcher: nobody tells the service of a beginning or an end."""
    user = pwd.getpwuid(os.getuid()).pw_name
    node["SLURM_JOB_USER"] = user
    run = {"run": f"{user}/1234.5"}
    (tmp_path / "service").mkdir()
    service = Service(base, tmp_path / "service")
    with ended(service.process):
        more = prolog(deploy, node) | {"FORESHOCK_EVERY": "2", "FORESHOCK_MAX_SLOWDOWN": "100%"}
        subprocess.run([hand_trainer, "6", "2"], env=node | more | preload(node), capture_output=True, check=True)
        wait_until(lambda: service.metric("steps_total", **run) == 6)
        (base / user / "1235").mkdir()
        epilog(deploy, node, os.getuid())
        assert [path.name for path in (base / user).iterdir()] == ["1235"], "that of another job stays"
        wait_until(lambda: service.metric("run_state", state="running", **run) == 0)
        forward = run | {"pass": "forward"}
        sampled = service.metric("attention_samples_total", **forward)
        assert sampled == service.metric("attention_judged_total", **forward) > 0


def test_the_epilog_follows_no_link(deploy, node, base, tmp_path):
    """A user's own directory may lead anywhere; root, who runs the epilog, could remove what the user cannot."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    uid = 4321
    victim = tmp_path / "1234.5"
    victim.mkdir()
    base.chmod(0o777)
    (base / str(uid)).symlink_to(tmp_path)
    epilog(deploy, node, uid)
    assert victim.exists()


def test_steps_have_a_run_each(deploy, node):
    """The batch script and an interactive shell are steps, with numbers from the end of 32 bits."""
    steps = {"0": "1234.0", "4294967291": "1234", "-6": "1234", "": "1234"}
    for step, run in steps.items():
        assert prolog(deploy, node | {"SLURM_STEP_ID": step})["FORESHOCK_RUN_ID"] == run


def test_an_inherited_environment_is_not_given_twice(deploy, node):
    assert prolog(deploy, node | prolog(deploy, node)) == prolog(deploy, node)


def test_a_user_whose_name_is_no_label(deploy, node, base):
    more = prolog(deploy, node | {"SLURM_JOB_USER": "ada@example"})
    assert more["FORESHOCK_DIR"] == str(base / str(os.getuid()))


def test_what_the_task_has_already_stays(deploy, node):
    more = prolog(deploy, node | {"PYTHONPATH": "/srv/ada/lib"})
    assert more["PYTHONPATH"].split(":")[1] == "/srv/ada/lib"


@pytest.mark.parametrize("missing", ["switch", "tree", "library", "adapters", "job", "launcher", "not_writable"])
def test_else_it_says_nothing(deploy, node, base, missing):
    prefix = pathlib.Path(node["FORESHOCK_PREFIX"])
    if missing == "switch":
        node["FORESHOCK"] = "0"
    elif missing == "tree":
        node["FORESHOCK_TREE"] = str(base / "gone")
    elif missing == "library":
        (prefix / "lib" / "libforeshock.so").unlink()
    elif missing == "adapters":
        (prefix / "cache" / "adapters-0.1.0-0123").rmdir()
    elif missing == "job":
        del node["SLURM_JOB_ID"]
    elif missing == "launcher":
        node["FORESHOCK_LAUNCHER"] = "77"
    else:
        (base / "ada").write_text("a file where the directory of the user should be")
    assert prolog(deploy, node) == {}
