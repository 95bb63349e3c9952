"""Another process of the user writes into the files of a live run, truncates, replaces or removes them: the training
is the same. The trainer maps neither of them (segment/writer.h)."""

import contextlib
import os
import pathlib
import random
import shutil
import struct
import time
from collections.abc import Callable

import pytest
from fault_scene import RUN_ID, Scene, assert_same_result
from scraping import wait_until
from segment_file import SLOTS, segments
from tiers import keep

PAGE = 4096
HEADER_REGIONS, REGION = 32, struct.Struct("<QQQ")
SLOT_HEADER, SLOT_PAYLOADS = 768, 432  # of struct Slot: its size, and where the offsets of payloads begin
SERVICE = 54321  # user and group
STEPS = 6000  # of a round: about a second on a machine that does nothing else
MOST_WAITED = 11  # attacks


class Scribbler:
    """Writes into every segment and control file that it has seen, also after these have lost their names."""

    def __init__(self, directory: pathlib.Path, seed: int, user: int | None = None) -> None:
        """`user`: opens the files as this user, of the group of the same number."""
        self.directory, self.random, self.files, self.user = directory, random.Random(seed), {}, user

    def look(self) -> None:
        if self.user is None:
            return self._look()
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(self.user)
        os.seteuid(self.user)
        try:
            self._look()
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)

    def _look(self) -> None:
        paths = []
        with contextlib.suppress(OSError):  # a run that ends removes its directory, also while it is listed
            paths = list(self.directory.glob("*.[sc][et][gl]"))
        for path in paths:
            if path.name not in self.files:
                with contextlib.suppress(OSError):
                    file = os.open(path, os.O_RDWR)
                    self.files[path.name] = (file, os.fstat(file).st_size, os.pread(file, PAGE, 0))

    def content(self, size: int) -> bytes:
        """Zeros, ones, random bytes, or addresses: small ones, and such as a trainer has."""
        kind = self.random.randrange(4)
        if kind < 2:
            return (b"\0", b"\xff")[kind] * size
        if kind == 2:
            return self.random.randbytes(size)
        return struct.pack("<Q", self.random.choice([64, 1 << 20, 1 << 46, 2**64 - 4096])) * (size // 8)

    def write_pages(self) -> None:
        for file, size, _ in self.files.values():
            for page in range(0, size, PAGE):
                if self.random.random() < 0.5:
                    os.pwrite(file, self.content(PAGE), page)

    def redirect_regions(self) -> None:
        for name, (file, _, header) in self.files.items():
            if name.endswith(".seg"):
                os.pwrite(file, header, 0)
                for region in self.random.sample(range(11), 4):
                    wrong = REGION.pack(self.random.getrandbits(self.random.choice([20, 47, 64])), 1 << 12, 1 << 20)
                    os.pwrite(file, wrong, HEADER_REGIONS + region * REGION.size)

    def race_for_slots(self) -> None:
        for name, (file, _, header) in self.files.items():
            if not name.endswith(".seg"):
                continue
            offset, size, count = REGION.unpack_from(header, HEADER_REGIONS + SLOTS * REGION.size)
            for slot in range(offset, offset + size * count, max(size, 1)):
                os.pwrite(file, self.content(SLOT_HEADER - SLOT_PAYLOADS), slot + SLOT_PAYLOADS)

    def truncate(self) -> None:
        for file, size, _ in self.files.values():
            os.ftruncate(file, self.random.choice([0, 100, PAGE, min(size, 1 << 20)]))

    def replace_files(self) -> None:
        for name in self.files:
            with contextlib.suppress(OSError):
                path = self.directory / name
                path.unlink()
                path.write_bytes(self.content(PAGE))

    def remove_directory(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def close(self) -> None:
        for file, _, _ in self.files.values():
            os.close(file)


def end_under(
    scene: Scene, attack: Callable[[Scribbler], None], seed: int, rounds: int | None = None, user: int | None = None
) -> int:
    """A training under run, attacked from its first step to its end; its result must be `plain`'s. Returns the number
    of attacks. `rounds`: at most so many. In its middle, the training waits for MOST_WAITED attacks."""
    line = scene.trainer_line(str(STEPS), "exit", "wait")
    plain = scene.go_on(scene.start_half_way(line))
    go_file = scene.folder / f"go{scene.rounds}"
    process = scene.start([*scene.run_line(), *line], GO=str(go_file))
    scribbler = Scribbler(scene.base / RUN_ID, seed, user)
    done, end = 0, time.monotonic() + 60
    while process.poll() is None and (rounds is None or done < rounds):
        scribbler.look()
        if any(name.endswith(".seg") for name in scribbler.files):
            attack(scribbler)
            done += 1
        if done >= MOST_WAITED or time.monotonic() > end:
            go_file.touch()
        time.sleep(0.001)
    go_file.touch()
    watched = scene.end(process)
    scribbler.close()
    assert_same_result(plain, watched)
    assert done > 0, "the training was over before the first attack"
    return done


CONTENT = [Scribbler.write_pages, Scribbler.redirect_regions, Scribbler.race_for_slots, Scribbler.truncate]
NAMES = [Scribbler.replace_files, Scribbler.remove_directory]


@pytest.mark.parametrize("attack", CONTENT)
def test_what_is_written_into_a_segment_does_not_reach_the_training(scene, attack):
    assert end_under(scene, attack, seed=1) >= MOST_WAITED


def anything(scribbler: Scribbler) -> None:
    scribbler.random.choice(CONTENT)(scribbler)


def test_what_the_user_of_a_service_writes_does_not_reach_the_training(scene):
    """A service of its own user follows runs through the group of their directory (docs/security.md)."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    os.chown(scene.base, 0, SERVICE)
    scene.base.chmod(0o2770)
    assert end_under(scene, anything, seed=3, user=SERVICE) >= MOST_WAITED


@pytest.mark.parametrize("attack", NAMES)
def test_files_that_are_replaced_or_removed_do_not_reach_the_training(scene, attack):
    end_under(scene, attack, seed=2, rounds=1)


@pytest.mark.parametrize("suffix", [".seg", ".ctl"])
@pytest.mark.parametrize("size", [0, 1 << 20])
def test_a_file_that_is_truncated_once(scene, suffix, size):
    """The trainer ends as ever. Of the segment, the summary says that it is damaged; it does not say "healthy"."""
    line = scene.trainer_line("40", "return", "wait")
    plain = scene.go_on(scene.start_half_way(line))
    process = scene.start_half_way([*scene.run_line(), *line])
    directory = scene.base / RUN_ID
    wait_until(lambda: segments(directory)[0].attention()["forward"]["judged"] > 0)  # an agent follows the trainer
    for path in directory.glob(f"*{suffix}"):
        os.truncate(path, size)
    watched = scene.go_on(process)
    assert_same_result(plain, watched)
    (rank,) = watched.summary["ranks"]
    assert 20 <= rank["steps"] <= 40
    if suffix == ".seg":
        assert watched.summary["healthy"] is False
        assert "the file of rank 0" in watched.errors
        assert rank["attention"]["forward"]["calls"] > 0


PIPES = ["agent.json", "notices", "agent.log", "summary.{}.json", "exit.{}.json.new", "off.1.no_space"]


@pytest.mark.parametrize("name", keep(PIPES, "agent.json"))
def test_a_pipe_in_place_of_a_file_does_not_hold_the_launcher(scene, name):
    """Opening a pipe waits for its other end, which never comes. The command's end is reported all the same."""
    line = scene.trainer_line("40", "return", "wait")
    plain = scene.go_on(scene.start_half_way(line))
    process = scene.start_half_way([*scene.run_line(), *line])
    directory = scene.base / RUN_ID
    path = directory / name.format(process.pid)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert_same_result(plain, scene.go_on(process))


@pytest.mark.long
def test_a_minute_of_everything(scene):
    end = time.monotonic() + 60
    for seed in range(1000):
        if time.monotonic() > end:
            break
        end_under(scene, anything, seed)
        end_under(scene, random.Random(seed).choice(NAMES), seed, rounds=1)
