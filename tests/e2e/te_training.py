"""A torch training whose attention is the stand-in of TransformerEngine: LIBRARY STEPS [saved | reentrant]. The modules
of torch have no attention of their own, so every layer is known by its calls alone."""

import ctypes
import pathlib
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from tiny_gpt import set_up, tell  # noqa: E402

LAYERS = 3
trainer = ctypes.CDLL(sys.argv[1])


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(context, x, layer):
        context.layer = layer
        trainer.te_forward(layer)
        return x * 2

    @staticmethod
    def backward(context, gradient):
        trainer.te_backward(context.layer)
        return gradient * 2, None


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer, self.up = layer, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(Attention.apply(x, self.layer)).tanh()


def main() -> None:
    set_up()
    recompute = sys.argv[3] if len(sys.argv) > 3 else None
    for layer in range(LAYERS):
        trainer.te_add(f"layout=9,queries={20 + layer}".encode())
    blocks = nn.ModuleList(Block(layer) for layer in range(LAYERS))
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-3)
    losses = []
    for _ in range(int(sys.argv[2])):
        x = torch.ones(4, 8, requires_grad=True)
        for block in blocks:
            x = block(x) if recompute is None else checkpoint(block, x, use_reentrant=recompute == "reentrant")
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    tell(losses=losses)


if __name__ == "__main__":
    main()
