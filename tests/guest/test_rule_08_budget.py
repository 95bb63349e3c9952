"""Rule 8: the cost is metered where it is spent and enforced in the trainer itself, agent or no agent."""

import pytest
from segment_file import assert_calls_conserved, segments

STEPS, LAYERS = 300, 8
FIRST_LOOK = 1 << 29  # of `given`, segment/layout.h


TRAIN = f"hand.step({STEPS}, layers={LAYERS})"


def assert_limit_held(segment, limit: float) -> None:
    """Every step was to be sampled. A call here takes some 20 us and 10 more when it is sampled; one that is only
    counted is charged 0.5 us, which stays below the limits asked for."""
    seen = segment.attention()
    assert_calls_conserved(seen)
    skipped = sum(of["skipped"]["budget"] for of in seen.values())
    sampled_steps = sum(step["sampled"] for step in segment.steps())
    assert skipped == 2 * LAYERS * (STEPS - 1 - sampled_steps)  # the first step has no number and is not sampled
    assert skipped > 0
    assert_paid(segment.steps()[2:], limit)  # the first two hold the set-up


def assert_paid(steps: list[dict], limit: float) -> None:
    ours, all_of_it = (sum(step[field] for step in steps) for field in ("cost_ns", "duration_ns"))
    # Debts are paid after they are made: what the dearest sampled step cost may stand above the limit at the end.
    dearest = max(step["cost_ns"] for step in steps)
    allowed = limit * (all_of_it - ours) + dearest + forgiven_ns(steps, limit)
    assert ours <= allowed, (ours, all_of_it, allowed)


def forgiven_ns(steps: list[dict], limit: float) -> float:
    """Debt beyond the earnings of 64 steps is not paid, so that no stall stops the sampling for long (Ledger in
    libmonitor/ledger.h). On a busy machine the time that others had while we copied is such a debt."""
    forgiven = balance = mean = 0.0
    for step in steps:
        trainer = step["duration_ns"] - step["cost_ns"]
        mean += (trainer - mean) * (0.1 if mean else 1)
        balance = min(balance + limit * trainer - step["cost_ns"], 0)
        least = -64 * limit * mean
        forgiven += max(least - balance, 0)
        balance = max(balance, least)
    return forgiven


@pytest.mark.parametrize("limit", [0.08, 0.15])
def test_the_limit_holds_without_an_agent(start_alone, base, limit):
    trainer = start_alone(FORESHOCK_EVERY="1", FORESHOCK_MAX_SLOWDOWN=str(limit))
    trainer.do(TRAIN)
    assert_limit_held(segments(base / "alone")[0], limit)


def test_the_limit_holds_while_an_agent_makes_room_for_more(start_run, base):
    trainer = start_run("--every", "1", "--max-slowdown", "8%")
    trainer.do(TRAIN)
    assert_limit_held(segments(base / "me")[0], 0.08)


def test_everything_may_be_asked_for(start_alone, base):
    trainer = start_alone(FORESHOCK_EVERY="1", FORESHOCK_MAX_SLOWDOWN="100%")
    trainer.do("hand.step(50)")
    (segment,) = segments(base / "alone")
    assert sum(of["skipped"]["budget"] for of in segment.attention().values()) == 0
    assert all(step["sampled"] for step in segment.steps()[1:])


def test_sampled_steps_are_the_same_on_every_rank_and_rerun(start_alone, base):
    """Absolute step mod N = 0, wherever a run begins."""
    for rank, begin in ((0, 1), (1, 13)):
        trainer = start_alone(RANK=str(rank), FORESHOCK_EVERY="8", FORESHOCK_MAX_SLOWDOWN="100%")
        trainer.do(f"hand.step(40, number={begin})")
        trainer.finish()
    for segment in segments(base / "alone"):
        sampled = [step["step"] for step in segment.steps() if step["sampled"]]
        assert sampled
        assert sampled == [step["step"] for step in segment.steps()[1:] if step["step"] % 8 == 0]


def test_the_first_look_takes_no_more_than_its_grant(start_alone, base):
    """At default options the first steps are sampled whatever they cost; then the limit holds."""
    trainer = start_alone(FORESHOCK_EVERY="0", FORESHOCK_MAX_SLOWDOWN="15%")
    trainer.do(TRAIN)
    (segment,) = segments(base / "alone")
    assert_calls_conserved(segment.attention())
    looked = [step for step in segment.steps() if step["given"] & FIRST_LOOK]
    assert [step["step"] for step in looked if step["sampled"]] == list(range(2, 2 + len(looked) - 1))
    assert 1 < len(looked) <= 9
    assert sum(step["cost_ns"] for step in looked) <= 0.5e9 + max(step["cost_ns"] for step in looked)
    assert_paid(segment.steps()[len(looked) :], 0.15)
