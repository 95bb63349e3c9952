"""Rule 3: what cannot be sampled is skipped, counted with a reason, and the run goes on. Every count is counted:
calls = unsampled + skipped + sampled; sampled = judged + lost + in flight. The same sums over whole PyTorch trainings
are in tests/e2e."""

import json
import os
import signal
import subprocess

import monitored
import pytest
from scraping import wait_until
from segment_file import assert_calls_conserved, segments

UNKNOWN, FP8 = 10, 5  # FORESHOCK_SKIP_...


def attention(directory) -> dict:
    (segment,) = segments(directory)
    return segment.attention()


def test_without_an_agent_the_ring_fills_and_a_later_agent_goes_on(start_alone, base):
    trainer = start_alone(FORESHOCK_EVERY="1", FORESHOCK_MAX_SLOWDOWN="100%")
    trainer.do("hand.step(60)")
    directory = base / "alone"
    seen = attention(directory)
    (segment,) = segments(directory)
    assert {name: of["calls"] for name, of in seen.items()} == trainer.do("hand.calls")
    assert_calls_conserved(seen)
    assert sum(of["sampled"] for of in seen.values()) == segment.slots
    assert sum(of["judged"] for of in seen.values()) == 0

    agent = subprocess.Popen(
        [str(monitored.FORESHOCK), "agent", "--dir", str(directory), "--run-id", "alone", "--port", "0"],
        env=monitored.clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: sum(of["judged"] for of in attention(directory).values()) == segment.slots)
        trainer.do("hand.step(5)")  # there is room again
        wait_until(lambda: sum(of["sampled"] - of["judged"] for of in attention(directory).values()) == 0)
        assert sum(of["sampled"] for of in attention(directory).values()) > segment.slots
    finally:
        agent.kill()
        agent.wait()


def test_agent_killed_and_restarted_in_mid_run_loses_no_count(start_run, base):
    trainer = start_run("--every", "1", "--max-slowdown", "100%")
    agents = []
    for _ in range(3):
        trainer.do("hand.step(40)")
        address = json.loads((base / "me" / "agent.json").read_text())
        assert address["pid"] not in agents
        agents.append(address["pid"])
        os.kill(address["pid"], signal.SIGKILL)
        trainer.do("hand.step(40)")  # nobody reads
        wait_until(lambda: json.loads((base / "me" / "agent.json").read_text())["pid"] != agents[-1])
    truth = trainer.do("hand.calls")
    assert trainer.finish() == 0
    (rank,) = json.loads(trainer.summary.read_text())["ranks"]
    monitored.assert_conserved(rank)
    assert {name: of["calls"] for name, of in rank["attention"].items()} == truth
    assert rank["steps"] == 240
    assert rank["attention"]["forward"]["judged"] > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_after_a_signal_the_counts_are_whole_within_one(start_run, number):
    trainer = start_run("--every", "1", "--max-slowdown", "100%")
    trainer.do("hand.step(30)")
    truth = trainer.do("hand.calls")
    os.kill(trainer.pid, number)
    assert trainer.finish() == -number
    (rank,) = json.loads(trainer.summary.read_text())["ranks"]
    monitored.assert_conserved(rank)
    for name, of in rank["attention"].items():
        assert abs(of["calls"] - truth[name]) <= 1


def test_a_trainer_killed_in_the_middle_of_training_leaves_whole_sums(start_run, base):
    trainer = start_run("--every", "1", "--max-slowdown", "100%")
    trainer.do("hand.step(10)")
    before = trainer.do("hand.calls")
    trainer.do("import threading; threading.Thread(target=hand.step, args=(10**7,), daemon=True).start()")
    wait_until(lambda: attention(base / "me")["forward"]["calls"] > before["forward"])
    os.kill(trainer.pid, signal.SIGKILL)
    assert trainer.finish() == -signal.SIGKILL
    (rank,) = json.loads(trainer.summary.read_text())["ranks"]
    assert rank["attention"]["forward"]["calls"] > before["forward"]
    for of in rank["attention"].values():
        # The one call that the signal interrupted may stand in `calls` and nowhere else.
        counted = of["unsampled"] + of["sampled"] + sum(of["skipped"].values())
        assert 0 <= of["calls"] - counted <= 1, of
        assert of["sampled"] == of["judged"] + sum(of["lost"].values()) + of["in_flight"], of
        assert of["in_flight"] == 0, of


def test_reasons(start_alone, base):
    trainer = start_alone(FORESHOCK_EVERY="1", FORESHOCK_MAX_SLOWDOWN="100%")
    trainer.do("hand.step(1)")
    skipped = [trainer.do(f"hand.skip({reason})") for reason in (UNKNOWN, FP8, 4711)]
    assert skipped == [1, 1, 1], "not one call was wanted"
    seen = attention(base / "alone")
    assert seen["forward"]["skipped"]["unknown"] == 2  # a reason that does not exist is unknown
    assert seen["forward"]["skipped"]["fp8"] == 1
    assert_calls_conserved(seen)
    assert seen["forward"]["calls"] == trainer.do("hand.calls")["forward"]


def test_threads_do_not_lose_each_other_s_counts(start_alone, base):
    """More threads than there are blocks of their own: the last ones share one."""
    trainer = start_alone(FORESHOCK_EVERY="2", FORESHOCK_MAX_SLOWDOWN="100%")
    trainer.do("hand.step(1)")
    trainer.do(
        "import threading\n"
        "def work():\n"
        "    for _ in range(200): hand.library.hand_forward(1)\n"
        "threads = [threading.Thread(target=work) for _ in range(80)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()"
    )
    trainer.do("hand.step(1)")  # its end writes the counts of all threads
    seen = attention(base / "alone")
    assert_calls_conserved(seen)
    assert seen["forward"]["calls"] == 4 + 80 * 200


def test_calls_without_a_step_are_seen_while_the_program_runs(start_alone, base):
    """An evaluation, say: the counts in the file are at most about 100 ms and 128 calls old."""
    trainer = start_alone(FORESHOCK_EVERY="2", FORESHOCK_MAX_SLOWDOWN="100%")
    trainer.do("hand.step(1)")
    before = attention(base / "alone")["forward"]["calls"]
    trainer.do("import time\nfor _ in range(600):\n    hand.library.hand_forward(1)\n    time.sleep(0.001)")
    seen = attention(base / "alone")
    assert before + 600 - 128 - 200 <= seen["forward"]["calls"] <= before + 600
    assert_calls_conserved(seen)
    assert trainer.finish() == 0
    assert attention(base / "alone")["forward"]["calls"] == before + 600
