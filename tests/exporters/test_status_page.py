"""The status page in a real browser: what it shows of a state whose names try to be markup."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", HERE.parents[1] / "build" / "release"))
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def sample_state():
    spec = importlib.util.spec_from_file_location("sample_state", HERE / "sample_state.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sample_state()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page's elements as text, two seconds after it was opened."""
    folder = tmp_path_factory.mktemp("page")
    state = folder / "state.json"
    state.write_text(json.dumps(sample_state()))
    server = subprocess.Popen(
        [BUILD / "bin" / "serve_sample", state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        host, port = server.stdout.readline().split()
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        command += ["--virtual-time-budget=2000", "--dump-dom", f"http://{host}:{port}/"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
class TestStatusPage:
    def test_it_is_alive_and_shows_every_rank(self, page):
        assert ">live<" in page
        assert page.count("<section>") == 2
        assert ">rank 0<" in page
        assert ">rank 1<" in page

    def test_names_stay_text(self, page):
        assert "&lt;img src=x onerror=alert(1)&gt;" in page
        assert "&lt;b&gt;007&lt;/b&gt;" in page
        assert "<img" not in page
        assert "<b>" not in page

    def test_an_alarm_is_a_mark_and_not_only_a_colour(self, page):
        assert 'class="value alarm">2.41<' in page
        assert "NaN or Inf in the gradient of 002" in page
        assert "Loss spikes at step 1,420" in page

    def test_curves_say_in_words_what_they_show(self, page):
        assert 'aria-label="loss, steps 1000 to 1510: from ' in page

    def test_unknown_is_a_dash(self, page):
        assert ">–<" in page
        assert "null" not in page.split("<body>")[1]
        assert "NaN<" not in page
