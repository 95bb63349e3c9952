"""With default options the demo is sampled, whatever its other steps cost."""

import pytest
from monitored import PYTHON, ROOT, assert_conserved, run_monitored


@pytest.mark.long
def test_what_other_steps_cost_is_no_reason_to_sample_no_more():
    run = run_monitored([PYTHON, str(ROOT / "integrations" / "torch" / "demo" / "train.py"), "--seconds", "10"])
    assert run.returncode == 0, run.stderr
    rank = run.rank()
    assert_conserved(rank)
    # Beside other work a sample may cost 50 ms, judging included: an eighth of 1 % of steps of 60 ms pays for that in
    # 700 of them. It was 65536, for good, where the first steps cost more than 1 %.
    assert rank["sample_interval_steps"] <= 4096
