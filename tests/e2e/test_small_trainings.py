"""What a user sees of a training of twelve steps at default options, for many kinds of them, one row each."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
from forked import forked
from monitored import Run, assert_conserved, run_monitored, run_plain, unwrapped
from tiers import keep

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 12
PASSES = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class Row:
    """What is expected beside the same bits, all steps and the last loss."""

    layers: tuple[str, ...] = ("000", "001")  # labels with a judged slice in each pass
    passes: tuple[str, ...] = PASSES
    nameless: bool = False  # some slices have no layer
    steps: int = STEPS
    loss: bool = True  # the loss is that of the training
    norm: bool = True  # of the gradient is known
    more: frozenset[str] | set[str] = frozenset()  # scalars of the last step
    reason: str = ""  # words of the summary that say why nothing was judged


CALLS = ("call000", "call001")
NAMES = tuple(f"{n:03d}" for n in range(3))
ROWS = {
    "gpt": Row(),
    "gpt clipped, fused optimizer": Row(),
    "gpt accumulated": Row(),
    "gpt of two forward passes": Row(),
    "gpt checkpointed": Row(),
    "gpt checkpointed, reentrant": Row(nameless=True),  # nothing has a history in its forward pass
    "gpt in fp32, Adafactor": Row(),
    "gpt with dropout": Row(),
    "two optimizers": Row(),
    "gradient scaler": Row(),
    "LBFGS": Row(),
    "compiled": Row(layers=CALLS, nameless=True),  # in the order of calls, known after two steps
    "hand-written update": Row(layers=CALLS, nameless=True, norm=False),
    "torch.func": Row(layers=(), reason="any optimizer step", steps=0, loss=False, norm=False),
    "LoRA": Row(layers=NAMES),
    "LoRA checkpointed": Row(layers=NAMES),
    "LoRA checkpointed, reentrant": Row(layers=NAMES, nameless=True),
    "encoder": Row(),
    "encoder accumulated": Row(),
    "translation": Row(layers=tuple(f"00{n}.{side}" for n in range(2)
                                    for side in ("encoder.000", "decoder.000", "decoder.000.multihead_attn"))),
    "diffusion": Row(layers=tuple(f"{place}.000{which}" for which in ("", ".attn2") for place in
                                  ("down_blocks.000.000", "down_blocks.001.000", "mid_block.000", "up_blocks.000.000",
                                   "up_blocks.000.001"))),
    "vision": Row(),
    "vision, float mask": Row(),
    # Named when both have stepped. The loss is that of the optimizer whose steps are counted.
    "GAN": Row(layers=("000", "Tower_1.000"), nameless=True, more={"loss of optimizer 2"}),
    "two models in turn": Row(nameless=True),  # the first step of the second one
    "reinforce": Row(nameless=True),  # generation has no history
    "grouped queries": Row(),
    "latent attention": Row(),
    "experts": Row(),
    "fp64": Row(),
    "recomputed by hand": Row(),
}  # fmt: skip


def judged(run: Run) -> dict[str, set[str]]:
    """{label of a layer, "" for none: passes in which a slice was judged}."""
    found: dict[str, set[str]] = {}
    for line in run.of("sample"):
        found.setdefault(line["layer"] or "", set()).add(line["pass"])
    return found


# One kind for each cause that the others share.
KEPT = ("gpt clipped, fused optimizer", "gradient scaler", "compiled", "hand-written update",
        "LoRA checkpointed, reentrant", "translation", "GAN", "latent attention", "experts")  # fmt: skip


@pytest.mark.parametrize("kind", keep(ROWS, *KEPT))
def test_a_small_training(kind, show_line):
    row = ROWS[kind]
    command, support = forked(str(HERE / "small_training.py"), kind, str(STEPS)), str(HERE.parent / "support")
    plain = run_plain(command, PYTHONPATH=support)
    run = run_monitored(command, PYTHONPATH=support)
    assert run.told()[0] == plain.told()[0], "other bits than alone"
    rank = run.rank()
    found = judged(run)
    cost = f"{rank['first_look_seconds']:.3f} s, then {rank['slowdown_ratio'] or 0:.2%}"
    show_line("small trainings", f"{kind:30} {rank['steps']:3} steps, {len(found)} layers judged, first look {cost}")
    assert_conserved(rank)
    assert rank["steps"] == row.steps, run.stderr
    if row.loss:
        assert rank["loss"]["last"] == pytest.approx(run.told()[0]["losses"][-1], rel=1e-6)
    assert ("" in found) <= row.nameless, run.stderr
    assert {label: passes for label, passes in found.items() if label} == {n: set(row.passes) for n in row.layers}
    assert row.reason in unwrapped(run.stderr)
    assert ("attention not checked" in run.stderr) == (not row.layers), run.stderr
    assert (rank["gradient"]["norm"] is not None) == row.norm
    last = run.of("step")[-1:]
    assert {name for step in last for name in step["logged"] or ()} == row.more
