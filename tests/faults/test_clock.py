"""The clock of the day jumps in the middle of a run: durations, ends and who came first do not depend on it."""

import json

import pytest
from fault_scene import RUN_ID, assert_conserved

DAY = 86_400


@pytest.mark.parametrize("seconds", [-DAY, DAY], ids=["back", "ahead"])
def test_clock_jumps(scene, told, tmp_path, seconds):
    offset = tmp_path / "offset"
    offset.write_text("0")
    shimmed = {"LD_PRELOAD": scene.programs["clock_shim"], "CLOCK_OFFSET": str(offset)}
    plain = scene.plain_half_way()
    record = tmp_path / "record.jsonl"
    line = [*scene.run_line("--record", str(record)), *scene.waiting_line()]
    process = scene.start_half_way(line, **shimmed)
    (before,) = scene.segments()
    offset.write_text(str(seconds))

    # Of two with one rank the second is refused, whatever time it thinks it is.
    here, scene.rounds = scene.rounds, scene.rounds + 1
    second = scene.end(scene.start([*scene.run_line(), *scene.trainer_line("40", "return")], **shimmed))
    assert "(rank_taken)" in second.said[0]
    assert [each.pid for each in scene.segments()] == [before.pid]

    scene.rounds = here
    watched = scene.go_on(process)
    told(f"clock jumps by {seconds / DAY:+.0f} day", scene, plain, watched)
    assert_conserved(watched.summary)
    assert [rank["steps"] for rank in watched.summary["ranks"]] == [40] * 7
    steps = [line for text in record.read_text().splitlines() if (line := json.loads(text))["type"] == "step"]
    assert len(steps) == 40 * 7
    assert all(0 < step["duration_seconds"] < DAY / 2 for step in steps)
    times = [step["time"] for step in steps]
    assert abs(times[-1] - times[0] - seconds) < DAY / 2, "it is the time that it was told"
    assert not (scene.base / RUN_ID).exists()
