"""The kernels for devices run on the host: the PTX that ships, translated to C++ (tests/support/ptx), in the test that
also runs on devices. Planted faults are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
import tiers
from fatbin import BUILD, FATBIN, ROOT, images

PROGRAM = BUILD / "tests" / "kernels" / "ptx_kernels_test"
PTX = BUILD / "kernels" / "device_kernels.ptx"
pytestmark = pytest.mark.skipif(not FATBIN.exists(), reason="built without nvcc")

VARIED = {  # the case of device_kernels_test.cpp with small launches of each form
    "foreshock_gather": "Varied.Gathers",
    "foreshock_packed_gather": "Varied.GathersPacked",
    "foreshock_key_gather": "Varied.GathersAndSumsKeys",
    "foreshock_count_patterns": "Varied.Counts",
    "foreshock_count_bins": "Varied.Counts",
    "foreshock_gradient_sums": "Varied.SumsGradients",
    "foreshock_adam_sums": "Varied.SumsOptimizerState",
    "foreshock_checksum": "Varied.Checksums",
    "foreshock_scalars": "Varied.Scalars",
}
INSTRUCTIONS = {"barrier": "bar.sync", "fence": "membar", "atomic": "atom", "parameter": "ld.param"}
FINDS = {
    "barrier": "(race|init)check",
    "fence": "racecheck",
    "atomic": "racecheck",
    "parameter": "memcheck: .*misaligned",
}
# The threads of these kernels share memory. Every kernel has more barriers, which order nothing.
SHARING = ["count_patterns", "gradient_sums", "adam_sums", "checksum", "key_gather"]


class Place(NamedTuple):
    number: int
    kernel: str
    instruction: str


def run(cases: str, **environment: object) -> subprocess.CompletedProcess:
    words = {name: str(value) for name, value in environment.items()}
    command = [PROGRAM, f"--gtest_filter={cases}"]
    done = subprocess.run(command, env=os.environ | words, capture_output=True, text=True, check=False)
    assert "[ RUN " in done.stdout, done.stdout + done.stderr
    assert "SKIPPED" not in done.stdout, done.stdout
    return done


def is_found(kind: str, place: Place) -> bool:
    done = run(VARIED[place.kernel], PTX_MUTANT=f"{kind}:{place.number}")
    found = re.search(FINDS[kind], done.stdout)
    assert (done.returncode != 0) == bool(found), done.stdout + done.stderr
    return bool(found)


@pytest.fixture(scope="module")
def reached(tmp_path_factory) -> tuple[float, list[Place]]:
    """The share of instructions that the varied launches reach, and the places."""
    out = tmp_path_factory.mktemp("reached") / "reached"
    done = run("Varied.*", PTX_REACHED=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (every, of_them), *lines = (line.split(" ", 2) for line in out.read_text().splitlines())
    return int(of_them) / int(every), [Place(int(number), *words) for number, *words in lines]


def places(reached, kind: str) -> dict[str, list[Place]]:
    by_kernel: dict[str, list[Place]] = {}
    for place in reached[1]:
        if re.sub(r"^@\S+ ", "", place.instruction).startswith(INSTRUCTIONS[kind]):
            by_kernel.setdefault(place.kernel, []).append(place)
    return by_kernel


def test_it_is_the_code_that_ships():
    """The container has it without comments."""

    def lines(ptx: bytes) -> list[str]:
        return [" ".join(line.split("//")[0].split()) for line in ptx.decode().splitlines()]

    shipped = images(FATBIN.read_bytes())[-1].data.rstrip(b"\0")
    assert [line for line in lines(shipped) if line] == [line for line in lines(PTX.read_bytes()) if line]


def test_small_launches_reach_nearly_every_instruction(reached):
    assert reached[0] >= 0.95


@pytest.mark.parametrize(
    ("seed", "interleave"), tiers.keep([(2, 25), (3, 4), (4, 25), (5, 100)], (2, 25), several=True)
)
def test_results_do_not_depend_on_the_order_of_threads(seed, interleave):
    done = run("Varied.*", PTX_SEED=seed, PTX_INTERLEAVE=interleave)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "cases", tiers.keep(["Device.Sums*:Device.Scalars", "Device.*"], "Device.Sums*:Device.Scalars")
)
def test_large_launches(cases):
    done = run(cases)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", INSTRUCTIONS)
def test_a_planted_fault_is_found_in_each_kernel(reached, kind):
    of_kind = places(reached, kind)
    if kind == "barrier":
        of_kind = {name: of_kind[name] for name in of_kind if name.removeprefix("foreshock_") in SHARING}
    assert len(of_kind) == {"barrier": 5, "fence": 6, "atomic": 8, "parameter": 9}[kind]
    enough = all if kind == "fence" else any
    assert [name for name, some in of_kind.items() if not enough(is_found(kind, place) for place in some)] == []


def test_contracted_products_are_found(tmp_path):
    """Compiled with --fmad=true, and as an assembler may contract it then, a product and a sum are rounded once."""
    ptx, code = tmp_path / "fmad.ptx", tmp_path / "fmad.cpp"
    nvcc = re.search(r"^FORESHOCK_NVCC:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
    words = ["-std=c++20", "--expt-relaxed-constexpr", "--fmad=true", "-arch=compute_80", "-ptx"]
    subprocess.run([nvcc, *words, f"-I{ROOT}", "-o", ptx, ROOT / "kernels" / "device_kernels.cu"], check=True)
    translator = ROOT / "tests" / "support" / "ptx" / "translate.py"
    subprocess.run([sys.executable, translator, ptx, code, "foreshock_adam_sums"], check=True)
    machine = BUILD / "tests" / "kernels" / "libptx_machine.a"
    words = ["g++", "-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-o"]
    subprocess.run([*words, tmp_path / "libptx_kernels.so", f"-I{ROOT}", code, machine], check=True)
    done = run("Varied.SumsOptimizerState", LD_LIBRARY_PATH=tmp_path)
    assert "on the host, which runs the PTX" in done.stdout, done.stdout + done.stderr
