"""Rule 2: nothing blocks, allocates, prints, or touches what is the trainer's. That a hook takes no memory, and makes
system calls for the files of the segment only, is shown in tests/abi (test_hooks_call_the_system_for_our_files_only);
here a PyTorch training looks at itself."""

import json
import os
import pathlib
import re
import subprocess
import textwrap
import time

import monitored
import pytest

TRAINING = textwrap.dedent("""
    import sys
    sys.path.insert(0, {support!r})
    import hashlib, locale, os, pathlib, random, signal
    import torch
    from tiny_gpt import Batches, TinyGpt, fingerprint, loss_of, set_up, tell

    def allocations(train):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            train()
        return sum(event.name == "[memory]" for event in profile.events())

    set_up()
    random.seed(0)
    model, batches = TinyGpt(layers=2), Batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    def train(steps=6):
        for _ in range(steps):
            loss = loss_of(model, batches())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    train()
    taken = allocations(train)
    status = dict(line.split(":\\t", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    descriptors = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            descriptors.append(os.readlink("/proc/self/fd/" + entry))
        except OSError:
            pass  # the listing's own
    tell(
        digest=fingerprint(losses, model),
        allocations=taken,
        random=[hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(), random.random()],
        threads=len(os.listdir("/proc/self/task")),
        torch_threads=[torch.get_num_threads(), torch.get_num_interop_threads()],
        # Without 32 and 33, which are glibc's own: its posix_spawn leaves them ignored, pthread_cancel sets them again.
        signals=[int(status[name], 16) & ~(3 << 31) for name in ("SigBlk", "SigIgn", "SigCgt")],
        locale=locale.setlocale(locale.LC_ALL),
        descriptors=sorted(descriptors),
        environment=dict(os.environ),
        directory=os.getcwd(),
        umask=os.umask(0),
        niceness=os.nice(0),
        affinity=len(os.sched_getaffinity(0)),
        hooks=[sys.excepthook.__module__, sys.gettrace() is None, sys.getprofile() is None, str(sys.flags)],
    )
    os.close(1)  # the last thing that is seen of the training: exit begins
""").format(support=str(monitored.ROOT / "tests" / "support"))


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "train.py"
    path.write_text(TRAINING)
    return path


@pytest.fixture(scope="module")
def plain(script) -> dict:
    run = monitored.run_plain([monitored.PYTHON, str(script)])
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def watched(script) -> tuple[dict, monitored.Run]:
    run = monitored.run_monitored([monitored.PYTHON, str(script)], *monitored.EVERYTHING_AND_WEIGHTS)
    assert run.returncode == 0, run.stderr
    assert run.rank()["attention"]["forward"]["judged"] > 0
    return json.loads(run.stdout), run


@pytest.mark.parametrize(
    "what",
    ["digest", "allocations", "random", "threads", "torch_threads", "signals", "locale", "directory", "umask",
     "niceness", "affinity", "hooks"],
)  # fmt: skip
def test_unchanged(plain, watched, what):
    assert watched[0][what] == plain[what]


def test_two_descriptors_more_and_no_socket(plain, watched):
    def kinds(descriptors: list[str]) -> list[str]:
        return sorted(re.sub(r":\[\d+\]", "", name) for name in descriptors)

    more = kinds(watched[0]["descriptors"])
    for name in kinds(plain["descriptors"]):
        more.remove(name)
    assert len(more) == 2, more
    assert more[0].endswith(".ctl")
    assert more[1].endswith(".seg")


def test_environment(plain, watched):
    """What `run` adds for its children, and nothing else."""
    ours = {name: value for name, value in watched[0]["environment"].items() if plain["environment"].get(name) != value}
    assert {name for name in ours if not name.startswith("FORESHOCK")} == {"PYTHONPATH"}
    assert set(plain["environment"]) <= set(watched[0]["environment"])


def test_the_trainer_says_nothing_of_ours(watched):
    said = watched[1].stderr
    assert "Warning" not in said
    assert "Traceback" not in said


def ending(script: pathlib.Path, environment: dict[str, str]) -> float:
    """Seconds from the last line of the training to the end of its process."""
    process = subprocess.Popen([monitored.PYTHON, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
    while process.stdout.readline():
        pass
    begin = time.monotonic()
    assert process.wait(60) == 0
    return time.monotonic() - begin


@pytest.mark.long
def test_no_delay_at_exit(script, watched, without_agent, base):
    """Beside a training alone; once more while something else on the machine is in the way."""
    adapters = watched[0]["environment"]["FORESHOCK_ADAPTERS"]
    under = without_agent | {"FORESHOCK_ADAPTERS": adapters, "FORESHOCK_EVERY": "1"}
    pairs = ((ending(script, monitored.clean_environment()), ending(script, under)) for _ in range(8))
    assert any(watched < alone + 0.3 for alone, watched in pairs)
    assert list(base.glob("alone/*.seg"))


def test_nothing_is_written_where_the_run_was_started(script, tmp_path):
    before = sorted(os.listdir(tmp_path))
    run = subprocess.run(
        [str(monitored.FORESHOCK), "run", "--port", "0", "--", "/bin/true"], cwd=tmp_path,
        env=monitored.clean_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0
    assert sorted(os.listdir(tmp_path)) == before
