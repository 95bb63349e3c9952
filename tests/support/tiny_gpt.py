"""A GPT small enough to train inside a test, and what such a training tells about itself."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY = 64


def set_up(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # sums repeat only in one order


def leave_group() -> None:
    """Ends the process group so that the process can end. Threads of gloo's let go of the tensors of the last
    collectives, for which they take the GIL in a destructor (ProcessGroupGloo::runLoop); if the interpreter ends
    meanwhile, Python ends such a thread and torch aborts, monitored or not: "terminate called without an active
    exception". Nothing tells when they are done; asleep, this thread leaves the GIL to them."""
    torch.distributed.barrier()
    time.sleep(0.5)
    torch.distributed.destroy_process_group()


def two_ranks(train: Callable[[int], None], store: str) -> None:
    """Runs train(rank) in two processes of this program, which meet in the file `store`, and ends."""
    if "RANK" not in os.environ:
        common = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        command = [sys.executable, *sys.argv]
        both = [subprocess.Popen(command, env=common | {"RANK": n, "LOCAL_RANK": n}) for n in "01"]
        sys.exit(max(abs(each.wait()) for each in both))
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(store, 2), rank=rank, world_size=2)
    train(rank)
    leave_group()


class Block(nn.Module):
    """Weights in fp32, attention in `precision`; `projection` makes the query, key and value."""

    def __init__(self, width: int, heads: int, precision: torch.dtype, dropout: float) -> None:
        super().__init__()
        self.heads, self.precision, self.dropout = heads, precision, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        batch, length, width = x.shape
        split = [
            projection(y).view(batch, length, self.heads, width // self.heads).transpose(1, 2).to(self.precision)
            for projection in (self.query, self.key, self.value)
        ]
        attended = functional.scaled_dot_product_attention(*split, is_causal=True, dropout_p=self.dropout)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape).to(x.dtype))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class TinyGpt(nn.Module):
    """Next-token model of bytes below 64. `recompute`: None, "reentrant" or "saved" (use_reentrant=False)."""

    def __init__(
        self,
        layers: int = 3,
        width: int = 32,
        heads: int = 4,
        precision: torch.dtype = torch.bfloat16,
        dropout: float = 0.0,
        recompute: str | None = None,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads, precision, dropout) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.recompute is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
        return self.head(x)


class Batches:
    """The same token batches in every run, from a random number generator of their own."""

    def __init__(self, seed: int = 1, batch: int = 4, length: int = 48) -> None:
        self.shape = (batch, length + 1)
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self) -> torch.Tensor:
        # Every token follows the one before by a fixed step, so there is something to learn.
        start = torch.randint(VOCABULARY, (self.shape[0], 1), generator=self.generator)
        return (start + 5 * torch.arange(self.shape[1])) % VOCABULARY


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def fingerprint(losses: list[float], *models: nn.Module) -> str:
    """SHA-256 over all bits of the losses and of the final weights."""
    digest = hashlib.sha256(torch.tensor(losses, dtype=torch.float64).numpy().tobytes())
    for model in models:
        for name, value in model.state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def tell(**facts: object) -> None:
    """One line of JSON, the last of the output: what told() of a Run reads."""
    # In one write, which a pipe keeps whole: the ranks of a job share their standard output.
    os.write(1, (json.dumps(facts) + "\n").encode())
