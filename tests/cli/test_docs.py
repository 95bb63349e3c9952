"""The documents agree with the program."""

import importlib
import math
import pathlib
import platform
import re
import subprocess

import pytest

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["detectors", "metrics", "options", "record"])
def test_generated_pages_are_current(foreshock, page):
    text = subprocess.run([foreshock, "docs", page], capture_output=True, text=True, check=True).stdout
    head, marker, generated = (ROOT / "docs" / f"{page}.md").read_text().partition("<!-- generated -->\n")
    assert bool(marker) == (page in ("detectors", "metrics", "record"))
    assert (generated if marker else head) == text, "run ./dev docs"


def test_the_table_of_options_names_their_readers(foreshock):
    """A command that shows an option in its --help is among its readers; every row is complete."""
    commands = ("run", "agent", "status", "pause", "resume", "doctor", "export", "detect")
    helps = {
        name: set(
            re.findall(
                r"^  (--[a-z-]+)",
                subprocess.run([foreshock, name, "--help"], capture_output=True, text=True, check=True).stdout,
                re.MULTILINE,
            )
        )
        for name in commands
    }
    options = (ROOT / "docs" / "options.md").read_text().partition("## Options")[2]
    lines = [line for line in options.splitlines() if line.startswith("|")][2:]
    assert len(lines) > 30
    for line in lines:
        flag, variable, _, meaning, readers = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        assert flag or variable
        assert meaning
        told = set(readers.split(", "))
        assert told <= {*commands, "the trainer"}, line
        if flag:
            name = flag.strip("`").split()[0]
            assert told - {"the trainer"} == {command for command in commands if name in helps[command]}, line


def commands_in(path):
    return set(re.findall(r"^\| `foreshock (\w+)", (ROOT / path).read_text(), re.MULTILINE))


def test_every_command_is_in_the_table(foreshock):
    printed = subprocess.run([foreshock, "--help"], capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^  foreshock (\w+)", printed, re.MULTILINE))
    assert {"run", "lab", "agent"} <= commands
    assert commands_in("docs/options.md") == commands
    assert len(commands_in("README.md")) == 6
    assert commands_in("README.md") <= commands


def test_readme_is_one_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 90
    first_screen = "\n".join(text.splitlines()[:48])
    assert "## Quick start" in first_screen
    assert "run on one H100" in first_screen


def test_readme_states_the_supported_versions(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    package, versions = (importlib.import_module(name) for name in ("package", "torch_versions"))
    text = " ".join((ROOT / "README.md").read_text().split())
    minors = [release.rpartition(".")[0] for release in versions.RELEASES]
    assert text.count(f"PyTorch {minors[0]} to {minors[-1]}") == 2
    glibc = re.search(r"manylinux_(\d+)_(\d+)_", package.WHEEL_TAG)
    assert f"glibc {glibc[1]}.{glibc[2]}" in text
    assert "Linux on x86-64" in text


def documents():
    more = [
        ROOT / "integrations" / "deploy" / "README.md",
        ROOT / "tests" / "guest" / "README.md",
        ROOT / "bench" / "precursors" / "RESULTS.md",
    ]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *more]


def anchors_of(page):
    """Names of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    broken = []
    for page in documents():
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            path = page.parent / target if target else page
            if not path.exists() or (anchor and anchor not in anchors_of(path)):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def test_named_metrics_exist():
    known = set(re.findall(r"`(foreshock_[a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    no_metrics = {"foreshock_load_adapter", "foreshock_torch", "foreshock_test", "foreshock_version", "foreshock_judge"}
    named = {name for page in documents() for name in re.findall(r"\bforeshock_[a-z_]+[a-z]\b", page.read_text())}
    assert named - known - no_metrics == set()


def test_named_options_exist(foreshock):
    known = set(re.findall(r"--[a-z-]+", (ROOT / "docs" / "options.md").read_text()))
    for name in ("run", "agent", "status", "doctor", "detect"):
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
        for command in re.findall(
            r"foreshock (?:run|status|doctor|pause|resume|agent|detect)\b([^`']*?)(?: -- |`|'|$)", line
        )
        for flag in re.findall(r"(?<!\S)--[a-z][a-z-]*", command)
    }
    assert used - known == set()


def test_named_variables_exist():
    known = set(re.findall(r"FORESHOCK[A-Z_]*", (ROOT / "docs" / "options.md").read_text()))
    development = {"FORESHOCK_BUILD", "FORESHOCK_TESTS", "FORESHOCK_BENCH", "FORESHOCK_WERROR", "FORESHOCK_SANITIZE"}
    told = {f"FORESHOCK_ALERT_{name}" for name in variables_of_alerts()}
    named = {name for page in documents() for name in re.findall(r"\bFORESHOCK(?:_[A-Z_]*[A-Z])?\b", page.read_text())}
    assert named - known - development - told == set()


def test_the_limits_of_a_scrape_are_above_what_an_agent_shows():
    """What has neither `rank` nor `layer` is shown beyond the budget too (exporters/metrics.h)."""
    of_a_run = 0
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if not line.startswith("| `foreshock_"):
            continue
        labels = re.split(r"(?<!\\)\|", line)[4]
        if "`run`" in labels and "`rank`" not in labels and "`layer`" not in labels:
            of_a_run += math.prod(values.count(r"\|") + 1 for values in re.findall(r"= ([^,]*)", labels))
    constant = lambda path, name: int(re.search(rf"{name} = (\d+);", (ROOT / path).read_text())[1])  # noqa: E731
    budget = constant("exporters/metrics.h", "kDefaultSeriesBudget")
    runs = constant("agent/discovery.h", "kMostRuns")
    told = (ROOT / "docs" / "alerts.md").read_text()
    of_one, of_tree = map(int, re.search(r"`sample_limit: (\d+)` for agents of one run, `(\d+)` for", told).groups())
    assert of_a_run > 28
    assert budget + of_a_run < of_one
    assert max(budget, of_a_run * runs) < of_tree
    assert f"beyond {budget}" in told
    assert f"up to {runs} runs" in told


def variables_of_alerts():
    return re.findall(r'variable\("([A-Z_]+)"', (ROOT / "agent" / "alerts.cpp").read_text())


def test_variables_of_alerts_are_explained():
    page = (ROOT / "docs" / "alerts.md").read_text()
    assert "RUN" in variables_of_alerts()
    assert {name for name in variables_of_alerts() if f"_{name}`" not in page} == set()


def test_named_commands_of_dev_exist():
    helped = subprocess.run([ROOT / "dev", "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^    ([a-z-]+)", helped, re.MULTILINE))
    named = {name for page in documents() for name in re.findall(r"\./dev ([a-z-]+)", page.read_text())}
    assert {"demo", "test", "package"} <= named <= known


def test_packages_and_the_releases_they_serve_are_those_named(foreshock, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    package, versions = (importlib.import_module(name) for name in ("package", "torch_versions"))
    version = subprocess.run([foreshock, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    text = (ROOT / "docs" / "install.md").read_text()
    assert f"pip install foreshock-{version}-{package.WHEEL_TAG}.whl" in text
    assert f"tar xf foreshock-{version}-linux-{platform.machine()}.tar.gz" in text
    assert "an adapter for torch 2.13.0" in " ".join(text.split())
    minors = [release.rpartition(".")[0] for release in versions.RELEASES]
    assert f"every minor from {minors[0]} to {minors[-1]}" in " ".join(text.split())
