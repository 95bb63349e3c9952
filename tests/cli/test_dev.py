"""The dev script decides rightly what is missing, and never installs what it must not."""

import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import zipfile

import pytest

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def dev(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("dev", str(ROOT / "dev"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("dev", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def dpkg(tmp_path, monkeypatch):
    """A dpkg-query that knows the packages it is told."""

    def install(*names):
        script = tmp_path / "dpkg-query"
        lines = "\n".join(f"echo {name} installed" for name in names)
        script.write_text(f"#!/bin/sh\n{lines}\necho cmake not-installed\n")
        script.chmod(0o700)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return install


def test_missing_packages_are_those_not_installed(dev, dpkg):
    dpkg("g++", "git")
    missing = dev.missing_system_packages(dev.SYSTEM_PACKAGES)
    assert "cmake" in missing
    assert "git" not in missing


def test_any_version_of_the_sanitizer_runtime_will_do(dev, dpkg):
    dpkg(*(name for name in dev.SYSTEM_PACKAGES if name not in ("libclang-rt-dev", "cmake")), "libclang-rt-14-dev")
    assert dev.missing_system_packages(dev.SYSTEM_PACKAGES) == ["cmake"]


def test_without_root_one_line_says_what_to_type(dev, dpkg, monkeypatch, capsys):
    dpkg("git")
    monkeypatch.setattr(dev.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(dev.sys, "argv", ["dev", "test"])
    assert dev.main() == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "type: sudo apt-get install -y --no-install-recommends" in lines[0]
    assert "cmake" in lines[0]


def test_local_versions_count_as_the_pinned_one(dev, monkeypatch):
    answer = '{"torch": "2.13.0+cpu", "numpy": "0.1", "Py.Test_sdk": "1!9.2.0"}'
    wanted = {"torch": "2.13.0", "numpy": "2.4.6", "pytest": "9.2.0", "py-test-sdk": "1!9.2.0"}
    monkeypatch.setattr(dev, "wanted_python_packages", lambda: wanted)
    monkeypatch.setattr(dev, "PYTHON", ROOT / "dev")
    monkeypatch.setattr(
        dev.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=answer, stderr="")
    )
    assert dev.missing_python_packages() == ["numpy", "pytest"]


def test_nothing_is_run_when_all_is_there(dev, monkeypatch):
    monkeypatch.setattr(dev, "missing_system_packages", lambda _: [])
    monkeypatch.setattr(dev, "missing_python_packages", list)
    monkeypatch.setattr(dev, "run", lambda *_, **__: pytest.fail("something was run"))
    dev.ensure_system()
    dev.ensure_venv()


def test_packages_are_installed_beside_the_build(dev, monkeypatch):
    both = threading.Barrier(2, timeout=120)
    for name in ("ensure_system", "create_venv"):
        monkeypatch.setattr(dev, name, lambda *_: None)
    for name in ("ensure_venv", "build"):
        monkeypatch.setattr(dev, name, lambda **_: both.wait())
    dev.ensure_all()


def test_the_demo_installs_no_packages_of_tests(dev, monkeypatch):
    wanted = []
    monkeypatch.setattr(dev, "missing_system_packages", lambda packages: wanted.extend(packages) or [])

    def stop():
        raise dev.CommandError("the packages are there")

    monkeypatch.setattr(dev, "create_venv", stop)
    with pytest.raises(dev.CommandError):
        dev.command_demo(dev.parse(["demo"]))
    assert "cmake" in wanted
    assert not set(wanted) & set(dev.TEST_PACKAGES)


def test_an_error_of_an_installation_ends_the_command(dev, monkeypatch):
    def fail():
        raise dev.CommandError("no network")

    for name in ("ensure_system", "create_venv", "build"):
        monkeypatch.setattr(dev, name, lambda *_, **__: None)
    monkeypatch.setattr(dev, "ensure_venv", fail)
    with pytest.raises(dev.CommandError, match="no network"):
        dev.ensure_all()


@pytest.fixture
def no_ptxas(dev, monkeypatch, tmp_path):
    """A machine with nvcc and without the assemblers. Returns the commands that are run."""
    monkeypatch.setattr(dev, "PTXAS", tmp_path / "ptxas")
    monkeypatch.setattr(dev, "PYTHON", ROOT / "dev")
    monkeypatch.setattr(dev.shutil, "which", lambda name: f"/usr/bin/{name}")
    commands = []

    def run(*command):
        commands.append([str(word) for word in command])
        folder = pathlib.Path(command[command.index("-d") + 1])
        with zipfile.ZipFile(folder / "a.whl", "w") as wheel:
            wheel.writestr("nvidia/cuda_nvcc/bin/ptxas", (folder / "requirements.txt").read_text())

    monkeypatch.setattr(dev, "run", run)
    return commands


def test_assemblers_of_device_code_are_pinned_and_installed_once(dev, no_ptxas):
    dev.ensure_ptxas()
    for release in ("12.0", "12.9"):
        path = dev.PTXAS / release / "ptxas"
        assert re.fullmatch(rf"nvidia-cuda-nvcc-cu12=={release}\.\d+ --hash=sha256:[0-9a-f]{{64}}\n", path.read_text())
        assert os.access(path, os.X_OK)
    assert len(no_ptxas) == 2
    assert all({"--require-hashes", "--no-deps"} < set(command) for command in no_ptxas)
    dev.ensure_ptxas()
    assert len(no_ptxas) == 2


def test_without_the_assemblers_the_build_goes_on(dev, no_ptxas, monkeypatch, capsys):
    def fail(*_command):
        raise dev.CommandError("pip ended with status 1")

    monkeypatch.setattr(dev, "run", fail)
    dev.ensure_ptxas()
    assert "pip ended with status 1: kernels for devices will need a driver of nvcc's own" in capsys.readouterr().out
    assert not (dev.PTXAS / "12.0" / "ptxas").exists()


def test_cmake_runs_again_once_the_assemblers_are_there(dev, no_ptxas, monkeypatch, tmp_path):
    configured = []
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "run", lambda *command: configured.append(command))
    rules = tmp_path / "build" / "release" / "build.ninja"
    rules.parent.mkdir(parents=True)
    dev.configure("release")
    rules.touch()
    dev.configure("release")
    assert configured == [("cmake", "--preset", "release")]
    os.utime(rules, (1, 1))
    dev.ptxas_of("12.0").parent.mkdir(parents=True)
    dev.ptxas_of("12.0").touch()
    dev.configure("release")
    assert len(configured) == 2


JUNIT = """<testsuites><testsuite><testcase classname="tests.e2e.test_a" name="test_fine"/>
<testcase classname="tests.e2e.test_a" name="test_bad"><failure message="assert 1 == 2&#10;where 1 = f()">..</failure>
</testcase>
<testcase classname="tests.e2e.test_b" name="test_set_up"><error message="no such file">..</error></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def reports(dev, monkeypatch, tmp_path):
    """Where the stages leave their results while nothing is really run."""
    monkeypatch.setattr(dev, "ensure_all", lambda *_: None)
    monkeypatch.setattr(dev, "build", lambda *_, **__: None)
    monkeypatch.setattr(dev, "report_of", lambda stage: tmp_path / f"{stage}.xml")
    monkeypatch.setattr(dev.sys, "argv", ["dev", "test", "--quick"])
    return tmp_path


def test_failing_stage_fails_the_whole(dev, monkeypatch, capsys, reports):
    monkeypatch.setattr(dev, "run", lambda command, *_, **__: 1 if command == "ctest" else 0)
    assert dev.main() == 1
    said = capsys.readouterr().out
    assert "release  FAILED" in said
    assert "it did not run to its end" in said
    assert "pytest   passed" in said


@pytest.mark.parametrize(
    ("words", "stages"),
    [
        (["--quick"], ["release", "pytest"]),
        ([], ["release", "pytest", "asan"]),
        (["--all"], ["release", "pytest", "asan", "tsan", "bench", "thirdparty"]),
    ],
)
def test_stages_of_each_tier(dev, monkeypatch, capsys, reports, words, stages):
    monkeypatch.setattr(dev.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(dev.sys, "argv", ["dev", "test", *words])
    monkeypatch.setattr(dev, "python_tests_and_builds", lambda *_: 0)
    monkeypatch.setattr(dev, "python_tests", lambda *_: 0)
    monkeypatch.setattr(dev, "run", lambda *words, **_: int("bench/slowdown.py" in words))
    assert dev.main() == ("--all" in words)
    said = capsys.readouterr().out
    assert re.findall(r"dev: (\w+) +(?:passed|FAILED)", said) == stages
    assert re.findall(r"dev: (\w+) +FAILED", said) == stages[4:5]


def test_builds_go_on_while_the_tests_wait_and_end_with_them(dev, monkeypatch, tmp_path):
    # As Ninja does: what it starts is in a process group of its own, and is ended and cleaned up after at SIGTERM.
    ninja = tmp_path / "ninja"
    ninja.write_text(f"""#!/bin/bash
cd {tmp_path}
trap 'sleep 0.5; echo "$*" >> ended; exit 2' TERM
echo "$*" >> started
sleep 600 & wait
""")
    ninja.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(dev, "configure", lambda preset: None)
    monkeypatch.setattr(dev, "use_idle_priority", lambda: (tmp_path / "at_idle_priority").touch())
    started, ended = tmp_path / "started", tmp_path / "ended"

    def tests():
        while not (started.exists() and started.read_text().endswith("\n")):
            time.sleep(0.05)
        assert (tmp_path / "at_idle_priority").exists()
        assert not ended.exists()
        return 1

    monkeypatch.setattr(dev, "python_tests", lambda tier: tests())
    assert dev.python_tests_and_builds("full", ["asan"]) == 1
    assert started.read_text() == f"-C build/asan -j {os.cpu_count()} sanitized_tests\n"
    # Or a build of the same folder could begin while this one cleans up.
    assert ended.read_text() == started.read_text()


def test_what_gives_way_takes_only_what_is_left(dev):
    sleeper = subprocess.Popen(["sleep", "60"], preexec_fn=dev.use_idle_priority, start_new_session=True)
    try:
        assert os.sched_getscheduler(sleeper.pid) == os.SCHED_IDLE != os.sched_getscheduler(0)
        group = pathlib.Path(f"/proc/{sleeper.pid}/autogroup")
        if group.exists():  # not every kernel shares by sessions
            assert group.read_text().split()[-1] == "19"
    finally:
        sleeper.kill()
        sleeper.wait()


def test_what_failed_is_named_at_the_end(dev, monkeypatch, capsys, reports):
    def run(command, *_, **__):
        (reports / ("release.xml" if command == "ctest" else "pytest.xml")).write_text(JUNIT)
        return 0 if command == "ctest" else 1

    monkeypatch.setattr(dev, "run", run)
    assert dev.main() == 1
    said = capsys.readouterr().out.partition("pytest   FAILED")[2].splitlines()[1:3]
    assert [line.strip() for line in said] == [
        "dev:   tests.e2e.test_a test_bad assert 1 == 2",
        "dev:   tests.e2e.test_b test_set_up no such file",
    ]


def test_results_of_an_earlier_run_are_not_told(dev, monkeypatch, capsys, reports):
    (reports / "pytest.xml").write_text(JUNIT)
    monkeypatch.setattr(dev, "run", lambda command, *_, **__: 0 if command == "ctest" else 1)
    assert dev.main() == 1
    assert "test_bad" not in capsys.readouterr().out


CTEST_JUNIT = """<testsuite name="Linux">
<testcase name="agent_test" classname="agent_test" time="2" status="run"/>
<testcase name="cli_test" classname="cli_test" time="1" status="fail"><failure message=""/></testcase>
<testcase name="lab_test" classname="lab_test" time="1" status="fail"><failure message="Failed"/>
<system-out>[ RUN      ] Lab.Fine
[       OK ] Lab.Fine (0 ms)
[ RUN      ] Lab.Crashes
</system-out></testcase>
<testcase name="fuzz_options" classname="fuzz_options" time="3" status="run"/></testsuite>"""
GTEST_CASE = (
    '<testsuites><testsuite><testcase name="{name}" classname="Suite" time="0.5" file="/a/tests/agent/a_test.cpp">'
    "{inside}</testcase></testsuite></testsuites>"
)


@pytest.fixture
def expanded(dev, tmp_path):
    """A report of ctest in which each program of GoogleTest is replaced by its cases."""
    report = tmp_path / "release.xml"
    report.write_text(CTEST_JUNIT)
    for program, name, inside in [("agent_test", "Works", ""), ("cli_test", "Fails", '<failure message="1 != 2"/>')]:
        (tmp_path / f"{program}.xml").write_text(GTEST_CASE.format(name=name, inside=inside))
    dev.reports.expand_gtest(report, tmp_path)
    return report


def test_cases_of_a_program_are_reported_and_a_crash_names_its_case(dev, expanded):
    assert [case.name for case in dev.reports.read_cases(expanded)] == [
        "lab_test lab_test", "fuzz_options fuzz_options", "agent_test Suite.Works", "cli_test Suite.Fails",
    ]  # fmt: skip
    assert dev.reports.failures(expanded) == ["lab_test lab_test Failed in Lab.Crashes", "cli_test Suite.Fails 1 != 2"]


def test_times_of_folders_and_of_the_slowest_tests(dev, expanded):
    lines = [line.split() for line in dev.reports.table_of_times([expanded], slowest=2)]
    assert lines[0] == ["folder", "tests", "seconds", "CPU", "s"]
    assert lines[1:4] == [["ctest", "2", "4", "4"], ["agent", "2", "1", "1"], ["all", "4", "5", "5"]]
    assert lines[-2:] == [["3.0", "3.0", "fuzz_options", "fuzz_options"], ["1.0", "1.0", "lab_test", "lab_test"]]


def test_all_tests_of_root_have_the_packages_and_every_torch(dev, monkeypatch):
    ran = []
    monkeypatch.setattr(dev.os, "geteuid", lambda: 0)
    monkeypatch.setattr(dev, "run", lambda *words, **_: ran.append(tuple(map(str, words[1:]))) or 0)
    for stage in dev.packaging_stages().values():
        assert stage() == 0
    assert dev.packaging_stages().keys() <= dev.stages_of("all").keys()
    packaging = ROOT / "packaging"
    assert ran[0] == (str(packaging / "test_package.py"),)
    assert {words[0] for words in ran[1:]} == {str(packaging / "test_torch.py")}
    assert {release.rpartition(".")[0] for _, release in ran[1:]} >= {"2.6", "2.13", "2.14"}


LISTED = """Suite.
  Works
  Names
Sizes/Many.
  Holds/0  # GetParam() = 4
  Holds/1  # GetParam() = 5
"""


def test_cases_that_a_program_lists(dev):
    assert list(dev.listing.gtest_cases(LISTED)) == [
        "Suite.Works",
        "Suite.Names",
        "Sizes/Many.Holds/0",
        "Sizes/Many.Holds/1",
    ]


def test_every_tier_has_what_the_one_before_has(dev):
    tiers = {"quick": {"a"}, "full": {"a", "c", "b"}, "all": {"a", "b", "c", "d"}}
    assert list(dev.listing.by_first_tier(tiers)) == [("quick", "a"), ("full", "b"), ("full", "c"), ("all", "d")]
    with pytest.raises(AssertionError, match="not in the tier all"):
        list(dev.listing.by_first_tier(tiers | {"all": {"a", "b"}}))


def test_children_have_default_signals_however_the_tests_were_started(tmp_path):
    """nohup leaves SIGHUP ignored, and a shell that starts a command in the background SIGINT."""
    child = "import signal as s; print([s.getsignal(n) == s.SIG_IGN for n in (s.SIGHUP, s.SIGINT, s.SIGTERM)])"
    test = tmp_path / "test_one.py"
    test.write_text(
        "import subprocess, sys\ndef test_signals():\n"
        f"    seen = subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True).stdout\n"
        "    assert seen.strip() == '[False, False, False]'\n"
    )
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "support").symlink_to(ROOT / "tests" / "support")
    command = ["sh", "-c", 'trap "" HUP INT TERM; exec "$@"', "sh", sys.executable, "-m", "pytest", "-q", str(tmp_path)]
    done = subprocess.run([*command, "-p", "no:cacheprovider"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


GPU_JUNIT = """<testsuite><testcase name="Device.A" status="run" result="{result}">
<skipped message="device_kernels_test.cpp:35&#x0A;no device: no libcuda.so.1&#x0A;" /></testcase></testsuite>"""


@pytest.mark.parametrize(
    ("result", "told"), [("skipped", ["dev: nothing was launched: no device: no libcuda.so.1"]), ("completed", [])]
)
def test_tests_that_found_no_device_say_so(dev, monkeypatch, capsys, reports, result, told):
    def run(command, *_, **__):
        if command == "ctest":
            (reports / "release.xml").write_text(GPU_JUNIT.format(result=result))
        return 0

    monkeypatch.setattr(dev, "ensure_system", lambda: None)
    monkeypatch.setattr(dev, "ensure_ptxas", lambda: None)
    monkeypatch.setattr(dev, "run", run)
    monkeypatch.setattr(dev.sys, "argv", ["dev", "gpu-test"])
    assert dev.main() == 0
    assert capsys.readouterr().out.splitlines() == told


@pytest.fixture
def only_kit(dev, monkeypatch, tmp_path):
    """A machine that has build/gpu and cannot build: what is run there, with the build that tests are to take."""
    ran = []

    def run(command, *words, env=None, **_more):
        ran.append((pathlib.Path(command), *map(str, words), (env or {}).get("FORESHOCK_BUILD")))
        return 1 if pathlib.Path(command).name in failing else 0

    def never(*_, **__):
        raise AssertionError("nothing is installed or built here")

    failing = set()
    monkeypatch.setattr(dev, "KIT", tmp_path / "gpu")
    monkeypatch.setattr(dev, "RELEASE", tmp_path / "release")
    monkeypatch.setattr(dev, "run", run)
    for name in ("ensure_system", "ensure_venv", "build"):
        monkeypatch.setattr(dev, name, never)
    (tmp_path / "gpu").mkdir()
    return tmp_path / "gpu", ran, failing


def test_what_needs_a_device_runs_from_a_kit_where_nothing_can_be_built(dev, monkeypatch, only_kit):
    kit, ran, failing = only_kit
    monkeypatch.setattr(dev.sys, "argv", ["dev", "gpu-test"])
    assert dev.main() == 0
    programs, trainings = ran[:-1], ran[-1]
    assert {program.name for program, *_ in programs} >= {"device_kernels_test", "live_device_test"}
    assert {program.parent for program, *_ in programs} == {kit / "bin"}
    assert trainings[1:] == ("-m", "pytest", "tests/gpu", "-rs", str(kit))
    failing.add(programs[0][0].name)
    assert dev.main() == 1
    assert len(ran) == 2 * (len(programs) + 1), "the others run all the same"
    ran.clear()
    monkeypatch.setattr(dev.sys, "argv", ["dev", "bench", *dev.GPU_BENCHES])
    assert dev.main() == 0
    assert [program for program, *_ in ran[:2]] == [kit / "bin" / f"bench_{name}" for name in ("gpu", "gpu_calls")]
    assert ran[2][1:] == (str(ROOT / "bench" / "slowdown.py"), str(kit))
    assert {build for *_, build in ran} == {str(kit)}


def test_a_build_is_taken_before_a_kit(dev, only_kit, tmp_path):
    assert dev.has_only_kit()
    (tmp_path / "release").mkdir()
    assert not dev.has_only_kit()


def test_libraries_of_a_kit_are_those_that_not_every_machine_has(dev, monkeypatch):
    names = ("libfmt.so.9", "libstdc++.so.6", "libm.so.6", "libmpfr.so.6")
    told = "\tlinux-vdso.so.1 (0x1)\n" + "".join(f"\t{name} => /lib/{name} (0x2)\n" for name in names)
    done = subprocess.CompletedProcess([], 0, stdout=told)
    monkeypatch.setattr(dev.subprocess, "run", lambda *_, **__: done)
    assert dev.shared_libraries("program") == {"libfmt.so.9": "/lib/libfmt.so.9", "libmpfr.so.6": "/lib/libmpfr.so.6"}


def test_a_short_bench_is_one_that_can_be(dev, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(dev, "ensure_all", lambda *_: None)
    monkeypatch.setattr(dev, "run", lambda *command, **_more: ran.append([str(word) for word in command[1:]]))
    monkeypatch.setattr(dev.sys, "argv", ["dev", "bench", "--short"])
    assert dev.main() == 0
    assert ran == [[str(ROOT / "bench" / f"{name}.py"), "--short"] for name in dev.SHORT_BENCHES]
    monkeypatch.setattr(dev.sys, "argv", ["dev", "bench", "--short", "gradients"])
    assert dev.main() == 2
    assert capsys.readouterr().out == "dev: --short is for precursors, short_steps, slowdown\n"


def demo_words(dev, *words):
    return [str(word) for word in dev.demo_command(dev.parse(["demo", *words]), "run")]


def test_the_demo_errs_only_when_it_is_asked_to(dev):
    plain, fault = demo_words(dev), demo_words(dev, "--fault", "--seconds", "9")
    assert "--fault" not in plain
    assert not any(word.startswith("--every") for word in plain)
    training = fault[fault.index("--") + 1 :]
    assert training[training.index("--fault") + 1] == str(dev.DEMO_FAULTS["output"])
    assert training[training.index("--seconds") + 1] == "9"
    assert any(word.startswith("--every=") for word in fault[: fault.index("--")])
    assert demo_words(dev, "--fault", "grad_key")[-2:] == ["--fault", "grad_key"]


def test_the_demo_ends_with_its_story(dev, monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(dev, "DEMO_RECORD", tmp_path / "demo.jsonl")
    dev.DEMO_RECORD.write_text("of the demo before")
    for name in ("ensure_all", "watch_demo"):
        monkeypatch.setattr(dev, name, lambda *_, **__: None)

    def trained(*command, **_more):
        assert not dev.DEMO_RECORD.exists() or ran, "a record goes on where it ended: each demo has its own"
        ran.append([str(word) for word in command])
        dev.DEMO_RECORD.touch()
        return 0

    monkeypatch.setattr(dev, "run", trained)
    dev.command_demo(dev.parse(["demo"]))
    training, report = ran
    assert training[training.index("--record") + 1] == str(dev.DEMO_RECORD)
    assert training.index("--record") < training.index("--")
    assert report[1:] == ["report", str(dev.DEMO_RECORD)]


def test_the_page_of_a_run_is_found_once_the_run_is_live(dev, monkeypatch, tmp_path):
    """`foreshock status --json` prints a list, which is empty before the run is live."""
    for printed, status, address in (
        ('[{"run": "demo", "address": "127.0.0.1:9095"}]', 0, "127.0.0.1:9095"),
        ('[{"run": "demo", "state": null, "reason": "no answer"}]', 0, None),
        ("[]", 0, None),
        ("", 1, None),
    ):
        command = tmp_path / "foreshock"
        command.write_text(f"#!/bin/sh\nprintf '%s' '{printed}'\nexit {status}\n")
        command.chmod(0o700)
        monkeypatch.setattr(dev, "FORESHOCK", command)
        assert dev.page_address("demo", {}) == address


def test_a_warning_on_the_page_is_said_once(dev, monkeypatch, capsys):
    events = [
        {"event": "warn_bias", "layer": "003", "first_step": 7},
        {"event": "watch_bias", "layer": "004", "first_step": 8},
        {"event": "warn_gradient_norm", "layer": None, "first_step": 9},
    ]
    alarms = [{"tensor": "grad_key", "layer": "001", "of": "fused_ratio"}]
    monkeypatch.setattr(dev, "fetch", lambda *_: dev.json.dumps({"ranks": [{"events": events, "alarms": alarms}]}))
    told = set()
    for _ in range(2):
        dev.print_warnings("here", told)
    assert capsys.readouterr().out.splitlines() == [
        "dev: attention of layer 001: grad_key is wrong (fused_ratio)",
        "dev: detector bias warns in layer 003 at step 7",
        "dev: detector gradient_norm warns at step 9",
    ]


@pytest.mark.parametrize(
    ("device", "missing", "told"), [(False, "torch", True), (True, "torch", False), (False, "numpy", False)]
)
def test_without_a_gpu_it_says_how_to_leave_cuda_out(dev, monkeypatch, tmp_path, capsys, device, missing, told):
    calls = []
    monkeypatch.setattr(dev, "NVIDIA_DEVICE", pathlib.Path("/dev/null" if device else tmp_path / "none"))
    monkeypatch.setattr(dev, "missing_python_packages", lambda: [missing])
    monkeypatch.setattr(dev, "run", lambda *command: calls.append(command))
    dev.ensure_venv()
    assert [call[-1] for call in calls if "-r" in call] == ["requirements.txt", "requirements-torch.txt"]
    assert ("PIP_EXTRA_INDEX_URL" in capsys.readouterr().out) == told, "before it fetches 5 GB"
