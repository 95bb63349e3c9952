"""No room: of bytes, of inodes, on the tmpfs of the run and on the disk of its outputs; a home that is read-only."""

import contextlib
import itertools
import json
import os
import pathlib
import subprocess

from fault_scene import assert_conserved

STEPS = "40"


def fill_bytes(folder: pathlib.Path) -> pathlib.Path:
    with (folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return folder / "ballast"


def fill_inodes(folder: pathlib.Path) -> list[pathlib.Path]:
    made = []
    with contextlib.suppress(OSError):
        for n in itertools.count():
            (folder / f"ballast{n}").touch()
            made.append(folder / f"ballast{n}")
    return made


def in_the_middle(scene, fill):
    """(plain, watched) outcomes where `fill` takes what is left of the base when the trainer is half way."""
    plain = scene.plain_half_way()
    process = scene.start_half_way([*scene.run_line(), *scene.trainer_line(STEPS, "return", "wait")])
    ballast = fill(scene.base)
    watched = scene.go_on(process)
    for path in ballast if isinstance(ballast, list) else [ballast]:
        path.unlink()
    plain.stdout, plain.statuses = plain.stdout[: len(watched.stdout)], plain.statuses[:1]
    return plain, watched


def test_memory_full_in_the_middle(scene, told, mounted):
    scene.base = mounted("size=16m")
    plain, watched = in_the_middle(scene, fill_bytes)
    told("shared memory full in mid-run", scene, plain, watched)
    assert_conserved(watched.summary)
    assert [rank["steps"] for rank in watched.summary["ranks"]] == [40]


def test_inodes_used_up_in_the_middle(scene, told, mounted):
    scene.base = mounted("size=16m,nr_inodes=40")
    plain, watched = in_the_middle(scene, fill_inodes)
    told("inodes used up in mid-run", scene, plain, watched)
    assert_conserved(watched.summary)
    assert [rank["steps"] for rank in watched.summary["ranks"]] == [40]


def test_memory_full_from_the_start(scene, told, mounted):
    scene.base = mounted("size=4m")
    ballast = fill_bytes(scene.base)
    watched = scene.monitored(STEPS, "return")
    ballast.unlink()
    told("shared memory full", scene, scene.plain(STEPS, "return"), watched, "no space left on the tmpfs of")


def test_inodes_used_up_from_the_start(scene, told, mounted):
    scene.base = mounted("size=4m,nr_inodes=4")
    plain, watched = scene.plain(STEPS, "return"), scene.monitored(STEPS, "return")
    told("inodes used up", scene, plain, watched, "not monitoring: ")
    assert "No space left on device" in watched.said[0]


def test_inodes_used_up_when_the_trainer_comes(scene, told, mounted):
    """Not even the file that tells why can be made."""
    scene.base = mounted("size=16m,nr_inodes=40")
    taking = f"n=0; while true > {scene.base}/ballast$n; do n=$((n+1)); done 2>/dev/null"
    watched = scene.monitored(STEPS, "return", before=("sh", "-c", f'{taking}; exec "$@"', "sh"))
    for path in scene.base.glob("ballast*"):
        path.unlink()
    told("inodes used up by the trainer", scene, scene.plain(STEPS, "return"), watched, "no inode left")


def test_disk_full(scene, told, mounted):
    """Of the record and the summary: the lines that fit are there."""
    disk = mounted("size=256k")
    os.truncate(fill_bytes(disk), 128 << 10)
    record = disk / "record.jsonl"
    options = ("--record", str(record))
    plain, watched = scene.plain(STEPS, "return"), scene.monitored(STEPS, "return", options=options)
    says = (f"record {record}: No space left on device", "the record is incomplete: ")
    told("disk of the record full", scene, plain, watched, says)
    assert watched.summary["record_complete"] is False
    assert_conserved(watched.summary)
    lines = (disk / "record.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == len(lines) > 10, "whole lines only"


def test_read_only_home(scene, told, mounted):
    home = mounted("size=64k")
    subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)

    def both():
        here = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        return scene.plain(STEPS, "return", **here), scene.monitored(STEPS, "return", **here)

    plain, watched = both()
    told("read-only home", scene, plain, watched, again=both)
    assert_conserved(watched.summary)
