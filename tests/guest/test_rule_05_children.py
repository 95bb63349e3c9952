"""Rule 5: children (fork, clone, exec, workers) are left alone. None of them gets a segment, counts into its parent's
or frees its parent's lock, unless it trains by itself."""

import json
import shutil
import subprocess
import sys
import textwrap

import monitored
import pytest
from segment_file import assert_calls_conserved, segments

IN_A_FORK = """
def in_a_fork(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

# clone(SIGCHLD): a copy of the process that no handler of pthread_atfork ever hears of. The child may only run code
# that needs no interpreter lock or thread state it does not have; calling the library is such code.
IN_A_CLONE = """
def in_a_clone(work):
    SYS_CLONE, SIGCHLD = {"x86_64": 56, "aarch64": 220}[os.uname().machine], 17
    libc = ctypes.PyDLL(None)
    libc.syscall.restype = ctypes.c_long
    pid = libc.syscall(SYS_CLONE, SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.fixture
def trainer(start_alone):
    trainer = start_alone(FORESHOCK_EVERY="1", FORESHOCK_MAX_SLOWDOWN="100%")
    trainer.do(IN_A_FORK)
    trainer.do(IN_A_CLONE)
    return trainer


def inference() -> str:
    return "lambda: [hand.forward(False) for _ in range(1000)]"


@pytest.mark.parametrize("door", ["in_a_fork", "in_a_clone"])
def test_a_child_that_does_not_train_is_inert(trainer, base, door):
    trainer.do("hand.step(10)")
    (before,) = segments(base / "alone")
    assert trainer.do(f"{door}({inference()})") == 0
    assert trainer.do(f"{door}(lambda: os._exit(40 + core.foreshock_enabled()))") == 40
    (after,) = segments(base / "alone")
    assert after.attention() == before.attention()
    assert after.is_locked()
    # The parent goes on as if nothing had been.
    trainer.do("hand.step(5)")
    (end,) = segments(base / "alone")
    assert_calls_conserved(end.attention())
    assert end.attention()["forward"]["calls"] == trainer.do("hand.calls")["forward"]


@pytest.mark.parametrize("door", ["in_a_fork", "in_a_clone"])
def test_a_child_that_closes_everything_does_not_free_the_parent_s_lock(trainer, base, door):
    trainer.do("hand.step(3)")
    assert trainer.do(f"{door}(lambda: os.closerange(3, 256))") == 0
    (segment,) = segments(base / "alone")
    assert segment.is_locked()


@pytest.mark.parametrize("door", ["in_a_fork", "in_a_clone"])
def test_a_child_that_trains_while_its_parent_does_not_has_a_segment_of_its_own(trainer, base, door):
    """A launcher that looks at its model before it forks the trainers: its calls are its own."""
    trainer.do("[hand.forward(False) for _ in range(7)]")
    assert trainer.do(f"{door}(lambda: hand.step(20))") == 0
    (segment,) = segments(base / "alone")
    assert segment.pid != trainer.pid
    assert not segment.is_locked()
    assert_calls_conserved(segment.attention())
    assert segment.attention()["forward"]["calls"] == 40
    assert [step["step"] for step in segment.steps()] == list(range(1, 21))


def test_a_child_of_another_rank_trains_beside_its_parent(trainer, base):
    trainer.do("hand.step(5)")
    assert trainer.do("in_a_fork(lambda: (os.putenv('RANK', '1'), hand.step(8, layers=3)))") == 0
    trainer.do("hand.step(5)")
    parent, child = segments(base / "alone")
    assert (parent.rank, child.rank) == (0, 1)
    assert (parent.attention()["forward"]["calls"], child.attention()["forward"]["calls"]) == (20, 24)
    for segment in (parent, child):
        assert_calls_conserved(segment.attention())


def test_a_child_of_the_same_rank_that_trains_is_refused(trainer, base):
    """Two clocks of one rank would make nonsense of both: the parent's stays."""
    trainer.do("hand.step(5)")
    assert trainer.do("in_a_fork(lambda: hand.step(5))") == 0
    (segment,) = segments(base / "alone")
    assert segment.pid == trainer.pid
    assert segment.attention()["forward"]["calls"] == 10
    assert [file.name.split(".")[-1] for file in base.glob("alone/off.*")] == ["rank_taken"]


def test_a_started_program_inherits_no_descriptor(trainer, base):
    trainer.do("hand.step(3)")
    trainer.do(
        "import subprocess\n"
        "listed = subprocess.run(['ls', '-l', '/proc/self/fd'], capture_output=True, text=True, close_fds=False)"
    )
    assert str(base) not in trainer.do("listed.stdout")
    assert trainer.do("listed.stderr") == ""


WORKERS = textwrap.dedent("""
    import sys
    sys.path.insert(0, {support!r})
    import torch, hashlib, os, glob
    from torch.utils.data import DataLoader, Dataset
    from tiny_gpt import Batches, TinyGpt, fingerprint, loss_of, set_up, tell

    class Items(Dataset):
        def __init__(self, model): self.model, self.batches = model, Batches()
        def __len__(self): return 24
        def __getitem__(self, n):
            self.batches.generator.manual_seed(n)
            tokens = self.batches()[0]
            with torch.no_grad():  # a worker that runs the model does not train
                self.model(tokens[None, :-1])
            return tokens

    set_up()
    model = TinyGpt(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    def epoch():
        for tokens in DataLoader(Items(model), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    epoch()  # its workers are forked before the segment is there, those of the second one after it
    epoch()
    tell(digest=fingerprint(losses, model), steps=len(losses),
         segments=len(glob.glob(os.environ.get("FORESHOCK_DIR", "/nowhere") + "/*/*.seg")))
""").format(support=str(monitored.ROOT / "tests" / "support"))


def test_data_loader_workers(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WORKERS)
    alone = monitored.run_plain([monitored.PYTHON, str(script)])
    run = monitored.run_monitored([monitored.PYTHON, str(script)], *monitored.EVERYTHING)
    assert (alone.returncode, run.returncode) == (0, 0), run.stderr
    plain, watched = json.loads(alone.stdout), json.loads(run.stdout)
    assert watched["digest"] == plain["digest"]
    assert watched["segments"] == 1
    rank = run.rank()
    monitored.assert_conserved(rank)
    assert rank["steps"] == plain["steps"] == 12
    # Two layers a step; what the workers ran is nobody's.
    assert {name: of["calls"] for name, of in rank["attention"].items()} == {"forward": 24, "backward": 24}
    assert "monitoring was off" not in run.stderr


def test_other_programs_run_as_ever(without_agent, base):
    """Everything that a command starts has the library preloaded: it must not show."""
    for command in (["/bin/true"], ["/bin/sh", "-c", "echo hello | cat"], [sys.executable, "-S", "-c", "print(1)"]):
        plain = subprocess.run(command, env=monitored.clean_environment(), capture_output=True, check=False)
        under = subprocess.run(command, env=without_agent, capture_output=True, check=False)
        assert (under.returncode, under.stdout, under.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert not list((base / "alone").iterdir())


def test_a_preload_without_its_launcher_does_nothing(base, hand_library):
    """As when a program starts others with a clean environment, but for LD_PRELOAD."""
    bare = {"LD_PRELOAD": str(monitored.LIBRARY), "PATH": "/usr/bin:/bin"}
    debugger = [["gdb", "--version"]] if shutil.which("gdb") else []
    train = f"""
import ctypes
hand = ctypes.CDLL({str(hand_library)!r})
hand.hand_step.restype, hand.hand_step.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_int64]
print([hand.hand_step(2, -1) for _ in range(20)])
"""
    for command in ([sys.executable, "-S", "-c", train], ["/bin/sh", "-c", "echo hello | cat"], *debugger):
        results = [
            subprocess.run(command, env=environment, capture_output=True, check=False)
            for environment in ({"PATH": bare["PATH"]}, bare, bare | {"FORESHOCK_DIR": str(base)})
        ]
        assert len({(done.returncode, done.stdout, done.stderr) for done in results}) == 1
        assert results[0].returncode == 0
    assert not list(base.iterdir())
