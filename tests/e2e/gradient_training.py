"""The trainings of test_gradients.py: `gradient_training.py CASE` trains, and tells the norms as torch computes them
and what the agent says of the last step's layers.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from agent_view import agent_state
from tiny_gpt import Batches, TinyGpt, loss_of, set_up, tell
from torch import nn

STEPS = 5
LARGE = 50.0  # norm of the last step's gradient


def norm_of(parameters: list[nn.Parameter]) -> float:
    """Through the operation that clipping does not use, so that this cannot be what the monitor reads."""
    return sum(p.grad.double().square().sum() for p in parameters).sqrt().item()


def layer_norms(model: nn.Module) -> dict[str, float]:
    layers: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        layers.setdefault(f"{int(parts[1]):03d}" if parts[0] == "blocks" else parts[0], []).append(parameter)
    return {layer: norm_of(parameters) for layer, parameters in layers.items()}


def train(case: str) -> None:
    set_up()
    model, batches = TinyGpt(), Batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    micro = 3 if case == "accumulation" else 1
    torch_norms, norms = [], []
    for step in range(1, STEPS + 1):
        last = step == STEPS
        if last and case.startswith("nan"):
            plant_nan(model.blocks[1].out.weight)
        losses = [loss_of(model, batches()) / micro for _ in range(micro)]
        if last and not case.startswith("nan"):
            # With a gradient of its own: a backward pass that begins by itself would count as one of the step's.
            found = torch.autograd.grad(sum(losses), list(model.parameters()), torch.ones(()), retain_graph=True)
            losses = [loss * (LARGE / torch.cat([g.flatten() for g in found]).norm().item()) for loss in losses]
        for loss in losses:
            loss.backward()
        norms.append(norm_of(list(model.parameters())))
        layers = layer_norms(model)
        if case.endswith("unclipped"):
            torch_norms.append(norms[-1])
        else:
            foreach = False if case == "one_by_one" else None
            torch_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach).item())
        optimizer.step()
        optimizer.zero_grad()
    tell(
        torch=torch_norms,
        norms=norms,
        layers=layers,
        state=agent_state(lambda rank: rank["step"] == STEPS and rank["layers"]),
    )


def plant_nan(weight: nn.Parameter) -> None:
    def plant(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient[0, 0] = float("nan")
        return gradient

    weight.register_hook(plant)


if __name__ == "__main__":
    train(sys.argv[1])
