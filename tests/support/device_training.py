"""Runs whole trainings whose CUDA device is stand_in_device.py."""

from __future__ import annotations

from pathlib import Path

from monitored import BUILD, EVERYTHING, PYTHON, Run, run_monitored, run_plain

BEGIN = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})
from stand_in_device import host_cuda, run_all
"""


def trained(host_cuda: str, training: str, *words: str, options: tuple[str, ...] = EVERYTHING) -> Run:
    """The monitored run of the program `training`, to which `words` are given, after it gave the bits of a plain one
    and never waited for the device."""
    environment = {"HOST_CUDA": host_cuda, "LD_LIBRARY_PATH": str(BUILD / "lib" / "fake_cuda")}
    command = [PYTHON, "-c", BEGIN + training, *words]
    plain, run = run_plain(command, **environment), run_monitored(command, *options, **environment)
    assert plain.told() == run.told()
    assert run.told()[0]["waits"] == 0
    return run
