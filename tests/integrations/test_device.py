"""Attention on a CUDA device, played by memory of the host (tests/support/host_cuda.cpp): what the core is told."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

SUPPORT = str(Path(__file__).resolve().parents[1] / "support")
EXAMPLES = str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "examples")
LEGACY = 1  # the default stream, as foreshock_attention_call.stream has it

DEVICE = """
import device_attention as device
from device_attention import put, get
def qkv_there(n=16, m=16, h=4, g=4, d=8, b=2, index=0, dtype=torch.float32):
    shapes = [(b, h, n, d), (b, g, m, d), (b, g, m, d)]
    return [put(torch.randn(shape).to(dtype), index).requires_grad_() for shape in shapes]
"""


def test_the_stream_of_a_call(trainer, host_cuda) -> None:
    """That of the tensors' own device on the thread that calls; nothing waits for it, nothing else is asked."""
    rows, waits = trainer(
        f"""{DEVICE}
import threading
def call(index=0):
    sdpa(*qkv_there(index=index))
call()
host_cuda.host_cuda_set_stream(0, ctypes.c_int64(0x7f0000001000)); call()
host_cuda.host_cuda_set_stream(1, ctypes.c_int64(0x7f0000002000)); call(1); call()
thread = threading.Thread(target=call); thread.start(); thread.join()
sdpa(*qkv())
q, k, v = qkv_there(); out = sdpa(q, k, v).sum()
host_cuda.host_cuda_set_stream(0, ctypes.c_int64(0x7f0000003000)); out.backward()
print(json.dumps([events("leave"), host_cuda.host_cuda_waits()]))
""",
        HOST_CUDA=host_cuda,
    )
    one, two = 0x7F0000001000, 0x7F0000002000
    assert [row["stream"] for row in rows] == [LEGACY, one, two, one, LEGACY, 0, one, one]
    assert [row["query"]["device"] for row in rows] == [[1, 0], [1, 0], [1, 1], [1, 0], [1, 0], [0, -1], [1, 0], [1, 0]]
    assert rows[-1]["pass"] == 1  # on autograd's thread, which has taken the stream of the forward call
    assert waits == 0


def test_the_stream_of_a_torch_whose_guard_cannot_tell(trainer, host_cuda) -> None:
    """Then from the C shim of its CUDA library; the guard is asked once and not again."""
    rows, asked = trainer(
        f"""{DEVICE}
host_cuda.host_cuda_guard_tells(0)
for handle in (0, 0x7f0000001000, 0x7f0000002000):
    host_cuda.host_cuda_set_stream(0, ctypes.c_int64(handle)); sdpa(*qkv_there())
print(json.dumps([events("leave"), host_cuda.host_cuda_handles_asked()]))
""",
        HOST_CUDA=host_cuda,
    )
    assert [row["stream"] for row in rows] == [LEGACY, 0x7F0000001000, 0x7F0000002000]
    assert asked <= 1


TRAINING = """
import hashlib
sys.path.insert(0, os.environ["SUPPORT"])
import device_attention as device
from device_attention import put, get
torch.manual_seed(0); torch.set_num_threads(1)
import torch.nn.functional as F
from torch import nn
host_cuda.host_cuda_set_backend(int(os.environ["BACKEND"]))
cu = put(torch.tensor([0, 5, 18, 32], dtype=torch.int32))
class Packed(torch.autograd.Function):  # as flash-attn's own, with offsets on the device
    @staticmethod
    def forward(ctx, q, k, v):
        out, *rest = torch.ops.aten._flash_attention_forward(q, k, v, cu, cu, 14, 14, 0.0, True, False)
        ctx.save_for_backward(q, k, v, out, *rest[:3]); return out
    @staticmethod
    def backward(ctx, g):
        *given, seed, offset = ctx.saved_tensors
        return torch.ops.aten._flash_attention_backward(g, *given, cu, cu, 14, 14, 0.0, True, seed, offset)
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.norm, self.qkv, self.o = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
    def forward(self, x):
        if "PACKED" in os.environ:
            q, k, v = [t.reshape(32, 4, 8) for t in self.qkv(self.norm(x)).split(32, 2)]
            return x + self.o(Packed.apply(q, k, v).reshape(2, 16, 32))
        q, k, v = [t.view(2, 16, 4, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).split(32, 2)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if os.environ["DROPOUT"] else 0.0)
        return x + self.o(y.transpose(1, 2).reshape(2, 16, 32))
model = nn.Sequential(Block(), Block()); total = hashlib.sha256()
for module in model.modules():
    for name, given in list(module.named_parameters(recurse=False)): setattr(module, name, nn.Parameter(put(given)))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(3):
    loss = model(put(torch.randn(2, 16, 32))).square().mean(); loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()
    total.update(get(loss).numpy().tobytes())
for p in model.parameters(): total.update(get(p).numpy().tobytes())
facts = [total.hexdigest(), host_cuda.host_cuda_operations(), host_cuda.host_cuda_waits()]
"""


@pytest.mark.parametrize(("backend", "dropout"), [("1", "dropout"), ("2", ""), ("3", "dropout")])
def test_a_training_there_is_the_same(trainer, host_cuda, backend: str, dropout: str) -> None:
    """The same bits, as many operations on the device, and no wait for it, every call sampled."""
    words = {"HOST_CUDA": host_cuda, "BACKEND": backend, "DROPOUT": dropout, "SUPPORT": SUPPORT}
    plain = [trainer(TRAINING + "import json; print(json.dumps(facts))", monitored=False, **words) for _ in range(2)]
    ours, rows = trainer(TRAINING + "print(json.dumps([facts, events()]))", **words)
    assert plain[0] == plain[1]
    assert ours == plain[0]
    assert ours[2] == 0
    calls = [row for row in rows if row["event"] in ("enter", "leave", "skip")]
    assert [row["event"] for row in calls] == ["enter", "leave"] * (3 * 2 * 2)
    name = {"1": "flash", "2": "efficient", "3": "cudnn"}[backend]
    assert {row["op"].removesuffix("_backward") for row in calls} == {f"_scaled_dot_product_{name}_attention"}
    layers = [row["layer"] for row in calls if row["event"] == "leave"]
    assert len(set(layers)) == 2
    assert 0 not in layers


def test_a_training_on_packed_sequences_there_is_the_same(trainer, host_cuda) -> None:
    """The same bits and no wait, with every call described, forward and backward, by offsets that nobody copied."""
    words = {"HOST_CUDA": host_cuda, "BACKEND": "1", "PACKED": "1", "SUPPORT": SUPPORT}
    plain = [trainer(TRAINING + "import json; print(json.dumps(facts))", monitored=False, **words) for _ in range(2)]
    ours, rows = trainer(TRAINING + "print(json.dumps([facts, events('leave')]))", **words)
    assert plain[0] == plain[1]
    assert ours == plain[0]
    assert ours[2] == 0
    assert [row["pass"] for row in rows] == [0, 0, 1, 1] * 3
    for row in rows:
        assert row["offsets"] == [[0, 5, 18, 32]] * 2
        assert row["longest"] == [14, 14]
        # Computed in fp64 and rounded once to fp32: 2^-24 of each value, twice that for what is added up.
        assert all(
            0 <= error <= 2**-23 for error in (row["errors"]["out"], row["errors"]["grad_query"])[: 1 + row["pass"]]
        )
    assert len({row["layer"] for row in rows} - {0}) == 2


WARY_GROUP = """
import sys
from torch import distributed as dist
sys.path.insert(0, EXAMPLES)
import foreshock
from foreshock_torch.advice import Advice
class Done(dist._Work):
    def wait(self, timeout=None): return True
class Wary(dist.ProcessGroup):
    # As NCCL: a tensor on another device than its own ends the training.
    def check(self, tensors):
        seen.append(sorted({t.device.type for t in tensors}))
        if seen[-1] != [DEVICE]: raise RuntimeError("no backend for " + str(seen[-1]))
    def getBackendName(self): return "wary"
    def allreduce(self, tensors, options=None): self.check(tensors); return Done()
    def allgather(self, outputs, inputs, options=None):  # torch itself chooses the device for objects
        for out in outputs[0]: out.copy_(inputs[0])
        return Done()
seen = []
torch.cuda._lazy_init = lambda: None  # the device is there; only this build of torch does not know of it
dist.Backend.register_backend("wary", lambda store, rank, size, timeout: Wary(rank, size), devices=[DEVICE])
dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
import listen
said = Advice(level="warn", detector="d", layer="003", rank=0, since_step=5, from_step=9, score=2.0, age_steps=0)
foreshock.advice = lambda: said
print(json.dumps([listen.agreed_advice() == said, seen]))
"""


@pytest.mark.parametrize(("backend", "device"), [("wary", "cuda"), ("cuda:wary", "cuda"), ("wary", "cpu")])
def test_the_examples_agree_on_the_device_of_the_group(trainer, host_cuda, backend, device) -> None:
    """A group of NCCL reduces no tensor of the CPU."""
    given = f"EXAMPLES, BACKEND, DEVICE = {str(EXAMPLES)!r}, {backend!r}, {device!r}"
    agreed, seen = trainer(given + WARY_GROUP, HOST_CUDA=host_cuda)
    assert agreed
    assert seen
    assert all(kinds == [device] for kinds in seen)
