"""One rank of a job whose ranks do not talk: trains a tiny GPT, beside others that are told to be there too.

`rank_training.py STEPS FOLDER RANKS`: trains once RANKS processes have come to FOLDER; STEPS 0: until FOLDER/stop is.
"""

import json
import os
import pathlib
import sys
import time

import torch
from tiny_gpt import Batches, TinyGpt, loss_of, set_up, tell

STEPS, FOLDER, RANKS = int(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
RANK = int(os.environ["RANK"])

set_up(RANK)
model, batch = TinyGpt(layers=2), Batches(RANK)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
(FOLDER / f"{RANK}.ready").touch()
while len(list(FOLDER.glob("*.ready"))) < RANKS:
    time.sleep(0.02)
steps = 0
while steps < STEPS if STEPS else not (FOLDER / "stop").exists():
    loss = loss_of(model, batch())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
agent = pathlib.Path(os.environ["FORESHOCK_DIR"], os.environ["FORESHOCK_RUN_ID"], "agent.json")
tell(rank=RANK, steps=steps, agent=json.loads(agent.read_text()))
