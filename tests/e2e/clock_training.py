"""The trainings of test_clock.py: `clock_training.py CASE` trains and tells, for every step, the attention calls that
really happened in it: {step: [[pass, layer], ...]} in the order of the calls.

A call belongs to the step whose optimizer call comes next; the calls of an evaluation to the step that follows it.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from agent_view import wait_until_slots_are_free
from tiny_gpt import Batches, TinyGpt, loss_of, set_up, tell
from torch import nn
from torch.nn import functional


class Ledger:
    """Writes down every attention call by watching the model, not the operations."""

    def __init__(self, first_step: int) -> None:
        self.step = first_step
        self.calls: dict[int, list[list]] = {}
        self.inside: int | None = None
        self.original = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = self.attention

    def watch(self, model: TinyGpt, first: int = 0) -> TinyGpt:
        for number, block in enumerate(model.blocks, first):
            block.register_forward_pre_hook(lambda *_, n=number: setattr(self, "inside", n))
        return model

    def note(self, which: str, layer: int) -> None:
        self.calls.setdefault(self.step, []).append([which, layer])

    def attention(self, *tensors: torch.Tensor, **more: object) -> torch.Tensor:
        layer = self.inside
        self.note("forward", layer)
        out = self.original(*tensors, **more)
        if out.requires_grad:
            out.register_hook(lambda _: self.note("backward", layer))
        return out

    def tick(self) -> None:
        self.step += 1
        wait_until_slots_are_free()


class Lora(nn.Module):
    """A frozen projection and its trained low-rank correction."""

    def __init__(self, base: nn.Linear, base_first: bool) -> None:
        super().__init__()
        self.base, self.base_first = base.requires_grad_(False), base_first
        self.down = nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.up(self.down(x))
        return self.base(x) + low if self.base_first else low + self.base(x)


def resume_at(step: int, optimizer: torch.optim.Optimizer) -> None:
    """What load_state_dict of a checkpoint written after `step` steps leaves."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = optimizer.state_dict()
    state["state"] = {
        n: {"step": torch.tensor(float(step)), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        for n, p in enumerate(parameters)
    }
    optimizer.load_state_dict(state)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def accumulation(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        for _ in range(4):
            (loss_of(model, batches()) / 4).backward()
        optimizer.step()
        ledger.tick()
        optimizer.zero_grad()


def two_optimizers(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    parameters = list(model.parameters())
    first = torch.optim.AdamW(parameters[:7], lr=1e-3)
    second = torch.optim.SGD(parameters[7:], lr=1e-2)
    for _ in range(5):
        loss_of(model, batches()).backward()
        first.step()
        second.step()
        ledger.tick()
        model.zero_grad()


def adversaries(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    """Two models, each with its own backward pass and optimizer; the first one's step is the step."""
    other = ledger.watch(TinyGpt(layers=2), first=100)
    first = torch.optim.AdamW(model.parameters(), lr=1e-3)
    second = torch.optim.AdamW(other.parameters(), lr=1e-3)
    for _ in range(5):
        loss_of(model, batches()).backward()
        first.step()
        ledger.tick()
        first.zero_grad()
        loss_of(other, batches()).backward()
        second.step()
        second.zero_grad()


def two_models(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    """Two models whose parameters bear the same names, under one optimizer."""
    other = ledger.watch(TinyGpt(layers=2), first=100)
    optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()], lr=1e-3)
    for _ in range(5):
        tokens = batches()
        (loss_of(model, tokens) + loss_of(other, tokens)).backward()
        optimizer.step()
        ledger.tick()
        optimizer.zero_grad()


def compiled_step(ledger: Ledger, model: TinyGpt, batches: Batches, resumed: bool = False) -> None:
    optimizer = torch.optim.AdamW(trained(model), lr=1e-3)
    if resumed:
        resume_at(1000, optimizer)
    step = torch.compile(optimizer.step, backend="aot_eager")  # the compiler proper changes nothing for a clock
    for _ in range(5):
        loss_of(model, batches()).backward()
        step()
        ledger.tick()
        optimizer.zero_grad()


def compiled_resume(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    ledger.step = 1001
    compiled_step(ledger, model, batches, resumed=True)


def scaler(ledger: Ledger, model: TinyGpt, batches: Batches, fused: bool = False) -> None:
    """The third of seven rounds overflows: the scaler leaves that step out, and the clock must stand still."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    gradient_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for round_ in range(7):
        loss = loss_of(model, batches())
        gradient_scaler.scale(loss * (float("inf") if round_ == 2 else 1.0)).backward()
        if not fused:
            gradient_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradient_scaler.step(optimizer)
        gradient_scaler.update()
        if round_ != 2:
            ledger.tick()
        optimizer.zero_grad()


def fused_scaler(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    scaler(ledger, model, batches, fused=True)


def evaluation(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    """After every step two evaluations, one without gradients and one that has forgotten to switch them off."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        loss_of(model, batches()).backward()
        optimizer.step()
        ledger.tick()
        optimizer.zero_grad()
        with torch.no_grad():
            loss_of(model, batches())
            loss_of(model, batches())
        loss_of(model, batches())


def resume(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    resume_at(1000, optimizer)
    ledger.step = 1001
    for _ in range(5):
        loss_of(model, batches()).backward()
        optimizer.step()
        ledger.tick()
        optimizer.zero_grad()


def plain_steps(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    optimizer = torch.optim.AdamW(trained(model), lr=1e-3)
    for _ in range(5):
        loss_of(model, batches()).backward()
        optimizer.step()
        ledger.tick()
        optimizer.zero_grad()


def frozen(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    """Queries and keys are frozen: the way from a query back to a trained weight leads to the layer before."""
    for block in model.blocks:
        block.query.requires_grad_(False)
        block.key.requires_grad_(False)
    plain_steps(ledger, model, batches)


def lora(ledger: Ledger, model: TinyGpt, batches: Batches, base_first: bool = True) -> None:
    model.requires_grad_(False)
    for block in model.blocks:
        block.query, block.value = Lora(block.query, base_first), Lora(block.value, base_first)
    plain_steps(ledger, model, batches)


def lora_low_first(ledger: Ledger, model: TinyGpt, batches: Batches) -> None:
    lora(ledger, model, batches, base_first=False)


CASES = [
    accumulation, two_optimizers, adversaries, two_models, compiled_step, compiled_resume, scaler, fused_scaler,
    evaluation, resume, frozen, lora, lora_low_first,
]  # fmt: skip


if __name__ == "__main__":
    set_up()
    book = Ledger(first_step=1)
    {case.__name__: case for case in CASES}[sys.argv[1]](book, book.watch(TinyGpt()), Batches())
    tell(calls=book.calls, next_step=book.step)
