"""Names of models that stand in the wrappers of others."""

from __future__ import annotations

BLOCKS = """
from torch import nn
class Block(nn.Module):
    def __init__(self, d=32): super().__init__(); self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
    def forward(self, x):
        q, k, v = [t.view(2, 8, 4, 8).transpose(1, 2) for t in self.qkv(x).split(32, 2)]
        return x + self.o(sdpa(q, k, v).transpose(1, 2).reshape(2, 8, 32))
model = nn.Sequential(Block(), Block())
def train(model, optimizer=torch.optim.AdamW):
    opt = optimizer(model.parameters())
    for _ in range(3):
        opt.zero_grad(); model(torch.randn(2, 8, 32)).square().mean().backward(); opt.step()
def told():
    rows = events(); name = {r["identity"]: r["name"] for r in rows if r["event"] == "name"}
    off = [r["reason"] for r in rows if r["event"] == "off"]
    layers = [name.get(r["layer"]) for r in rows if r["event"] == "leave"][-4:]
    return [off, [r["step"] for r in rows if r["event"] == "step"], layers]
"""
LAYERS = ["0.qkv.weight", "1.qkv.weight", "1.qkv.weight", "0.qkv.weight"]


def test_a_wrapper_of_another_that_is_called_as_torch_s(trainer) -> None:
    """Those of Megatron-LM and Apex have the name of torch's DistributedDataParallel, and not its attributes."""
    assert trainer(f"""{BLOCKS}
class DistributedDataParallel(nn.Module):
    def __init__(self, module): super().__init__(); self.module = module
    def forward(self, x): return self.module(x)
train(DistributedDataParallel(model)); print(json.dumps(told()))
""") == [[], [1, 2, 3], LAYERS]
