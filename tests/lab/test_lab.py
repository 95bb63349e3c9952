"""foreshock lab as a process: its output, its files, its refusals."""

import json
import signal
import subprocess
import time

import pytest
import report_page

pytestmark = pytest.mark.quick

STATISTICS = ("max_abs", "mean_abs", "std_abs", "relative_l2", "bias_ulp", "bias_z", "ratio_to_plain")
QUICK = ("--n", "64,128", "--rows", "16", "--d", "16", "--algorithm", "plain,flash2_shipped", "--seeds", "8")


def lab(foreshock, *options, **more):
    return subprocess.run(
        [foreshock, "lab", *map(str, options)], capture_output=True, text=True, timeout=300, check=False, **more
    )


def test_json_has_its_shape(foreshock, tmp_path):
    done = lab(foreshock, *QUICK, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    study = json.loads((tmp_path / "out.json").read_text())
    assert study["schema"] == 1
    assert set(study["versions"]) == {"foreshock", "compiler", "chart.js"}
    axes = {"sweep", "algorithm", "format", "accumulator", "input", "n", "d", "block_q", "block_k", "seeds"}
    outs = [point for point in study["points"] if point["tensor"] == "out"]
    assert [(p["algorithm"], p["n"]) for p in outs] == [(a, n) for n in (64, 128) for a in ("plain", "flash2_shipped")]
    for point in outs:
        assert axes <= set(point)
        for statistic in STATISTICS:
            assert set(point[statistic]) == {"mean", "low", "high"}
        assert point["max_abs"]["low"] <= point["max_abs"]["mean"] <= point["max_abs"]["high"]
        assert 0 < point["relative_l2"]["mean"] < 0.02


def test_a_scale_below_the_normal_numbers_is_written(foreshock, tmp_path):
    done = lab(foreshock, *QUICK, "--scale", "1e-320", "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert {point["scale"] for point in json.loads((tmp_path / "out.json").read_text())["points"]} == {1e-320}


def test_any_number_of_threads_writes_the_same_bytes(foreshock, tmp_path):
    texts = []
    for threads in (1, 2, 5):
        path = tmp_path / f"{threads}.json"
        assert lab(foreshock, *QUICK, "--threads", threads, "--json", path).returncode == 0
        texts.append(path.read_bytes())
    assert texts[0] == texts[1] == texts[2]


def test_the_default_is_the_paper_within_two_minutes(foreshock, tmp_path):
    start = time.monotonic()
    done = lab(foreshock, "--json", tmp_path / "out.json")
    assert time.monotonic() - start < 120
    assert done.returncode == 0
    study = json.loads((tmp_path / "out.json").read_text())
    assert {point["sweep"] for point in study["points"]} == {"fig3", "fig4", "fig5", "fig6"}
    assert study["claims"]
    assert all(claim["holds"] for claim in study["claims"])
    assert "fails" not in done.stdout


@pytest.mark.parametrize("options", [
    ("--block-k", "0"), ("--d", "0"), ("--format", "fp17"), ("--n", "1000000000", "--rows", "1000000000"), ("fig9",),
    ("--format", "fp64", "--accumulator", "hopper"), ("--json", "/proc/none/out.json"), ("--seeds",),
])  # fmt: skip
def test_wrong_use_gets_one_line_and_status_two(foreshock, options):
    done = lab(foreshock, *options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("foreshock lab: ")
    assert done.stderr.count("\n") == 1


def test_an_interrupt_stops_at_once_and_leaves_no_file(foreshock, tmp_path):
    command = [foreshock, "lab", "--n", "8192", "--rows", "8192", "--seeds", "64", "--algorithm", "flash_reimplemented"]
    process = subprocess.Popen(
        [*command, "--json", tmp_path / "a.json", "--report", tmp_path / "a.html"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == -signal.SIGINT  # the whole takes minutes
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_replaced_stays_as_it_was(foreshock, tmp_path):
    (tmp_path / "out.json").mkdir()
    done = lab(foreshock, *QUICK, "--json", tmp_path / "out.json")
    assert (done.returncode, done.stdout) == (2, ""), "told before the work"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.fixture(scope="module")
def page(foreshock, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert lab(foreshock, "fig3", "ties", "winograd", "--seeds", "8", "--report", path).returncode == 0
    return path


def test_the_page_asks_for_nothing_from_outside(page):
    report_page.assert_self_contained(page)


def test_the_page_opens_without_a_complaint(page, tmp_path):
    picture = tmp_path / "page.png"
    report_page.opened(page, tmp_path, "--window-size=1280,1800", f"--screenshot={picture}")
    assert picture.stat().st_size > 20_000  # charts were drawn: an empty page of this size is a tenth of that
    dom = report_page.opened(page, tmp_path)
    assert dom.count("<canvas") == 3
    assert dom.count('class="verdict"') == 3 + 5 + 3
    assert "statements checked" in dom
