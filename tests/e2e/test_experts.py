"""A model with more parameters than have room for their names: those of attention are named first."""

import pathlib

import pytest
from forked import forked
from monitored import EVERYTHING, assert_conserved, run_monitored, unwrapped

SCRIPT = str(pathlib.Path(__file__).with_name("experts_training.py"))
LAYERS, ROOM = 60, 65536


def layers_of(run) -> dict[str, set]:
    return {kind: {line[kind] for line in run.of("sample")} for kind in ("layer", "layer_source")}


@pytest.mark.long
def test_every_attention_of_a_model_with_many_experts_has_its_layer():
    run = run_monitored(forked(SCRIPT, str(LAYERS), "366"), *EVERYTHING)
    (told,) = run.told()
    unnamed = told["parameters"] - ROOM
    assert unnamed > 0
    rank = run.rank()
    assert_conserved(rank)
    assert layers_of(run) == {"layer": {f"{n:03d}" for n in range(LAYERS)}, "layer_source": {"parameter"}}
    assert rank["parameters_unnamed"] == unnamed
    assert f"{unnamed:,} parameters beyond the limit".replace(",", " ") in unwrapped(run.stderr)
    # Of those that train in a step there are few: 43 thousand squares, each with a rounding of 1e-16 in fp64.
    assert rank["gradient"]["norm"] == pytest.approx(told["norm"], rel=5e-12)
    assert rank["gradient"]["untold_steps"] == 0
    # The experts of the last layer are those without a name: it has no norm rather than that of a part.
    assert {layer for layer, norm in told["of_layers"].items() if norm is None} == {f"{LAYERS - 1:03d}"}


def test_of_a_model_whose_parameters_have_room_nothing_is_said():
    run = run_monitored(forked(SCRIPT, "4", "8"), *EVERYTHING)
    run.told()
    assert layers_of(run)["layer"] == {f"{n:03d}" for n in range(4)}
    assert run.rank()["parameters_unnamed"] == run.rank()["gradient"]["untold_steps"] == 0
    assert "parameters beyond the limit" not in unwrapped(run.stderr)
