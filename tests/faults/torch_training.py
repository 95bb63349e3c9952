"""A real training for the fault matrix: `torch_training.py [ENDING]`. Tells its digest, then ends as it is told."""

import ctypes
import os
import signal
import sys

import torch
from tiny_gpt import Batches, TinyGpt, fingerprint, loss_of, set_up
from torch.utils.data import DataLoader

ENDING = sys.argv[1] if len(sys.argv) > 1 else None

set_up()
model, batch = TinyGpt(layers=2), Batches()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in DataLoader(range(12), batch_size=1, num_workers=1):  # a worker that lives while the training ends
    loss = loss_of(model, batch())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    if len(losses) == 10 and ENDING:
        break
os.write(1, f"digest {fingerprint(losses, model)}\n".encode())
if ENDING == "_exit":
    os._exit(7)
if ENDING == "abort":
    os.abort()
if ENDING == "segv":
    ctypes.string_at(8)
if ENDING == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if ENDING == "raise":
    raise RuntimeError("out of luck")
