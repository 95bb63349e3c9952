"""Runs whole trainings whose CUDA device is stand_in_device.py."""

from __future__ import annotations

from pathlib import Path

from monitored import BUILD, EVERYTHING, PYTHON, Run, run_monitored, run_plain

BEGIN = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})
from stand_in_device import host_cuda, run_all
"""

# Two blocks and their optimizer, on the device, or with the word "host" on the CPU. The stand-in has other kernels for
# attention than the CPU; of what attention is made of, with the word "by_hand", it has the same.
MODEL = """
import torch
import torch.nn.functional as F
from torch import nn
import device_attention
from tiny_gpt import fingerprint, set_up, tell
words = set(sys.argv[1:])
put, get = (lambda x: x, lambda x: x) if "host" in words else (device_attention.put, device_attention.get)
set_up()
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.qkv, self.o = nn.Linear(32, 96), nn.Linear(32, 32)
    def forward(self, x):
        q, k, v = [t.view(2, 24, 4, 8).transpose(1, 2) for t in self.qkv(x).split(32, 2)]
        if "by_hand" in words: y = (q @ k.transpose(2, 3)).softmax(3) @ v
        else: y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(y.transpose(1, 2).reshape(2, 24, 32))
model = nn.Sequential(Block(), Block())
if "bfloat16" in words: model = model.bfloat16()
for module in model.modules():
    for name, given in list(module.named_parameters(recurse=False)): setattr(module, name, nn.Parameter(put(given)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""


def trained(
    host_cuda: str, training: str, *words: str, options: tuple[str, ...] = EVERYTHING, of_agent: str = ""
) -> Run:
    """The monitored run of the program `training`, to which `words` are given, after it gave the bits of a plain one
    and never waited for the device. What it tells as `of_agent` it has asked the agent for."""
    environment = {"HOST_CUDA": host_cuda, "LD_LIBRARY_PATH": str(BUILD / "lib" / "fake_cuda")}
    command = [PYTHON, "-c", BEGIN + training, *words]
    plain, run = run_plain(command, **environment), run_monitored(command, *options, **environment)
    of_both = [[line | {of_agent: None} for line in one.told()] for one in (plain, run)]
    assert of_both[0] == of_both[1]
    assert run.told()[0]["waits"] == 0
    return run
