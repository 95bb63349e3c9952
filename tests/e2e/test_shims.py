"""Attention of an AOTInductor package, which passes no dispatcher: judged, and nothing of it changed."""

import pathlib

import monitored
import pytest
from monitored import EVERYTHING, PYTHON, run_monitored, run_plain

pytestmark = pytest.mark.long  # tests/abi shows what the shims read and pass on
PROGRAM = str(pathlib.Path(__file__).resolve().parent / "shim_program.py")
STEPS, CALLS = 4, 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shims")
    command = [PYTHON, PROGRAM, str(folder / "attention.pt2")]
    environment = {
        "PYTHONPATH": str(pathlib.Path(PROGRAM).parents[1] / "support"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    return run_plain(command, **environment), run_monitored(command, *EVERYTHING, **environment)


def test_same_results_and_lazy_copies_stay_lazy(runs):
    (plain,), (watched,) = (run.told() for run in runs)
    assert plain == watched
    assert any(plain["lazy"])  # else the comparison would show nothing


def test_calls_are_counted_and_judged(runs):
    rank = runs[1].rank()
    monitored.assert_conserved(rank)
    forward = rank["attention"]["forward"]
    failed = 1 if runs[1].told()[0]["error"] else 0
    assert STEPS * CALLS <= forward["calls"] <= STEPS * CALLS + CALLS * failed
    samples = runs[1].of("sample")
    assert len(samples) == forward["judged"] > 0
    # Rounding of fp32, not a wrong scale, mask or slice.
    assert all(sample["relative_error_max"] < 1e-5 for sample in samples)
    assert {sample["mask"] for sample in samples} == {"none", "fp32"}
    assert {sample["op"] for sample in samples} == {"_scaled_dot_product_flash_attention_for_cpu"}
