"""Summary, page, status and report tell the same findings of a run, and so does a report on a record that lost its
verdict."""

import json
import math
import pathlib

import pytest
from hand_training import BIASED, Training
from live import Live
from records import record_lines
from scraping import get, wait_until
from tiers import keep

NAMES = ("finding", "headline", "text", "action", "layer", "tensor", "rank", "since_step", "last_step", "unit")
NUMBERS = ("largest", "relative_error")

# What a training does: pairs of a number of steps and what they are like. plant: the factor by which the kernel is
# wrong from here on. step: the number from which steps are counted from here on.
TRAININGS = {
    "sound": [(150, {})],
    "short": [(10, {})],
    "biased": [(150, {}), (40, {"plant": BIASED})],
    "wrong by 1 %": [(150, {}), (40, {"plant": 1.01})],
    "wrong from the start": [(60, {"plant": 1.5})],
    "wrong for a while": [(150, {}), (20, {"plant": 1.25}), (80, {"plant": 1})],
    "wrong, then more so": [(100, {}), (30, {"plant": 1.02}), (30, {"plant": 1.3})],
    "wrong again": [(50, {"plant": 1.2}), (150, {"plant": 1}), (30, {"plant": 1.2})],
    "NaN in attention": [(100, {}), (20, {"plant": math.nan})],
    "Inf in attention": [(100, {}), (20, {"plant": math.inf}), (100, {"plant": 1})],
    "loss spike": [(150, {}), (10, {"loss": 9.0}), (100, {})],
    "two loss spikes": [(150, {}), (10, {"loss": 9.0}), (100, {}), (10, {"loss": 12.0}), (50, {})],
    "loss climbs": [(150, {}), *[(20, {"loss": 2.0 * 1.04**n}) for n in range(1, 13)]],
    "NaN loss": [(150, {}), (20, {"loss": math.nan})],
    "NaN loss for a while": [(150, {}), (10, {"loss": math.nan}), (60, {})],
    "spike, then NaN": [(150, {}), (10, {"loss": 9.0}), (30, {"loss": math.nan})],
    "gradient jumps": [(150, {}), (40, {"gradient": 30.0})],
    "gradient not finite": [(150, {}), (20, {"gradient": math.inf})],
    "wrong, then a spike": [(150, {}), (40, {"plant": 1.25}), (10, {"loss": 9.0}), (50, {})],
    "resumed, then wrong": [(150, {}), (60, {"step": 40}), (30, {"plant": 1.25})],
}
WITHOUT_FINDING = ("sound", "short", "gradient jumps", "gradient not finite")
DEFAULT = (
    "sound", "biased", "wrong for a while", "wrong, then more so", "NaN in attention", "two loss spikes",
    "NaN loss for a while", "spike, then NaN", "wrong again", "resumed, then wrong",
)  # fmt: skip


def told(findings: list[dict]) -> list[dict]:
    return [{name: each[name] for name in NAMES + NUMBERS} for each in findings]


def rounded(findings: list[dict]) -> list[dict]:
    """A report rounds numbers to six digits."""
    numbers = [{name: each[name] and pytest.approx(each[name], rel=1e-5) for name in NUMBERS} for each in findings]
    return [each | of for each, of in zip(findings, numbers, strict=True)]


def train(base: pathlib.Path, trainer: Live, name: str) -> Training:
    training = Training(base, trainer)
    for steps, how in TRAININGS[name]:
        how = dict(how)
        training.step = how.pop("step", training.step)
        if "plant" in how:
            trainer.do(f"hand.plant(float({str(how.pop('plant'))!r}))")
        training.run(steps, **how)
    training.settle()
    return training


@pytest.mark.parametrize("name", keep(TRAININGS, *DEFAULT))
def test_all_views_of_a_run_tell_the_same_findings(base, start_hand, foreshock, tmp_path, name):
    trainer = start_hand("me")
    training = train(base, trainer, name)
    address = json.loads((training.directory / "agent.json").read_text())
    steps = sum(steps for steps, _ in TRAININGS[name])

    def views() -> list[list[dict]]:
        """Of status and page, which are made once a second."""
        (status,) = json.loads(foreshock("status", "--json").stdout)
        page = json.loads(get(f"http://127.0.0.1:{address['port']}/api/v1/state"))
        are_up_to_date = all(state["ranks"][0]["steps"] == steps for state in (status, page))
        return [told(state["findings"]) for state in (status, page)] if are_up_to_date else []

    def report(record: pathlib.Path) -> dict:
        done = foreshock("report", "--json", str(record))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    live = wait_until(views)
    assert trainer.finish() == 0
    summary = json.loads(trainer.summary.read_text())
    findings = told(summary["findings"])
    assert bool(findings) == (name not in WITHOUT_FINDING)
    assert live == [findings, findings]
    whole = report(trainer.record)
    assert (whole["verdict_from"], told(whole["findings"])) == ("agent", rounded(findings))
    lines = [line for line in record_lines(trainer.record) if line["type"] not in ("finding", "verdict")]
    without_verdict = tmp_path / "without.jsonl"
    without_verdict.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replayed = report(without_verdict)
    assert (replayed["verdict_from"], told(replayed["findings"])) == ("report", rounded(findings))
