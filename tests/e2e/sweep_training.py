"""Short trainings one after the other in one process, of models of random depth whose tensors come to lie where others
have lain. Layers are called in the order of their numbers."""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from agent_view import wait_until_called
from tiny_gpt import set_up, tell
from torch import nn

random.seed(0)


class Block(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def train() -> list[str]:
    """The names of the layers whose attention is computed, one after the other."""
    called: list[str] = []
    blocks = [Block() for _ in range(random.randint(2, 8))]
    random.shuffle(blocks)
    model = nn.Sequential(*blocks)
    for n, block in enumerate(model):
        block.register_forward_hook(lambda *_, name=f"{n:03d}": called.append(name))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(1, 16, 32)).square().mean().backward()
        optimizer.step()
    return called


set_up()
called: list[str] = []
for training in range(80):
    called += train()
    if training < 10:  # of these every slice finds a free slot, however late the agent begins
        wait_until_called(len(called))
tell(called=called)
