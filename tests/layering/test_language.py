"""Words and phrases that hide who does what become fewer, and never more (CONTRIBUTING.md, docs in plain English)."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import language  # noqa: E402

pytestmark = pytest.mark.quick

LIMITS = language.limits()
FOLDERS = language.folders()


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_count_does_not_rise(folder):
    """`python tests/layering/language.py` lists every place, with what to write instead."""
    allowed = LIMITS.get(folder, {"prose": 0, "comments": 0})
    found = language.count(FOLDERS[folder])
    above = [kind for kind in found if found[kind] > allowed[kind]]
    assert above == [], f"{dict(found)} instead of {allowed}: run python tests/layering/language.py | grep '^{folder}/'"


def found_in(name: str, text: str) -> list[tuple[str, int, str]]:
    places = language.places_in(pathlib.Path(name), text)
    return sorted(((kind, line, phrase) for kind, line, phrase, _ in places), key=lambda place: (place[1], place[0]))


def test_finds_comments_and_strings_and_leaves_code():
    source = 'int told = 1;  // nobody asks\nconst char* help = "it tells "\n    "of none";\n/* done\n * anew */\n'
    assert found_in("a.cpp", source) == [("comments", 1, "nobody"), ("prose", 2, "tells"), ("comments", 5, "anew")]
    source = '"""Whoever reads."""\nerr = 1\nprint("told")  # in earnest\n'
    assert found_in("a.py", source) == [("comments", 1, "Whoever"), ("comments", 3, "in earnest"), ("prose", 3, "told")]


def test_finds_phrases_broken_over_lines():
    assert found_in("a.cpp", "// a name that is\n  // no label\n") == [("comments", 1, "is no")]
    assert found_in("a.md", "a norm that\nis to be\nhad\n") == [("prose", 2, "to be had")]


def test_leaves_plain_english():
    assert found_in("a.md", "There is no device. It is no longer there. The error is small; read it before.\n") == []
