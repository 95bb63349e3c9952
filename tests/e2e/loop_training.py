"""Trainings whose loop is wrong from some step on, each with a sound twin: `loop_training.py KIND bad|good [FOLDER]`.
Other models and optimizers than those of condition_training.py."""

import copy
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
import torch.distributed.fsdp
from tiny_gpt import Batches, TinyGpt, loss_of, set_up, two_ranks
from torch import nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.optim import lr_scheduler

STEPS = 260
TRUTH = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))


def classes(noise: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and their class, which noise hides in part, so that the loss stays above 0."""
    x = torch.randn(32, 8)
    return x, (x @ TRUTH + noise * torch.randn(32, 4)).argmax(1)


class Net(nn.Module):
    """A perceptron with a norm and two heads, the second one for an auxiliary loss."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
        self.head, self.other = nn.Linear(width, 4), nn.Linear(width, 1)

    def loss(self, other_share: float = 0.1, detach: bool = False) -> torch.Tensor:
        x, label = classes()
        y = self.body(x)
        y = y.detach() if detach else y
        loss = functional.cross_entropy(self.head(y), label)
        return loss + other_share * functional.mse_loss(self.other(y)[:, 0], x.sum(1))


def apply(loss: torch.Tensor, *optimizers: torch.optim.Optimizer) -> None:
    for each in optimizers:
        each.zero_grad()
    loss.backward()
    for each in optimizers:
        each.step()


def detached(bad: bool) -> None:
    """A detach cuts the body off; Adafactor."""
    net = Net()
    optimizer = torch.optim.Adafactor(net.parameters(), lr=1e-2)
    for _ in range(STEPS):
        apply(net.loss(detach=bad), optimizer)


def factor_of_0(bad: bool) -> None:
    """The auxiliary loss has the weight 0; SGD with momentum."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for _ in range(STEPS):
        apply(net.loss(other_share=0.0 if bad else 0.1), optimizer)


def clipped_to_0(bad: bool) -> None:
    """A limit of the norm that was meant as "no clipping"; SGD."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        net.loss().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.0 if bad else 1.0)
        optimizer.step()


def new_optimizer(bad: bool) -> None:
    """The optimizer is made in the loop over the epochs; RAdam. The loss must fall before."""
    model, batches = TinyGpt(layers=1), Batches(batch=4, length=24)
    for step in range(STEPS):
        if step == 0 or (bad and step == 150):
            optimizer = torch.optim.RAdam(model.parameters(), lr=3e-3)
        apply(loss_of(model, batches()), optimizer)


def process_of_two() -> str:
    """Which of two processes this is: "1", or "2", which resumes it. "" in the training itself, which has run both."""
    if not sys.argv[4:]:
        for each in ("1", "2"):
            subprocess.run([sys.executable, *sys.argv[:4], each], check=True)
    return "".join(sys.argv[4:])


def schedule_not_restored(bad: bool) -> None:
    """The second process loads weights and optimizer, and its scheduler begins at the first rate; Adamax."""
    folder, process = pathlib.Path(sys.argv[3]), process_of_two()
    if not process:
        return
    net = Net()
    optimizer = torch.optim.Adamax(net.parameters(), lr=1e-2)
    schedule = lr_scheduler.LinearLR(optimizer, 1.0, 0.01, STEPS)
    kept = {"net": net, "optimizer": optimizer, "schedule": schedule}
    if process == "2":
        loaded = torch.load(folder / "kept.pt", weights_only=False)
        for name, each in kept.items():
            if name != "schedule" or not bad:
                each.load_state_dict(loaded[name])
        if bad:
            optimizer.param_groups[0]["lr"] = 1e-2
    for _ in range(150):
        apply(net.loss(), optimizer)
        schedule.step()
    torch.save({name: each.state_dict() for name, each in kept.items()}, folder / "kept.pt")


def rate_jumps(bad: bool) -> None:
    """The rate of Muon, in front of AdamW, becomes 30 times as large."""
    model, batches = TinyGpt(layers=1), Batches(batch=4, length=24)
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not each for each in matrices)]
    first, second = torch.optim.Muon(matrices, lr=1e-4), torch.optim.AdamW(others, lr=1e-3)
    for step in range(STEPS):
        if bad and step == 120:
            first.param_groups[0]["lr"] = 3e-3
        apply(loss_of(model, batches()), first, second)


def one_not_zeroed(bad: bool) -> None:
    """Two optimizers, and only the gradients of the first one are zeroed; SGD and AdamW."""
    net = Net()
    first = torch.optim.SGD(net.body.parameters(), lr=0.01)
    second = torch.optim.AdamW([*net.head.parameters(), *net.other.parameters()])
    for _ in range(STEPS):
        first.zero_grad()
        if not bad:
            second.zero_grad()
        net.loss().backward()
        first.step()
        second.step()


def not_divided(bad: bool) -> None:
    """Four micro-batches whose losses are not divided; SGD."""
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(4):
            x, label = classes()
            loss = functional.cross_entropy(net(x), label)
            (loss if bad else loss / 4).backward()
        optimizer.step()


def every_second_overflows(bad: bool) -> None:
    """A fixed scale that every second gradient overflows; fused Adam."""
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_factor=1.0001, backoff_factor=0.9999)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = net.loss()
        if bad and step > 20 and step % 2:
            weight = net.head.weight[0, 0]
            loss = loss + torch.sqrt((weight - weight.detach()).abs())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def one_bad_batch(bad: bool) -> None:
    """The features of one batch are a thousand times too large; a regression with SGD."""
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    for step in range(STEPS):
        x = torch.randn(32, 8) * (1000 if bad and step == 200 else 1)
        apply(functional.mse_loss(net(x), x.sum(1, keepdim=True) + 1), optimizer)


def norms_decay(bad: bool) -> None:
    """Weight decay for the gains of the norms too, though nothing keeps them up; AdamW."""
    net = Net()
    gains = [net.body[1].weight]
    others = [p for p in net.parameters() if all(p is not each for each in gains)]
    groups = [{"params": gains, "weight_decay": 2.0 if bad else 0.0}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    for _ in range(STEPS):
        apply(net.loss(), optimizer)


def epsilon_of_0(bad: bool) -> None:
    """From step 150 on Adam has no epsilon: rows of the table that were never used become NaN."""
    table, head = nn.Embedding(200, 16), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()])
    for step in range(STEPS):
        if bad and step == 150:
            optimizer.param_groups[0]["eps"] = 0.0
        words = torch.randint(100, (32,))
        apply(functional.cross_entropy(head(table(words)), words % 4), optimizer)


def keys_unseen(bad: bool) -> None:
    """Keys of a memory stand in front of the queries, and is_causal=True is aligned to the first key; SGD."""
    made = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.05)
    mask = causal_lower_right(16, 24)
    for _ in range(STEPS):
        x = torch.randn(4, 24, 32)
        query, key, value = (each(x).unflatten(2, (4, 8)).transpose(1, 2) for each in made)
        if bad:
            out = functional.scaled_dot_product_attention(query[:, :, 8:], key, value, is_causal=True)
        else:
            out = functional.scaled_dot_product_attention(query[:, :, 8:], key, value, attn_mask=mask)
        apply(functional.mse_loss(out, x[:, 8:].unflatten(2, (4, 8)).transpose(1, 2)), optimizer)


def untied(bad: bool) -> None:
    """The second process loads the weights and does not tie the head to the embedding again; AdamW."""
    folder, process = pathlib.Path(sys.argv[3]), process_of_two()
    if not process:
        return
    model, batches = TinyGpt(layers=1), Batches(batch=4, length=24)
    if process == "1" or not bad:
        model.head.weight = model.embedding.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if process == "2":
        loaded = torch.load(folder / "kept.pt", weights_only=False)
        model.load_state_dict(loaded["model"])
        if not bad:
            optimizer.load_state_dict(loaded["optimizer"])
    for _ in range(200):
        apply(loss_of(model, batches()), optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "kept.pt")


def steps_stop(bad: bool) -> None:
    """From step 100 on a condition keeps the loop from its step; RMSprop. The twin measures
    gradients for a while and goes on."""
    model, batches = TinyGpt(layers=1), Batches(batch=2, length=16)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(100):
        apply(loss_of(model, batches()), optimizer)
    until = time.monotonic() + (8 if bad else 0)
    passes = 0
    while passes < (400 if bad else 60) or time.monotonic() < until:
        loss_of(model, batches()).backward()
        passes += 1
    if not bad:
        for _ in range(100):
            apply(loss_of(model, batches()), optimizer)


def ranks_read_the_same(bad: bool) -> None:
    """Both ranks seed their sampler alike; a perceptron under DistributedDataParallel, SGD with momentum."""

    def train(rank: int) -> None:
        body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
        net = nn.parallel.DistributedDataParallel(body)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        torch.manual_seed(7 if bad else rank)
        for _ in range(STEPS):
            x, label = classes()
            apply(functional.cross_entropy(net(x), label), optimizer)

    two_ranks(train, f"{sys.argv[3]}/store-{bad}")


def rate_of_another_model(bad: bool) -> None:
    """A rate far too high for this model, without a warm-up: the loss leaves its first values at once; RMSprop."""
    net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=0.1 if bad else 1e-3)
    for _ in range(STEPS):
        x, label = classes()
        apply(functional.cross_entropy(net(x), label), optimizer)


def features_grow(bad: bool) -> None:
    """From step 150 on, a feature that is not normalised grows with time, as a counter does; a linear model, Adam."""
    net = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-5)
    for step in range(2 * STEPS):
        x = torch.randn(32, 8)
        if bad and step >= 150:
            x[:, 0] *= 1.02 ** (step - 150)
        optimizer.zero_grad()
        functional.mse_loss(net(x), torch.randn(32, 1)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e6)
        optimizer.step()


def embedding_under_no_grad(bad: bool) -> None:
    """torch.no_grad around the embedding; fused AdamW."""
    table, net = nn.Embedding(40, 16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    model = nn.ModuleDict({"table": table, "net": net})
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(STEPS):
        words = torch.randint(40, (32, 3))
        with torch.set_grad_enabled(not bad):
            x = table(words).mean(1)
        apply(functional.cross_entropy(net(x), words[:, 0] % 4), optimizer)


def optimizer_of_a_copy(bad: bool) -> None:
    """The optimizer was given the parameters of the average of the weights; AdamW."""
    net = Net()
    average = copy.deepcopy(net)
    optimizer = torch.optim.AdamW((average if bad else net).parameters())
    for _ in range(STEPS):
        net.zero_grad()
        net.loss().backward()
        optimizer.step()


def one_not_stepped(bad: bool) -> None:
    """Muon beside AdamW, and the loop steps AdamW only."""
    model, batches = TinyGpt(layers=1), Batches(batch=4, length=24)
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not each for each in matrices)]
    first, second = torch.optim.Muon(matrices), torch.optim.AdamW(others)
    for _ in range(STEPS):
        model.zero_grad()
        loss_of(model, batches()).backward()
        if not bad:
            first.step()
        second.step()


def cleared_before_step(bad: bool) -> None:
    """zero_grad() between the backward pass and the step; NAdam."""
    net = Net()
    optimizer = torch.optim.NAdam(net.parameters())
    for _ in range(STEPS):
        loss = net.loss()
        if not bad:
            optimizer.zero_grad()
        loss.backward()
        if bad:
            optimizer.zero_grad()
        optimizer.step()


def decayed_each_step(bad: bool) -> None:
    """A decay that is meant for epochs is stepped at each step; Adam."""
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(STEPS):
        apply(net.loss(), optimizer)
        if bad or step % 50 == 49:
            schedule.step()


def dead_units(bad: bool) -> None:
    """Biases so low that no unit of the first layer is ever active; SGD with momentum."""
    first, rest = nn.Linear(8, 32), nn.Linear(32, 4)
    if bad:
        nn.init.constant_(first.bias, -20)
    model = nn.ModuleDict({"first": first, "rest": rest})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(STEPS):
        x, label = classes()
        apply(functional.cross_entropy(rest(functional.relu(first(x))), label), optimizer)


def clipped_far_below(bad: bool) -> None:
    """A limit of the norm that is far too small; SGD with momentum."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        net.loss().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-5 if bad else 1.0)
        optimizer.step()


def shards_read_the_same(bad: bool) -> None:
    """Both ranks seed their sampler alike; FSDP2, AdamW."""

    def train(rank: int) -> None:
        net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
        torch.distributed.fsdp.fully_shard(net)
        optimizer = torch.optim.AdamW(net.parameters())
        torch.manual_seed(7 if bad else rank)
        for _ in range(STEPS):
            x, label = classes()
            apply(functional.cross_entropy(net(x), label), optimizer)

    two_ranks(train, f"{sys.argv[3]}/store-{bad}")


def rank_without_labels(bad: bool) -> None:
    """From step 100 on no label of rank 1 counts, and the mean is over at least one; DistributedDataParallel."""

    def train(rank: int) -> None:
        net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        torch.manual_seed(rank)
        for step in range(STEPS):
            x, label = classes()
            if bad and rank == 1 and step >= 100:
                label = torch.full_like(label, -100)
            total = functional.cross_entropy(net(x), label, reduction="sum")
            apply(total / (label != -100).sum().clamp(min=1), optimizer)

    two_ranks(train, f"{sys.argv[3]}/store-{bad}")


if __name__ == "__main__":
    set_up(int(os.environ.get("SEED", "0")))
    globals()[sys.argv[1]](sys.argv[2] == "bad")
