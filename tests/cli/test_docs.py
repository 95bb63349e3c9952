"""What the documents say is what the program does."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["options", "metrics", "record"])
def test_generated_pages_are_current(foreshock, page):
    text = subprocess.run([foreshock, "docs", page], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / f"{page}.md").read_text() == text, "run ./dev docs"


def documents():
    more = [ROOT / "integrations" / "deploy" / "README.md", ROOT / "tests" / "guest" / "README.md"]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *more]


def test_links_lead_somewhere():
    broken = [
        f"{page.name}: {target}"
        for page in documents()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_named_metrics_exist():
    known = set(re.findall(r"`(foreshock_[a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    no_metrics = {"foreshock_torch", "foreshock_test", "foreshock_version", "foreshock_judge"}
    named = {name for page in documents() for name in re.findall(r"\bforeshock_[a-z_]+[a-z]\b", page.read_text())}
    assert named - known - no_metrics == set()


def test_named_options_exist(foreshock):
    known = set(re.findall(r"--[a-z-]+", (ROOT / "docs" / "options.md").read_text()))
    for name in ("run", "agent", "status", "doctor"):
        known |= set(
            re.findall(
                r"--[a-z-]+",
                subprocess.run([foreshock, name, "--help"], capture_output=True, text=True, check=True).stdout,
            )
        )
    used = {
        flag
        for page in documents()
        for line in page.read_text().splitlines()
        for command in re.findall(r"foreshock (?:run|status|doctor|pause|resume|agent)\b([^`]*?)(?: -- |`|$)", line)
        for flag in re.findall(r"(?<!\S)--[a-z][a-z-]*", command)
    }
    assert used - known == set()


def test_named_variables_exist():
    known = set(re.findall(r"FORESHOCK[A-Z_]*", (ROOT / "docs" / "options.md").read_text()))
    development = {"FORESHOCK_BUILD", "FORESHOCK_TESTS", "FORESHOCK_BENCH", "FORESHOCK_WERROR", "FORESHOCK_SANITIZE"}
    named = {name for page in documents() for name in re.findall(r"\bFORESHOCK(?:_[A-Z_]*[A-Z])?\b", page.read_text())}
    assert named - known - development == set()
