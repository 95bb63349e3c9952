"""`foreshock status`, `pause` and `resume` beside a live run."""

import json

from scraping import wait_until


def part(value: object, wanted: object) -> object:
    """`value` without the names that `wanted` does not have: the live state tells more."""
    if isinstance(value, dict) and isinstance(wanted, dict):
        return {name: part(value[name], wanted[name]) for name in wanted if name in value}
    return value


def shape(value: object) -> object:
    """The names that objects have; all else is a value, since what is unknown is null."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return "value"


def test_status_has_the_shape_of_the_summary(start_hand, foreshock):
    trainer = start_hand("me")
    trainer.do("hand.step(30)")

    def settled() -> dict:
        (state,) = json.loads(foreshock("status", "--json").stdout)
        return state if state["ranks"] and state["ranks"][0]["steps"] == 30 else {}

    state = wait_until(settled)
    (told,) = state["ranks"]
    assert (state["schema"], state["run"], state["state"], told["rank"]) == (1, "me", "running", 0)
    assert trainer.finish() == 0
    summary = json.loads(trainer.summary.read_text())
    (rank,) = summary["ranks"]
    assert shape(part(told, rank)) == shape(rank)
    assert {name: of["calls"] for name, of in told["attention"].items()} == {
        name: of["calls"] for name, of in rank["attention"].items()
    }
    assert set(summary) - {"record_complete", "other_ranks"} <= set(state)  # those are known at the end

    ended = foreshock("status", "--json")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "[]\n", "")
    assert foreshock("status").stderr == "foreshock: no live run\n"


def test_each_run_is_told_by_its_id(start_hand, foreshock):
    for name in ("first", "second"):
        start_hand(name).do("hand.step(2)")
    assert [run["run"] for run in json.loads(foreshock("status", "--json").stdout)] == ["first", "second"]
    (only,) = json.loads(foreshock("status", "--json", "--run-id", "second").stdout)
    assert only["run"] == "second"
    other = foreshock("status", "--run-id", "third")
    assert (other.returncode, other.stderr) == (1, "foreshock: no live run 'third'\n")


def test_pause_and_resume_show(start_hand, foreshock):
    trainer = start_hand("me")
    trainer.do("hand.step(10)")

    def switches() -> list[bool]:
        ranks = json.loads(foreshock("status", "--json").stdout)[0]["ranks"]  # null: the agent does not answer yet
        return [rank["on"] for rank in ranks or ()]

    wait_until(lambda: switches() == [True])
    assert "paused" not in foreshock("status").stdout
    assert foreshock("pause").stderr == "foreshock: paused 1 rank\n"
    wait_until(lambda: switches() == [False])
    assert "rank 0; foreshock resume continues" in foreshock("status").stdout
    trainer.do("hand.step(10)")
    assert foreshock("resume").stderr == "foreshock: resumed 1 rank\n"
    wait_until(lambda: switches() == [True])
    assert "paused" not in foreshock("status").stdout
    trainer.do("hand.step(10)")
    assert trainer.finish() == 0
    (rank,) = json.loads(trainer.summary.read_text())["ranks"]
    of = rank["attention"]["forward"]
    # A switch is looked at when a step ends: the step after the change may still be of the old kind.
    assert 16 <= of["skipped"]["off"] <= 22
    assert of["calls"] == 60


def test_two_runs_do_not_take_each_others_targets(start_hand, tmp_path):
    """In a directory each has its own file; a file given to both is the first one's, and the second run says so."""
    folder, file = tmp_path / "targets", tmp_path / "targets.json"
    folder.mkdir()
    runs_in = lambda path: [entry["labels"]["__meta_foreshock_run"] for entry in json.loads(path.read_text())]  # noqa: E731
    trainers = [start_hand(name, "--file-sd", str(folder)) for name in ("one", "two")]
    files = wait_until(lambda: len(found := sorted(folder.glob("*.json"))) == 2 and found)
    assert [runs_in(path) for path in files] == [["one"], ["two"]]
    assert [trainer.finish() for trainer in trainers] == [0, 0]
    wait_until(lambda: not list(folder.glob("*.json")))

    first = start_hand("first", "--file-sd", str(file))
    wait_until(file.exists)
    second = start_hand("second", "--file-sd", str(file))
    assert "targets.json is kept by another agent" in second.stderr()
    assert second.finish() == 0
    assert runs_in(file) == ["first"]
    assert first.finish() == 0
    wait_until(lambda: not file.exists())
