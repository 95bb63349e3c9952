"""Ways for a trainer to end, and what it may do with processes and threads before."""

import json

import pytest
from fault_scene import RUN_ID, assert_conserved
from scraping import get, wait_until

STEPS = "40"


@pytest.mark.parametrize("ending", ["return", "exit", "_exit", "abort", "segv", "kill", "term"])
def test_endings(scene, told, ending):
    def both():
        return scene.plain(STEPS, ending), scene.monitored(STEPS, ending)

    plain, watched = both()
    told(f"trainer ends by {ending}", scene, plain, watched, again=both)
    assert_conserved(watched.summary)
    assert [rank["steps"] for rank in watched.summary["ranks"]] == [40] * 7
    states = {"return": "finished", "exit": "failed", "_exit": "failed", "term": "preempted"}
    assert watched.summary["state"] == states.get(ending, "failed")


@pytest.mark.parametrize("during", ["fork", "fork_and_exit", "fork_and_exec", "threads"])
def test_processes_and_threads(scene, told, during):
    def both():
        return scene.plain(STEPS, "return", during), scene.monitored(STEPS, "return", during)

    plain, watched = both()
    told(f"trainer does {during}", scene, plain, watched, again=both)
    assert_conserved(watched.summary)
    calls = 40 * 2 + (64 * 50 if during == "threads" else 0)
    for rank in watched.summary["ranks"]:
        assert {name: of["calls"] for name, of in rank["attention"].items()} == {"forward": calls, "backward": calls}


def test_a_thousand_children(scene, told):
    plain = scene.end(scene.start(scene.trainer_line(STEPS, "return", "children")))
    watched = scene.end(scene.start([*scene.run_line(), *scene.trainer_line(STEPS, "return", "children")]))
    told("1000 short-lived children", scene, plain, watched)
    assert_conserved(watched.summary)
    assert [rank["steps"] for rank in watched.summary["ranks"]] == [40]


def test_a_command_that_goes_on_when_its_training_has_ended(scene):
    """An upload, say: the run is finished as far as alerts are concerned, and nobody is missing."""
    go = scene.folder / "go"
    goes_on = ["sh", "-c", f'"$@" && until [ -e {go} ]; do sleep 0.05; done', "sh"]
    process = scene.start([*scene.run_line(), *goes_on, *scene.trainer_line(STEPS, "return")])

    def state() -> str:
        address = json.loads((scene.base / RUN_ID / "agent.json").read_text())
        return json.loads(get(f"http://127.0.0.1:{address['port']}/api/v1/state"))["state"]

    wait_until(lambda: state() == "finished", of=process)
    go.touch()
    watched = scene.end(process)
    assert watched.said == []
    assert watched.summary["state"] == "finished"
    assert [rank["steps"] for rank in watched.summary["ranks"]] == [40]
    assert scene.left_files() == []
