"""Trains with optimizers of torchzero, which call closure(False); prints losses and a digest of the weights."""

from __future__ import annotations

import hashlib

import torch
import torchzero as tz

torch.set_num_threads(1)
OPTIMIZERS = {
    "adam": lambda p: tz.Optimizer(p, tz.m.Adam(), tz.m.LR(1e-2)),
    "newton": lambda p: tz.Optimizer(p, tz.m.Newton(), tz.m.Backtracking()),
    "bfgs": lambda p: tz.Optimizer(p, tz.m.BFGS(), tz.m.Backtracking()),
    "sophia": lambda p: tz.Optimizer(p, tz.m.SophiaH(), tz.m.LR(1e-2)),
}

for name, make in OPTIMIZERS.items():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = make(model.parameters())
    x, y = torch.randn(32, 4), torch.randn(32, 1)

    def closure(backward: bool = True, model=model, optimizer=optimizer, x=x, y=y) -> torch.Tensor:
        loss = (model(x) - y).square().mean()
        if backward:
            optimizer.zero_grad()
            loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(20)]
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(name, losses[-1].hex(), digest)
