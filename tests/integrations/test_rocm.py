"""A torch for ROCm: its devices have the type CUDA, and no CUDA driver. Its library for them is a stand-in without
content; the devices are memory of the host (tests/support/host_cuda.cpp)."""

from __future__ import annotations

import subprocess

import pytest
from device_training import trained

STEPS = 4

# One layer of attention on the device, and one on the CPU.
TRAINING = """
import ctypes, json
ctypes.CDLL(sys.argv[1])
import torch
import torch.nn.functional as F
from torch import nn
from device_attention import get, put
from tiny_gpt import fingerprint, set_up
set_up()
class Block(nn.Module):
    def __init__(self, put):
        super().__init__(); self.qkv, self.put = nn.Linear(32, 96), put
        for name, given in list(self.qkv.named_parameters()): setattr(self.qkv, name, nn.Parameter(put(given)))
    def forward(self, x):
        q, k, v = [t.view(2, 24, 4, 8).transpose(1, 2) for t in self.qkv(self.put(x)).split(32, 2)]
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()
model = nn.ModuleList([Block(put), Block(lambda x: x)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2); losses = []
for step in range(int(sys.argv[2])):
    x = torch.randn(2, 24, 32)
    for block in model: block(x).backward()
    optimizer.step(); optimizer.zero_grad()
    losses.append(model[1](x).item())
run_all()
total = torch.nn.ParameterList(get(parameter) for parameter in model.parameters())
print(json.dumps({"digest": fingerprint(losses, total), "waits": host_cuda.host_cuda_waits()}), flush=True)
os._exit(0)
"""


@pytest.fixture
def hip(tmp_path) -> str:
    path = tmp_path / "libtorch_hip.so"
    empty = tmp_path / "empty.c"
    empty.write_text("")
    subprocess.run(["gcc", "-shared", f"-Wl,-soname,{path.name}", empty, "-o", path], check=True)
    return str(path)


def test_attention_on_its_devices_is_counted_and_on_the_cpu_is_judged(host_cuda, hip) -> None:
    run = trained(host_cuda, TRAINING, hip, str(STEPS))
    attention = run.rank()["attention"]
    for which in ("forward", "backward"):
        assert attention[which]["skipped"]["device"] >= STEPS - 1
        assert {reason for reason, count in attention[which]["skipped"].items() if count} <= {"device", "off"}
        operations = {sample["op"] for sample in run.of("sample") if sample["pass"] == which}
        assert operations
        assert all("_for_cpu" in operation for operation in operations)
    (gap,) = [gap for gap in run.summary["attention_layers"]["gaps"] if gap["cause"] == "skipped"]
    assert gap["text"].startswith("layer 000: forward not judged; foreshock does not read its device. It needs CUDA")
