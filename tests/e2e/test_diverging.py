"""A training that diverges by its learning rate, every step sampled, to NaN and past it: a sound kernel is not called
biased, and a bias that was planted is found before the divergence."""

import concurrent.futures
import pathlib

import pytest
from monitored import EVERYTHING, PYTHON, Run, run_monitored

pytestmark = pytest.mark.long
SCRIPT = str(pathlib.Path(__file__).with_name("diverging_training.py"))
SEEDS = range(10)
GUILTY = "001"


def runs_of(plant: str) -> list[Run]:
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        return list(two.map(lambda seed: run_monitored([PYTHON, SCRIPT, plant, str(seed)], *EVERYTHING), SEEDS))


def biases(run: Run) -> list[dict]:
    rank = run.rank()
    return [alarm for alarm in rank["alarms"] + rank["past_alarms"] if alarm["of"] == "bias"]


def test_sound_kernel_is_not_called_biased_by_a_divergence():
    for seed, run in enumerate(runs_of("nothing")):
        (told,) = run.told()
        assert told["nan_at"], f"seed {seed} has to diverge"
        assert biases(run) == [], seed


def test_half_an_ulp_is_found_before_the_divergence():
    for seed, run in enumerate(runs_of("half")):
        (told,) = run.told()
        assert told["nan_at"], f"seed {seed} has to diverge"
        found = [alarm for alarm in run.rank()["past_alarms"] if alarm["of"] == "bias" and alarm["layer"] == GUILTY]
        first = [alarm["first_step"] for alarm in found if alarm["pass"] == "forward"]
        assert first, seed
        assert min(first) < told["diverging"], seed
        assert {alarm["layer"] for alarm in biases(run)} == {GUILTY}, seed
