"""An agent that is told to end in the middle of a run is replaced, and nothing is lost or told twice."""

import json
import os
import signal

from monitored import assert_conserved, copy_installation
from records import record_lines
from scraping import wait_until
from segment_file import segments


def test_sigterm_of_the_agent_is_no_end_of_the_run(base, start_hand):
    trainer = start_hand("me")
    agents = []

    def agent() -> int:
        return json.loads((base / "me" / "agent.json").read_text())["pid"]

    def all_judged() -> bool:
        counts = [of for each in segments(base / "me") for of in each.attention().values()]
        return bool(counts) and all(of["sampled"] == of["judged"] > 0 for of in counts)

    for _ in range(3):
        trainer.do("hand.step(20)")
        wait_until(all_judged)
        agents.append(agent())
        os.kill(agents[-1], signal.SIGTERM)
        trainer.do("hand.step(20)")  # while nobody reads
        wait_until(lambda: agent() not in agents)
    trainer.do("hand.step(20)")
    calls = trainer.do("hand.calls")
    assert trainer.finish() == 0
    assert len(set(agents)) == 3
    summary = json.loads(trainer.summary.read_text())
    assert summary["state"] == "finished"
    (rank,) = summary["ranks"]
    assert_conserved(rank)
    assert (rank["steps"], rank["steps_lost"]) == (140, 0)
    assert {name: of["calls"] for name, of in rank["attention"].items()} == calls
    for of in rank["attention"].values():
        assert of["sampled"] == of["judged"] > 0

    lines = record_lines(trainer.record)
    samples = [line["ticket"] for line in lines if line["type"] == "sample" and line["tensor"] in ("out", "grad_query")]
    assert len(samples) == len(set(samples)) == sum(of["judged"] for of in rank["attention"].values())
    assert [line["step"] for line in lines if line["type"] == "step"] == list(range(1, 141))
    ended = [line["state"] for line in lines if line["type"] == "run"].count("ended")
    assert ended == 1, "an agent that ends is no rank that ends"


def test_agent_that_dies_for_good_is_said_with_the_end_of_the_record(base, start_hand, tmp_path):
    foreshock = copy_installation(tmp_path / "installation")
    trainer = start_hand("me", foreshock=foreshock)

    def agent() -> int:
        return json.loads((base / "me" / "agent.json").read_text())["pid"]

    def recorded() -> list[int]:
        lines = record_lines(trainer.record)
        return [line["step"] for line in lines if line["type"] == "step"]

    trainer.do("hand.step(20)")
    wait_until(lambda: recorded() == list(range(1, 21)))
    foreshock.unlink()  # the launcher tries to start another one, and gives up
    os.kill(agent(), signal.SIGKILL)
    trainer.do("hand.step(20)")
    assert trainer.finish() == 0
    errors = trainer.stderr()
    assert "foreshock: no summary: the agent died before the run ended (its log ends: " in errors
    assert f"foreshock: {trainer.record} ends at step 20: foreshock report {trainer.record}\n" in errors
