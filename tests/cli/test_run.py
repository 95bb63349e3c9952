"""`foreshock run` around plain commands: what it must never change, and what it leaves behind."""

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scraping import wait_until


def run(foreshock, environment, *command, options=(), **more):
    return subprocess.run(
        [foreshock, "run", *options, "--", *command],
        env=environment, capture_output=True, text=True, timeout=60, check=False, **more,
    )  # fmt: skip


def start(foreshock, environment, script, **more):
    """Starts a shell script under run; returns once the script has said "ready". Under nohup a hangup is ignored, and a
    shell can not trap what was ignored when it began."""
    process = subprocess.Popen(
        [foreshock, "run", "--", "sh", "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL), **more,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        (("--every", "2", "--max-slowdown", "3%"), True),
        (("--every", "2"), False),
        (("--max-slowdown", "3%"), False),
        (("--every", "2", "--max-slowdown", "100%"), False),
    ],
)
def test_a_limit_that_goes_before_an_interval_is_reported(foreshock, environment, options, is_told):
    done = run(foreshock, environment, "true", options=options)
    assert ("--max-slowdown 3% goes before --every 2: " in done.stderr) == is_told, done.stderr


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_exit_status_passes_through(foreshock, environment, status):
    assert run(foreshock, environment, "sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_death_by_signal_passes_through(foreshock, environment, number):
    result = run(foreshock, environment, "sh", "-c", f"kill -{int(number)} $$")
    assert result.returncode == -number


def test_output_and_input_are_the_command_s_own(foreshock, environment):
    result = run(foreshock, environment, "cat", input="hello\n")
    assert result.stdout == "hello\n"
    assert all(line.startswith("foreshock: ") for line in result.stderr.splitlines())


@pytest.mark.parametrize("option", ["--summary", "--record", "--file-sd"])
@pytest.mark.parametrize("path", ["x" * 5000, "/dev/null/x", "\n/x"])
def test_an_impossible_output_is_one_line(foreshock, environment, option, path):
    result = run(foreshock, environment, "true", options=[option, path])
    assert result.returncode == 2
    assert result.stderr.startswith(f"foreshock: {option}: ")
    assert result.stderr.count("\n") == 1


def unfit_tokens(tmp_path):
    short, open_to_all = tmp_path / "short", tmp_path / "open"
    short.write_text("0123456789\n")
    open_to_all.write_text("0123456789abcdef\n")
    short.chmod(0o600)
    open_to_all.chmod(0o644)
    return {
        tmp_path / "missing": "cannot be read",
        tmp_path: "not a regular file",
        short: "16 to 1024",
        open_to_all: "chmod 600",
    }


def test_a_training_does_not_start_without_the_token_that_it_was_to_have(foreshock, environment, tmp_path):
    """Its agent would refuse to serve, and the training would run for weeks with nobody watching."""
    for path, why in unfit_tokens(tmp_path).items():
        for options, variables in ((["--token-file", str(path)], {}), ([], {"FORESHOCK_TOKEN_FILE": str(path)})):
            result = run(foreshock, environment | variables, "echo", "started", options=options)
            assert (result.returncode, result.stdout) == (2, "")
            assert re.fullmatch(
                f"foreshock: --token-file: token file {re.escape(str(path))} .*{why}.*\n", result.stderr
            )


def test_a_training_does_not_start_where_its_agent_cannot_listen(foreshock, environment, tmp_path):
    (tmp_path / "file").write_text("")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    # 192.0.2.0/24 and 2001:db8::/32 are for documentation: no machine has them.
    for place in (f"unix:{tmp_path}/none/agent.sock", f"unix:{tmp_path}/file", "192.0.2.7", "2001:db8::7"):
        result = run(foreshock, environment, "echo", "started", options=["--bind", place, "--token-file", str(token)])
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith(f"foreshock: --bind {place}: ")
        assert result.stderr.count("\n") == 1
    for place in (f"unix:{tmp_path}/agent.sock", "127.0.0.1", "0.0.0.0"):
        result = run(foreshock, environment, "echo", "started", options=["--bind", place, "--token-file", str(token)])
        assert (result.returncode, result.stdout) == (0, "started\n")
        assert "page at" in result.stderr


def test_switched_off_no_option_stands_in_the_way(foreshock, environment, tmp_path):
    options = ["--token-file", str(tmp_path / "missing"), "--record", "/nonexistent/x", "--bind", "192.0.2.7"]
    result = run(foreshock, environment | {"FORESHOCK": "0"}, "echo", "started", options=options)
    assert (result.returncode, result.stdout, result.stderr) == (0, "started\n", "")


def test_a_working_directory_that_is_gone_is_one_line(foreshock, environment, tmp_path):
    script = f"mkdir gone; cd gone; rmdir ../gone; exec {foreshock} run --summary x.json -- true"
    result = subprocess.run(
        ["sh", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("foreshock: --summary: x.json cannot be written")


def test_a_standard_error_that_nobody_reads_does_not_stop_the_command(foreshock, environment):
    read_end, write_end = os.pipe()
    os.close(read_end)
    result = subprocess.run(
        [foreshock, "run", "--", "sh", "-c", "echo here"],
        env={**environment, "FORESHOCK_DIR": "/proc/none"}, stdout=subprocess.PIPE, stderr=write_end,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(write_end)
    assert (result.returncode, result.stdout) == (0, "here\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_are_passed_on_once(foreshock, environment, number):
    count = f"count=0; trap 'count=$((count+1))' {int(number)}; echo ready; while [ $count = 0 ]; do sleep 0.1; done"
    script = f"{count}; sleep 1; exit $((40+count))"
    process = start(foreshock, environment, script)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 41


def test_interrupt_of_the_terminal_reaches_the_command_once(foreshock, environment):
    """Ctrl-C signals the whole foreground group: run must not send it a second time."""
    count = "count=0; trap 'count=$((count+1))' INT; echo ready; while [ $count = 0 ]; do sleep 0.1; done"
    script = f"{count}; sleep 1; exit $((40+count))"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(foreshock, [foreshock, "run", "--", "sh", "-c", script], environment)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 4096)
    time.sleep(0.2)
    os.write(terminal, b"\x03")
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # the other end is closed
        pass
    _, status = os.waitpid(pid, 0)
    assert os.WEXITSTATUS(status) == 41


def test_interrupt_before_the_command_has_started_ends_the_run(foreshock, environment, base):
    """Ctrl-C while the agent comes up: the command is not there to get the terminal's signal."""
    (base / "me").mkdir(mode=0o700)
    with open(base / "me" / "agent.start", "w") as starter:  # held: no agent comes, and run waits for one
        fcntl.flock(starter, fcntl.LOCK_EX)
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(foreshock, [foreshock, "run", "--run-id", "me", "--", "echo", "started"], environment)
        while not (base / "me" / "run.lock").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        os.write(terminal, b"\x03")
        seen = b""
        try:
            while more := os.read(terminal, 4096):
                seen += more
        except OSError:  # the other end is closed
            pass
        _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGINT
    assert b"started" not in seen


def test_a_summary_of_an_earlier_process_of_our_pid_is_not_ours(foreshock, environment, base, tmp_path):
    (base / "me").mkdir(mode=0o700)
    copy = tmp_path / "summary.json"
    old = f'echo \'{{"run": "old", "ranks": []}}\' > "{base}/me/summary.$$.json"'
    script = f"{old}; exec {foreshock} run --run-id me --summary {copy} -- true"
    subprocess.run(["sh", "-c", script], env=environment, capture_output=True, timeout=60, check=True)
    assert json.loads(copy.read_text())["run"] == "me"


def test_missing_command_is_127(foreshock, environment):
    result = run(foreshock, environment, "no-such-command")
    assert result.returncode == 127
    assert result.stderr == "foreshock: cannot start 'no-such-command': No such file or directory\n"


def test_directory_is_gone_afterwards(foreshock, environment, base, tmp_path):
    seen = run(foreshock, environment, "ls", str(base), options=("--run-id", "seen"), cwd=tmp_path)
    assert "seen" in seen.stdout.split()
    assert [entry.name for entry in base.iterdir()] == ["lock"]
    assert not [entry for entry in tmp_path.iterdir() if entry.name != "cache"]


def test_environment_of_the_command(foreshock, environment, base):
    environment = environment | {"PYTHONPATH": "/mine", "FORESHOCK_EVERY": "4"}
    names = "LD_PRELOAD PYTHONPATH FORESHOCK_DIR FORESHOCK_RUN_ID FORESHOCK_EVERY FORESHOCK_MEMORY"
    show = f"for name in {names}; do eval echo \\$$name; done"
    options = ("--run-id", "me", "--memory", "8MiB")
    for more in ((), ("--preload",)):
        result = run(foreshock, environment, "sh", "-c", show, options=(*options, *more))
        preload, path, *rest = result.stdout.splitlines()
        assert preload.endswith("/lib/libforeshock.so") if more else preload == ""
        assert path.endswith("/share/foreshock/python:/mine")
        assert rest == [str(base), "me", "4", "8MiB"]


def test_switched_off_nothing_is_changed(foreshock, environment, base):
    result = run(foreshock, environment | {"FORESHOCK": "0"}, "sh", "-c", "echo [$LD_PRELOAD]; exit 3")
    assert (result.returncode, result.stdout, result.stderr) == (3, "[]\n", "")
    assert not list(base.iterdir())


def test_without_tmpfs_the_command_runs_and_one_line_says_why(foreshock, environment, tmp_path):
    result = run(foreshock, environment | {"FORESHOCK_DIR": str(tmp_path)}, "sh", "-c", "echo [$LD_PRELOAD]; exit 3")
    assert (result.returncode, result.stdout) == (3, "[]\n")
    assert len(result.stderr.splitlines()) == 1
    assert "not on tmpfs" in result.stderr


def test_without_torch_the_command_runs_and_one_line_says_why(foreshock, environment):
    result = run(foreshock, environment, "/usr/bin/python3", "-S", "-c", "raise SystemExit(5)")
    assert result.returncode == 5
    assert len(result.stderr.splitlines()) == 1
    assert "not monitoring: " in result.stderr


def test_a_command_that_never_trains_ends_with_one_line(foreshock, environment):
    result = run(foreshock, environment, "true")
    assert result.returncode == 0
    lines = result.stderr.splitlines()
    assert len(lines) == 2, lines
    assert "page at http://127.0.0.1:" in lines[0]
    assert lines[1].startswith(
        "foreshock: nothing to report: the command made no optimizer step and no attention call that needs gradients"
    )


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_taken_port_that_was_asked_for_is_an_error(foreshock, environment, taken_port, base):
    """Before the command starts: Prometheus would scrape whatever listens there."""
    result = run(foreshock, environment, "echo", "started", options=("--port", str(taken_port)))
    assert (result.returncode, result.stdout) == (2, "")
    assert f"port {taken_port}: Address already in use; choose another --port" in result.stderr
    assert result.stderr.count("\n") == 1
    assert run(foreshock, environment | {"FORESHOCK_PORT": str(taken_port)}, "true").returncode == 2


def test_taken_port_is_an_error_for_an_agent(foreshock, environment, taken_port, base):
    (base / "me").mkdir(mode=0o700)
    command = [foreshock, "agent", "--dir", str(base / "me"), "--port", str(taken_port)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert f"port {taken_port}: Address already in use" in result.stderr


def test_default_port_moves_on_and_the_first_line_says_so(foreshock, environment):
    del environment["FORESHOCK_PORT"]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another process may have it
            stack.enter_context(socket.create_server(("127.0.0.1", 9847)))
        first = run(foreshock, environment, "true").stderr.splitlines()[0]
    port = int(re.search(r"page at http://127\.0\.0\.1:(\d+)/ \(port 9847 is taken\)$", first).group(1))
    assert 9847 < port <= 9946


def test_without_proc_the_command_runs_and_one_line_says_why(foreshock, environment):
    command = f"umount -l /proc && exec {foreshock} run -- echo started"
    result = subprocess.run(
        ["unshare", "--mount", "--", "sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    if "unshare failed" in result.stderr:
        pytest.skip("needs the right to unmount")
    assert (result.returncode, result.stdout) == (0, "started\n")
    assert "not monitoring: /proc is not mounted here" in result.stderr


def test_a_trainer_that_the_agent_cannot_follow_is_not_one_that_never_trained(foreshock, environment, base, tmp_path):
    wanted = tmp_path / "summary.json"
    left = base / "me" / "0-0000000000000001"  # as by a foreshock of another version
    script = f"echo x > {left}.ctl; echo x > {left}.seg; sleep 1"
    options = ("--summary", str(wanted), "--run-id", "me")
    result = run(foreshock, environment, "sh", "-c", script, options=options)
    assert result.returncode == 0
    assert "1 process cannot be followed: too short for a segment\n" in result.stderr
    assert "nothing to report" not in result.stderr
    assert json.loads(wanted.read_text())["refused"] == {"segments": 1, "why": "too short for a segment"}


def test_summary_file(foreshock, environment, tmp_path):
    wanted = tmp_path / "summary.json"
    result = run(foreshock, environment, "true", options=("--summary", str(wanted), "--run-id", "me"))
    assert result.returncode == 0
    summary = json.loads(wanted.read_text())
    assert (summary["schema"], summary["run"], summary["ranks"]) == (1, "me", [])
    assert summary["state"] == "finished"


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("exit 0", "finished"),
        ("exit 1", "failed"),
        ("kill -TERM $$", "preempted"),
        ("kill -INT $$", "interrupted"),
        ("exit 130", "interrupted"),
    ],
)
def test_state_follows_the_exit(foreshock, environment, tmp_path, script, state):
    wanted = tmp_path / "summary.json"
    run(foreshock, environment, "sh", "-c", script, options=("--summary", str(wanted)))
    assert json.loads(wanted.read_text())["state"] == state


@pytest.mark.parametrize("ignored", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_was_ignored_before_us_is_no_preemption(foreshock, environment, tmp_path, ignored):
    """nohup: the terminal goes away, and the run goes on."""
    wanted = tmp_path / "summary.json"
    trap = ["sh", "-c", f"trap '' {int(ignored)}; exec \"$@\"", "sh"]
    command = [*trap, foreshock, "run", "--summary", str(wanted), "--", "sh", "-c", "echo ready; sleep 1"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(ignored)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "no summary" not in errors
    assert json.loads(wanted.read_text())["state"] == "finished"


def test_killed_agent_is_started_again(foreshock, environment, base):
    process = start(foreshock, environment | {"FORESHOCK_RUN_ID": "me"}, "echo ready; cat", stdin=subprocess.PIPE)
    agent_file = base / "me" / "agent.json"
    first = json.loads(agent_file.read_text())["pid"]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: json.loads(agent_file.read_text())["pid"] != first)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "nothing to report" in errors


def test_runs_of_one_id_share_one_agent(foreshock, environment, base):
    environment = environment | {"FORESHOCK_RUN_ID": "me"}
    # Says it when communicate() closes its input: what came along with "ready" would stay in the reader's buffer.
    # The agent may be late on a busy machine.
    script = "echo ready; cat; until cat $FORESHOCK_DIR/me/agent.json 2>/dev/null; do sleep 0.1; done"
    runs = [start(foreshock, environment, script, stdin=subprocess.PIPE) for _ in range(4)]
    pids = {json.loads(process.communicate(timeout=60)[0])["pid"] for process in runs}
    assert len(pids) == 1
    assert [process.returncode for process in runs] == [0] * 4
    assert [entry.name for entry in base.iterdir()] == ["lock"]


def test_a_record_that_the_agent_of_another_run_does_not_write(foreshock, environment, tmp_path):
    """Its options come from the first run; the second says what it does not get, and only then."""
    environment = environment | {"FORESHOCK_RUN_ID": "me"}
    script = "until test -s $FORESHOCK_DIR/me/agent.json; do sleep 0.1; done; echo ready; cat"
    first = subprocess.Popen(
        [foreshock, "run", "--record", tmp_path / "first\udcff.jsonl", "--", "sh", "-c", script],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert first.stdout.readline() == "ready\n"
    same = run(foreshock, environment, "true", options=["--record", tmp_path / "first\udcff.jsonl"])
    other = run(foreshock, environment, "true", options=["--record", tmp_path / "second.jsonl"])
    first.communicate(timeout=60)
    assert first.returncode == same.returncode == other.returncode == 0
    assert "is not written" not in same.stderr
    (line,) = [line for line in other.stderr.splitlines() if "is not written" in line]
    assert "second.jsonl" in line
    assert "--run-id" in line
    assert not (tmp_path / "second.jsonl").exists()


@pytest.mark.parametrize(("spare", "monitored"), [(0, True), (1, False)])
def test_a_base_directory_whose_name_is_too_long(foreshock, environment, base, spare, monitored):
    """The trainer has room for 399 bytes of <base>/<run id>."""
    run_id = "r" * 20
    long = base / ("d" * 180)
    long.mkdir(mode=0o700)
    long /= "e" * (399 + spare - len(f"{long}//{run_id}"))
    result = run(foreshock, environment | {"FORESHOCK_DIR": str(long)}, "true", options=["--run-id", run_id])
    assert result.returncode == 0
    assert ("is too long; set FORESHOCK_DIR" in result.stderr) is not monitored
    assert (", page at " in result.stderr) is monitored


@pytest.mark.parametrize(
    "arguments",
    [[], ["frobnicate"], ["run"], ["run", "--every", "x", "--", "true"], ["run", "--bind", "0.0.0.0", "--", "true"],
     ["run", "--run-id", "a/b", "--", "true"], ["run", "--summary", "/nonexistent/s.json", "--", "true"],
     ["run", "--frobnicate"], ["run", "--record", "--", "true"], ["run", "--record", "--summary", "x"],
     ["status", "stray"], ["pause", "--every", "2"], ["agent"], ["docs", "nothing"]],
)  # fmt: skip
def test_wrong_use_gets_one_line_and_status_2(foreshock, environment, base, arguments):
    result = subprocess.run(
        [foreshock, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("foreshock: ")
    assert not list(base.iterdir())


@pytest.mark.parametrize("command", ["status", "pause", "resume"])
def test_without_a_run_there_is_nothing_to_show(foreshock, environment, command):
    result = subprocess.run(
        [foreshock, command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "no live run" in result.stderr


def test_help_and_version(foreshock):
    for arguments, part in (
        (["--help"], "foreshock run"),
        (["run", "--help"], "--max-slowdown"),
        (["--version"], "foreshock 0."),
    ):
        result = subprocess.run([foreshock, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0
        assert part in result.stdout


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["lab", "--list"], ["doctor"]])
def test_what_cannot_be_printed_is_not_done(foreshock, environment, words):
    with Path("/dev/full").open("w") as full:
        onto_full = subprocess.run(
            [foreshock, *words], env=environment, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", foreshock, *words],
        env=environment, stderr=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    for done in (onto_full, closed):
        assert done.returncode == 1
        assert b"foreshock: standard output: " in done.stderr


def test_a_closed_standard_output_is_closed_for_the_command_too(foreshock, environment):
    script = "if [ -e /proc/$$/fd/1 ]; then echo open >&2; else echo shut >&2; fi"
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", foreshock, "run", "--", "sh", "-c", script],
        env=environment, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "shut\n" in done.stderr


@pytest.mark.parametrize("how", ["no such command", "no such script", "no interpreter", "no PATH"])
def test_a_command_that_cannot_start_gets_one_line(foreshock, environment, tmp_path, how):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter -x\n")
    script.chmod(0o700)
    command = {"no such script": str(tmp_path / "other"), "no interpreter": str(script)}.get(how, "no-such-command")
    if how == "no PATH":
        environment = {name: value for name, value in environment.items() if name != "PATH"}
    done = run(foreshock, environment, command)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == f"foreshock: cannot start '{command}': No such file or directory\n"


def test_doctor_wraps_what_goes_into_a_pipe(foreshock, environment):
    told = subprocess.run(
        [foreshock, "doctor"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    long = [line for line in told.stdout.splitlines() if len(line) > 80]
    assert [line for line in long if " " in line[27:].strip()] == [], "only a path is longer"


@pytest.mark.parametrize("words", [("--python", "/no/python"), ("--", "no-such-command")])
def test_doctor_names_what_it_does_not_find(foreshock, environment, words):
    told = subprocess.run(
        [foreshock, "doctor", *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode == 1
    assert f"{words[-1]} is not found" in told.stdout


def test_doctor_tells_of_the_kernels_for_devices(foreshock, environment, tmp_path):
    build, kernels = Path(foreshock).parents[1], tmp_path / "lib" / "libforeshock.fatbin"
    for folder in ("share", "include"):
        shutil.copytree(build / folder, tmp_path / folder)
    for file in ("bin/foreshock", "lib/libforeshock.so"):
        (tmp_path / file).parent.mkdir()
        shutil.copy(build / file, tmp_path / file)

    def told() -> str:
        command = [tmp_path / "bin" / "foreshock", "doctor", "--", "/bin/true"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return " ".join(done.stdout.partition("CUDA devices   ")[2].split())

    if not (build / "lib" / kernels.name).exists():
        assert "this build has no kernels; attention there is counted, not sampled" in told()
        return
    assert f"{kernels} is not there; attention there is counted, not sampled" in told()
    shutil.copy(build / "lib" / kernels.name, kernels)
    oldest = r"driver (525 \(CUDA 12\.0\)|580 \(CUDA 13\.0\)|\(CUDA \d+\.\d\)) or later"
    environment = environment | {"LD_LIBRARY_PATH": str(tmp_path / "lib")}
    found = re.search(rf"kernels for sm_80 and later need {oldest}; there is no driver here", told())
    assert found
    shutil.copy(build / "lib" / "fake_cuda" / "libcuda.so.1", tmp_path / "lib")
    oldest = 12000 if "525" in found[0] else 13000
    for version in (11080, 12000, 12020, 12040, 12080, 13000):
        environment["FAKE_CUDA_VERSION"] = str(version)
        name = f"CUDA {version // 1000}.{version % 1000 // 10}"
        if version >= oldest:
            assert f"kernels for sm_80 and later, which the driver here loads ({name})" in told()
        else:
            assert (
                f"the driver here is too old ({name}); attention there is counted, not sampled; install driver 5"
                in (told())
            )
    damaged = bytearray(kernels.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    kernels.write_bytes(damaged)
    assert f"{kernels} is of another build, or damaged" in told()


@pytest.mark.parametrize(("local", "platform"), [("+rocm7.1", "rocm"), ("+xpu", "xpu"), ("+cu130", None), ("", None)])
def test_doctor_names_devices_whose_attention_is_only_counted(foreshock, environment, tmp_path, local, platform):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.13.0{local}'\ngit_version = '0123456789abcdef'\n")
    environment = environment | {"PYTHONPATH": str(tmp_path)}
    command = [foreshock, "doctor", "--python", sys.executable]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout
    assert f"torch 2.13.0{local}" in shown
    line = f"devices of torch {platform}: attention there is counted, not sampled; attention on the CPU is checked"
    assert (line in " ".join(shown.split())) == (platform is not None)


def test_list_of_commands_has_aligned_columns(foreshock):
    told = subprocess.run([foreshock, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    commands = [line for line in told.splitlines() if line.startswith("  foreshock ")]
    assert len(commands) >= 13
    for line in commands:
        assert re.fullmatch(r"  foreshock \S+  +[a-z]\S*(?: \S+)*", line), line


def test_help_fits_80_columns_and_has_an_example(foreshock):
    pages = [[], ["run"], ["status"], ["doctor"], ["detect"], ["export"], ["agent"], ["pause"], ["resume"]]
    pages += [["report"], ["merge"], ["judge"], ["compare"], ["lab"]]
    for words in pages:
        shown = subprocess.run(
            [foreshock, *words, "--help"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        assert "\nExample: foreshock " in shown
        assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_misspelled_words_are_suggested(foreshock, environment):
    for words, meant in [
        (["statsu"], "status"),
        (["run", "--recrod", "a"], "--record"),
        (["report", "--jsno", "a"], "--json"),
        (["lab", "--acumulator", "fp32"], "--accumulator"),
    ]:
        done = subprocess.run([foreshock, *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert f"did you mean {meant}?" in done.stderr
    misspelled = environment | {"FORESHOCK_SUMARY": "x"}
    done = subprocess.run([foreshock, "status"], env=misspelled, capture_output=True, text=True, check=False)
    assert "ignored: unknown environment variable FORESHOCK_SUMARY, did you mean FORESHOCK_SUMMARY?" in done.stderr


@pytest.mark.parametrize("options", [(), ("--record", "off")])
def test_a_command_that_trains_nothing_leaves_no_record(foreshock, environment, tmp_path, options):
    here = tmp_path / "here"
    here.mkdir()
    done = run(foreshock, environment | {"FORESHOCK_RECORD": ""}, "true", options=options, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "no record" not in done.stderr
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("is_folder", [True, False])
def test_without_record_a_file_in_its_way_costs_the_record_only(foreshock, environment, tmp_path, is_folder):
    other = tmp_path / f"foreshock-me-{socket.gethostname()}.jsonl"
    other.mkdir() if is_folder else other.write_text("notes\n")
    unset = environment | {"FORESHOCK_RECORD": ""}
    done = run(foreshock, unset, "true", options=("--run-id", "me"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "no record" in line)
    assert f"{other}" in line
    assert ("a directory, not a file" if is_folder else "is not a record of foreshock") in line
    assert "not monitoring" not in done.stderr
    assert other.is_dir() if is_folder else other.read_text() == "notes\n"
