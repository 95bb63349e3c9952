"""The task prolog is run as slurmd runs it; what it prints makes a trainer a watched one, or it prints nothing."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import monitored
import pytest


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


def test_shell_and_shellcheck(deploy):
    script = deploy / "slurm" / "task_prolog.sh"
    subprocess.run(["sh", "-n", script], check=True)
    done = subprocess.run(["shellcheck", "--severity=style", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_task_is_watched(deploy, node, base, hand_trainer):
    more = prolog(deploy, node)
    assert set(more) == {"FORESHOCK_DIR", "FORESHOCK_RUN_ID", "FORESHOCK_ADAPTERS", "LD_PRELOAD", "PYTHONPATH"}
    assert more["FORESHOCK_ADAPTERS"] == node["FORESHOCK_PREFIX"] + "/cache/adapters-0.1.0-0123"
    run = base / "ada" / "1234.5"
    assert (run.stat().st_mode & 0o777, run.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    done = subprocess.run([hand_trainer, "6", "2"], env=node | more, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "enabled 1"
    assert list(run.glob("*.seg"))


def test_what_the_task_has_already_stays(deploy, node):
    other = str(next(pathlib.Path("/lib").glob("*-linux-gnu/libm.so.6")))
    more = prolog(deploy, node | {"LD_PRELOAD": other, "PYTHONPATH": "/srv/ada/lib"})
    assert more["LD_PRELOAD"].split(":")[0] == other
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
