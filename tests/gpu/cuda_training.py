"""A small GPT in bf16 on a device, for test_cuda_training.py: BACKEND HOW STEPS.

BACKEND: cpu, flash, efficient, cudnn. HOW: eager; graphs (mode="reduce-overhead"); profile (torch.profiler over one
more step at the end, and how many kernels it saw).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for sums in one order
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from tiny_gpt import Batches, TinyGpt, fingerprint, loss_of, set_up, tell
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# Seconds behind a step. Slices have room for ten of these steps, and an agent that has slept looks after 32 ms: of a
# device that takes a few ms for each, calls would be left unsampled now and then.
PAUSE = 0.01


def train(backend: str, how: str, steps: int) -> None:
    set_up()
    torch.use_deterministic_algorithms(True, warn_only=True)
    on_device = backend != "cpu"
    device = "cuda" if on_device else "cpu"
    model = TinyGpt(width=256).to(device)
    called = torch.compile(model, mode="reduce-overhead") if how == "graphs" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches, losses = Batches(length=128), []

    def step() -> None:
        loss = loss_of(called, batches().to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        time.sleep(PAUSE)

    kernels = 0
    with sdpa_kernel(BACKENDS[backend]) if on_device else contextlib.nullcontext():
        for _ in range(steps):
            step()
        if how == "profile":
            with torch.profiler.profile() as profile:
                step()
                if on_device:
                    torch.cuda.synchronize()
            kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())
    facts = {"digest": fingerprint(losses, model.cpu()), "kernels": kernels}
    if on_device:
        free, total = torch.cuda.mem_get_info()
        # Of the allocator at most, and of everything else on the device.
        facts["peak"] = torch.cuda.max_memory_allocated()
        facts["beside"] = total - free - torch.cuda.memory_reserved()
    tell(**facts)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
