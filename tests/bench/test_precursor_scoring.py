"""The protocol of bench/precursors by hand, on records made up and on figures that can be counted on paper."""

import json
import math
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "precursors"))

import alarms  # noqa: E402
import attention_errors  # noqa: E402
import comparison  # noqa: E402
import provenance  # noqa: E402
import recipes  # noqa: E402
import recording  # noqa: E402
import scoring  # noqa: E402

pytestmark = pytest.mark.quick


def written(path: pathlib.Path, losses: list[float], norms: list[float]) -> pathlib.Path:
    lines = [
        {"schema": 1, "type": "step", "run": "r", "rank": 0, "step": n, "loss": loss, "gradient_norm": norm}
        for n, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_reduces_a_record_to_onsets_and_alarms(tmp_path):
    """The norm is tenfold from step 281 on, the loss from 301 to 310; both waver a little around 1."""
    wavering = [1 + 0.01 * math.sin(n) for n in range(1, 401)]
    losses = [10 * x if 301 <= n <= 310 else x for n, x in enumerate(wavering, start=1)]
    norms = [10 * x if n >= 281 else x for n, x in enumerate(wavering, start=1)]
    path = written(tmp_path / "record.jsonl", losses, norms)
    found = recording.reduced(path, recipes.recipe("adam-net"), 1001, {})
    assert found["onsets"] == [301]
    assert found["masked"] == [(301, 311 + scoring.AFTERMATH)]
    (warned,) = found["alarms"]["gradient_norm"]["1.0"]
    assert 281 <= warned <= 284
    assert found["alarms"]["ZClip 2.5 z"]["1.0"][0] <= 281
    assert len(found["losses"]) == 400 // scoring.BLOCK
    assert math.isclose(found["losses"][-1], sum(wavering[-16:]) / 16, rel_tol=1e-4)
    assert found["made"]["detectors"] == provenance.of_detectors()
    training = comparison.training_of(found, {})
    counted = scoring.tally(training, None, "gradient_norm")
    assert (counted.events, counted.hits, counted.leads) == (1, 1, [301 - warned])


def training(alarms_at: list[int], onsets: list[int], last: int = 1000) -> scoring.Training:
    masked = [(onset, onset + 100) for onset in onsets]
    return scoring.Training("r", 1, last, onsets, masked, {"d": alarms_at})


def test_hits_leads_and_lift_by_hand():
    """Scored: 160..1000, without the aftermath 600..699. The window is 536..599."""
    fault = training([170, 540, 590, 610], [600])
    twin = training([550], [])
    found = scoring.tally(fault, twin, "d")
    assert (found.events, found.hits, found.leads, found.twin_hits) == (1, 1, [60], 1)
    assert (found.alarms, found.right) == (4, 2)  # that at 610 is in the aftermath
    assert (found.steps, found.steps_before) == (741 + 841, 64)
    calm = scoring.quiet([twin], ["d"])
    assert (calm.alarms, calm.steps) == (1, 841)
    assert math.isclose(calm.per_10k(), 1e4 / 841, rel_tol=1e-12)
    assert math.isclose(found.lift(), (2 / 4) / (64 / 1582), rel_tol=1e-12)


def test_alarms_by_chance_have_no_lift():
    """A detector that alarms at every eighth step of every training."""
    groups = [
        scoring.tally(training(list(range(160, 1001, 8)), [700 + seed]), training(list(range(160, 1001, 8)), []), "d")
        for seed in range(8)
    ]
    found = scoring.summary(groups, scoring.Quiet())
    assert found["hits"] == found["events"] == found["twin_hits"] == 8
    # Of 64 steps of a window every eighth is alarmed exactly; what is not a multiple of 8 is at the ends.
    assert math.isclose(found["lift"], 1, abs_tol=0.02)
    assert found["lift_low"] <= found["lift"] <= found["lift_high"]


def test_an_event_in_the_aftermath_of_another_is_not_counted():
    losses = dict.fromkeys(range(1, 801), 1.0)
    losses |= dict.fromkeys(range(300, 320), 9.0) | dict.fromkeys(range(350, 360), 9.0) | {700: math.nan}
    onsets, masked = scoring.masks(losses, [350, 300, 700], 800)
    assert onsets == [300, 700]
    assert masked == [(300, 320 + scoring.AFTERMATH), (700, 701 + scoring.AFTERMATH)]
    assert scoring.masks(dict.fromkeys(range(1, 500), 1.0) | dict.fromkeys(range(500, 801), 5.0), [500], 800) == (
        [500],
        [(500, 801)],
    )


def test_a_twin_counts_up_to_its_fault_and_a_false_alarm_once():
    """A twin that goes on for ever would make every lift as large as one likes."""
    pair = [made_up(1001, "adam-net", {"1.0": [580]}), made_up(1001, "stable-net", {"1.0": [900, 5000]})]
    pair[1] |= {"last_step": 25600}
    (both,) = comparison.tallies(pair, "d", "1.0").values()
    assert both.steps == 741 + 841
    assert both.alarms == 2
    (control,) = comparison.controls(pair, "d", "1.0")
    assert scoring.quiet([control], ["d"]) == scoring.Quiet(2, 25600 - scoring.FIRST_STEP + 1)


def test_comparison_with_the_twin_finds_failures_that_the_rule_misses():
    twin = [1 + 0.01 * math.sin(n) for n in range(60)]
    failed = [x * (1.2 if n >= 31 else 1) for n, x in enumerate(twin)]
    assert scoring.excess(twin, twin) is None
    assert scoring.excess(failed, twin) == (31 * 16 + 1, 61 * 16 + 1 + scoring.AFTERMATH)
    assert scoring.excess([*failed[:50], *[None] * 10], twin) == scoring.excess(failed, twin)
    assert scoring.excess([*twin[:50], *[None] * 10], twin) == (801, 61 * 16 + 1 + scoring.AFTERMATH)
    short = [x * (1.2 if 31 <= n < 33 else 1) for n, x in enumerate(twin)]
    assert scoring.excess(short, twin) is None
    over = [x * (1.2 if 31 <= n < 36 else 1) for n, x in enumerate(twin)]
    assert scoring.excess(over, twin) == (31 * 16 + 1, 36 * 16 + 1 + scoring.AFTERMATH)
    pair = [
        made_up(1003, name, {"1.0": [480]}) | {"onsets": [], "masked": [], "losses": of, "last_step": 960}
        for name, of in (("adam-net", failed), ("stable-net", twin))
    ]
    fault, control = comparison.completed(pair)
    assert (fault["onsets"], fault["missed"], control["onsets"]) == ([497], True, [])
    assert fault["masked"] == [[497, 961]]
    found = comparison.results([fault, control], None)
    assert [each["missed"] for each in found["recipes"] if each["name"] == "adam-net"] == [1]
    assert found["shipped"]["d"]["all"]["hits"] == 1


PLANTED = "following-bias-32"


def planted(seed: int, drift: list[tuple[int, str]], onset: int | None, recipe: str = PLANTED) -> dict:
    one = made_up(seed, recipe, {"1.0": [step for step, _ in drift]})
    return one | {
        "onsets": [onset] if onset else [], "masked": [], "last_step": 700, "missed": False,
        "layers": ["blocks.0", "blocks.1"], "places": {"output_error_drift": drift},
    }  # fmt: skip


def test_an_attention_error_counts_if_warned_before_the_event_in_its_layer():
    begin = recipes.recipe(PLANTED).begin(1001)
    right, wrong = "blocks.1", "blocks.0"
    before, after = begin + 20, begin + 80
    found = [planted(1001, [(before, right)], after)]
    (row,) = attention_errors.results(found)
    told = row["output_error_drift"]
    assert (told["seen"], told["before"], told["right"], told["lead"], told["after"]) == (1, 1, 1, 60, 20)
    assert (row["with_event"], row["event_after"], row["bias"]["seen"]) == (1, 80, 0)
    for drift, onset, expected in (
        ([(before, wrong)], after, (1, 1, 0)),
        ([(after + 1, right)], after, (0, 0, 0)),  # too late
        ([(begin - 1, right)], after, (0, 0, 0)),  # before there was anything
        ([(before, right)], None, (1, 0, 1)),  # no harm
    ):
        told = attention_errors.results([planted(1001, drift, onset)])[0]["output_error_drift"]
        assert (told["seen"], told["before"], told["right"]) == expected
    (row,) = attention_errors.results([planted(1001, [(300, right)], None, "stable-copying")])
    assert (row["output_error_drift"]["seen"], row["output_error_drift"]["right"], row["plant"]) == (1, 0, "")


def of_detector(per_10k: float = 0.0, lift: float = 3.0, lead: float = 9, hits: int = 6) -> dict:
    found = {"lift": lift, "lead_median": lead, "hits": hits, "events": 8, "twin_hits": 0}
    return {"models": {"stable-net": {"per_10k": per_10k}}, "recipes": {"adam-net": found}}


def test_a_detector_is_default_by_its_figures():
    assert attention_errors.defaults({"d": of_detector()}, []) == ["d"]
    for worse in ({"per_10k": 1.1}, {"lift": 1.9}, {"lead": 4}, {"hits": 4}):
        assert attention_errors.defaults({"d": of_detector(**worse)}, []) == [], worse
    row = {"plant": "unrelated", "trainings": 8, "bias": {"right": 7}, "output_error_drift": {"right": 0}}
    assert attention_errors.defaults({"bias": of_detector(lift=0)}, [row]) == ["bias"]
    assert attention_errors.defaults({"bias": of_detector(lift=0)}, [row | {"bias": {"right": 6}}]) == []
    assert attention_errors.defaults({"bias": of_detector(lift=0, per_10k=2)}, [row]) == []


def test_intervals():
    # Wilson: of 10, 5: (0.5 ± ...) known as 0.2366 to 0.7634; of none nothing is known.
    assert [round(x, 4) for x in scoring.wilson(5, 10)] == [0.2366, 0.7634]
    assert math.isnan(scoring.wilson(0, 0)[0])
    # Poisson, one-sided 95 %: -ln 0.05 for none seen, 4.744 for one.
    assert math.isclose(scoring.most_expected(0), -math.log(0.05), rel_tol=1e-9)
    assert round(scoring.most_expected(1), 3) == 4.744
    # Of many nearly the normal law: 1001 + 1.645 sqrt(1001) + 0.6.
    assert abs(scoring.most_expected(1000) - 1053.6) < 0.5
    assert math.isnan(scoring.bootstrap([scoring.Tally(alarms=1)] * 3, lambda t: 1)[0])
    assert scoring.bootstrap([scoring.Tally(alarms=1)] * 4, lambda t: t.alarms) == (4, 4)


def test_the_level_rule_matches_the_detectors():
    """Rises at once, anywhere; falls after eight values in a row below 0.7 of the threshold."""
    calm = [(n, "a", 0.69) for n in range(10, 18)]
    assert alarms.alarms([(1, "a", 1.0), *calm, (18, "a", 1.0)]) == [(1, "a"), (18, "a")]
    assert alarms.alarms([(1, "a", 1.0), *calm[:7], (17, "a", 0.71), (18, "a", 1.0)]) == [(1, "a")]
    assert alarms.alarms([(1, "b", 1.0), (2, "a", 1.0), *calm, (18, "a", 1.0)]) == [(1, "b")]
    assert alarms.alarms([(1, "a", 1.0), (2, "a", 2.0)], 2.0) == [(2, "a")]


def test_published_rules():
    wavering = [1 + 0.01 * math.sin(n) for n in range(300)]
    jump = [*wavering, 3.0, *wavering[:50]]
    assert [n for n, score in enumerate(alarms.zclip(jump)) if score >= 1] == [300]
    assert [n for n, score in enumerate(alarms.sigmas(jump)) if score >= 1] == [300]
    assert max(alarms.sigmas(wavering)) < 1
    high = [*wavering, *[4.0] * 10]
    # More than four in a row, while the mean of the last hundred is not yet half of them.
    assert [n for n, score in enumerate(alarms.twice_the_mean(high)) if score >= 1][0] == 304
    assert max(alarms.twice_the_mean(jump)) < 1
    drift = [*wavering, *[1.05] * 10]
    assert 300 <= [n for n, score in enumerate(alarms.cusum_of_loss(drift)) if score >= 1][0] <= 302
    assert not [score for rule in (alarms.zclip, alarms.sigmas) for score in rule([math.nan] * 200) if score]


MADE = {"training": "", "detectors": "", "torch": "2", "foreshock": "0", "live_events": 0, "replays": True}


def made_up(seed: int, recipe: str, alarm_at: dict[str, list[int]]) -> dict:
    onsets = [600] if recipes.recipe(recipe).twin else []
    return {
        "recipe": recipe, "seed": seed, "last_step": 1000, "steps_seen": 1000, "layers": [], "places": {}, "losses": [],
        "onsets": onsets, "masked": [(onset, onset + 100) for onset in onsets], "missed": False,
        "alarms": {"d": alarm_at}, "made": MADE, "lines": {"sample": 0},
    }  # fmt: skip


PAIR = ("adam-net", "stable-net")


def test_thresholds_are_learned_from_seeds_that_are_not_scored():
    """With even seeds 2.0 is the lowest that is quiet in the twins, with odd ones it never is: that must not matter."""
    noisy, quiet = {"1.0": [300, 580], "2.0": [580]}, {"0.5": [300], "0.7": [300], "1.0": [300], "1.4": [300]}
    found = [made_up(seed, name, noisy if name == "adam-net" else quiet) for seed in (2, 4) for name in PAIR]
    always = {str(at): [300] for at in recording.GRID}
    crying = [made_up(seed, name, always) for seed in (3, 5) for name in PAIR]
    learned = comparison.results(found + crying, None)["learned"]
    assert learned["d"]["threshold"] == "2.0"
    assert (learned["d"]["all"]["events"], learned["d"]["all"]["hits"], learned["d"]["all"]["false"]) == (2, 0, 2)
    assert learned[comparison.NULL]["threshold"] == "adam-net 560"  # the first tried that is in the window
    assert comparison.results(found, None)["learned"]["d"]["all"]["events"] == 0, "nothing is left to score"
    assert comparison.results(crying, None)["learned"]["d"]["threshold"] is None, "nothing to learn from"


def test_a_training_without_its_twin_is_not_scored():
    alone = [made_up(3, "adam-net", {"1.0": [580]})]
    assert comparison.results(alone, None)["shipped"]["d"]["all"]["events"] == 0


def test_the_stored_trainings_were_made_by_the_code_of_today():
    """A hash that differs needs new trainings, or a proof that the code does the same, such as equal syntax trees."""
    assert provenance.stored()
    assert [one["recipe"] for one in provenance.stored() if not provenance.is_made_alike(one)] == []
