"""Sound trainings of kinds_training.py with unlike optimizers, rates, and frozen or unused parts."""

import copy
from collections.abc import Iterable

import torch
from kind_parts import LENGTH, STEPS, WIDTH, Loss, adamw, classes, classify, cosine, gpt, kind, loop, perceptron
from tiny_gpt import VOCABULARY, Batches
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

# Optimizers.


@kind
def adamw_cosine_clipped() -> None:
    model, loss = gpt()
    optimizer = adamw(model)
    loop(model, optimizer, loss, schedule=cosine(optimizer), clip=1.0)


@kind
def adamw_fused() -> None:
    model, loss = gpt()
    loop(model, adamw(model, fused=True), loss)


@kind
def adamw_foreach_amsgrad() -> None:
    model, loss = gpt()
    loop(model, adamw(model, foreach=True, amsgrad=True), loss)


@kind
def sgd_steps_down() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = lr_scheduler.MultiStepLR(optimizer, [STEPS // 2, 3 * STEPS // 4])
    loop(model, optimizer, classify(model), schedule=schedule)


@kind
def sgd_plain() -> None:
    model = perceptron()
    loop(model, torch.optim.SGD(model.parameters(), lr=0.05), classify(model))


@kind
def adafactor() -> None:
    model, loss = gpt()
    loop(model, torch.optim.Adafactor(model.parameters(), lr=1e-2), loss)


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 3e-4, decay: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((0.9 * state + 0.1 * p.grad).sign(), alpha=-group["lr"])
                state.lerp_(p.grad, 0.01)


@kind
def lion() -> None:
    model, loss = gpt()
    loop(model, Lion(model.parameters()), loss)


def halves(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices of the blocks, and the other parameters."""
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    return matrices, [p for p in model.parameters() if all(p is not each for each in matrices)]


@kind
def muon_beside_adamw() -> None:
    model, loss = gpt()
    matrices, others = halves(model)
    muon = torch.optim.Muon(matrices, lr=2e-3)
    loop(model, [muon, torch.optim.AdamW(others, lr=2e-3)], loss, schedule=cosine(muon))


@kind
def adamw_beside_muon_with_warm_restarts() -> None:
    model, loss = gpt()
    matrices, others = halves(model)
    first = torch.optim.AdamW(others, lr=2e-3)
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(first, 40)
    loop(model, [first, torch.optim.Muon(matrices, lr=1e-3)], loss, schedule=schedule)


@kind
def sparse_adam_for_the_table() -> None:
    table, model = nn.EmbeddingBag(500, WIDTH, sparse=True), nn.Linear(WIDTH, 4)
    both = nn.ModuleList([table, model])

    def loss() -> torch.Tensor:
        words = torch.randint(500, (16, 6))
        return functional.cross_entropy(model(table(words)), words.sum(1) % 4)

    loop(both, [torch.optim.SparseAdam(table.parameters(), lr=1e-2), torch.optim.Adam(model.parameters())], loss)


@kind
def lbfgs() -> None:
    model, (x, label) = perceptron(), classes()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), label)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


@kind
def sharpness_aware() -> None:
    """Two backward passes a step; the second one at weights that are moved for it."""
    model, loss = gpt(layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        loss().backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        with torch.no_grad():
            moved = [0.05 * p.grad / norm for p in model.parameters()]
            for p, by in zip(model.parameters(), moved, strict=True):
                p.add_(by)
        optimizer.zero_grad()
        loss().backward()
        with torch.no_grad():
            for p, by in zip(model.parameters(), moved, strict=True):
                p.sub_(by)
        optimizer.step()
        optimizer.zero_grad()


@kind
def lookahead() -> None:
    """Every fifth step goes half of the way back to slow weights."""
    model, loss = gpt()
    slow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def after(step: int) -> None:
        if step % 5 == 4:
            for p, s in zip(model.parameters(), slow, strict=True):
                p.copy_(s.lerp_(p, 0.5))

    loop(model, adamw(model), loss, after=after)


@kind
def by_hand() -> None:
    model, loss = gpt()
    for _ in range(STEPS):
        loss().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad
                p.grad = None


# Learning rates and weight decay.


@kind
def warm_restarts() -> None:
    model, loss = gpt()
    optimizer = adamw(model)
    loop(model, optimizer, loss, schedule=lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 25, 2))


@kind
def cyclic_rate() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = lr_scheduler.CyclicLR(optimizer, 1e-4, 0.1, step_size_up=20, mode="triangular2")
    loop(model, optimizer, classify(model), schedule=schedule)


@kind
def one_cycle() -> None:
    model, loss = gpt()
    optimizer = adamw(model)
    loop(model, optimizer, loss, schedule=lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=STEPS))


@kind
def cosine_back_and_forth() -> None:
    """torch's CosineAnnealingLR beyond T_max, as a cycle: down to 1e-5 and back up, several times."""
    model, loss = gpt()
    optimizer = adamw(model)
    loop(model, optimizer, loss, schedule=lr_scheduler.CosineAnnealingLR(optimizer, 30, eta_min=1e-4))


@kind
def warm_up_from_a_tiny_rate() -> None:
    model, loss = gpt()
    optimizer = adamw(model)
    loop(model, optimizer, loss, schedule=lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, 1.1 ** (n - 100))))


@kind
def rate_on_plateau() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=10)
    for _ in range(STEPS):
        loss = classify(model)()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step(loss.item())


@kind
def decay_falls_to_0() -> None:
    model, loss = gpt()
    optimizer = adamw(model, weight_decay=0.1)

    def after(step: int) -> None:
        optimizer.param_groups[0]["weight_decay"] = 0.1 * max(0.0, 1 - 2 * step / STEPS)

    loop(model, optimizer, loss, after=after)


@kind
def strong_decay_of_matrices() -> None:
    model, loss = gpt()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "weight_decay": 0.0}]
    loop(model, torch.optim.AdamW(groups, lr=3e-3), loss)


@kind
def rates_by_layer() -> None:
    """Fine-tuning with a rate that falls towards the input by a factor of 10."""
    model, loss = gpt(layers=3)
    groups = [{"params": list(model.embedding.parameters()), "lr": 2e-6}]
    groups += [{"params": list(b.parameters()), "lr": 2e-3 * 0.1 ** (2 - n)} for n, b in enumerate(model.blocks)]
    groups += [{"params": list(model.head.parameters()), "lr": 2e-3}]
    loop(model, torch.optim.AdamW(groups), loss)


# Frozen and unused parts.


class Adapter(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@kind
def lora() -> None:
    model, loss = gpt()
    model.requires_grad_(False)
    for block in model.blocks:
        block.query, block.value = Adapter(block.query), Adapter(block.value)
    loop(model, adamw(model, rate=1e-2), loss)


@kind
def lora_checkpointed() -> None:
    model, loss = gpt(recompute="reentrant")
    model.requires_grad_(False)
    for block in model.blocks:
        block.query, block.value = Adapter(block.query), Adapter(block.value)
    model.embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())
    loop(model, Lion([p for p in model.parameters() if p.requires_grad], lr=3e-3), loss)


@kind
def head_on_a_frozen_base() -> None:
    model, _ = gpt()
    batches, head = Batches(batch=4, length=LENGTH), nn.Linear(WIDTH, VOCABULARY)
    model.head = nn.Identity()

    def loss() -> torch.Tensor:
        tokens = batches()
        with torch.no_grad():
            x = model(tokens[:, :-1])
        return functional.cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten())

    loop(head, adamw(head, rate=1e-2), loss)


@kind
def frozen_parts_in_the_optimizer() -> None:
    model, loss = gpt()
    model.embedding.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    loop(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss)


@kind
def unfrozen_layer_by_layer() -> None:
    model, loss = gpt(layers=3)
    model.blocks.requires_grad_(False)
    optimizer = adamw(model)

    def before(step: int) -> None:
        if step in (60, 100, 140):
            block = model.blocks[2 - (step - 60) // 40].requires_grad_(True)
            optimizer.add_param_group({"params": list(block.parameters())})

    loop(model, optimizer, loss, before=before)


@kind
def tied_embedding() -> None:
    model, loss = gpt()
    model.head.weight = model.embedding.weight
    loop(model, adamw(model), loss)


class Experts(nn.Module):
    def __init__(self, count: int, used: int, noise: float) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))
        self.used, self.noise = used, noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x)
        best = (scores + self.noise * torch.randn_like(scores))[..., : self.used].argmax(-1)
        weight, out = scores.softmax(-1).gather(-1, best[..., None]), torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            chosen = best == n
            if chosen.any():
                out = out.masked_scatter(chosen[..., None], expert(x[chosen]))
        return weight * out


def with_experts(**options) -> tuple[nn.Module, Loss]:
    model, loss = gpt()
    for block in model.blocks:
        block.down = nn.Sequential(block.down, Experts(**options))
    return model, loss


@kind
def experts() -> None:
    model, loss = with_experts(count=8, used=8, noise=1.0)
    loop(model, adamw(model), loss)


@kind
def experts_some_unused_for_long() -> None:
    """Without noise a router sends tokens to a few experts, and to others now and then."""
    model, loss = with_experts(count=16, used=16, noise=0.0)
    loop(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss)


@kind
def tasks_in_turn() -> None:
    """Each step trains one head of two."""
    body, heads = perceptron(WIDTH), nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(2))
    model, turn = nn.ModuleList([body, heads]), iter(range(10**9))

    def loss() -> torch.Tensor:
        (x, label), which = classes(), next(turn) % 2
        return functional.cross_entropy(heads[which](body(x)), (label + which) % 4)

    loop(model, adamw(model), loss)


@kind
def a_head_that_is_rarely_used() -> None:
    body, heads = perceptron(WIDTH), nn.ModuleDict({n: nn.Linear(WIDTH, 4) for n in ("often", "rarely")})
    model, turn = nn.ModuleList([body, heads]), iter(range(10**9))

    def loss() -> torch.Tensor:
        (x, label), which = classes(), "rarely" if next(turn) % 25 == 24 else "often"
        return functional.cross_entropy(heads[which](body(x)), label)

    loop(model, adamw(model), loss)


@kind
def layers_dropped_at_random() -> None:
    model, loss = gpt(layers=4)
    for block in model.blocks:
        block.register_forward_hook(lambda m, inputs, out: inputs[0] if torch.rand(()) < 0.3 else out)
    loop(model, adamw(model), loss)


@kind
def branches_that_begin_at_0() -> None:
    """Residual branches whose gain begins at 0: their weights have a gradient of exactly 0 in the first step."""
    model, loss = gpt(layers=3)
    for block in model.blocks:
        for layer in (block.out, block.down):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
    loop(model, adamw(model), loss)


@kind
def control_branch() -> None:
    """A copy of a frozen net that begins with no effect, as a ControlNet."""
    base = perceptron(WIDTH).requires_grad_(False)
    copied, zero, head = copy.deepcopy(base).requires_grad_(True), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
    nn.init.zeros_(zero.weight)
    nn.init.zeros_(zero.bias)
    model = nn.ModuleList([base, copied, zero, head])

    def loss() -> torch.Tensor:
        x, label = classes()
        return functional.cross_entropy(head(base(x) + zero(copied(x))), label)

    loop(model, adamw(model), loss)
