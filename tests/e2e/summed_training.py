"""A training whose cross-entropy is summed over its targets and divided by those of the whole step, as the Hugging Face
Trainer has it. Words: accumulate (three passes of a step, with unequal numbers of targets; the first one of all has
none), pieces (of one pass), scaler, plain (not divided), auxiliary (something is added to it)."""

import sys

import torch
from tiny_gpt import Batches, TinyGpt, fingerprint, set_up, tell
from torch.nn import functional

STEPS = 8
IGNORED = -100

words = set(sys.argv[1:])
passes = 3 if "accumulate" in words else 1
pieces = 4 if "pieces" in words else 1
set_up()
model, batches = TinyGpt(layers=1), Batches()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in words)


def labelled(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = batches()
    labels = tokens[:, 1:].clone()
    labels[:, : torch.randint(40, (), generator=batches.generator)] = IGNORED
    if "accumulate" in words and number == 0:
        labels[:] = IGNORED
    return tokens[:, :-1], labels


def sums_of(tokens: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    parts = zip(model(tokens).chunk(pieces, 1), labels.chunk(pieces, 1), strict=True)
    return [functional.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="sum") for x, y in parts]


means, roots = [], []
for step in range(STEPS):
    inputs = [labelled(step * passes + n) for n in range(passes)]
    targets = sum(int((labels != IGNORED).sum()) for _, labels in inputs)
    total, shares = 0.0, []
    for tokens, labels in inputs:
        sums = sums_of(tokens, labels)
        root = sum(sums) if "plain" in words else sum(sums) / targets
        if "auxiliary" in words:
            root = root + 0.1 * model.head.weight.square().mean()
        scaler.scale(root).backward()
        total += sum(each.item() for each in sums)
        shares.append(root.item())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    with torch.no_grad():
        sums_of(*labelled(-1))  # an evaluation
    means.append(total / targets)
    roots.append(sum(shares))
tell(digest=fingerprint(means, model), means=means, roots=roots)
