"""Rule 7: the kill switch, at any time."""

import json

from scraping import wait_until
from segment_file import assert_calls_conserved, segments


def test_foreshock_0_for_run(start_run, base):
    trainer = start_run(FORESHOCK="0")
    trainer.do("hand.step(5)")
    assert trainer.do("os.environ.get('LD_PRELOAD')") is None
    assert trainer.finish() == 0
    assert trainer.stderr() == ""
    assert not list(base.iterdir())


def test_foreshock_0_for_a_trainer_that_is_set_up(start_alone, base):
    trainer = start_alone(FORESHOCK="0", FORESHOCK_EVERY="1")
    trainer.do("hand.step(5)")
    assert not list((base / "alone").iterdir())


def test_pause_and_resume_a_live_run(start_run, base, foreshock):
    trainer = start_run("--every", "1", "--max-slowdown", "100%")
    trainer.do("hand.step(20)")
    assert foreshock("pause", "--run-id", "me").stderr == "foreshock: paused 1 rank\n"
    trainer.do("hand.step(1)")  # the switch is looked at where a step begins
    (before,) = segments(base / "me")
    trainer.do("hand.step(20)")
    (paused,) = segments(base / "me")
    for name, of in paused.attention().items():
        assert of["sampled"] == before.attention()[name]["sampled"]
        assert of["skipped"]["off"] == before.attention()[name]["skipped"]["off"] + 40
        assert of["calls"] == before.attention()[name]["calls"] + 40
    assert trainer.do("hand.forward()") == 0

    def all_judged() -> bool:
        return all(of["judged"] == of["sampled"] for of in segments(base / "me")[0].attention().values())

    wait_until(all_judged)  # so that there is room for new samples
    assert foreshock("resume", "--run-id", "me").stderr == "foreshock: resumed 1 rank\n"
    trainer.do("hand.step(20)")
    (resumed,) = segments(base / "me")
    assert_calls_conserved(resumed.attention())
    for name, of in resumed.attention().items():
        assert of["sampled"] > paused.attention()[name]["sampled"]
        assert of["skipped"]["off"] <= paused.attention()[name]["skipped"]["off"] + 3
    truth = trainer.do("hand.calls")
    trainer.finish()
    (rank,) = json.loads(trainer.summary.read_text())["ranks"]
    assert {name: of["calls"] for name, of in rank["attention"].items()} == truth


def test_paused_run_tells_so(start_run, foreshock):
    trainer = start_run("--every", "1", "--max-slowdown", "100%")
    trainer.do("hand.step(2)")
    foreshock("pause")
    trainer.do("hand.step(2000)")  # more than the 1024 calls between two looks at the switch
    status = foreshock("status")
    assert "me" in status.stdout
    trainer.finish()
    assert " off" in trainer.stderr()
