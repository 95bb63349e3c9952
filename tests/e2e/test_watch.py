"""`foreshock status --watch` on a terminal and in a pipe, and what status says of an agent that does not answer."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import monitored
import pytest
from scraping import wait_until

CODES = re.compile(r"\x1b\[[0-9;]*[mKJ]")


class Terminal:
    """A command on a terminal of a size; `frames` are the texts it drew, one list of rows each."""

    def __init__(self, base: os.PathLike, *words: str, columns: int, rows: int, **environment: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            [str(monitored.FORESHOCK), *words], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env=monitored.clean_environment(FORESHOCK_DIR=str(base), TERM="xterm") | environment,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        os.set_blocking(self.master, False)
        self.output = ""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> str:
        try:
            while chunk := os.read(self.master, 65536):
                self.output += chunk.decode()
        except (BlockingIOError, OSError):  # nothing more now; EIO when the command has ended
            pass
        return self.output

    @property
    def frames(self) -> list[list[str]]:
        drawn = self.read().split("\x1b[H")[1:]
        whole = [frame.split("\x1b[?2026l")[0] for frame in drawn if "\x1b[?2026l" in frame]
        return [[row.rstrip("\r") for row in CODES.sub("", frame).removesuffix("\n").split("\n")] for frame in whole]

    def wait_for(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """The first frame from now on that is as wanted."""
        seen = len(self.frames)
        return wait_until(lambda: next((frame for frame in self.frames[seen:] if condition(frame)), None))

    def interrupt(self) -> int:
        os.write(self.master, b"\x03")
        return self.process.wait(timeout=120)


@pytest.fixture
def terminal(base):
    opened = []

    def start(*words: str, columns: int = 100, rows: int = 50, **environment: str) -> Terminal:
        opened.append(Terminal(base, *words, columns=columns, rows=rows, **environment))
        return opened[-1]

    yield start
    for each in opened:
        each.process.kill()
        each.process.wait()
        os.close(each.master)


def stopped(pid: int) -> bool:
    """Every thread of it: one that gives way to everybody else takes a while."""
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return set(states) == {"T"}


def test_it_draws_in_place_and_leaves_the_terminal_as_it_was(start_hand, terminal):
    trainer = start_hand("me")
    trainer.do("hand.step(20)")
    watch = terminal("status", "--watch")
    watch.wait_for(lambda frame: any("20 steps" in row for row in frame))
    trainer.do("hand.step(22)")
    frame = watch.wait_for(lambda frame: any("42 steps" in row for row in frame))
    assert any("attention" in row for row in frame)
    assert watch.interrupt() == 0
    output = watch.read()
    assert output.startswith("\x1b[?25l\x1b[2J")
    assert output.endswith("\n\x1b[?25h"), repr(output[-80:])
    assert output.count("\x1b[2J") == 1, "only the first frame clears the whole screen"


def test_a_narrow_terminal_shows_what_fits(start_hand, terminal):
    start_hand("me").do("hand.step(5)")
    watch = terminal("status", "--watch", columns=30, rows=8)
    frame = watch.wait_for(lambda frame: len(frame) == 8)
    assert max(map(len, frame)) <= 30, frame
    assert re.fullmatch(r"\.\.\. \d+ more lines", frame[-1])
    watch.resize(120, 60)  # it notices at once or at its next look
    frame = watch.wait_for(lambda frame: len(frame) > 8)
    assert any(len(row) > 30 for row in frame)


def test_several_runs_that_do_not_fit_are_a_line_each(start_hand, terminal):
    for name in ("first", "second"):
        start_hand(name).do("hand.step(20)")
    watch = terminal("status", "--watch", rows=12)
    frame = watch.wait_for(lambda frame: sum("step 20" in row for row in frame) == 2)
    assert [row.split()[:2] for row in frame] == [["first", "running"], ["second", "running"]]
    assert "error" in frame[0]
    wide = terminal("status", "--watch", rows=90)
    frame = wide.wait_for(lambda frame: sum("20 steps" in row for row in frame) == 2)
    assert sum("overhead" in row for row in frame) == 2


def test_it_waits_for_a_run(start_hand, terminal):
    watch = terminal("status", "--watch")
    watch.wait_for(lambda frame: frame == ["foreshock: no live run; Ctrl-C ends this"])
    start_hand("me").do("hand.step(5)")
    watch.wait_for(lambda frame: any("foreshock  me running" in row for row in frame))


def test_a_terminal_that_cannot_draw_gets_lines(start_hand, terminal):
    start_hand("me").do("hand.step(5)")
    watch = terminal("status", "--watch", TERM="dumb", NO_COLOR="1")
    wait_until(lambda: watch.read().count("overhead") >= 2)
    assert "\x1b" not in watch.output


def test_a_pipe_gets_plain_lines(start_hand, base):
    start_hand("me").do("hand.step(5)")
    for words, mark in ((["--watch"], "overhead"), (["--watch", "--json"], '"schema"')):
        watch = subprocess.Popen(
            [str(monitored.FORESHOCK), "status", *words], stdout=subprocess.PIPE, text=True,
            env=monitored.clean_environment(FORESHOCK_DIR=str(base)),
        )  # fmt: skip
        text = ""
        while text.count(mark) < 2:
            line = watch.stdout.readline()
            assert line, text
            text += line
        assert "\x1b" not in text
        watch.send_signal(signal.SIGINT)
        assert watch.wait(timeout=120) in (-signal.SIGINT, 0)
        watch.stdout.close()


def test_an_agent_that_does_not_answer_is_told(start_hand, foreshock, base):
    trainer = start_hand("me")
    trainer.do("hand.step(5)")
    agent = json.loads((base / "me" / "agent.json").read_text())["pid"]
    os.kill(agent, signal.SIGSTOP)
    wait_until(lambda: stopped(agent))
    try:
        told = foreshock("status", "--json")  # within its 60 s
        (state,) = json.loads(told.stdout)
        assert told.returncode == 3
        reason = state.pop("reason")
        assert reason
        assert state == {"schema": 1, "run": "me", "state": None, "ranks": None}
        plain = foreshock("status")
        assert (plain.returncode, plain.stdout) == (3, f"\nrun me: {reason}\n")
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_until(lambda: foreshock("status", "--json").returncode == 0)
