"""Versions agree, requirements are pinned, and the papers of a project are there."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import monitored
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_one_version_everywhere():
    (version,) = re.findall(r"^project\(foreshock VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    python = ROOT / "integrations" / "torch" / "python"
    program = "import foreshock; print(foreshock.__version__)"
    imported = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(python)}, capture_output=True, text=True, check=True
    )
    assert imported.stdout.strip() == version
    (information,) = python.glob("*.dist-info")
    assert information.name == f"foreshock_torch-{version}.dist-info"
    assert f"Version: {version}\n" in (information / "METADATA").read_text()
    said = subprocess.run([monitored.FORESHOCK, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1] == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_requirement_but_torch_has_a_hash():
    text = (ROOT / "requirements.txt").read_text()
    pinned = re.findall(r"^(\S+?)==(?:[^\n]*\\\n)((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M)
    assert len(pinned) == len(re.findall(r"^\w", text, re.M)) > 20
    wanted = re.findall(r"^([\w-]+)==", (ROOT / "requirements.in").read_text(), re.M)
    assert {name.lower() for name in wanted} <= {name.lower() for name, _ in pinned}
    assert re.findall(r"^[^#\n]+$", (ROOT / "requirements-torch.txt").read_text(), re.M) == ["torch==2.13.0"]


def test_issue_templates_are_forms_or_pages_that_github_reads():
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").iterdir())
    assert [template.name for template in templates] == ["bug.yml", "config.yml", "wrong-verdict.yml"]
    for template in templates:
        form = yaml.safe_load(template.read_text())
        if template.name == "config.yml":
            assert form["blank_issues_enabled"] is True
            continue
        assert {"name", "description", "body"} <= form.keys()
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert all(field["attributes"]["label"] for field in fields)


def test_security_page_says_how_to_report():
    text = (ROOT / "SECURITY.md").read_text()
    assert "Report a vulnerability" in text
    assert "docs/security.md" in text
