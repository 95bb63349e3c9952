"""The Python trainings of test_matrix.py: `matrix_training.py CELL FOLDER` trains and tells its fingerprint.

The layers have heads of different size, so that a sample shows by itself which layer it was taken from.
"""

import os
import pathlib
import sys
import threading
import time

import torch
from tiny_gpt import VOCABULARY, Batches, fingerprint, leave_group, set_up, tell
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS, WIDTH = 6, 32
HEAD_DIMS = (8, 16)  # of layer 0 and layer 1
CELL, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])


class Block(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).to(torch.bfloat16).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(attended.transpose(-3, -2).flatten(-2).to(x.dtype))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block(head_dim) for head_dim in HEAD_DIMS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if CELL == "checkpoint" else block(x)
        return self.head(x)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[..., :-1])
    return functional.cross_entropy(logits.flatten(0, -2), tokens[..., 1:].flatten())


# -- what differs between the cells: how the gradients of one batch are made --


def by_backward(model: nn.Module, tokens: torch.Tensor) -> float:
    loss = loss_of(model, tokens)
    loss.backward()
    return loss.item()


def by_threads(model: nn.Module, tokens: torch.Tensor) -> float:
    """Two threads, half of the batch each; added up in one order."""
    parameters, halves = list(model.parameters()), [None, None]

    def work(n: int) -> None:
        loss = loss_of(model, tokens.chunk(2)[n])
        halves[n] = (loss.item(), torch.autograd.grad(loss, parameters))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for parameter, *gradients in zip(parameters, *(half[1] for half in halves), strict=True):
        parameter.grad = (gradients[0] + gradients[1]) / 2
    return (halves[0][0] + halves[1][0]) / 2


def by_vmap(model: nn.Module, tokens: torch.Tensor) -> float:
    """Gradients of each half of the batch by vmap over grad, as for per-sample gradients."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(given: dict, part: torch.Tensor) -> torch.Tensor:
        return loss_of(lambda x: torch.func.functional_call(model, given, (x,)), part)

    halves = torch.stack(tokens.chunk(2))
    gradients, losses = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0))(parameters, halves)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].mean(0)
    return losses.mean().item()


def wrapped(model: nn.Module) -> nn.Module:
    if CELL == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if CELL == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    if CELL == "compile":
        return torch.compile(model)
    return model


def train() -> None:
    is_sharded = CELL in ("ddp", "fsdp2")
    if is_sharded:
        torch.distributed.init_process_group("gloo")
    gradients = {"threads": by_threads, "vmap": by_vmap}.get(CELL, by_backward)
    rank = int(os.environ.get("RANK", 0))
    set_up()
    model = Gpt()
    runner = wrapped(model)
    optimizer = torch.optim.AdamW(runner.parameters(), lr=3e-3)
    batches, losses = Batches(seed=1 + rank), []
    for _ in range(STEPS):
        losses.append(gradients(runner, batches()))
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)  # the agent empties the ring meanwhile
    whole = Gpt()
    whole.load_state_dict({n: p.full_tensor() if CELL == "fsdp2" else p for n, p in model.state_dict().items()})
    digest = fingerprint(losses, whole)
    if is_sharded:
        del runner, model, optimizer  # before the process group goes: torch can deadlock at exit otherwise
        leave_group()
    tell(rank=rank, losses=losses, digest=digest)


if __name__ == "__main__":
    train()
