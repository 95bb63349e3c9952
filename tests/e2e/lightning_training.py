"""`lightning_training.py ACTION|none TRAINING STEPS DIR`: the example's callback under a stand-in of Lightning's
Trainer, which calls it where the real one does and offers what it uses of that."""

import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "integrations" / "torch" / "examples"))
sys.path.insert(0, str(ROOT / "tests" / "support"))


class Callback:
    """The base class, of which the hook for the end of a batch is used."""


package = types.ModuleType("lightning")
package.pytorch = types.ModuleType("lightning.pytorch")
package.pytorch.Callback = Callback
sys.modules |= {"lightning": package, "lightning.pytorch": package.pytorch}

import foreshock  # noqa: E402
import torch  # noqa: E402
from failing import TRAININGS  # noqa: E402
from lightning_callback import ActOnAdvice  # noqa: E402
from plain_loop import wait_for_agent  # noqa: E402
from tiny_gpt import tell  # noqa: E402


class Trainer:
    def __init__(self, module: torch.nn.Module, callbacks: list[ActOnAdvice]) -> None:
        self.module, self.callbacks, self.global_step = module, callbacks, 0
        self.optimizers = [module.optimizer()]

    def save_checkpoint(self, path: pathlib.Path) -> None:
        torch.save({"state_dict": self.module.state_dict()}, path)

    def fit(self, steps: int) -> float:
        (optimizer,) = self.optimizers
        loss, rate = float("nan"), optimizer.param_groups[0]["lr"]
        while self.global_step < steps:
            for group in optimizer.param_groups:
                if group["lr"] == rate:  # a schedule that leaves alone what somebody else has lowered
                    group["lr"] = self.module.rate(self.global_step + 1)
            rate = self.module.rate(self.global_step + 1)
            optimizer.zero_grad()
            value = self.module.loss(self.global_step + 1)
            value.backward()
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), float("inf"))
            optimizer.step()
            self.global_step += 1
            loss = value.item()
            foreshock.report(step=self.global_step, loss=loss)
            wait_for_agent()
            for callback in self.callbacks:
                callback.on_train_batch_end(self, self.module, value, None, self.global_step)
        return loss


def main() -> None:
    action, name, steps, directory = sys.argv[1:5]
    torch.manual_seed(1)
    torch.set_num_threads(1)
    callbacks = [] if action == "none" else [ActOnAdvice(action, directory)]
    loss = Trainer(TRAININGS[name](), callbacks).fit(int(steps))
    tell(loss=loss, warnings=[advice._asdict() for each in callbacks for advice in each.listener.acted])


if __name__ == "__main__":
    main()
