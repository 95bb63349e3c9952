"""The training of test_experts.py: `experts_training.py LAYERS EXPERTS` trains a mixture-of-experts transformer whose
experts have parameters of their own, a few values each, and tells how many there are.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from agent_view import agent_state
from tiny_gpt import Batches, loss_of, set_up, tell
from torch import nn
from torch.nn import functional

STEPS, WIDTH, HEADS = 8, 8, 2


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """The experts are registered first: in the model's own order attention comes behind them."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(experts))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q_b_proj, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        y = self.norm1(x)
        split = [f(y).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q_b_proj, self.key, self.value)]
        attended = functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.experts[expert % len(self.experts)](self.norm2(x))


class Model(nn.Module):
    """A batch goes to one expert of each layer."""

    def __init__(self, layers: int, experts: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Block(experts) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 64)
        self.batches = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.batches)
        return self.head(x)


def train(layers: int, experts: int) -> None:
    set_up()
    model, batches = Model(layers, experts), Batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        loss_of(model, batches()).backward()
        found = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
        norm = sum(found).sqrt().item()
        optimizer.step()
        optimizer.zero_grad()
    state = agent_state(lambda rank: rank["step"] == STEPS and rank["layers"])
    of_layers = {layer["layer"]: layer["gradient_norm"] for layer in state["layers"]}
    tell(parameters=len(list(model.parameters())), norm=norm, of_layers=of_layers)


if __name__ == "__main__":
    train(int(sys.argv[1]), int(sys.argv[2]))
