"""The scripts of the pages append two digits of opacity to a colour of their style sheets, which needs six digits."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ("cli/report", "exporters/status_page", "lab/page")

pytestmark = pytest.mark.quick


def variables_of(css):
    """{name: values} of the colours that a style sheet defines, one value for each scheme."""
    found = {}
    for name, value in re.findall(r"--([\w-]+):\s*(#[0-9a-fA-F]+)", css):
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("folder", PAGES)
def test_colours_that_take_an_opacity_have_six_digits(folder):
    variables = {}
    for sheet in (ROOT / folder).glob("*.css"):
        variables |= variables_of(sheet.read_text())
    assert variables
    short = {name: values for name, values in variables.items() if any(len(value) != 7 for value in values)}
    assert short == {}
