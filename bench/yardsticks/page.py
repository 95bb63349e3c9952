"""The report: one page that asks nobody for anything, in the dress of the lab's own."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAB = ROOT / "lab" / "page"
HERE = pathlib.Path(__file__).resolve().parent
# Where Debian's and Ubuntu's libjs-chart.js has it.
CHART_FOLDERS = ("/usr/share/javascript/chart.js", "/usr/share/nodejs/chart.js/dist")
CHART_NAMES = ("chart.min.js", "chart.umd.min.js", "Chart.min.js")


def no_nan(value: Any) -> Any:
    """The same with null for what is no finite number, which JSON does not know."""
    if isinstance(value, dict):
        return {key: no_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [no_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def chart_library() -> str:
    places = (pathlib.Path(folder) / name for folder in CHART_FOLDERS for name in CHART_NAMES)
    found = next((place for place in places if place.exists()), None)
    return found.read_text() if found else ""


def report(whole: dict[str, Any], title: str = "foreshock yardsticks", script: pathlib.Path = HERE / "page.js") -> str:
    """`whole` holds no NaN; `script` draws it."""
    parts = {
        "/*TITLE*/": title,
        "/*STYLE*/": (LAB / "report.css").read_text(),
        "/*SCRIPT*/": (LAB / "report.js").read_text() + script.read_text(),
        "/*CHART*/": chart_library(),
        # Last: whatever the data holds is not searched for markers again. No character may close the element.
        "/*DATA*/": json.dumps(whole, allow_nan=False).replace("<", "\\u003c"),
    }
    text = (LAB / "report.html").read_text()
    for marker, part in parts.items():
        text = text.replace(marker, part)
    return text
