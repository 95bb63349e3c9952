"""Rule 6: space is reserved up front, on tmpfs only, a small share of what is free; never SIGBUS, theirs or ours."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import live
import monitored
import pytest
from segment_file import assert_calls_conserved, segments

MIB = 1 << 20


@pytest.fixture
def tmpfs(needs_root, tmp_path):
    """tmpfs(size): a mounted tmpfs of `size` bytes, mode 0700."""
    mounted = []

    def mount(size: int) -> pathlib.Path:
        place = tmp_path / f"tmpfs{len(mounted)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(place)],
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip("tmpfs cannot be mounted here: " + done.stderr.decode().strip())
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=False)


def alone_on(base: pathlib.Path, hand_library: pathlib.Path, **more: str) -> live.Live:
    (base / "alone").mkdir(mode=0o700, exist_ok=True)
    environment = monitored.clean_environment(
        LD_PRELOAD=str(monitored.LIBRARY), FORESHOCK_DIR=str(base), FORESHOCK_RUN_ID="alone", FORESHOCK_EVERY="1",
        FORESHOCK_MAX_SLOWDOWN="100%", HAND_LIBRARY=str(hand_library),
    )  # fmt: skip
    return live.Live([monitored.PYTHON, live.__file__], environment | more)


def used(base: pathlib.Path) -> int:
    state = os.statvfs(base)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_tenth_of_what_is_free_for_all_ranks_of_the_node(tmpfs, hand_library, ranks):
    base = tmpfs(64 * MIB)
    trainers = [alone_on(base, hand_library, RANK=str(n), LOCAL_WORLD_SIZE=str(ranks)) for n in range(ranks)]
    for trainer in trainers:
        trainer.do("hand.step(50)")
        trainer.finish()
    assert 0 < used(base) <= 6.4 * MIB
    assert [segment.slots > 0 for segment in segments(base / "alone")] == [True] * ranks
    for segment in segments(base / "alone"):
        # Reserved, not only sized: no store can ever meet a hole.
        assert segment.path.stat().st_blocks * 512 >= segment.path.stat().st_size


def test_the_option_bounds_it(base, hand_library):
    with alone_on(base, hand_library, FORESHOCK_MEMORY="2MiB") as trainer:
        trainer.do("hand.step(10)")
        (segment,) = segments(base / "alone")
        assert segment.path.stat().st_size <= 2 * MIB
        assert segment.slots > 0


def test_too_little_for_two_slices_gives_statistics_only(tmpfs, hand_library):
    base = tmpfs(3 * MIB)
    with alone_on(base, hand_library) as trainer:
        trainer.do("hand.step(50)")
        (segment,) = segments(base / "alone")
        assert segment.slots == 0
        assert_calls_conserved(segment.attention())
        assert segment.attention()["forward"]["calls"] == 100
        assert segment.attention()["forward"]["sampled"] == 0
        assert len(segment.steps()) == 50


@pytest.mark.parametrize("free", [0, 64 << 10])
def test_a_full_tmpfs_switches_off_and_says_so(tmpfs, hand_library, free):
    base = tmpfs(4 * MIB)
    (base / "alone").mkdir(mode=0o700)
    (base / "ballast").write_bytes(bytes(4 * MIB - free - (64 << 10)))
    fill(base / "rest", free)
    with alone_on(base, hand_library) as trainer:
        trainer.do("hand.step(50)")
        assert [file.name for file in base.glob("alone/*")] == [f"off.{trainer.pid}.no_space"]
        assert not list(base.glob("alone/.*"))


def fill(path: pathlib.Path, leave: int) -> None:
    """Takes what is left on the tmpfs of `path`, but for `leave` bytes."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(file.tell() - leave, 0))


def test_filled_up_later_the_segment_goes_on(tmpfs, hand_library):
    """What was reserved stays: samples go on although nobody could write another byte."""
    base = tmpfs(16 * MIB)
    with alone_on(base, hand_library) as trainer:
        trainer.do("hand.step(2)")
        fill(base / "ballast", 0)
        trainer.do("hand.step(2000)")
        (segment,) = segments(base / "alone")
        assert_calls_conserved(segment.attention())
        assert sum(of["sampled"] for of in segment.attention().values()) == segment.slots > 0


def test_a_disk_is_refused(tmp_path, hand_library):
    (tmp_path / "base").mkdir()
    if subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout.strip() == "tmpfs":
        pytest.skip("the temporary directory is a tmpfs")
    with alone_on(tmp_path / "base", hand_library) as trainer:
        trainer.do("hand.step(5)")
        assert [file.name for file in tmp_path.glob("base/alone/*")] == [f"off.{trainer.pid}.no_tmpfs"]


# -- whole runs with a /dev/shm of their own --


def with_own_shm(options: str, prepare: str, command: list[str], summary: pathlib.Path) -> subprocess.CompletedProcess:
    """`foreshock run` where /dev/shm is a fresh tmpfs with `options`, after `prepare` (shell) has been done to it."""
    line = [str(monitored.FORESHOCK), "run", "--port", "0", "--every", "1", "--max-slowdown", "100%"]
    line += ["--summary", str(summary), "--", *command]
    script = f'mount -t tmpfs -o {options} none /dev/shm && {prepare} && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *line],
        env=monitored.clean_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mount namespace of our own: " + done.stderr.strip())
    return done


def said(done: subprocess.CompletedProcess) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("foreshock: ") and "preparing" not in line]


HELLO = [sys.executable, "-c", "print('trained')"]


@pytest.mark.parametrize(
    ("options", "prepare", "why"),
    [
        ("size=4m", "dd if=/dev/zero of=/dev/shm/full bs=4k 2>/dev/null; true", "no space left on the tmpfs"),
        ("size=4m", "mount -o remount,ro /dev/shm", "Read-only file system"),
    ],
)
def test_nothing_to_be_had_of_dev_shm(needs_root, tmp_path, options, prepare, why):
    done = with_own_shm(options, prepare, HELLO, tmp_path / "summary.json")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert len(said(done)) == 1, done.stderr
    assert "not monitoring: " in said(done)[0]
    assert why in said(done)[0]


TRAINING = textwrap.dedent("""
    import sys
    sys.path.insert(0, {support!r})
    import os, time
    import torch
    from torch.utils.data import DataLoader, Dataset
    from tiny_gpt import Batches, TinyGpt, fingerprint, loss_of, set_up, tell

    class Items(Dataset):
        def __len__(self): return 64
        def __getitem__(self, n):
            batches = Batches()
            batches.generator.manual_seed(n)
            # 2 MiB beside the tokens, so that the workers' batches (shared memory) fill most of the 64 MiB.
            return batches()[0], torch.full((1 << 19,), float(n))

    def in_use():
        state = os.statvfs("/dev/shm")
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    set_up()
    model = TinyGpt(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, most = [], 0
    for tokens, ballast in DataLoader(Items(), batch_size=4, num_workers=2, prefetch_factor=2):
        loss = loss_of(model, tokens) + 0 * ballast.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        while (used := in_use()) <= 24 << 20 and len(losses) == 1:  # until the workers have gone ahead
            time.sleep(0.01)
        most = max(most, used)
    tell(digest=fingerprint(losses, model), most=most)
""").format(support=str(monitored.ROOT / "tests" / "support"))


def test_64_mib_with_a_multi_worker_data_loader(needs_root, tmp_path):
    """What Docker gives: the loader's batches need most of it, and get it."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    alone = monitored.run_plain([monitored.PYTHON, str(script)])
    done = with_own_shm("size=64m", "true", [monitored.PYTHON, str(script)], tmp_path / "summary.json")
    assert (alone.returncode, done.returncode) == (0, 0), done.stderr
    plain, watched = json.loads(alone.stdout), json.loads(done.stdout)
    assert watched["digest"] == plain["digest"]
    assert watched["most"] > 24 * MIB  # it was tight indeed
    (rank,) = json.loads((tmp_path / "summary.json").read_text())["ranks"]
    monitored.assert_conserved(rank)
    assert rank["attention"]["forward"]["judged"] > 0
    assert {name: of["calls"] for name, of in rank["attention"].items()} == {"forward": 32, "backward": 32}
