"""Loss, norm of the gradient and steps that a scaler leaves out, of a training on a CUDA device: torch, the adapter,
the core's kernel, the agent's record. The device is memory of the host (tests/support/host_cuda.cpp), the driver
tests/support/fake_cuda, which is behind the host until the next operation."""

from __future__ import annotations

import math

import pytest
from device_training import MODEL, trained
from tiers import keep

STEPS = 12

TRAINING = f"""{MODEL}
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in words, growth_interval=3)
passes = 3 if "accumulate" in words else 1
losses, norms, kept, skipped = [], [], [], 0
def loss_of(x):
    y = model(x)
    if "cross_entropy" in words: return F.cross_entropy(y.flatten(0, 1), put(torch.randint(32, (48,))))
    if "sum" in words: return F.cross_entropy(y.flatten(0, 1), put(torch.randint(32, (48,))), reduction="sum")
    return y.square().mean()
for step in range({STEPS}):
    parts = []
    for n in range(passes):
        loss = loss_of(put(torch.randn(2, 24, 32)))
        root = loss if "cross_entropy" in words else loss / passes if passes > 1 else loss
        if "sum" in words: root = loss / (48 * passes)  # the targets of the step
        scaler.scale(root / passes if "cross_entropy" in words and passes > 1 else root).backward()
        if "item" in words: parts.append(root.detach().item())
        else: parts.append(root.detach())
    if "scaler" in words and step in (4, 7):
        next(model.parameters()).grad.fill_(float("inf"))
    scaler.unscale_(optimizer)
    if "clip" in words: norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    scale = scaler.get_scale() if "scaler" in words else 1
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
    if "scaler" in words and step in (4, 7): skipped += 1
    else: kept.append(parts)
run_all()
losses = [[float(get(part) if isinstance(part, torch.Tensor) else part) for part in parts] for parts in kept]
# Without a cross-entropy each part is a share of the step's loss: it was divided by the passes.
means = [sum(parts) / (len(parts) if "cross_entropy" in words else 1) for parts in losses]
norms = [float(get(norm)) for norm in norms]
if "item" not in words: loss.item()  # a training looks at its last loss
total = torch.nn.ParameterList(get(parameter) for parameter in model.parameters())
tell(digest=fingerprint(means, total), losses=means, norms=norms, skipped=skipped, waits=host_cuda.host_cuda_waits())
os._exit(0)
"""


@pytest.mark.parametrize(
    "words",
    keep(
        [(), ("item",), ("accumulate",), ("cross_entropy",), ("cross_entropy", "accumulate"), ("scaler",)]
        + [("scaler", "cross_entropy", "accumulate", "item")]
        + [("sum",), ("sum", "accumulate"), ("sum", "accumulate", "item")],
        *[("scaler", "cross_entropy", "accumulate", "item"), ("sum", "accumulate")],
    ),
    ids=" ".join,
)
def test_the_loss_of_each_step_is_that_of_the_training(host_cuda, words) -> None:
    run = trained(host_cuda, TRAINING, *words)
    told, steps = run.told()[0], run.of("step")
    assert [step["step"] for step in steps] == list(range(1, len(told["losses"]) + 1))
    seen = {step["step"]: step["loss"] for step in steps if step["loss"] is not None}
    # In the first step the device was not set up: of that one it is known if the training waits for it itself, and
    # not through a scaler, whose multiple it then is; for a sum and its weight no training waits.
    first = {"item"} <= set(words) and not {"scaler", "sum"} & set(words)
    wanted = dict(enumerate(told["losses"], 1))
    assert seen == {step: loss for step, loss in wanted.items() if step > 1 or first}
    source = "nll" if "cross_entropy" in words else "backward_root"
    assert {step["loss_source"] for step in steps if step["step"] in seen} == {source}
    assert run.rank()["loss"]["source"] == source
    numbers = run.rank()["device_numbers"]
    not_there = sum(numbers["skipped"].values()) + numbers["late"]
    assert numbers["fetched"] >= not_there + len(seen)


def test_the_norm_of_the_gradient_before_clipping(host_cuda) -> None:
    run = trained(host_cuda, TRAINING, "clip")
    norms, steps = run.told()[0]["norms"], run.of("step")
    seen = {step["step"]: step["gradient_norm"] for step in steps}
    assert seen.pop(1) is None
    for step, norm in seen.items():
        # The same norms of 8 tensors; torch adds their squares in fp32, where each sum rounds by 2^-24 of itself, takes
        # the root of it (half as much) and rounds again.
        assert norm == pytest.approx(norms[step - 1], rel=(8 / 2 + 1) * 2**-24)


@pytest.mark.parametrize(
    "words", keep([("scaler", "clip"), ("scaler", "cross_entropy")], ("scaler", "clip")), ids=" ".join
)
def test_steps_that_a_scaler_leaves_out_are_known(host_cuda, words) -> None:
    run = trained(host_cuda, TRAINING, *words)
    skipped = [step["skipped_steps"] for step in run.of("step")]
    assert skipped == [0] * 4 + [1] * 2 + [2] * 4
    assert run.told()[0]["skipped"] == run.rank()["skipped_steps"] == 2
    assert all(step["gradient_norm"] is None or math.isfinite(step["gradient_norm"]) for step in run.of("step"))
