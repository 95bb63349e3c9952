"""Runs trainings alone and under `foreshock run`, for the tests of the whole path."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
FORESHOCK = BUILD / "bin" / "foreshock"
LIBRARY = BUILD / "lib" / "libforeshock.so"
PYTHON = os.environ.get("FORESHOCK_PYTHON", sys.executable)
ADAPTER_CACHE = pathlib.Path(os.environ.get("FORESHOCK_CACHE", ROOT / "build" / "adapters"))


def known_instructions() -> dict[str, str]:
    """For torch.compile, which else compiles a program for each kind of vector instructions, in every new cache, to see
    whether the compiler knows it too. Every g++ that builds this project knows those but AMX, so the same are picked;
    with AMX torch may try."""
    processor = pathlib.Path("/proc/cpuinfo").read_text()
    return {} if "amx" in processor else {"TORCHINDUCTOR_VEC_ISA_OK": "1"}


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without anything that would reach into the run; one thread, so that sums repeat."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FORESHOCK", "SLURM", "WANDB", "TORCHELASTIC"))
    }
    for name in ("LD_PRELOAD", "PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        kept.pop(name, None)
    kept |= known_instructions()
    own = {"OMP_NUM_THREADS": "1", "FORESHOCK_CACHE": str(ADAPTER_CACHE), "FORESHOCK_RECORD": "off"}
    return kept | own | more


def prepared_adapters() -> pathlib.Path:
    """The folder of the adapters for this build, in ADAPTER_CACHE, where `foreshock run` has put the one for PYTHON."""
    program = "import os; print(os.environ['FORESHOCK_ADAPTERS'])"
    shown = run_monitored([PYTHON, "-c", program])
    assert shown.returncode == 0, shown.stderr
    folder = pathlib.Path(shown.stdout.strip())
    assert list(folder.glob("torch-*/adapter.so")), shown.stderr
    return folder


def copy_installation(root: pathlib.Path) -> pathlib.Path:
    """Copies foreshock to `root`, where it may be damaged. Returns the command."""
    for part in ("bin/foreshock", "lib/libforeshock.so"):
        (root / part).parent.mkdir(parents=True)
        shutil.copy2(BUILD / part, root / part)
    for part in ("share", "include"):
        shutil.copytree(BUILD / part, root / part)
    return root / "bin" / "foreshock"


@dataclasses.dataclass
class Run:
    """What a run left: its process, the summary as a dict, and the lines of its record by type."""

    returncode: int
    stdout: str
    stderr: str
    summary: dict | None = None
    lines: list[dict] = dataclasses.field(default_factory=list)

    def of(self, kind: str) -> list[dict]:
        return [line for line in self.lines if line["type"] == kind]

    def told(self) -> list[dict]:
        """What the training itself told (tell() of tiny_gpt.py), one entry per process that did."""
        assert self.returncode == 0, self.stderr
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]

    def of_rows(self) -> list[dict]:
        """Its sample lines of query rows: without those of key positions."""
        return [line for line in self.of("sample") if line["tensor"] in ("out", "grad_query")]

    def rank(self, number: int = 0) -> dict:
        assert self.summary is not None, self.stderr
        ranks = [rank for rank in self.summary["ranks"] if rank["rank"] == number]
        assert len(ranks) == 1, self.summary["ranks"]
        return ranks[0]


def run_plain(command: list[str], timeout: float = 900, **environment: str) -> Run:
    done = subprocess.run(
        command, env=clean_environment(**environment), capture_output=True, text=True, timeout=timeout, check=False
    )
    return Run(done.returncode, done.stdout, done.stderr)


def run_monitored(
    command: list[str], *options: str, timeout: float = 900, base: str | None = None, **environment: str
) -> Run:
    """`foreshock run OPTIONS -- COMMAND` in a base directory of its own, with summary and record."""
    own_base = base or tempfile.mkdtemp(prefix="foreshock-e2e-", dir="/dev/shm")
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-e2e-"))
    try:
        line = [str(FORESHOCK), "run", "--port", "0", "--summary", str(scratch / "summary.json")]
        line += ["--record", str(scratch / "record.jsonl"), *options, "--", *command]
        done = subprocess.run(
            line,
            env=clean_environment(FORESHOCK_DIR=own_base, **environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        run = Run(done.returncode, done.stdout, done.stderr)
        if (scratch / "summary.json").exists():
            run.summary = json.loads((scratch / "summary.json").read_text())
        if (scratch / "record.jsonl").exists():
            run.lines = [json.loads(text) for text in (scratch / "record.jsonl").read_text().splitlines()]
        return run
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if base is None:
            shutil.rmtree(own_base, ignore_errors=True)


def unwrapped(text: str) -> str:
    """A summary without its line breaks: a phrase in it may be wrapped anywhere."""
    return " ".join(text.split())


# Every training call is looked at, whatever it costs.
EVERYTHING = ("--every", "1", "--max-slowdown", "100%")
# And every weight, with its gradient and its optimizer's state, at every step.
EVERYTHING_AND_WEIGHTS = (*EVERYTHING, "--weights", "1")


def assert_conserved(rank: dict) -> None:
    """Rule 3: calls = unsampled + skipped + sampled; sampled = judged + lost + in flight, at the end 0 in flight."""
    for name, of in rank["attention"].items():
        skipped, lost = sum(of["skipped"].values()), sum(of["lost"].values())
        assert of["calls"] == of["unsampled"] + skipped + of["sampled"], (name, of)
        assert of["sampled"] == of["judged"] + lost + of["in_flight"], (name, of)
        assert of["in_flight"] == 0, (name, of)
