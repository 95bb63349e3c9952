"""`./dev test` runs every unit test under the sanitizers; a new one is in without anybody listing it."""

import json
import pathlib
import re
import subprocess

import monitored
import pytest

pytestmark = pytest.mark.quick

BUILD = monitored.BUILD
# What code needs that starts a thread: of libstdc++, of glibc.
THREAD_STARTS = ("_ZNSt6thread15_M_start_thread", "pthread_create")


def starts_threads(program: str) -> bool:
    """Whether the test's own code does, whatever it is linked with."""
    objects = list((BUILD / "tests").glob(f"*/CMakeFiles/{program}.dir/**/*.o"))
    assert objects, program
    needed = subprocess.run(["nm", "--undefined-only", *objects], capture_output=True, text=True, check=True).stdout
    return any(start in needed for start in THREAD_STARTS)


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of each program that ctest runs."""
    listing = subprocess.run(["ctest", "--show-only=json-v1"], cwd=BUILD, capture_output=True, text=True, check=True)
    found: dict[str, set[str]] = {}
    for test in json.loads(listing.stdout)["tests"]:
        names = {name for each in test.get("properties", []) if each["name"] == "LABELS" for name in each["value"]}
        program = test.get("command", [test["name"]])[0]  # ctest knows the path of a program once it is built
        found.setdefault(pathlib.Path(program).name, set()).update(names)
    return found


@pytest.fixture(scope="module")
def googletests() -> set[str]:
    """Every program of the build that has GoogleTest in it. Programs of earlier versions, which ninja leaves, do not
    count, nor do programs that are not built (release_unit_tests)."""
    targets = subprocess.run(["ninja", "-t", "targets", "all"], cwd=BUILD, capture_output=True, text=True, check=True)
    programs = [BUILD / path for path in re.findall(r"^(bin/\w+): ", targets.stdout, re.MULTILINE)]
    programs = [path for path in programs if path.exists()]
    return {path.name for path in programs if b"InitGoogleTest" in path.read_bytes()}


def test_every_googletest_is_labelled(labels, googletests):
    assert len(googletests) > 20
    labelled = [name for name, of in labels.items() if of & {"unit_serial", "unit_threaded", "sweep", "gpu"}]
    assert googletests == {name for name in labelled if (BUILD / "bin" / name).exists()}
    on_devices = {program for program, names in labels.items() if "gpu" in names}
    # They are skipped where there is no device, so they run nothing here.
    assert on_devices == {"device_kernels_test", "live_device_test"}
    sweeps = {program for program, names in labels.items() if "sweep" in names}
    assert sweeps == {"lab_claims_test", "lab_tensor_core_test"}, "left out under the sanitizers: only with a reason"


def test_what_starts_threads_is_not_called_serial(labels):
    serial = [program for program, names in labels.items() if "unit_serial" in names]
    assert serial
    for program in serial:
        if "release_unit" in labels[program] and not (BUILD / "bin" / program).exists():
            continue
        assert not starts_threads(program), f"{program}: take SERIAL out of its CMakeLists.txt"
    for program in ("agent_test", "exporters_test", "lab_comparison_test", "lab_measure_test", "libmonitor_test"):
        assert "unit_threaded" in labels[program]
    assert starts_threads("segment_test")
