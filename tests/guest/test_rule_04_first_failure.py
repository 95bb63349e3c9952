"""Rule 4: the first internal failure switches the monitor off, says so once, and the run goes on."""

import json
import re
import textwrap

import monitored
from segment_file import segments

# A trainer of a torch that is far too small to fail by itself.
TRAINING = """
import torch
torch.manual_seed(0)
weight = torch.nn.Parameter(torch.ones(4))
class Failing(dict):
    def get(self, *arguments): raise ZeroDivisionError
optimizer = torch.optim.SGD([weight], lr=0.1)
optimizer.param_groups = [Failing(group) for group in optimizer.param_groups]
for _ in range(6):
    loss = (weight * weight).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(weight.tolist())
"""


def test_off_is_final_and_said_once(start_alone, base):
    trainer = start_alone(FORESHOCK_EVERY="1")
    trainer.do("hand.step(3)")
    trainer.do("core.foreshock_off(b'a reason!')")
    trainer.do("core.foreshock_off(b'another')")
    before = segments(base / "alone")[0].attention()
    assert trainer.do("hand.step(3)") is not None
    assert trainer.do("core.foreshock_enabled()") == 0
    assert segments(base / "alone")[0].attention() == before
    assert [file.name for file in base.glob("alone/off.*")] == [f"off.{trainer.pid}.a_reason_"]


def test_off_before_the_first_step_leaves_no_segment(start_run, base):
    trainer = start_run("--every", "1")
    trainer.do("core.foreshock_off(b'hand_tired')")
    trainer.do("hand.step(5)")
    assert segments(base / "me") == []
    assert trainer.finish() == 0
    said = [line for line in trainer.stderr().splitlines() if "page at" not in line and "preparing" not in line]
    assert len(said) == 1, said
    assert "monitoring was off in 1 process (hand_tired)" in said[0]


def test_a_second_process_of_one_rank_is_refused_aloud(start_run, base):
    first = start_run("--every", "1")
    first.do("hand.step(5)")
    # A Python trainer does not pass the preload on to the programs that it starts.
    code = textwrap.dedent(f"""
        import subprocess
        preloaded = os.environ | {{"LD_PRELOAD": {str(monitored.LIBRARY)!r}}}
        again = subprocess.run(
            [sys.executable, *sys.argv], input='"hand.step(5)"\\n', text=True, capture_output=True, env=preloaded
        )
    """)
    first.do(code)
    assert first.do("again.returncode") == 0
    assert len(segments(base / "me")) == 1
    first.do("hand.step(5)")
    truth = first.do("hand.calls")
    first.finish()
    (rank,) = json.loads(first.summary.read_text())["ranks"]
    assert {name: of["calls"] for name, of in rank["attention"].items()} == truth
    assert "monitoring was off in 1 process (rank_taken): another live process" in first.stderr()


def test_a_failing_helper_ends_the_monitoring_and_not_the_training():
    """What the helper asks an optimizer for may do anything at all; torch itself never asks this."""
    command = [monitored.PYTHON, "-c", TRAINING]
    alone = monitored.run_plain(command)
    assert alone.returncode == 0
    run = monitored.run_monitored(command, *monitored.EVERYTHING)
    assert (run.returncode, run.stdout) == (alone.returncode, alone.stdout)
    said = re.findall(r"foreshock: monitoring was off.*", run.stderr)
    assert len(said) == 1, run.stderr
    assert "helper_after_step_ZeroDivisionError" in said[0]
    assert "Traceback" not in run.stderr
