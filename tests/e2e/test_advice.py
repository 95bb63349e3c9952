"""What the detectors say reaches the trainer, and a trainer that listens ends better than its twin that does not."""

import concurrent.futures
import functools
import json
import math
import os
import pathlib
import signal
import time
from collections.abc import Callable

import pytest
from forked import forked
from monitored import PYTHON, ROOT, Run, run_monitored, run_plain
from records import record_lines
from scraping import wait_until
from tiers import keep

EXAMPLES = ROOT / "integrations" / "torch" / "examples"
HELPER = ROOT / "integrations" / "torch" / "python"
LIGHTNING = str(pathlib.Path(__file__).with_name("lightning_training.py"))
STEPS = {"rate": 440, "scores": 360}
# Scores are seen in slices, and a detector learns from eight of them.
EVERY_OTHER = ("--every", "2", "--max-slowdown", "100%")


def advice_of(trainer) -> dict | None:
    return trainer.do("(lambda advice: advice and advice._asdict())(foreshock.advice())")


def test_a_trainer_hears_of_the_layer_that_errs(base, start_hand):
    trainer = start_hand("heard")
    trainer.do(f"sys.path.insert(0, {str(HELPER)!r})")
    trainer.do("import foreshock")
    trainer.do("hand.step(4)")
    quiet = wait_until(lambda: advice_of(trainer))
    assert (quiet["level"], quiet["detector"], quiet["layer"], quiet["rank"]) == ("quiet", None, None, None)
    trainer.do("hand.plant(1.01)")
    trainer.do("hand.step(4)")

    def warning() -> dict | None:
        advice = advice_of(trainer)
        return advice if advice["level"] == "warn" else None

    heard = wait_until(warning)
    assert heard["detector"].startswith("deviation_")
    assert heard["rank"] == 0
    assert 5 <= heard["since_step"] <= 8 < heard["from_step"]
    assert heard["score"] >= 1
    # An agent that stands still: what it said stays, and the trainer sees that it is of then.
    agent = json.loads((base / "heard" / "agent.json").read_text())["pid"]
    os.kill(agent, signal.SIGSTOP)
    try:
        trainer.do("hand.step(50)")
        late = advice_of(trainer)
        assert late["age_steps"] >= 50
        assert late["since_step"] == heard["since_step"]
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_until(lambda: advice_of(trainer)["age_steps"] == 0)
    assert trainer.finish() == 0


def test_without_a_monitor_there_is_no_advice():
    program = "import foreshock; print(foreshock.advice())"
    alone = run_plain([PYTHON, "-c", program], PYTHONPATH=str(HELPER))
    assert (alone.returncode, alone.stdout) == (0, "None\n"), alone.stderr
    off = run_monitored([PYTHON, "-c", program], FORESHOCK="0", PYTHONPATH=str(HELPER))
    assert (off.returncode, off.stdout) == (0, "None\n"), off.stderr


def plain_loop(training: str, *words: str) -> Run:
    words = ("--patient", "--steps", str(STEPS[training]), *words)
    return run_monitored(forked(str(EXAMPLES / "plain_loop.py"), training, *words), *EVERY_OTHER)


def end_of(run: Run) -> dict:
    return run.told()[-1]


def warnings_of(run: Run) -> list[dict]:
    return [line["warning"] for line in run.told() if "warning" in line]


@pytest.fixture(scope="module")
def deaf() -> Callable[[str], Run]:
    """Runs a loop that ignores the warnings, once for each kind of training."""
    return functools.cache(plain_loop)


@pytest.mark.parametrize("name", keep(["rate", "scores"], "rate"))
def test_who_does_not_listen_loses_the_loss(deaf, name):
    assert not math.isfinite(end_of(deaf(name))["loss"])


@pytest.mark.parametrize("action", keep(["lower-rate", "roll-back"], "lower-rate"))
def test_a_loop_that_lowers_its_rate_ends_with_a_loss(action):
    run = plain_loop("rate", "--on-warning", action)
    assert math.isfinite(end_of(run)["loss"])
    first = warnings_of(run)[0]
    assert first["level"] == "warn"
    assert first["detector"] in ("gradient_growth", "gradient_norm")
    if action == "roll-back":
        assert end_of(run)["steps"] < STEPS["rate"]
        assert end_of(run)["loss"] < 2  # at the start 1.4: nor is it a net that has forgotten what it knew
        assert any(event["event"] == "resumed" for event in run.of("event"))
    else:
        assert end_of(run)["steps"] == STEPS["rate"]


@pytest.mark.long
def test_a_loop_that_raises_the_precision_of_the_layer_ends_with_a_loss():
    run = plain_loop("scores", "--on-warning", "raise-precision")
    assert math.isfinite(end_of(run)["loss"])
    assert {warning["layer"] for warning in warnings_of(run)} == {"001"}


@pytest.mark.long
def test_a_checkpoint_at_the_warning_is_whole(tmp_path):
    import torch

    path = tmp_path / "warned.pt"
    run = plain_loop("rate", "--on-warning", "checkpoint", "--checkpoint", str(path))
    assert not math.isfinite(end_of(run)["loss"]), "a checkpoint alone changes nothing"
    state = torch.load(path)
    assert state["step"] < STEPS["rate"]
    assert all(bool(tensor.isfinite().all()) for tensor in state["model"].values())


@pytest.mark.long
@pytest.mark.parametrize(
    ("action", "training"),
    [("checkpoint", "rate"), ("lower-rate", "rate"), ("roll-back", "rate"), ("raise-precision", "scores")],
)
def test_the_callback_for_lightning_does_the_same(action, training, tmp_path):
    command = [PYTHON, LIGHTNING, action, training, str(STEPS[training]), str(tmp_path)]
    (told,) = run_monitored(command, *EVERY_OTHER).told()
    assert told["warnings"]
    saved = [path.name for path in tmp_path.iterdir()]
    if action == "checkpoint":
        assert not math.isfinite(told["loss"]), "as without it"
        assert f"warned-{told['warnings'][0]['since_step']}.ckpt" in saved
    else:
        assert math.isfinite(told["loss"])
        assert saved == []


@pytest.mark.long
def test_a_detector_that_rises_makes_a_burst_that_ends(base, start_hand):
    trainer = start_hand("burst", "--every", "0")  # the agent chooses, at most one step in 8

    def lines(kind: str) -> list[dict]:
        return [line for line in record_lines(trainer.record) if line["type"] == kind]

    def bursts() -> list[dict]:
        step()
        return [line for line in lines("event") if line["event"] == "burst"]

    def step() -> None:
        trainer.do("hand.step()")
        time.sleep(0.02)  # in which the agent empties the ring

    begin = time.monotonic()

    def has_settled() -> bool:
        """The agent learns every two seconds what a sampled step costs."""
        trainer.do("hand.step(4)")
        return time.monotonic() - begin > 6 and len(lines("sample")) > 16

    wait_until(has_settled)
    trainer.do("hand.plant(1.01)")
    burst = wait_until(bursts)[0]
    for _ in range(100):
        step()
    assert trainer.finish() == 0
    interval = {line["step"]: line["sample_interval_steps"] for line in lines("step")}
    first = burst["step"]
    assert burst["value"] == 1
    assert {interval[step] for step in range(first, first + 32)} == {1}
    assert {interval[step] for step in interval if not first <= step < first + 32} == {8}
    sampled = {line["step"] for line in lines("sample")}
    # Outside of the burst there are 4 of them in 32 steps; the ring may still be full now and then.
    assert len(sampled & set(range(first, first + 32))) >= 16
    first_look = range(2, 10)
    assert {step % 8 for step in sampled if step not in first_look and not first <= step < first + 32} == {0}


RANK = """
import sys
import foreshock
from foreshock_torch.advice import Advice
from torch import distributed
rank = int(sys.argv[1])
heard = [
    [None, Advice("warn", "bias", "003", 5, 90, 120, 2, 1.5)],
    [Advice("quiet", None, None, None, 0, 0, 1, 0.0), Advice("watch", "bias", "001", 0, 10, 14, 300, 0.8)],
    [Advice("warn", "max_logit", "001", 1, 95, 99, 0, 1.1), Advice("warn", "bias", "003", 5, 90, 94, 2, 1.5)],
]
from listen import agreed_advice
distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
for each in heard:
    foreshock.advice = lambda each=each: each[rank]
    print(agreed_advice(), flush=True)
distributed.barrier()
distributed.destroy_process_group()
"""


def test_ranks_that_hear_different_agents_agree(tmp_path):
    more = {"PYTHONPATH": f"{HELPER}:{EXAMPLES}"}
    command = [PYTHON, "-c", RANK]
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        runs = list(two.map(lambda rank: run_plain([*command, str(rank), str(tmp_path / "meet")], **more), range(2)))
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    first, second = (run.stdout.splitlines() for run in runs)
    assert first == second
    alone, _, both = first
    assert "detector='bias', layer='003', rank=5, since_step=90, from_step=120" in alone
    # The earliest warning, at the step that is late enough for both.
    assert "detector='bias', layer='003', rank=5, since_step=90, from_step=99" in both
    assert first[1] == "None", "nobody warns"
