"""foreshock report as a process, and its page in a real browser: what it says, whom it asks, and what it refuses."""

import json
import math
import os
import pathlib
import subprocess

import browser
import pytest

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
NEEDS_BROWSER = pytest.mark.skipif(browser.EXECUTABLE is None, reason="no chromium here")


def line(kind: str, **more: object) -> dict:
    return {"schema": 1, "type": kind, "run": "me", **more}


def step(number: int, loss: float | None, **more: object) -> dict:
    of = line("step", rank=0, step=number, time=1.7e9 + number, loss=loss, learning_rate=3e-4, skipped_steps=0)
    return of | {"gradient_norm": 1 + 0.01 * math.sin(number), "attention_calls": 2} | more


def precursor(number: int, level: str, detector: str = "bias", layer: str | None = "003") -> dict:
    return line("event", rank=0, step=number, event="precursor", detector=detector, level=level, layer=layer, score=1.0)


def sample(number: int, layer: str) -> dict:
    bias = 0.001 * math.sin(number) + (0.3 if number > 270 and layer == "003" else 0)
    return line("sample", rank=0, step=number, layer=layer, bias_ulp=bias, deviation_ratio=0.5, fused_ratio=0.5) | {
        "pass": "forward"
    }


def run_with_a_spike(**names: str) -> list[dict]:
    """A bias in layer 003 from step 280 on, a spike at 301."""
    lines = [line("run", state="started", rank=0, time=1.7e9, foreshock_version="0.1.0", world_size=1)]
    for n in range(1, 421):
        lines.append(step(n, 9.0 if 301 <= n <= 303 else 1 + 1e-4 * math.sin(n)))
        if n % 4 == 0:
            lines += [sample(n, layer) for layer in ("001", "002", "003")]
        lines += {280: [precursor(280, "watch")], 290: [precursor(290, "warn")],
                  303: [line("event", rank=0, step=301, event="loss_spike", value=9.0)]}.get(n, [])  # fmt: skip
    lines.append(line("run", state="ended", rank=0, time=1.7e9 + 421))
    return [one | {key: value for key, value in names.items() if key in one} for one in lines]


def quiet_run() -> list[dict]:
    return [step(n, 1 + 1e-4 * math.sin(n)) for n in range(1, 301)]


@pytest.fixture
def foreshock(foreshock):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return lambda *words, **more: subprocess.run(
        [foreshock, *words], **streams | more, text=True, timeout=120, check=False
    )


@pytest.fixture
def write(tmp_path):
    def make(lines: list[dict], name: str = "run.jsonl") -> pathlib.Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(one) + "\n" for one in lines))
        return path

    return make


@pytest.fixture(scope="module")
def tab():
    one = browser.Browser()
    yield one
    one.close()


@pytest.fixture
def page(write, foreshock, tab):
    """page(lines, **how): the tab with the report of them; nothing was asked for, nothing complained."""

    def open_page(lines: list[dict], **how: object) -> browser.Browser:
        record = write(lines)
        done = foreshock("report", str(record))
        assert done.returncode == 0, done.stderr
        tab.open(record.with_suffix(".html").as_uri(), **how)
        tab.wait_for("document.getElementById('limits').children.length > 0")
        return tab

    yield open_page
    assert tab.console == []
    assert {address.split(":")[0] for address in tab.requests} <= {"file", "data", "about"}
    assert len([address for address in tab.requests if address.startswith("file")]) == 1
    tab.leave()


@NEEDS_BROWSER
def test_the_page_tells_the_story(page):
    tab = page(run_with_a_spike())
    text = tab.value("document.body.innerText")
    for part in (
        "Run me",
        "LOSS SPIKE: loss spike at step 301",
        "1. Loss spike at step 301",
        "layer 003",
        "11 steps before",
        "the other 2 stayed quiet",
        "Consistent with",
        "Not excluded",
        "What to try",
        "none. No backward slice of an attention call was judged.",
    ):
        assert part.lower() in text.lower(), part
    assert not any(word in text for word in ("null", "undefined", "[object"))
    labels = tab.value("[...document.querySelectorAll('canvas')].map((c) => c.getAttribute('aria-label'))")
    assert len(labels) == 7, "the run, its detectors, attention and its map; of the event loss, gradient norm, bias"
    assert labels[2].startswith("Error of attention over its alarm limit, from 0.25 to 0.25")
    assert labels[3] == "Map of 3 layers by step: largest error over the alarm limit, up to 0.25"
    assert labels[6].startswith("bias, layer 003 from 96 steps before the event: from ")
    painted = """[...document.querySelectorAll('canvas')].map((c) =>
        new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size)"""
    assert min(tab.value(painted)) > 8, "something is drawn in each"


@NEEDS_BROWSER
def test_names_stay_text(page):
    tab = page(run_with_a_spike(run=HOSTILE, layer=HOSTILE, foreshock_version=HOSTILE))
    assert tab.value("document.getElementById('headline').textContent") == "Run " + HOSTILE
    assert tab.value("document.querySelectorAll('img, section script').length") == 0


@NEEDS_BROWSER
def test_no_foreign_script_may_run(page):
    tab = page(quiet_run())
    tab.value(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.taken = 1'}))"
    )
    assert tab.value("window.taken === undefined"), "the policy of the page"
    tab.console.clear()  # it has complained of that, as it should


@NEEDS_BROWSER
def test_a_quiet_run_and_a_narrow_screen(page):
    tab = page(quiet_run(), width=390)
    assert tab.value("document.getElementById('verdict').className") == "open", "no agent has found it healthy"
    assert "No loss event in 300 steps, and no detector warned." in tab.value("document.body.innerText")
    assert tab.value("document.documentElement.scrollWidth") <= 390, "nothing makes a phone scroll sideways"
    seen = "document.querySelector('#detectors th:nth-child({})').getBoundingClientRect()"
    assert tab.value("document.querySelector('#detectors th:nth-child(2)').textContent") == "warned"
    assert tab.value(seen.format(3) + ".right") < 390, "what a detector has said is seen without scrolling"


@NEEDS_BROWSER
@pytest.mark.parametrize(
    ("verdict", "state", "mark"),
    [("healthy", "finished", "good"), ("healthy", "failed", "open"), ("PARTLY CHECKED", "finished", "open")],
)
def test_only_a_healthy_run_has_a_tick(page, verdict, state, mark):
    gap = "layer 001: dQ not judged; foreshock did not see its backward pass. Do: add foreshock.tap"
    tab = page([*quiet_run(), line("verdict", state=state, verdict=verdict, gap=gap)])
    assert tab.value("document.getElementById('verdict').className") == mark
    said = tab.value("document.getElementById('verdict').textContent")
    assert (gap in said) == (verdict != "healthy")


@NEEDS_BROWSER
def test_a_warning_without_a_loss_event_is_no_good_news(page):
    tab = page([*quiet_run(), precursor(300, "warn")])
    assert tab.value("document.getElementById('verdict').className") == "bad"
    assert "first at step 300" in tab.value("document.getElementById('verdict').textContent")
    warned = tab.value("[...document.querySelectorAll('#warnings td')].map((cell) => cell.textContent)")
    assert warned == ["Attention's output is biased bias", "layer 003", "300", "300", "the end"]


@NEEDS_BROWSER
def test_the_fourth_event_opens_by_its_link(page):
    lines = [step(n, 9.0 if n > 200 and n % 250 < 3 else 1 + 1e-4 * math.sin(n)) for n in range(1, 1400)]
    tab = page(lines)
    events = "[...document.querySelectorAll('.event > details')].map((d) => d.open)"
    assert tab.value(events) == [True, True, True, False, False]
    tab.value("document.querySelector('a[href=\"#event-4\"]').focus()")
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    tab.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    tab.wait_for("document.querySelectorAll('.event > details')[3].open")
    assert tab.value("document.querySelectorAll('#event-4 canvas').length") == 2


@NEEDS_BROWSER
def test_where_nobody_looked_there_is_no_line_and_the_onset_is_a_stretch(page):
    lines = [one for one in run_with_a_spike() if one["type"] != "sample" or not 240 < one["step"] < 280]
    tab = page(lines)
    moved = tab.value("document.querySelector('#event-1 td:nth-child(3)').textContent")
    assert "21 to 60 steps before: too few samples to say" in moved
    charts = (
        "[...document.querySelectorAll('#event-1 canvas')].map((canvas) => [canvas.getAttribute('aria-label'),"
        " Chart.getChart(canvas).data.datasets[0].data.filter((p) => p.y === null).map((p) => p.x)])"
    )
    assert [gaps for label, gaps in tab.value(charts) if label.startswith("bias")] == [[-41]]


def test_json_has_the_same(foreshock, write):
    done = foreshock("report", "--json", str(write(run_with_a_spike())))
    assert (done.returncode, done.stderr) == (0, "")
    story = json.loads(done.stdout)
    (event,) = story["loss_events"]
    assert (story["schema"], story["events_from"], event["event"], event["step"]) == (1, "record", "loss_spike", 301)
    (sign,) = event["before"]
    assert (sign["detector"], sign["layer"], sign["lead_steps"], sign["warn_lead_steps"]) == ("bias", "003", 21, 11)
    assert [point for point in sign["points"] if point[0] == 300][0][1] > 0.2
    assert sign["unseen_steps"] == 3, "sampled in one step of four"
    assert all(event[key] for key in ("consistent_with", "not_excluded", "to_try"))


def test_a_record_that_is_cut_is_told_as_far_as_it_goes(foreshock, write):
    record = write(run_with_a_spike())
    text = record.read_bytes()
    record.write_bytes(text[: text.index(b'"event": "loss_spike"') + 200] + b"\n\xff{nonsense\n" + b'{"schema": 1, "ty')
    story = json.loads(foreshock("report", "--json", str(record)).stdout)
    assert len(story["loss_events"]) == 1
    assert len(story["notes"]) == 3, "the last one says that the verdict is derived"
    assert "could not be read" in story["notes"][0]
    assert "was truncated" in story["notes"][1]


def test_nodes_are_told_together(foreshock, write):
    first, second = run_with_a_spike(), [one | {"rank": 8} for one in quiet_run()]
    done = foreshock("report", "--json", str(write(first, "a.jsonl")), str(write(second, "b.jsonl")))
    (event,) = json.loads(done.stdout)["loss_events"]
    assert {fact["name"]: fact["text"] for fact in event["facts"]}["ranks"] == "seen on 1 of 2: rank 0"


def test_nobodys_file_is_written_over(foreshock, write, tmp_path):
    record = write(quiet_run())
    other = tmp_path / "run.html"
    other.write_text("mine")
    done = foreshock("report", str(record))
    assert (done.returncode, other.read_text()) == (2, "mine")
    other.unlink()
    assert foreshock("report", str(record)).returncode == 0
    assert foreshock("report", str(record)).returncode == 0, "a report is replaced"


@pytest.mark.parametrize("command", ["report", "merge"])
def test_a_pipe_is_written_to_and_stays(foreshock, write, tmp_path, command):
    """As a device does: for root, `-o /dev/null` is a file that could be replaced."""
    records = [write(quiet_run()), write([one | {"rank": 1} for one in quiet_run()], "other.jsonl")]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with (tmp_path / "read").open("wb") as read:
        reader = subprocess.Popen(["cat", pipe], stdout=read)
    try:
        done = foreshock(command, *map(str, records), "-o", str(pipe))
        assert done.returncode == 0, done.stderr
        assert pipe.is_fifo()
        assert reader.wait(timeout=60) == 0
    finally:
        reader.kill()
    assert len((tmp_path / "read").read_text().splitlines()) > 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.jsonl", "pipe", "read", "run.jsonl"]


@pytest.mark.parametrize("command", ["report", "merge"])
def test_a_link_stays_and_what_it_leads_to_is_written(foreshock, write, tmp_path, command):
    records = [write(quiet_run()), write([one | {"rank": 1} for one in quiet_run()], "other.jsonl")]
    published, link = tmp_path / "published", tmp_path / "latest"
    published.mkdir()
    (published / "page").write_text("old")
    link.symlink_to("published/page")
    done = foreshock(command, *map(str, records), "-o", str(link))
    assert done.returncode == 0, done.stderr
    assert link.is_symlink()
    assert len((published / "page").read_text().splitlines()) > 10
    assert [path.name for path in published.iterdir()] == ["page"]
    link.unlink()
    link.symlink_to("latest")
    done = foreshock(command, *map(str, records), "-o", str(link))
    says = f"foreshock: {link} is a link that leads nowhere: choose another place\n"
    assert (done.returncode, done.stderr) == (2, says)


def test_ranks_that_do_not_know_of_each_other_are_not_said_to_be_more_than_all(foreshock, write, tmp_path):
    records = []
    for rank in range(2):
        start = line("run", state="started", rank=rank, time=1.7e9, world_size=1)
        records.append(write([one | {"rank": rank} for one in (start, *quiet_run())], f"{rank}.jsonl"))
    done = foreshock("merge", *map(str, records), "-o", str(tmp_path / "job.jsonl"))
    assert ", 2 ranks: 602 lines" in done.stderr


def test_a_minus_is_standard_output_and_two_end_the_options(foreshock, write, tmp_path):
    write([one | {"rank": 1} for one in quiet_run()], "other.jsonl")
    write(quiet_run(), "-o")
    merged = foreshock("merge", "-o", "-", "--", "-o", "other.jsonl", cwd=tmp_path)
    assert (merged.returncode, len(merged.stdout.splitlines())) == (0, 600), merged.stderr
    told = foreshock("report", "-o", "-", "--", "-o", "other.jsonl", cwd=tmp_path)
    assert (told.returncode, "<html" in told.stdout) == (0, True), told.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["-o", "other.jsonl"]


def test_what_can_be_read_only_once_is_told_but_not_merged(foreshock, write, tmp_path):
    """Lines are read again when they are written: blank ones came out, 600 of them, and the exit status was 0."""
    record, other = write(quiet_run()), write([one | {"rank": 1} for one in quiet_run()], "other.jsonl")
    out = tmp_path / "job.jsonl"
    done = foreshock("merge", "/dev/stdin", str(other), "-o", str(out), input=record.read_text())
    says = "foreshock: /dev/stdin can be read only once: make a file of it first\n"
    assert (done.returncode, done.stderr, out.exists()) == (2, says, False)
    done = foreshock("report", "/dev/stdin", input=record.read_text())
    assert (done.returncode, done.stderr) == (
        2, "foreshock: /dev/stdin is not a file; name the page with -o OUT.html\n",
    )  # fmt: skip
    done = foreshock("report", "/dev/stdin", "-o", str(out), input=record.read_text())
    assert "in 300 steps" in done.stderr


def test_a_merged_record_tells_of_a_line_that_was_cut_off(foreshock, write, tmp_path):
    records = [write(quiet_run()), write([one | {"rank": 1} for one in quiet_run()], "other.jsonl")]
    with records[1].open("a") as torn:
        torn.write('{"schema":1,"ty')
    done = foreshock("merge", *map(str, records), "-o", str(tmp_path / "job.jsonl"))
    assert done.stderr.endswith(f"; the last line was cut off when its writer ended: {records[1]}\n")


def test_a_merged_record_that_the_disk_does_not_take_gets_one_line(foreshock, write):
    records = [write(quiet_run()), write([one | {"rank": 1} for one in quiet_run()], "other.jsonl")]
    with pathlib.Path("/dev/full").open("w") as full:
        done = foreshock("merge", *map(str, records), stdout=full)
    assert done.returncode == 1
    assert done.stderr == "foreshock: standard output: No space left on device\n"


def test_what_cannot_be_told_gets_one_line_and_status_two(foreshock, write, tmp_path):
    good, text = str(write(quiet_run())), tmp_path / "text.jsonl"
    text.write_text("hello\n")
    twice = str(write(quiet_run(), "twice.jsonl"))
    other = str(write([one | {"run": "another", "rank": 1} for one in quiet_run()], "other.jsonl"))
    for words, says in (
        ([], "name a record"),
        ([good, "-o"], "give -o a value: -o OUT.html"),
        ([good, "--jason"], "unknown option"),
        ([good, "-o", good], "is one of the records"),
        ([good, "-o", "/nowhere/at/all.html"], "cannot write into"),
        ([good, "-o", "x.html", "--json"], "choose one"),
        ([str(text)], "no line of it is a record's"),
        ([str(tmp_path / "none.jsonl")], "No such file"),
        ([good, twice, "-o", str(tmp_path / "x.html")], "rank 0 is in an earlier record too"),
        ([good, other, "-o", str(tmp_path / "x.html")], "of run another"),
    ):
        done = foreshock("report", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), words
        assert says in done.stderr, (words, done.stderr)


def test_markdown_is_the_story_on_two_screens(write, foreshock):
    record = write(run_with_a_spike())
    done = foreshock("report", "--markdown", str(record))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 80
    assert lines[0].startswith("# ")
    for part in (
        "LOSS SPIKE: loss spike at step 301",
        "## 1. Loss spike at step 301",
        "- bias (attention's output is biased), layer 003, rank 0: warn from step 280, 21 steps before, last value ",
        "What to try:",
        "## Not judged",
        f"    foreshock detect {record}",
    ):
        assert part in done.stdout, part
    assert not record.with_suffix(".html").exists()
    assert foreshock("report", "--markdown", "--json", str(record)).returncode == 2


def test_markdown_of_a_quiet_run_and_of_hostile_names(write, foreshock):
    quiet = foreshock("report", "--markdown", str(write(quiet_run(), "quiet.jsonl"))).stdout
    assert "No loss event in 300 steps" in quiet
    assert "## 1." not in quiet
    hostile = foreshock("report", "--markdown", str(write(run_with_a_spike(layer="\x1b[31m" + HOSTILE)))).stdout
    assert "\x1b" not in hostile
