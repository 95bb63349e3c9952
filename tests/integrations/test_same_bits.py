"""Training is bit-identical with and without the hooks, every call sampled. Two plain runs agree first."""

from __future__ import annotations

import pytest

CODE = """
import hashlib, json, os
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0); torch.set_num_threads(1)
how = os.environ["HOW"]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.o, self.drop = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32), nn.Dropout(0.1)
    def forward(self, x):
        q, k, v = [t.view(2, 16, 4, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).split(32, 2)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.o(y.transpose(1, 2).reshape(2, 16, 32)))
blocks = nn.ModuleList(Block() for _ in range(2)); head = nn.Linear(32, 7)
def forward(x):
    for b in blocks: x = checkpoint(b, x, use_reentrant=False) if how == "checkpoint" else b(x)
    return head(x)
run = torch.compile(forward) if how == "compile" else forward
parameters = [*blocks.parameters(), *head.parameters()]
opt = torch.optim.AdamW(parameters, lr=1e-2); total = hashlib.sha256()
for step in range(6):
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16): logits = run(torch.randn(2, 16, 32))
        loss = F.cross_entropy(logits.float().flatten(0, 1), torch.randint(7, (32,))) / 2
        loss.backward(); total.update(loss.detach().numpy().tobytes())
    nn.utils.clip_grad_norm_(parameters, 1.0); opt.step(); opt.zero_grad()
for p in parameters: total.update(p.detach().numpy().tobytes())
"""


@pytest.mark.parametrize("how", ["eager", "checkpoint", "compile"])
def test_same_bits(trainer, how: str) -> None:
    plain = [trainer(CODE + "print(json.dumps(total.hexdigest()))", monitored=False, HOW=how) for _ in range(2)]
    ours, samples = trainer(CODE + "print(json.dumps([total.hexdigest(), len(events('leave'))]))", HOW=how)
    assert plain[0] == plain[1]
    assert ours == plain[0]
    assert samples == 2 * 2 * 6 * (3 if how == "checkpoint" else 2)  # layers x micro-batches x steps x passes
