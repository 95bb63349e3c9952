"""Rules 1 and 3: the monitor changes no bit of a training, and its counts are those of the training.

Every case is run three times: plain, plain again (with torch's profiler, which counts the attention operations by
its own means), and monitored with every call sampled. The second plain run of a compiled case takes what the
monitored one has compiled: what was cached under the monitor works without it.
"""

import collections
import concurrent.futures
import dataclasses
import pathlib

import pytest
from monitored import EVERYTHING_AND_WEIGHTS, PYTHON, Run, assert_conserved, run_monitored, run_plain
from tiers import keep

STEPS = 8
CASES = [
    "eager",
    "accumulation",
    "checkpoint",
    "checkpoint_reentrant",
    "compiled_model",
    "compiled_optimizer",
    "ddp",
]
COMPILED = ["compiled_model", "compiled_optimizer"]
KEPT = ("accumulation",)  # test_conserved.py compares the bits of two ranks under DDP
LAYERS = {"compiled_model": 2, "compiled_optimizer": 1}  # else 3
# Forward calls: layers x micro-batches x steps x recomputation; backward ones without the recomputation.
MICRO_BATCHES = {"accumulation": 4}
RECOMPUTATION = {"checkpoint": 2, "checkpoint_reentrant": 2}
SCRIPT = str(pathlib.Path(__file__).with_name("bits_training.py"))


def expected_calls(case: str) -> dict[str, int]:
    backward = LAYERS.get(case, 3) * MICRO_BATCHES.get(case, 1) * STEPS
    return {"forward": backward * RECOMPUTATION.get(case, 1), "backward": backward}


@dataclasses.dataclass
class Trainings:
    plain: Run
    again: Run  # profiled
    monitored: Run
    plain_keys: list[str]  # of torch's compile caches
    monitored_keys: list[str]


def train(case: str, scratch: pathlib.Path) -> Trainings:
    command = [PYTHON]
    if case == "ddp":
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [SCRIPT, case]
    caches = {name: {"TORCHINDUCTOR_CACHE_DIR": str(scratch / name)} for name in ("plain", "monitored")}

    def keys(name: str) -> list[str]:
        return sorted(str(path.relative_to(scratch / name)) for path in (scratch / name).glob("*graph/*/*"))

    with concurrent.futures.ThreadPoolExecutor(2) as two:
        plain = two.submit(run_plain, command, **caches["plain"])
        monitored = two.submit(run_monitored, command, *EVERYTHING_AND_WEIGHTS, **caches["monitored"])
    kept = keys("plain"), keys("monitored")
    again = run_plain([*command, "--profile"], **caches["monitored"])
    return Trainings(plain.result(), again, monitored.result(), *kept)


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory):
    """trainings(case): its three runs, made once."""
    made: dict[str, Trainings] = {}

    def get(case: str) -> Trainings:
        if case not in made:
            made[case] = train(case, tmp_path_factory.mktemp(case))
        return made[case]

    return get


def bits(run: Run) -> list[tuple]:
    return sorted((told.get("rank", 0), told["digest"], told["losses"]) for told in run.told())


def ranks(case: str) -> range:
    return range(2 if case == "ddp" else 1)


@pytest.mark.parametrize("case", keep(CASES, *KEPT))
def test_every_bit_is_the_same(trainings, case):
    runs = trainings(case)
    assert len(bits(runs.plain)) == len(ranks(case))
    assert bits(runs.plain) == bits(runs.again)
    assert bits(runs.plain) == bits(runs.monitored)
    losses = runs.plain.told()[0]["losses"]
    assert losses[-1] < 0.8 * losses[0]  # a training, not a fixed point


@pytest.mark.parametrize("case", keep(CASES, *KEPT))
def test_every_call_is_counted_and_every_sample_judged(trainings, case):
    runs = trainings(case)
    for rank in ranks(case):
        seen = runs.monitored.rank(rank)
        assert_conserved(seen)
        calls = {name: of["calls"] for name, of in seen["attention"].items()}
        assert calls == expected_calls(case)
        for name, of in seen["attention"].items():
            # The number of the first step is not known before its end; later calls find a slot unless the agent is
            # starved of the machine.
            assert of["unsampled"] >= calls[name] // STEPS, (name, of)
            assert of["judged"] == of["sampled"] > calls[name] // 2, (name, of)
        assert seen["steps"] == seen["step"] == STEPS
        assert [line["step"] for line in runs.monitored.of("step") if line["rank"] == rank] == list(range(1, STEPS + 1))


def order_of_layers(case: str) -> list[tuple[str, int]]:
    """The calls of one micro-batch."""
    forward = [("forward", layer) for layer in range(LAYERS.get(case, 3))]
    backward = [("backward", layer) for _, layer in reversed(forward)]
    if case not in RECOMPUTATION:
        return forward + backward
    return forward + [call for one in backward for call in (("forward", one[1]), one)]


@pytest.mark.parametrize("case", keep(CASES, *KEPT))
def test_samples_name_their_layer(trainings, case):
    order = order_of_layers(case)
    sources = collections.Counter()
    for sample in trainings(case).monitored.of("sample"):
        which, layer = order[sample["call"] % len(order)]
        source = sample["layer_source"]
        names = {"parameter": f"{layer:03d}", "ordinal": f"call{layer:03d}", "unknown": None}
        assert (sample["pass"], sample["layer"]) == (which, names[source]), sample
        sources[which, source] += 1
    # Inside a compiled graph, and in the first pass of a reentrant checkpoint, a query has no history to read.
    if case == "compiled_model":
        assert sources["forward", "parameter"] == sources["backward", "parameter"] == 0
    else:
        assert sources["backward", "ordinal"] == sources["backward", "unknown"] == 0
        blind = sources["forward", "ordinal"] + sources["forward", "unknown"]
        assert (blind > 0) == (case == "checkpoint_reentrant")


@pytest.mark.parametrize("case", keep(CASES, *KEPT))
def test_torch_s_profiler_counts_the_same_calls(trainings, case):
    # The first step of a compiled model is left out: tracing calls the operations on tensors without data.
    steps = STEPS - 1 if case == "compiled_model" else STEPS
    for told in trainings(case).again.told():
        assert told["profiler"] == {name: calls // STEPS * steps for name, calls in expected_calls(case).items()}


@pytest.mark.parametrize("case", keep(CASES, *KEPT))
def test_losses_are_the_training_s_own(trainings, case):
    runs = trainings(case)
    micro = MICRO_BATCHES.get(case, 1)
    for told in runs.monitored.told():
        rank = told.get("rank", 0)
        seen = [line["loss"] for line in runs.monitored.of("step") if line["rank"] == rank]
        means = [sum(told["losses"][n : n + micro]) / micro for n in range(0, STEPS * micro, micro)]
        assert seen == pytest.approx(means, rel=1e-6)


@pytest.mark.parametrize("case", keep(COMPILED))
def test_compile_caches_keep_their_keys_and_work_without_us(trainings, case):
    runs = trainings(case)
    assert runs.plain_keys
    assert runs.plain_keys == runs.monitored_keys
    (compiled,) = runs.monitored.told()
    (reused,) = runs.again.told()
    assert compiled["cache"]["miss"] > 0
    assert reused["cache"] == {"hit": compiled["cache"]["miss"], "miss": 0}
