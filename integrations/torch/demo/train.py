"""Trains a small byte-level GPT on the source text of Python's standard library. Contains no code for foreshock.

    python train.py [--steps N] [--seconds S] [--seed N] [--fault ULPS|grad_key]

On a CPU for which torch has no fast bf16 kernels, bf16 linear layers (but not bf16 attention) are many times slower
than fp32 ones; on such a CPU only q, k and v are bf16. On others the forward pass uses autocast to bf16. The weights
are always fp32. With --fault the attention of one layer is wrong from a third of the training on (fault.py). "--fault
ULPS" adds an error of ULPS ulp to the attention output that the backward pass reads. It also removes the normalisation
of queries and keys, which would bound the scores and hence the effect of the error. "--fault grad_key" adds a relative
error of 5 % to the gradient of the keys.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from fault import GradKeyFault, OutputFault
from torch import Tensor, nn
from torch.nn import functional

BYTES = 256
TEXT_LIMIT = 8 << 20  # bytes of source text read at most
VALIDATION_SHARE = 0.05


@dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    kv_heads: int
    width: int
    context: int
    batch: int


# From small to large. choose() takes the largest size that trains enough steps in the given time.
SIZES = [
    Size(layers=2, heads=4, kv_heads=2, width=64, context=128, batch=4),
    Size(layers=4, heads=4, kv_heads=2, width=128, context=128, batch=8),
    Size(layers=4, heads=8, kv_heads=4, width=256, context=256, batch=8),
    Size(layers=6, heads=8, kv_heads=4, width=384, context=256, batch=8),
]
STEPS_WANTED = 200  # in the given time; in fewer steps the loss would hardly fall
STEPS_WANTED_WITH_FAULT = 800  # with --fault ULPS; in fewer steps the fault would hardly change the loss
GRAD_KEY = "grad_key"
FAULTY_LAYER = 1  # counted from 0
FAULT_BEGINS = 1 / 3  # after this share of the training
RATE, RATE_WITH_FAULT = 2e-3, 1e-3  # maximum learning rate; lower without the normalisation of queries and keys


class Attention(nn.Module):
    """Causal attention with grouped heads and rotary positions."""

    precision = torch.bfloat16  # of q, k and v
    fault: OutputFault | None = None

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.d = size.heads, size.kv_heads, size.width // size.heads
        self.qkv = nn.Linear(size.width, (size.heads + 2 * size.kv_heads) * self.d, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.query_norm, self.key_norm = nn.RMSNorm(self.d), nn.RMSNorm(self.d)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, -1, self.d).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = rotate(self.query_norm(q.float()), rotation), rotate(self.key_norm(k.float()), rotation)
        q, k, v = (t.to(self.precision) for t in (q, k, v))
        if self.fault:
            y = self.fault(q, k, v)
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width).to(x.dtype))


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(size.width), nn.RMSNorm(size.width)
        self.attention = Attention(size)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


class Gpt(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, BYTES, bias=False)
        d = size.width // size.heads
        angles = torch.arange(size.context)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # As in GPT-2: a lower deviation for the matrices whose products are added to x, two in each layer.
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * size.layers) if last else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, (self.cosine, self.sine))
        return self.head(self.norm(x))


class Text:
    """The source text of the standard library as bytes, in a fixed order. The end is used for validation."""

    def __init__(self, seed: int) -> None:
        parts, total = [], 0
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            parts.append(path.read_bytes())
            total += len(parts[-1])
            if total > TEXT_LIMIT:
                break
        data = torch.frombuffer(bytearray(b"\n".join(parts)), dtype=torch.uint8)
        split = int(len(data) * (1 - VALIDATION_SHARE))
        self.training, self.validation = data[:split], data[split:]
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, size: Size, validation: bool = False) -> tuple[Tensor, Tensor]:
        """Random pieces of the text, and the same pieces one byte later: the bytes that the model must predict."""
        data = self.validation if validation else self.training
        starts = torch.randint(len(data) - size.context - 1, (size.batch,), generator=self.generator)
        rows = torch.stack([data[i : i + size.context + 1] for i in starts.tolist()]).long()
        return rows[:, :-1], rows[:, 1:]


def native_bf16() -> bool:
    # oneDNN ("mkldnn" in torch) computes bf16 linear layers; on x86-64 its fast kernels need AVX-512.
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def loss_of(model: Gpt, batch: tuple[Tensor, Tensor], autocast: bool) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(batch[0])
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[1].flatten())


def seconds_per_step(size: Size, text: Text, autocast: bool) -> float:
    """Three times the faster of two forward passes after a warm-up: a backward pass takes about as long as two."""
    model = Gpt(size)
    taken = []
    with torch.no_grad():
        for _ in range(3):
            begin = time.monotonic()
            loss_of(model, text.batch(size), autocast)
            taken.append(time.monotonic() - begin)
    return 3 * min(taken[1:])


def choose(text: Text, seconds: float, steps: int, autocast: bool) -> Size:
    """The largest size of which `steps` steps fit into `seconds`, else the smallest. Stops trying after a second."""
    chosen, begin = SIZES[0], time.monotonic()
    for size in SIZES:
        if time.monotonic() - begin > 1 or seconds_per_step(size, text, autocast) > seconds / steps:
            break
        chosen = size
    return chosen


def learning_rate(progress: float) -> float:
    """The rate as a share of its maximum: a short warm-up, then a cosine down to a tenth. `progress`: from 0 to 1."""
    return min(1.0, progress / 0.05) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, progress)))


def plant_ulps(model: Gpt, ulps: float, seed: int) -> OutputFault:
    """Replaces attention in FAULTY_LAYER by an OutputFault. Removes the normalisation of q and k in all layers."""
    fault = model.blocks[FAULTY_LAYER].attention.fault = OutputFault(ulps, seed)
    for block in model.blocks:
        block.attention.query_norm = block.attention.key_norm = nn.Identity()
    return fault


def plant(model: Gpt, size: Size, fault: str, seed: int) -> OutputFault | GradKeyFault | None:
    """Prepares the fault that --fault names. It has no effect until its member is_on is set. None if --fault is 0."""
    if fault == GRAD_KEY:  # replaces torch's backward kernel, and finds the layer by counting calls
        return GradKeyFault(FAULTY_LAYER, size.layers, seed)
    return plant_ulps(model, float(fault), seed) if float(fault) else None


def train(steps: int | None, seconds: float, seed: int, fault_wanted: str) -> None:
    torch.manual_seed(seed)
    text, autocast = Text(seed), native_bf16()
    has_ulps = fault_wanted != GRAD_KEY and float(fault_wanted) != 0
    size = choose(text, seconds, STEPS_WANTED_WITH_FAULT if has_ulps else STEPS_WANTED, autocast)
    torch.manual_seed(seed)  # again, because choose() has used random numbers
    model = Gpt(size)
    fault = plant(model, size, fault_wanted, seed)
    rate = RATE_WITH_FAULT if has_ulps else RATE
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    count = sum(parameter.numel() for parameter in model.parameters())
    precision = "autocast bf16" if autocast else "fp32 weights, bf16 q, k, v"
    print(f"byte-level GPT, {count / 1e6:.2f} M parameters, {size.layers} layers, {precision}", flush=True)
    begin, step, progress, printed_at = time.monotonic(), 0, 0.0, 0.0  # progress: from 0 to 1
    while progress < 1:
        if fault and not fault.is_on and progress >= FAULT_BEGINS:
            fault.is_on = True
            print(f"step {step + 1:5d}  from here on attention of layer {FAULTY_LAYER:03d} is wrong", flush=True)
        for group in optimizer.param_groups:
            group["lr"] = rate * learning_rate(progress + 1e-3)  # 1e-3: the rate of the first step is not 0
        optimizer.zero_grad()
        loss = loss_of(model, text.batch(size), autocast)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        passed = time.monotonic() - begin
        progress = step / steps if steps else passed / seconds
        if step == 1 or passed - printed_at >= 5 or progress >= 1:
            printed_at = passed
            print(f"step {step:5d}  loss {loss.item():.4f}  norm {norm.item():.3f}  {passed:5.1f} s", flush=True)
    with torch.no_grad():
        losses = [loss_of(model, text.batch(size, validation=True), autocast).item() for _ in range(8)]
    print(f"validation loss {sum(losses) / len(losses):.4f} nats per byte", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a byte-level GPT on the standard library's source.")
    parser.add_argument("--steps", type=int, help="stop after so many steps instead of after --seconds")
    parser.add_argument("--seconds", type=float, default=70.0, help="how long to train (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", default="0", metavar="ULPS|grad_key", help="how far attention of one layer errs")
    arguments = parser.parse_args()
    train(arguments.steps, arguments.seconds, arguments.seed, arguments.fault)


if __name__ == "__main__":
    main()
