"""foreshock.start() in a training that `foreshock run` has not started: its bits, its summary, and what it leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from monitored import BUILD, PYTHON, clean_environment
from records import record_lines

HELPER = str(BUILD / "share" / "foreshock" / "python")
SUPPORT = str(Path(__file__).resolve().parents[1] / "support")

TRAINING = f"""
import json, os, sys, time
sys.path[:0] = [{HELPER!r}, {SUPPORT!r}]
import foreshock
imported = [name for name in sys.modules if name == "torch" or name == "foreshock_torch.launch"]
if "start" in sys.argv: assert foreshock.start(every=1, port=0, record=sys.argv[1])
import torch
import torch.nn.functional as F
from torch import nn
from tiny_gpt import fingerprint, set_up
set_up()
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.qkv = nn.Linear(32, 96)
    def forward(self, x):
        q, k, v = [t.view(2, 24, 4, 8).transpose(1, 2) for t in self.qkv(x).split(32, 2)]
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 24, 32)
model = nn.Sequential(Block(), Block()); optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2); losses = []
def train(steps):
    for _ in range(steps):
        loss = model(torch.randn(2, 24, 32)).square().mean(); loss.backward()
        optimizer.step(); optimizer.zero_grad(); losses.append(loss.item())
def ask():  # until the agent has read all steps
    for _ in range(100):
        now = foreshock.metrics()
        read = now.get("foreshock/step"), now.get("foreshock/attention.forward.calls")
        if read == (30, 60) and foreshock.status() == "healthy": break
        time.sleep(0.1)
    return foreshock.metrics(), foreshock.status()
train(30)
live = ask() if "start" in sys.argv else None
verdict = foreshock.stop() if "stop" in sys.argv else None
train(5)
print(json.dumps({{"digest": fingerprint(losses, model), "live": live, "verdict": verdict, "imported": imported,
                  "status": foreshock.status(), "again": "stop" in sys.argv and foreshock.start(),
                  "variables": sorted(name for name in os.environ if name.startswith("FORESHOCK_"))}}))
"""


@pytest.fixture
def base():
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="foreshock-test-") as folder:
        Path(folder).chmod(0o700)
        yield Path(folder)


def run(base: Path, program: str, *words: str) -> subprocess.CompletedProcess:
    """The program alone, with `base` as the place of runs."""
    command = [PYTHON, "-c", program, base / "record.jsonl", *words]
    environment = clean_environment(FORESHOCK_DIR=str(base))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_same_bits_and_a_verdict(base) -> None:
    plain, monitored = run(base, TRAINING), run(base, TRAINING, "start", "stop")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert monitored.returncode == 0, monitored.stderr
    alone, reported = json.loads(plain.stdout), json.loads(monitored.stdout)
    assert alone["digest"] == reported["digest"]
    assert alone["imported"] == [], "an import costs neither torch nor the launcher"
    metrics, status = reported["live"]
    assert (metrics["foreshock/step"], metrics["foreshock/findings"], metrics["foreshock/healthy"]) == (30, 0, 1)
    assert metrics["foreshock/attention.forward.calls"] == 60
    assert 0 < metrics["foreshock/attention.backward.fused_ratio.mean"] < 6
    assert all(type(value) in (int, float) for value in metrics.values())
    assert (status, reported["verdict"], reported["status"], reported["again"]) == (
        "healthy",
        "healthy",
        "healthy",
        False,
    )
    assert " finished, 30 steps in " in monitored.stderr
    # As before: one variable, which names the place of runs. What stop() has ended leaves nothing there.
    assert alone["variables"] == reported["variables"] == ["FORESHOCK_CACHE", "FORESHOCK_DIR", "FORESHOCK_RECORD"]
    assert {path.name for path in base.iterdir()} == {"lock", "record.jsonl"}
    steps = record_lines(base / "record.jsonl")
    assert [line["step"] for line in steps if line["type"] == "step"] == list(range(1, 31))


BEGIN = f"""
import os, sys
sys.path.insert(0, {HELPER!r})
import foreshock
"""


@pytest.mark.parametrize(
    ("end", "state", "status"),
    [
        ("pass", "finished", 0),
        ("raise ValueError", "failed", 1),
        ("os.kill(os.getpid(), 9)", "failed", -signal.SIGKILL),
    ],
)
def test_the_end_of_the_process_ends_the_run(base, end: str, state: str, status: int) -> None:
    summary = base / "summary.json"
    done = run(base, f"{BEGIN}\nassert foreshock.start(port=0, summary={str(summary)!r})\n{end}")
    assert done.returncode == status, done.stderr
    assert json.loads(summary.read_text())["state"] == state
    assert foreshock_is_gone(base)


def foreshock_is_gone(base: Path) -> bool:
    return {path.name for path in base.iterdir()} <= {"lock", "summary.json"}


def test_what_cannot_be_started_is_one_line(base) -> None:
    done = run(base, f"{BEGIN}\nprint(foreshock.start(nonsense=3), foreshock.status() == '', foreshock.metrics())")
    assert (done.returncode, done.stdout) == (0, "False True {}\n")
    assert done.stderr == "foreshock: unknown option --nonsense; see --help\n"


RANKS = f"""{BEGIN}
rank = os.environ["RANK"]
started = foreshock.start(every=1, port=0, summary=os.path.join(sys.argv[1], rank + ".json"))
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 96))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    q, k, v = [t.view(2, 24, 4, 8).transpose(1, 2) for t in model(torch.randn(2, 24, 32)).split(32, 2)]
    torch.nn.functional.scaled_dot_product_attention(q, k, v).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
verdict = foreshock.stop()
with open(os.path.join(sys.argv[1], rank + ".txt"), "w") as file:
    file.write(f"{{started}} {{verdict}}")
"""


@pytest.mark.long
def test_the_ranks_of_torchrun_are_one_run(base, tmp_path: Path) -> None:
    """torchrun gives its id to the ranks; each rank has a summary of itself."""
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, tmp_path]
    environment = clean_environment(FORESHOCK_DIR=str(base))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["True healthy", "True healthy"]
    summaries = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert summaries[0]["run"] == summaries[1]["run"]
    for rank, summary in enumerate(summaries):
        assert [(each["rank"], each["steps"]) for each in summary["ranks"]] == [(rank, 20)]


SPAWNED = f"""{BEGIN}
import torch.multiprocessing
def child(number, folder):
    with open(os.path.join(folder, str(number)), "w") as file:
        file.write(f"{{foreshock.start()}} {{foreshock.stop()!r}}")
started = foreshock.start(port=0, record="off")  # also in the children, which import this file again
if __name__ == "__main__":
    torch.multiprocessing.spawn(child, (sys.argv[1],), nprocs=2)
    print(started)
"""


@pytest.mark.long
def test_spawned_processes_belong_to_the_run_of_their_parent(base, tmp_path: Path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(SPAWNED)
    environment = clean_environment(FORESHOCK_DIR=str(base))
    done = subprocess.run(
        [PYTHON, script, tmp_path], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert [(tmp_path / name).read_text() for name in "01"] == ["True ''", "True ''"]
    assert done.stderr.count("foreshock: run ") == 1, "one run"
