"""--save-flagged when the disk, the directory, the agent or the options are against it."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest
from flagged import SCRIPT, judge, train
from monitored import EVERYTHING, FORESHOCK, PYTHON, clean_environment, run_monitored, unwrapped
from scraping import wait_until

HERE = pathlib.Path(__file__).parent


def test_a_full_quota_keeps_the_first_ones_and_says_so(tmp_path):
    one = train(tmp_path / "slices", "head", "--flagged-quota", "12KiB", steps=24)
    assert sum(path.stat().st_size for path in one.files()) <= 12 * 1024
    assert 0 < len(one.files()) < 4
    flagged = one.run.summary["flagged"]
    assert flagged["dropped"]["quota"] > 0
    assert "not flagged " in unwrapped(one.run.stderr)
    assert "no more are kept there" in unwrapped(one.run.stderr)
    assert one.run.returncode == 0


def test_a_disk_that_is_full_is_told_and_costs_nothing_else(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    mounted = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=16k", "none", str(disk)], capture_output=True, check=False
    )  # fmt: skip
    if not mounted or mounted.returncode != 0:
        pytest.skip("a disk of 16 KiB cannot be mounted here (not root?)")
    try:
        one = train(disk / "slices", "head", steps=24)
        assert one.run.summary["flagged"]["dropped"]["error"] > 0
        assert "No space left on device" in one.run.stderr
        assert one.run.returncode == 0
        assert not list(one.folder.glob("*.part"))
        assert judge(*one.files()).returncode == 0  # those that are there are whole
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_directory_that_cannot_be_used_is_refused_before_the_training(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "missing" / "slices"):
        run = run_monitored([PYTHON, "-c", "print('ran')"], "--save-flagged", str(folder))
        assert (run.returncode, run.stdout) == (2, "")
        assert "--save-flagged" in run.stderr
        assert run.stderr.count("\n") == 1


def test_a_directory_that_goes_away_is_told(tmp_path):
    parent = tmp_path / "parent"
    parent.mkdir()
    # The training itself takes the directory away, and its parent with it.
    code = f"import shutil, sys; shutil.rmtree({str(parent)!r}); sys.argv[0] = {SCRIPT!r}; " + (
        f"sys.path.insert(0, {str(HERE)!r}); import planted_training as planted; planted.train('head', 1, 24)"
    )
    run = run_monitored([PYTHON, "-c", code], *EVERYTHING, "--save-flagged", str(parent / "slices"))
    assert run.returncode == 0, run.stderr
    assert run.summary["flagged"]["dropped"]["error"] > 0
    assert "No such file or directory" in run.stderr
    assert not parent.exists()


def test_without_slices_there_is_nothing_to_keep(tmp_path):
    one = train(tmp_path / "slices", "head", "--slices", "off", steps=8)
    assert one.run.returncode == 0
    assert one.files() == []
    assert one.run.summary["flagged"]["saved"] == {}


def test_without_the_option_no_file_is_written_anywhere(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    run = run_monitored([PYTHON, SCRIPT, "head", "1", "8"], *EVERYTHING, HOME=str(home), TMPDIR=str(home))
    assert run.returncode == 0, run.stderr
    assert "flagged" not in run.summary
    assert [path for path in home.rglob("*") if "slice" in path.name] == []


def test_an_agent_that_is_killed_is_followed_by_one_that_goes_on(base, start_hand, tmp_path):
    trainer, one = start_hand("restarted", "--save-flagged", str(tmp_path / "slices")), tmp_path / "slices"

    def files() -> set[pathlib.Path]:
        return set(one.glob("*.slice.safetensors"))

    trainer.do("hand.step(4)")
    trainer.do("hand.plant(1.5)")
    trainer.do("hand.step(8)")
    wait_until(files)
    os.kill(json.loads((base / "restarted" / "agent.json").read_text())["pid"], signal.SIGKILL)
    before = files()
    trainer.do("hand.step(8)")
    wait_until(lambda: files() > before)
    assert trainer.finish() == 0, trainer.stderr()
    done = judge(*files())
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("reproduced bit for bit") == len(files())


def test_a_service_keeps_nobody_s_slices(tmp_path):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as tree:
        done = subprocess.run(
            [str(FORESHOCK), "agent", "--tree", tree, "--save-flagged", str(tmp_path / "slices")],
            capture_output=True, text=True, timeout=60, check=False, env=clean_environment(),
        )  # fmt: skip
    assert done.returncode == 2
    assert "--save-flagged needs a single run" in done.stderr
    assert not (tmp_path / "slices").exists()
