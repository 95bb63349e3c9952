"""The disk of the record does not answer: everything goes on, and what is judged meanwhile is not lost."""

import json
import os
import pathlib
import signal
import urllib.request
from collections import Counter

import pytest
from fault_scene import Scene, assert_conserved
from records import record_lines
from scraping import wait_until

STEPS = 40  # of a trainer, 7 one after the other


@pytest.fixture
def hanging(tmp_path) -> pathlib.Path:
    """The disk hangs while this file is there."""
    return tmp_path / "hanging"


@pytest.fixture
def shimmed(scene, hanging) -> dict[str, str]:
    return {"LD_PRELOAD": scene.programs["hanging_disk"], "HANGING_DISK": str(hanging)}


def metrics(scene: Scene) -> str:
    agent = json.loads((scene.base / "fault" / "agent.json").read_text())
    with urllib.request.urlopen(f"http://{agent['address']}:{agent['port']}/metrics", timeout=60) as page:
        return page.read().decode()


def test_disk_hangs_for_a_while_and_the_agent_is_killed(scene, told, tmp_path, hanging, shimmed):
    record = tmp_path / "record.jsonl"
    plain = scene.plain_half_way()
    hanging.touch()
    process = scene.start_half_way([*scene.run_line("--record", str(record)), *scene.waiting_line()], **shimmed)
    wait_until(lambda: all(of["judged"] == of["sampled"] > 0 for of in scene.segments()[0].attention().values()))
    told_of_both = (
        'foreshock_monitor_errors_total{run="fault",component="record"} 1',
        f'foreshock_step{{run="fault",rank="0"}} {STEPS // 2}',
    )
    wait_until(lambda: all(line in text for line in told_of_both) if (text := metrics(scene)) else False)
    assert record.read_bytes() == b""
    agent = scene.agent()
    hanging.unlink()
    os.kill(agent, signal.SIGKILL)  # it may have written some of it by now, or nothing
    wait_until(lambda: scene.agent() not in (None, agent))
    watched = scene.go_on(process)
    says = f"record {record}: its disk does not answer"
    told("disk of the record hangs, agent killed", scene, plain, watched, says)
    assert watched.summary["record_complete"] is True
    assert_conserved(watched.summary)
    lines = record_lines(record)
    taken = Counter((line["time"], line["step"]) for line in lines if line["type"] == "step")
    assert len(taken) == STEPS * 7
    assert set(taken.values()) == {1}
    judged = sum(of["judged"] for rank in watched.summary["ranks"] for of in rank["attention"].values())
    samples = [line for line in lines if line["type"] == "sample" and line["tensor"] in ("out", "grad_query")]
    assert len(samples) == judged > 0


def test_disk_hangs_to_the_end(scene, told, tmp_path, hanging, shimmed):
    record = tmp_path / "record.jsonl"
    hanging.touch()
    plain = scene.plain(str(STEPS), "return")
    watched = scene.monitored(str(STEPS), "return", options=("--record", str(record)), **shimmed)
    hanging.unlink()  # whoever is left behind may go
    says = (f"record {record}: its disk does not answer", "the record is incomplete: ")
    told("disk of the record hangs to the end", scene, plain, watched, says)
    assert_conserved(watched.summary)
