"""Makes the report of a benchmark: one HTML page without outside resources, in the style of the reports of lab/."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAB = ROOT / "lab" / "page"
HERE = pathlib.Path(__file__).resolve().parent
# Folders of the package libjs-chart.js in Debian and Ubuntu.
CHART_FOLDERS = ("/usr/share/javascript/chart.js", "/usr/share/nodejs/chart.js/dist")
CHART_NAMES = ("chart.min.js", "chart.umd.min.js", "Chart.min.js")


def no_nan(value: Any) -> Any:
    """A copy of `value`, JSON data, with None in place of numbers that are not finite, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: no_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [no_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def chart_library() -> str:
    """The text of Chart.js; "" if it is not installed. The page then has tables only."""
    paths = (pathlib.Path(folder) / name for folder in CHART_FOLDERS for name in CHART_NAMES)
    found = next((path for path in paths if path.exists()), None)
    return found.read_text() if found else ""


def report(whole: dict[str, Any], title: str = "foreshock yardsticks", script: pathlib.Path = HERE / "page.js") -> str:
    """The page report.html with its markers filled in. `whole`: the data, without NaN. `script`: draws the data."""
    parts = {
        "/*TITLE*/": title,
        "/*STYLE*/": (LAB / "report.css").read_text(),
        "/*SCRIPT*/": (LAB / "report.js").read_text() + script.read_text(),
        "/*CHART*/": chart_library(),
        # The data goes last, so that it is not searched for markers. A '<' in it could close the script element.
        "/*DATA*/": json.dumps(whole, allow_nan=False).replace("<", "\\u003c"),
    }
    text = (LAB / "report.html").read_text()
    for marker, part in parts.items():
        text = text.replace(marker, part)
    return text
