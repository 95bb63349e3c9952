"""The trainings of test_optimizer.py: `optimizer_training.py CASE FOLDER` trains, and leaves in FOLDER what torch says
of the optimizer's health at each step.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integrations" / "torch" / "demo"))

import torch
import torch.distributed as dist
import train as demo
from tiny_gpt import VOCABULARY, Batches, TinyGpt, leave_group, loss_of, set_up, tell
from torch import nn

STEPS = 8
BETA2, EPS, SURPRISE = 0.99, 1e-5, 50
CLIP = 0.25  # below every norm of these gradients
ADAM = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False, "fused": False}}


class Signs(torch.optim.Optimizer):
    """An optimizer of one's own, without any state."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


def adam(parameters, **how) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, BETA2), eps=EPS, **how)


def optimizers_of(case: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    if case == "signs":
        return [Signs(model.parameters())]
    if case == "two":  # as Muon is used: matrices by one, the rest by Adam after it
        matrices, rest = ([p for p in model.parameters() if (p.dim() == 2) == flag] for flag in (True, False))
        return [Signs(matrices), adam(rest)]
    return [adam(model.parameters(), **ADAM.get(case, {"foreach": True}))]


def model_of(case: str) -> nn.Module:
    if case == "fused_qkv":  # two query heads for each key
        return demo.Gpt(demo.Size(layers=2, heads=4, kv_heads=2, width=32, context=48, batch=4))
    if case == "fsdp":
        from torch.distributed.fsdp import fully_shard

        model = TinyGpt(layers=2)
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    model = TinyGpt(layers=2).bfloat16() if case == "bf16" else TinyGpt(layers=2)
    return nn.parallel.DistributedDataParallel(model) if case == "ddp" else model


def whole(value: torch.Tensor) -> torch.Tensor:
    """A copy in fp64, put together from the parts of all ranks."""
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().to(torch.float64, copy=True)


def health(p: torch.Tensor, before: torch.Tensor, v_before: torch.Tensor | None, state: dict, step: int) -> dict:
    """By the definitions, without any care for speed."""
    w, g = whole(p), whole(p.grad)
    found = {
        "update_ratio": ((w - before).norm() / w.norm()).item(),
        "gradient_rms": g.square().mean().sqrt().item(),
    }
    if "exp_avg_sq" not in state:
        return found
    v = whole(state["exp_avg_sq"]) / (1 - BETA2**step)
    found["rms_staleness"] = (g.square() / v.clamp(min=EPS**2)).mean().sqrt().item()
    found["epsilon_dominated_ratio"] = (v.sqrt() < EPS).double().mean().item()
    if v_before is not None:
        # What the step found, w, is told from what it left, v = BETA2 w + (1 - BETA2) g^2, which three operations have
        # rounded to the state's format. At the border, g^2 = 50 w / (1 - BETA2^(step - 1)), that is `times` as large.
        ratio = g.square() / (v_before / (1 - BETA2 ** (step - 1)))
        times = 1 + SURPRISE * (1 - BETA2) / (BETA2 * (1 - BETA2 ** (step - 1)))
        slack = 3 * torch.finfo(state["exp_avg_sq"].dtype).eps / 2 * times
        shares = [(ratio > SURPRISE * (1 + sign * slack)).double().mean().item() for sign in (1, -1)]
        found["surprise_low"], found["surprise_high"] = shares
    return found


def train(case: str, folder: pathlib.Path) -> None:
    set_up()
    rank = 0
    if case in ("ddp", "fsdp"):
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    model, batches = model_of(case), Batches(rank)
    assert demo.BYTES >= VOCABULARY
    optimizers = optimizers_of(case, model)
    steps = [torch.compile(o.step) if case == "compiled" else o.step for o in optimizers]
    names = {p: name.removeprefix("module.") for name, p in model.named_parameters()}
    owner = {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
    told: list[dict] = []
    before: dict = {}

    def make_gradients() -> torch.Tensor:
        model.zero_grad()
        loss = loss_of(model, batches())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        assert (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item() > CLIP
        squares = {p: owner[p].state.get(p, {}).get("exp_avg_sq") for p in names}
        before.update({p: (whole(p), None if v is None else whole(v)) for p, v in squares.items()})
        return loss

    for step in range(1, STEPS + 1):
        if case == "closure":
            steps[0](make_gradients)
        else:
            make_gradients()
            for take in steps:
                take()
        told.append({name: health(p, *before[p], owner[p].state.get(p, {}), step) for p, name in names.items()})
    if rank == 0:
        (folder / "told.json").write_text(json.dumps(told))
        tell(steps=STEPS)
    if dist.is_initialized():
        leave_group()


if __name__ == "__main__":
    train(sys.argv[1], pathlib.Path(sys.argv[2]))
