"""The whole path of attention on a CUDA device: torch's composite and autograd, the adapter, the core and its gather,
the agent's judgement. The device is memory of the host (tests/support/host_cuda.cpp), the driver
tests/support/fake_cuda."""

from __future__ import annotations

import pytest
from device_training import trained
from monitored import Run, assert_conserved
from tiers import keep

STEPS, LAYERS = 12, 2
BACKENDS = [(1, "flash"), (2, "efficient"), (3, "cudnn")]

# The stand-ins of attention round once from fp64: in bf16 no value errs more than 2^-8 of itself (and no row),
# in fp32, as sums of rows are, 2^-24 of at most 8.
OUTPUT, SUMS = 2**-8, 2**-21

TRAINING = f"""
import types
import torch
import torch.nn.functional as F
from torch import nn
import device_attention
from device_attention import get, put
from tiny_gpt import fingerprint, set_up, tell
host_cuda.host_cuda_set_backend(int(sys.argv[1]))
dropout = float(sys.argv[2])
set_up()
offsets, aten = None, torch.ops.aten
class Packed(torch.autograd.Function):  # sequences one after the other, whose offsets only the device has
    @staticmethod
    def forward(ctx, q, k, v):
        if sys.argv[1] == "1":
            out, *rest = aten._flash_attention_forward(q, k, v, offsets, offsets, 23, 23, 0.0, True, False)
        else:
            out, *rest, _, _ = aten._efficient_attention_forward(
                q, k, v, None, offsets, offsets, 23, 23, 0.0, 1, True)
        ctx.offsets = offsets
        ctx.save_for_backward(q, k, v, out, *rest[:3]); return out
    @staticmethod
    def backward(ctx, g):
        q, k, v, out, lse, seed, offset = ctx.saved_tensors
        if sys.argv[1] == "1":
            return aten._flash_attention_backward(
                g, q, k, v, out, lse, ctx.offsets, ctx.offsets, 23, 23, 0.0, True, seed, offset)
        return aten._efficient_attention_backward(
            g, q, k, v, None, out, ctx.offsets, ctx.offsets, 23, 0, lse, 0.0, seed, offset, 1, False)[:3]
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.norm, self.qkv, self.o = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
    def forward(self, x):
        if offsets is not None:
            shape = (48, 4, 8) if sys.argv[1] == "1" else (1, 48, 4, 8)
            y = Packed.apply(*[t.reshape(shape).to(torch.bfloat16) for t in self.qkv(self.norm(x)).split(32, 2)])
            return x + self.o(y.reshape(2, 24, 32).to(x.dtype))
        q, k, v = [t.view(2, 24, 4, 8).transpose(1, 2).to(torch.bfloat16) for t in self.qkv(self.norm(x)).split(32, 2)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return x + self.o(y.transpose(1, 2).reshape(2, 24, 32).to(x.dtype))
model = nn.Sequential(*[Block() for _ in range({LAYERS})])
for module in model.modules():
    for name, given in list(module.named_parameters(recurse=False)): setattr(module, name, nn.Parameter(put(given)))
class Trainer:  # as that of transformers
    def log(self, logs, start_time=None): pass
sys.modules["transformers.trainer"] = types.ModuleType("transformers.trainer")
sys.modules["transformers.trainer"].Trainer = Trainer
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2); losses, norms = [], []
for step in range({STEPS}):
    if "packed" in sys.argv:
        edge = int(torch.randint(2, 22, ()))
        offsets = put(torch.tensor([0, edge, 24, 24 + edge, 48], dtype=torch.int32))
    loss = model(put(torch.randn(2, 24, 32))).square().mean()
    loss.backward()
    norms.append(sum(get(p.grad).double().square().sum().item() for p in model.parameters()) ** 0.5)
    optimizer.step(); optimizer.zero_grad()
    losses.append(get(loss).item())
    if step % 2: Trainer().log({{"loss": losses[-1], "grad_norm": 1.5 * step, "eval_loss": 7.0}})
run_all()
total = torch.nn.ParameterList(get(parameter) for parameter in model.parameters())
tell(digest=fingerprint(losses, total), losses=losses, norms=norms, waits=host_cuda.host_cuda_waits())
os._exit(0)
"""


def assert_ratios(samples: list[dict], which: str) -> None:
    """The ratios to fused attention are below the limits of alarms. A slice backward whose error is that of a row or
    two has no ratio; most have one."""
    known = [sample for sample in samples if sample["fused_ratio"] is not None]
    assert len(known) > (len(samples) / 4 if which == "backward" else len(samples) - 1)
    limits = {"out": 2, "grad_query": 3, "grad_key": 6, "grad_value": 6}
    assert all(0 < sample["fused_ratio"] < limits[sample["tensor"]] for sample in known)


def attended(host_cuda: str, backend: int, dropout: float, *words: str) -> Run:
    run = trained(host_cuda, TRAINING, str(backend), str(dropout), *words)
    assert_conserved(run.rank())
    return run


@pytest.mark.parametrize(("backend", "name"), keep(BACKENDS, BACKENDS[0], several=True))
def test_judged_on_a_device(host_cuda, backend: int, name: str) -> None:
    run = attended(host_cuda, backend, 0)
    samples = run.of("sample")
    for which, operation in (("forward", name + "_attention"), ("backward", name + "_attention_backward")):
        of = run.rank()["attention"][which]
        assert of["calls"] == STEPS * LAYERS
        # The first steps are there to set the device up.
        assert of["judged"] > STEPS * LAYERS / 2
        assert {reason for reason, count in of["skipped"].items() if count} <= {"device", "off", "set_up"}
        mine = [sample for sample in samples if sample["pass"] == which]
        assert {sample["op"] for sample in mine} == {"_scaled_dot_product_" + operation}
        assert {sample["layer_source"] for sample in mine} == {"parameter"}
        assert_ratios(mine, which)
        for sample in mine:
            assert sample["nonfinite_values"] == 0
            if which == "forward":
                assert 0 < sample["relative_error_max"] < OUTPUT
                assert sample["lse_error_abs_max"] < SUMS
    # Key positions and sums over all keys come from the device too.
    mine = [sample for sample in samples if sample["pass"] == "backward"]
    assert {sample["tensor"] for sample in mine} == {"grad_query", "grad_key", "grad_value"}
    keys = [sample for sample in mine if sample["tensor"] != "grad_query"]
    assert all(sample["conservation_ratio"] < 1 for sample in keys)
    assert run.rank()["alarms"] == run.rank()["past_alarms"] == []


@pytest.mark.parametrize(("backend", "name"), keep(BACKENDS[:2], BACKENDS[1], several=True))
def test_packed_sequences_are_judged_on_a_device(host_cuda, backend: int, name: str) -> None:
    """Other lengths at every step, known to the device alone: what comes out is a sequence with a key for each query,
    as healthy as it is."""
    run = attended(host_cuda, backend, 0, "packed")
    samples = run.of("sample")
    for which, operation in (("forward", "_forward"), ("backward", "_backward")):
        of = run.rank()["attention"][which]
        assert of["calls"] == STEPS * LAYERS
        assert of["judged"] > STEPS * LAYERS / 2
        assert {reason for reason, count in of["skipped"].items() if count} <= {"device", "off", "set_up"}
        assert not any(of["lost"].values())
        mine = [sample for sample in samples if sample["pass"] == which]
        assert {sample["op"] for sample in mine} == {f"_{name}_attention{operation}"}
        assert {sample["layer_source"] for sample in mine} == {"parameter"}
        assert len({sample["query_length"] for sample in mine}) > 2
        assert {sample["batch"] for sample in mine} <= {0, 1, 2, 3}
        assert_ratios(mine, which)
        for sample in mine:
            assert 2 <= sample["query_length"] == sample["key_length"] <= 22
            assert sample["nonfinite_values"] == 0
            if which == "forward":
                assert 0 < sample["relative_error_max"] < OUTPUT
                assert sample["lse_error_abs_max"] < SUMS


def test_with_dropout_scores_are_judged(host_cuda) -> None:
    run = attended(host_cuda, 1, 0.2)
    samples = run.of("sample")
    assert len(samples) > STEPS * LAYERS / 2
    assert {sample["pass"] for sample in samples} == {"forward"}
    for sample in samples:
        assert (sample["relative_error_max"], sample["deviation_ratio"], sample["bias_ulp"]) == (None, None, None)
        assert sample["lse_error_abs_max"] < SUMS
        assert sample["logit_abs_max"] > 0
        assert sample["entropy_nats_mean"] > 0
    forward, backward = (run.rank()["attention"][which] for which in ("forward", "backward"))
    assert forward["judged"] == len(samples)
    assert forward["skipped"]["dropout"] == 0
    assert backward["judged"] == 0
    assert backward["skipped"]["dropout"] > STEPS * LAYERS / 2
    assert forward["relative_error"] == {"mean": None, "max": None}


def test_what_the_training_logs_is_neither_its_loss_nor_its_norm_where_these_are_had_from_the_device(host_cuda) -> None:
    run = attended(host_cuda, 1, 0)
    losses, steps = run.told()[0]["losses"], run.of("step")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    # From when the device is set up, at the end of the first step.
    seen = {step["step"]: step["loss"] for step in steps if step["loss"] is not None}
    assert seen == {step: losses[step - 1] for step in range(2, STEPS + 1)}
    assert {step["loss_source"] for step in steps if step["step"] in seen} == {"backward_root"}
    assert run.rank()["loss"]["source"] == "backward_root"
    # The same of the norm: nobody clips, and the gradients' own is had from the step on in which the device is there.
    # The values are summed in fp64, in another order: far below 1e-12 relative.
    norms = {step["step"]: step["gradient_norm"] for step in steps if step["gradient_norm"] is not None}
    assert norms == {step: pytest.approx(run.told()[0]["norms"][step - 1], rel=1e-12) for step in range(3, STEPS + 1)}
