"""A status page in a browser: samples to show, and what its tables say."""

import importlib.util
import json
import pathlib

import browser
import monitored

EXPORTERS = pathlib.Path(__file__).resolve().parents[1] / "exporters"
SCREENSHOTS = monitored.BUILD / "screenshots"
LIVE = "byId('fresh').textContent === 'live' && ui.history && ui.charts[0].chart"


def sample_state(ranks: int, layers: int) -> dict:
    spec = importlib.util.spec_from_file_location("sample_state", EXPORTERS / "sample_state.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sample_state(ranks, layers)


def rows(tab: browser.Browser, name: str) -> list[list[str]]:
    """The cells of a table, as text."""
    script = f"""[...document.querySelectorAll('section')]
        .filter((s) => s.querySelector('h2')?.textContent === {json.dumps(name)})
        .flatMap((s) => [...s.querySelectorAll('tbody tr')])
        .map((row) => [...row.cells].map((cell) => cell.textContent))"""
    return tab.value(script)


def keep(tab: browser.Browser, name: str) -> bytes:
    """A screenshot of the whole page, left in the build folder for people to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(SCREENSHOTS / f"{name}.png")
    return (SCREENSHOTS / f"{name}.png").read_bytes()
