"""Where the files of integrations/deploy are, and what every command line in them has to know."""

from __future__ import annotations

import pathlib
import subprocess

import monitored
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "integrations" / "deploy"


@pytest.fixture
def deploy() -> pathlib.Path:
    return DEPLOY


@pytest.fixture(scope="session")
def assert_known_options():
    """assert_known_options(words): of a command line of foreshock, "agent" or "run" and what follows up to "--"."""

    def check(words: list[str]) -> None:
        command, *rest = words
        ours = rest[: rest.index("--")] if "--" in rest else rest
        given = [str(monitored.FORESHOCK), command, "--help"]
        text = subprocess.run(given, capture_output=True, text=True, check=True).stdout
        known = {word.rstrip(",") for word in text.split() if word.startswith("--")}
        unknown = [word for word in ours if word.startswith("--") and word not in known]
        assert not unknown, f"foreshock {command} has no {unknown}"

    return check


@pytest.fixture(scope="session")
def hand_trainer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A C program that trains by hand and says at the end whether it was watched."""
    target = str(tmp_path_factory.mktemp("trainer") / "trainer")
    sources = [ROOT / "tests" / "abi" / "annotated.c", ROOT / "tests" / "support" / "hand_attention.c"]
    include = ROOT / "libmonitor" / "include"
    subprocess.run(["cc", "-std=c99", f"-I{include}", "-o", target, *sources, "-lm"], check=True)
    return target
