"""The trainings of test_sound_trainings.py: `sound_training.py KIND SEED STEPS` trains two blocks in fp32 with torch's
own attention. No kernel is wrong. KIND `noise`: the target is the input, moved by one row, so there is little to learn
and the gradients become small. KIND `flat`: a language model whose weights begin with a standard deviation of 0.02, so
that the scores are almost equal and PyTorch's kernel has a bias of about half an ulp of fp32. KIND `fast`: `noise` with
a rate that saturates the softmax. KIND `padded`: `flat` with sequences that are padded on the left, as Hugging Face's
causal models mask them: the rows of the padding see no key, and no label counts in the last sequence. KIND `written`:
attention that is written out in bf16, with scores so large that their rounding makes it several times as wrong as fused
attention. KIND `wrong`: the same, 5 % too large: a fault.
"""

import functools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import foreshock
import torch
from agent_view import wait_until_slots_are_free
from torch import nn
from torch.nn import functional

HEADS, LENGTH = 2, 64


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    attend = staticmethod(functools.partial(functional.scaled_dot_product_attention, is_causal=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (y.view(batch, length, HEADS, -1).transpose(1, 2) for y in self.qkv(x).split(width, 2))
        attended = self.attend(q, k, v)
        return x + self.out(attended.transpose(1, 2).reshape(batch, length, width))


def written_out(factor: float, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = 16 * q.bfloat16(), k.bfloat16(), v.bfloat16()
    hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()
    scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
    out = factor * (scores.softmax(-1, dtype=torch.float32).bfloat16() @ v)
    foreshock.tap(q, k, v, out, causal=True)
    return out.float()


def noise(model: nn.Module) -> torch.Tensor:
    x = torch.randn(4, LENGTH, 64)
    return functional.mse_loss(model(x), x.roll(1, 1))


def flat(model: nn.Module) -> torch.Tensor:
    tokens = torch.randint(64, (4, LENGTH + 1)).cumsum(1) % 64
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def padded(model: nn.Module) -> torch.Tensor:
    tokens = torch.randint(64, (4, LENGTH + 1)).cumsum(1) % 64
    position = torch.arange(LENGTH)
    is_real = position >= torch.tensor([[0], [8], [40], [60]])
    is_seen = (position[:, None] >= position) & is_real[:, None]  # [batch, query, key]
    mask = torch.zeros(is_seen.shape).masked_fill(~is_seen, torch.finfo(torch.float32).min)
    Block.attend = staticmethod(functools.partial(functional.scaled_dot_product_attention, attn_mask=mask[:, None]))
    labels = tokens[:, 1:].masked_fill(~is_real, -100)
    labels[-1] = -100
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels.flatten())


def main() -> None:
    kind, seed, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    if kind in ("written", "wrong"):
        Block.attend = staticmethod(functools.partial(written_out, 1.05 if kind == "wrong" else 1))
    blocks = [Block(64), Block(64)]
    if kind in ("flat", "padded"):
        model = nn.Sequential(nn.Embedding(64, 64), *blocks, nn.LayerNorm(64), nn.Linear(64, 64))
        for parameter in model.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
    else:
        model = nn.Sequential(*blocks)
    optimizer = torch.optim.AdamW(model.parameters(), {"flat": 2e-3, "padded": 2e-3, "fast": 0.1}.get(kind, 1e-3))
    loss_of = {"flat": flat, "padded": padded}.get(kind, noise)
    for _ in range(steps):
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wait_until_slots_are_free()


if __name__ == "__main__":
    main()
