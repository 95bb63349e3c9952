"""The trainings of test_rule_08_helper.py: `dear_helper_training.py CASE SECONDS`, in which the helper takes so long to
name the parameters; in case "churn" these are other ones at every step."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from tiny_gpt import Batches, TinyGpt, fingerprint, loss_of, set_up, tell

CASE, SECONDS, STEPS = sys.argv[1], float(sys.argv[2]), 120
helper = sys.modules.get("foreshock_torch.modules")  # where there is one
if helper is not None:
    named = helper.Modules.named

    def slow(*given: object) -> object:
        time.sleep(SECONDS)
        return named(*given)

    helper.Modules.named = slow


def renew(model: torch.nn.Module) -> None:
    """The same values in other tensors."""
    for module in model.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(value.detach().clone()))


set_up()
model = TinyGpt()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches, losses = Batches(), []
for _ in range(STEPS):
    if CASE == "churn":
        renew(model)
        optimizer.param_groups[0]["params"] = list(model.parameters())
    optimizer.zero_grad()
    loss = loss_of(model, batches())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # by which the norm is known at every step
    optimizer.step()
    losses.append(loss.item())
tell(digest=fingerprint(losses, model), losses=losses)
