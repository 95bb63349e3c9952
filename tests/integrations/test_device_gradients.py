"""Gradients of a training on a CUDA device where nobody clips: by the kernels on the trainer's stream, in the record,
as torch has them and as the same training on the CPU has them. The device is that of stand_in_device.py."""

from __future__ import annotations

import pytest
from device_training import MODEL, trained
from monitored import Run
from tiers import keep

STEPS = 8
ELEMENTS = 2 * (32 * 96 + 96 + 32 * 32 + 32)

TRAINING = f"""{MODEL}
from agent_view import agent_state
def norm(module):
    return sum(get(p.grad).double().square().sum() for p in module.parameters()).sqrt().item()
precision = next(model.parameters()).dtype
norms = []
for step in range(1, {STEPS} + 1):
    for n in range(3 if "accumulate" in words else 1):
        loss = model(put(torch.randn(2, 24, 32, dtype=precision))).square().mean()
        loss.backward()
    if "infinite" in words and step == {STEPS}: model[1].o.bias.grad.data[3] = float("inf")
    if "clip" in words: nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    norms.append(norm(model)); by_layer = dict(zip(["000", "001"], map(norm, model)))
    optimizer.step()
    optimizer.zero_grad(set_to_none="zeroed" not in words)
run_all()
last = loss.item()  # a training looks at its last loss
total = torch.nn.ParameterList(get(parameter) for parameter in model.parameters())
is_seen = lambda rank: rank["step"] == {STEPS} and rank["layers"]
tell(digest=fingerprint([last], total), norms=norms, by_layer=by_layer, waits=host_cuda.host_cuda_waits(),
     layers=agent_state(is_seen)["layers"] if "FORESHOCK_DIR" in os.environ else [])
os._exit(0)
"""


def gradients_of(host_cuda: str, *words: str) -> Run:
    return trained(host_cuda, TRAINING, *words, of_agent="layers")


def norms(run: Run) -> dict[int, float | None]:
    return {step["step"]: step["gradient_norm"] for step in run.of("step")}


def layers(run: Run, key: str) -> dict:
    return {layer["layer"]: layer[key] for layer in run.told()[0]["layers"]}


# Two orders of n additions of positive numbers: (n - 1) * 2^-53 of the sum each, half of it of the root, and a
# rounding of that.
def the_same(norm: float):
    return pytest.approx(norm, rel=ELEMENTS * 2**-53, abs=0)


@pytest.mark.parametrize(
    "words", keep([(), ("accumulate",), ("accumulate", "zeroed"), ("bfloat16",)], ("accumulate",)), ids=" ".join
)
def test_norms_are_those_of_the_gradients(host_cuda, words) -> None:
    run = gradients_of(host_cuda, *words)
    told, seen = run.told()[0], norms(run)
    assert sorted(seen) == list(range(1, STEPS + 1))
    # The first step, whose number is unknown, is not sampled; in the second one the device is met.
    assert [step for step, norm in seen.items() if norm is None] == [1, 2]
    for step in range(3, STEPS + 1):
        assert told["norms"][step - 1] > 0
        assert seen[step] == the_same(told["norms"][step - 1])
    assert layers(run, "gradient_norm") == {layer: the_same(norm) for layer, norm in told["by_layer"].items()}


@pytest.mark.long
def test_the_same_training_on_the_cpu_has_the_same(host_cuda) -> None:
    host, device = gradients_of(host_cuda, "by_hand", "host"), gradients_of(host_cuda, "by_hand")
    assert host.told()[0]["digest"] == device.told()[0]["digest"]
    expected, seen = norms(host), norms(device)
    assert [step for step, norm in expected.items() if norm is None] == [1]
    assert seen == {step: the_same(norm) if step > 2 else None for step, norm in expected.items()}
    by_layer = layers(host, "gradient_norm")
    assert sorted(by_layer) == ["000", "001"]
    assert layers(device, "gradient_norm") == {layer: the_same(norm) for layer, norm in by_layer.items()}


def test_what_is_not_finite_names_its_layer(host_cuda) -> None:
    run = gradients_of(host_cuda, "infinite")
    assert layers(run, "nonfinite_steps") == {"000": 0, "001": 1}
    assert run.rank()["gradient"]["nonfinite_layers"] == ["001"]
    events = [line for line in run.of("event") if line["event"] == "nonfinite_gradient"]
    assert [(event["layer"], event["step"]) for event in events] == [("001", STEPS)]


def test_values_after_clipping_are_not_told(host_cuda) -> None:
    assert set(norms(gradients_of(host_cuda, "clip")).values()) == {None}
