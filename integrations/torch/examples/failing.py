"""Two small models whose training always fails at the same step. plain_loop.py trains them with loss() and rate()."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

FAULT_STEP = 160  # the step at which the fault starts


class RateRamp(nn.Module):
    """A regression by SGD. The learning rate grows by 2 % per step from FAULT_STEP on; the loss diverges 200 steps
    later."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
        self.x = torch.linspace(-math.pi, math.pi, 200)[:, None]
        self.y = torch.sin(self.x) + torch.sin(4 * self.x)
        self.sampler = torch.Generator().manual_seed(1)

    def rate(self, step: int) -> float:
        return 0.01 * 1.02 ** max(0, step - FAULT_STEP)

    def loss(self, _step: int) -> Tensor:
        rows = torch.randint(len(self.x), (64,), generator=self.sampler)
        return functional.mse_loss(self.net(self.x[rows]), self.y[rows])

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate(1), momentum=0.5)


class Attention(nn.Module):
    """Causal attention that computes in the dtype `precision`, fp16 until ScoreGrowth.raise_precision changes it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.precision = heads, torch.float16
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).to(self.precision)
        y = functional.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width).to(x.dtype))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.RMSNorm(width), Attention(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


class ScoreGrowth(nn.Module):
    """A language model in which the weights of queries and keys of the second layer grow by 7 % per step for 180 steps.

    In a real training they can grow too, if nothing bounds the scores (products of queries and keys). Scores above
    65504 are infinite in fp16, and the loss becomes NaN.
    """

    symbols, layers, width, growth, growth_steps = 32, 2, 32, 1.07, 180

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(self.symbols, self.width)
        self.blocks = nn.ModuleList(Block(self.width) for _ in range(self.layers))
        self.norm, self.head = nn.RMSNorm(self.width), nn.Linear(self.width, self.symbols, bias=False)
        self.sampler = torch.Generator().manual_seed(1)

    def rate(self, _step: int) -> float:
        return 1e-3

    def loss(self, step: int) -> Tensor:
        if FAULT_STEP <= step < FAULT_STEP + self.growth_steps:
            with torch.no_grad():
                self.blocks[1].attention.qkv.weight[: 2 * self.width] *= self.growth  # the rows of queries and keys
        sequence = torch.randint(self.symbols, (4, 8), generator=self.sampler)
        # The task: predict a random sequence of 8 symbols that is repeated. 32 inputs; targets are one symbol later.
        tokens = sequence.repeat(1, 5)[:, :33]
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())

    def raise_precision(self, layer: str) -> None:
        """Computes the attention of a block in fp32. `layer`: the block's label in foreshock.advice(), e.g. "001"."""
        self.blocks[int(layer)].attention.precision = torch.float32

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.rate(1))


TRAININGS = {"rate": RateRamp, "scores": ScoreGrowth}
