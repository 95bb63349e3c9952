"""Weights, live: what the record says of every tensor against the same computed from the weights themselves."""

from pathlib import Path

import pytest
from forked import forked
from monitored import EVERYTHING, PYTHON, Run, run_monitored, run_plain, unwrapped
from scraping import wait_until
from tiers import keep
from weight_checks import check_lines, check_models

TRAINING = str(Path(__file__).with_name("weights_training.py"))
REPLICAS = str(Path(__file__).with_name("replicas_training.py"))
SUPPORT = {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
STEPS = 8


def torchrun(ranks: int) -> list[str]:
    return [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]


def train(folder: Path, kind: str, *more: str, ranks: int = 1, interval: int = 1, options: tuple[str, ...] = ()) -> Run:
    training = [TRAINING, str(folder), str(STEPS), kind, *more]
    command = [*torchrun(ranks), *training] if ranks > 1 else forked(*training)
    run = run_monitored(command, *EVERYTHING, "--weights", str(interval), *options, **SUPPORT)
    assert run.returncode == 0, run.stderr
    return run


@pytest.mark.parametrize("kind", keep(["plain", "bf16"], "plain"))
def test_one_rank(tmp_path, kind):
    run = train(tmp_path, kind)
    check_lines(tmp_path, run, 1, STEPS)
    check_models(tmp_path, run, 1, STEPS)
    plain = run_plain(forked(TRAINING, str(tmp_path), str(STEPS), kind), **SUPPORT)
    assert run.told() == plain.told(), "the same bits"
    weights = run.rank()["weights"]
    assert weights["snapshots"] == len(run.of("tensor"))
    assert weights["wasserstein_previous"] > 0
    assert weights["replicas_compared"] == 0
    known = [line for line in run.of("tensor") if line["previous_step"] is not None]
    for line in known if kind == "bf16" else []:  # exact but for the rounding of the distance itself
        low, high = (line[f"wasserstein_previous_{end}"] for end in ("low", "high"))
        assert high == pytest.approx(low, rel=1e-9)


def test_tensors_take_turns(tmp_path):
    run = train(tmp_path, "plain", interval=3)
    check_lines(tmp_path, run, 3, STEPS)
    check_models(tmp_path, run, 3, STEPS)
    assert len({line["step"] % 3 for line in run.of("tensor")}) == 3


def test_replicas_count_once_and_agree(tmp_path):
    run = train(tmp_path, "ddp", ranks=2)
    check_lines(tmp_path, run, 1, STEPS)
    check_models(tmp_path, run, 1, STEPS)
    compared = run.rank(0)["weights"]["replicas_compared"]
    assert compared == run.rank(1)["weights"]["snapshots"] == len(run.of("tensor"))
    assert [run.rank(rank)["weights"]["mismatches"] for rank in range(2)] == [0, 0]
    assert run.rank(1)["weights"]["replicas"] == "here"
    tensors = run.rank(0)["weights"]["tensors"]
    assert run.rank(0)["weights"]["replica_tensors"] == tensors
    agreed = f"2 ranks agree bit for bit: {tensors} of {tensors} tensors compared ({compared} comparisons)"
    assert agreed in unwrapped(run.stderr)


def test_shards_are_put_together(tmp_path):
    run = train(tmp_path, "fsdp", ranks=2)
    check_lines(tmp_path, run, 1, STEPS)
    check_models(tmp_path, run, 1, STEPS)
    assert {line["parts"] for line in run.of("tensor")} == {2}
    assert run.rank(0)["weights"]["replicas_compared"] == 0, "a full shard has no replicas"
    assert run.rank(0)["weights"]["replicas"] == "none"
    assert "none: each value is held once, nothing to compare" in unwrapped(run.stderr)


@pytest.mark.long
def test_replicas_of_shards_agree(tmp_path):
    """Hybrid sharding: two replicas of two shards."""
    run = train(tmp_path, "hsdp", ranks=4)
    check_lines(tmp_path, run, 1, STEPS)
    check_models(tmp_path, run, 1, STEPS)
    assert {line["parts"] for line in run.of("tensor")} == {2}
    weights = run.rank(3)["weights"]
    assert (weights["replicas"], weights["replica_ranks"], weights["mismatches"]) == ("here", 2, 0)
    assert "2 ranks agree bit for bit: " in unwrapped(run.stderr)


def test_one_flipped_bit_is_found_at_the_next_step_and_names_its_rank(tmp_path):
    alerted = tmp_path / "alerted"
    on_alert = f'echo "$FORESHOCK_ALERT_EVENT of rank $FORESHOCK_ALERT_RANK" >> {alerted}'
    run = train(tmp_path, "ddp", "flip", "1", "4", ranks=3, options=("--on-alert", on_alert))
    odd = [line for line in run.of("tensor") if line["odd_ranks"]]
    assert [(line["tensor"], line["step"], line["odd_ranks"]) for line in odd] == [
        ("blocks.1.up.weight", step, [1]) for step in range(5, STEPS + 1)
    ]
    assert [run.rank(rank)["weights"]["mismatches"] for rank in range(3)] == [0, STEPS - 4, 0]
    finding = f"rank 1: weights differ from those of its replicas ({STEPS - 4} times) since step 5"
    assert f"REPLICAS DIFFER finding {finding}. Do: go back to a checkpoint before the first" in unwrapped(run.stderr)
    (verdict,) = run.of("verdict")
    assert verdict["verdict"] == "REPLICAS DIFFER"
    assert verdict["replicas_compared"] > 0
    assert [line["text"] for line in run.of("finding") if line["state"] == "final"] == [finding]
    events = [event for event in run.of("event") if event["event"] == "weight_mismatch"]
    assert [event["step"] for event in events] == list(range(5, STEPS + 1))
    assert {event["layer"] for event in events} == {"001"}
    wait_until(lambda: alerted.exists() and alerted.read_text())  # the command may outlast the run
    assert alerted.read_text() == "replicas_differ of rank 1\n"


@pytest.mark.long
def test_replicas_that_the_training_keeps_equal_itself_are_compared(tmp_path):
    run = train(tmp_path, "hand", ranks=2)
    tensors = run.rank(0)["weights"]["tensors"]
    said = f"2 ranks agree bit for bit: {tensors} of {tensors} tensors compared"
    assert said in unwrapped(run.stderr)
    assert f"{tensors} of them kept equal by the training itself" in unwrapped(run.stderr)


@pytest.mark.long
def test_a_flipped_bit_of_such_a_replica_is_found(tmp_path):
    run = train(tmp_path, "hand", "flip", "1", "5", ranks=2)
    assert "REPLICAS DIFFER" in run.stderr, run.stderr
    found = {event["step"] for event in run.of("event") if event["event"] == "weight_mismatch"}
    assert min(found) == 6


@pytest.mark.parametrize("room", keep(["default", "little"], "little"))
def test_a_broken_replica_is_found_within_two_looks_whatever_the_room(tmp_path, room):
    options = ("--memory", "5MiB") if room == "little" else ()
    run = train(tmp_path, "ddp", "flip", "1", "3", ranks=2, interval=2, options=options)
    found = {event["step"] for event in run.of("event") if event["event"] == "weight_mismatch"}
    assert min(found, default=99) <= 3 + 2 * 2, run.stderr
    weights = run.rank(0)["weights"]
    if room == "little":
        assert weights["skipped"]["ring_full"] > 0, weights
    assert weights["replica_tensors"] == weights["tensors"]


@pytest.mark.long  # tests/agent/replicas_test.cpp shows what is compared
@pytest.mark.parametrize("kind", ["parts", "local_sgd", "zero", "report", "report_one"])
def test_a_healthy_job_whose_ranks_differ_raises_no_alarm(kind):
    command = [*torchrun(2), REPLICAS, "12", kind]
    run = run_monitored(command, *EVERYTHING, "--weights", "2", **SUPPORT)
    assert run.returncode == 0, run.stderr
    weights = [run.rank(rank)["weights"] for rank in (0, 1)]
    assert [each["mismatches"] for each in weights] == [0, 0]
    assert not [event for event in run.of("event") if event["event"] == "weight_mismatch"]
    assert all(each["snapshots"] > 0 for each in weights)
    if kind in ("local_sgd", "report_one"):
        assert weights[0]["replicas_compared"] == 0
    else:
        assert weights[0]["replicas_compared"] > 0, "what is a replica is compared all the same"
    seen = [(line["tensor"], line["step"]) for line in run.of("tensor")]
    assert len(seen) == len(set(seen))
    if kind == "parts":
        apart = {name for name, _ in seen if name.startswith("rank")}
        own = ("expert.weight", "expert.bias", "weight", "bias")
        assert apart == {f"rank{rank}.{name}" for rank in (0, 1) for name in own}
