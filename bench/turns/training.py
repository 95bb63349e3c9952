"""A small training that goes on by as many steps as each line on stdin says, and answers each with the seconds they
took by every clock, as JSON. A trainer of trainers.py.

    python bench/turns/training.py gpt | step | LAYERS,WIDTH,BATCH,LENGTH
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


def gpt() -> Callable[[], None]:
    """One step of the GPT of the demo."""
    sys.path.insert(0, str(ROOT / "integrations" / "torch" / "demo"))
    import torch
    import train

    text, autocast, size = train.Text(1), train.native_bf16(), train.SIZES[1]
    model = train.Gpt(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [text.batch(size) for _ in range(8)]
    numbers = iter(range(1 << 40))

    def step() -> None:
        optimizer.zero_grad()
        train.loss_of(model, batches[next(numbers) % len(batches)], autocast).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def one_parameter() -> Callable[[], None]:
    """One step of as little as a training can be."""
    import torch

    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    query = torch.randn(1, 1, 2, 2)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.scaled_dot_product_attention(query @ weight, query, query).sum().backward()
        optimizer.step()

    return step


def tiny_gpt(layers: int, width: int, batch: int, length: int) -> Callable[[], None]:
    """One step of the GPT of the tests."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import tiny_gpt as tests
    import torch

    model = tests.TinyGpt(layers, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = tests.Batches(batch=batch, length=length)

    def step() -> None:
        optimizer.zero_grad()
        tests.loss_of(model, batches()).backward()
        optimizer.step()

    return step


def serve(what: str) -> None:
    import torch

    torch.set_num_threads(1)
    step = {"gpt": gpt, "step": one_parameter}.get(what, lambda: tiny_gpt(*map(int, what.split(","))))()
    for line in sys.stdin:
        begin = {name: clock() for name, clock in CLOCKS.items()}
        for _ in range(int(line)):
            step()
        print(json.dumps({name: clock() - begin[name] for name, clock in CLOCKS.items()}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
