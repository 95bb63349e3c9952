"""Weights and the optimizer of a training on a CUDA device, from torch to the record: what the same training on the CPU
says. The device is memory of the host (tests/support/host_cuda.cpp), the driver tests/support/fake_cuda."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_training import trained
from monitored import EVERYTHING_AND_WEIGHTS
from tiers import keep
from weight_checks import values_of, w1, weights_after

STEPS = 16

TRAINING = f"""
import numpy, torch
from torch import nn
import device_attention
from tiny_gpt import fingerprint, set_up, tell
KIND, PRECISION, FOLDER = sys.argv[1:4]
put, get = (device_attention.put, device_attention.get) if KIND == "cuda" else (torch.clone, torch.clone)
set_up()
class Linear(nn.Linear):  # torch takes another way on the CPU than on a device, to other last bits
    def forward(self, x): return x @ self.weight.t() + self.bias
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.scale, self.up, self.down = nn.LayerNorm(64), Linear(64, 300), Linear(300, 64)
    def forward(self, x): return x + self.down(self.up(x * self.scale.weight + self.scale.bias).tanh())
model = nn.Sequential(Linear(32, 64), Block(), Block(), Linear(64, 1100)).to(getattr(torch, PRECISION))
for module in model.modules():
    for name, given in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(put(given.detach())))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True); losses = []
for step in range(1, {STEPS} + 1):
    loss = model(put(torch.randn(4, 32).to(getattr(torch, PRECISION)))).float().square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    losses.append(get(loss).item())
    bits = {{name: get(value.detach()) for name, value in model.named_parameters()}}
    whole = {{name: value.view(torch.int16 if value.element_size() == 2 else torch.int32).numpy()
             for name, value in bits.items()}}
    numpy.savez(os.path.join(FOLDER, f"{{step}}.npz"), **whole)
total = torch.nn.ParameterList(bits.values())
tell(digest=fingerprint(losses, total), losses=losses, waits=host_cuda.host_cuda_waits())
os._exit(0)
"""


def by_turn(lines: list[dict]) -> dict[tuple[str, int], dict]:
    return {(line["tensor"], line["step"]): line for line in lines}


@pytest.mark.parametrize("precision", keep(["float32", "bfloat16"], "bfloat16"))
def test_the_same_as_on_the_host(host_cuda, tmp_path: Path, precision: str) -> None:
    folders = {kind: tmp_path / kind for kind in ("cpu", "cuda")}
    for folder in folders.values():
        folder.mkdir()
    runs = {
        kind: trained(host_cuda, TRAINING, kind, precision, str(folder), options=EVERYTHING_AND_WEIGHTS)
        for kind, folder in folders.items()
    }
    assert runs["cpu"].told() == runs["cuda"].told(), "one training"
    after = {step: weights_after(folders["cpu"], step) for step in range(1, STEPS + 1)}
    theirs, ours = (by_turn(runs[kind].of("tensor")) for kind in ("cpu", "cuda"))
    # In the first steps the weights are named and the device is met; what the last one has sent comes when the process
    # has ended.
    assert set(ours) <= set(theirs)
    assert len(ours) >= (STEPS - 6) * len(after[1])
    assert {tensor for tensor, _ in ours} == set(after[1])
    compared = 0
    for (tensor, step), line in ours.items():
        same, values = theirs[tensor, step], values_of(after[step][tensor])
        for fact in ("histogram_hash", "mean_abs", "nonfinite_values", "elements", "dtype", "layer"):
            assert line[fact] == same[fact], (tensor, step, fact)
        # Sums in fp64 in another order: far below 1e-12 relative.
        assert line["rms"] == pytest.approx(same["rms"], rel=1e-12)
        assert (line["update_mean_abs"], line["update_max_abs"]) == (None, None), "absent, not 0"
        if line["previous_step"] is not None:
            compared += line["wasserstein_previous"] > 0
            assert line["wasserstein_previous"] == same["wasserstein_previous"]
        for ref in ("previous", "initial"):
            if line[f"{ref}_step"] is None:
                continue
            distance = w1(values_of(after[line[f"{ref}_step"]][tensor]), values)
            low, high = line[f"wasserstein_{ref}_low"], line[f"wasserstein_{ref}_high"]
            assert low * (1 - 1e-12) <= distance <= high * (1 + 1e-12), (tensor, step, ref)
    assert compared > len(ours) / 2

    health = {kind: by_turn(runs[kind].of("optimizer")) for kind in runs}
    assert set(health["cuda"]) == set(ours)
    for turn, line in health["cuda"].items():
        same = health["cpu"][turn]
        for fact in ("rms_staleness", "gradient_rms", "surprise_ratio", "epsilon_dominated_ratio", "learning_rate"):
            assert line[fact] == (None if same[fact] is None else pytest.approx(same[fact], rel=1e-12)), (turn, fact)
        assert line["rms_staleness"] > 0

    weights = runs["cuda"].rank()["weights"]
    assert weights["snapshots"] == len(ours)
    assert {reason for reason, count in weights["skipped"].items() if count} <= {"set_up", "unknown"}
    assert weights["due"] == weights["snapshots"] + weights["awaited"] + sum(weights["skipped"].values())
    assert weights["wasserstein_previous"] > 0
    assert {line["tensors"] for line in runs["cuda"].of("model") if line["layer"] is None} == {len(after[1])}
