"""What holds for every report page that a command writes."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest


def assert_self_contained(page: pathlib.Path) -> None:
    text = page.read_text()
    assert "Chart.js" in text
    # The licence comments of the chart library name its home; nothing may load from anywhere.
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)[^"']*["']""", text)
    assert "@import" not in text
    assert "url(" not in text


def opened(page: pathlib.Path, scratch: pathlib.Path, *flags: str) -> str:
    """The page's document once its scripts have run, in a browser that reaches nothing; no complaint on its console."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
        "--virtual-time-budget=5000", f"--user-data-dir={scratch / 'profile'}",
        "--host-resolver-rules=MAP * ~NOTFOUND", *(flags or ["--dump-dom"]), page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | {"HOME": str(scratch)}
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
