"""A callback for Lightning that acts when one of foreshock's detectors warns.

Use: trainer = Trainer(callbacks=[ActOnAdvice("lower-rate")])
"""

from __future__ import annotations

import copy
import pathlib
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # the older name of the package
    from pytorch_lightning import Callback

from foreshock_torch.advice import Advice
from listen import Listener

ACTIONS = ("checkpoint", "lower-rate", "roll-back", "raise-precision")


class ActOnAdvice(Callback):
    """Acts once for each warning, at the end of a batch.

    `action`: one of ACTIONS. "raise-precision" needs a method raise_precision(layer) of the trained module.
    `directory`: where "checkpoint" saves. `keep_every`: optimizer steps between two states for "roll-back"; the last
    four are kept in memory. `factor`: "lower-rate" and "roll-back" multiply the learning rate by it. A scheduler that
    sets the rate at every step overwrites the lower rate, so the scheduler must be changed too.
    """

    def __init__(
        self, action: str, directory: str | pathlib.Path = ".", keep_every: int = 40, factor: float = 0.1
    ) -> None:
        if action not in ACTIONS:
            raise ValueError(f"action is one of {', '.join(ACTIONS)}")
        self.action, self.directory = action, pathlib.Path(directory)
        self.keep_every, self.factor = keep_every, factor
        self.kept: list[dict[str, Any]] = []  # states for "roll-back", the oldest first
        self.trainer: Any = None
        self.module: Any = None
        self.listener = Listener(self.act)  # calls act() once for each warning

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_index: int) -> None:
        self.trainer, self.module, step = trainer, module, trainer.global_step
        is_new = not self.kept or self.kept[-1]["step"] != step  # several batches may have the same step
        if self.action == "roll-back" and step % self.keep_every == 0 and is_new:
            self.kept = [*self.kept[-3:], self.state()]
        self.listener.step_ended(step)

    def act(self, advice: Advice) -> None:
        """Calls the method of the action: checkpoint(), lower_rate(), roll_back() or raise_precision()."""
        getattr(self, self.action.replace("-", "_"))(advice)

    def state(self) -> dict[str, Any]:  # a copy, for roll_back()
        optimizers = [optimizer.state_dict() for optimizer in self.trainer.optimizers]
        return copy.deepcopy(
            {"step": self.trainer.global_step, "module": self.module.state_dict(), "optimizers": optimizers}
        )

    def checkpoint(self, advice: Advice) -> None:
        self.trainer.save_checkpoint(self.directory / f"warned-{advice.since_step}.ckpt")

    def lower_rate(self, _advice: Advice) -> None:
        for optimizer in self.trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= self.factor

    def roll_back(self, advice: Advice) -> None:
        """Restores weights and optimizers of the last kept state before the warning, if there is one. Lowers the rate,
        since the training would otherwise fail again. The order of the data and the step count are not set back."""
        before = [state for state in self.kept if state["step"] < advice.since_step]  # since_step: the warning's step
        if before:
            self.module.load_state_dict(before[-1]["module"])
            for optimizer, state in zip(self.trainer.optimizers, before[-1]["optimizers"]):
                optimizer.load_state_dict(state)
        self.lower_rate(advice)

    def raise_precision(self, advice: Advice) -> None:
        if advice.layer is not None:  # None: the warning belongs to no layer
            self.module.raise_precision(advice.layer)
