"""docs/security.md lists what changes in a trainer's process and who can do what; the tests that it names exist."""

import re

from monitored import ROOT

SECTION = "## What changes in your process"


def test_named_tests_exist():
    text = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`(test_\w+(?:\.py)?)`", text))
    # Of unit tests the fixtures or the tests; no other names of the threat model are of such words.
    model = text.split("## Threat model")[1].split("\n## ")[0]
    named |= set(re.findall(r"`((?:[A-Z][a-z]*){2,})`", model))
    there = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        there |= {path.name, *re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}
    for path in (ROOT / "tests").rglob("*_test.cpp"):
        for names in re.findall(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE):
            there |= set(names)
    assert len(named) > 50
    assert named - there == set()


def test_every_registration_of_the_helper_is_listed():
    """What start.py registers or replaces in torch, by the names of the calls that do it."""
    text = (ROOT / "docs" / "security.md").read_text().split(SECTION)[1]
    source = (ROOT / "integrations" / "torch" / "python" / "foreshock_torch" / "start.py").read_text()
    known = {
        "register_optimizer_step_pre_hook": "Optimizer hooks",
        "register_optimizer_step_post_hook": "Optimizer hooks",
        "register_module_parameter_registration_hook": "Module hooks",
        "register_module_module_registration_hook": "Module hooks",
        "Module.__setstate__": "torch.nn.Module.__setstate__",
    }
    assert set(re.findall(r"\.(register_\w+)\(", source)) <= known.keys()
    assert all(row in text for row in known.values())
    replaced = set(re.findall(r"^    (\w+\.[\w.]+) = ", source, re.MULTILINE))
    assert replaced == {"modules.Module.__setstate__", "tap.is_active"}, "the second is a module of ours"
