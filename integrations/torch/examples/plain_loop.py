"""A plain training loop that acts on the warnings of foreshock's detectors. Listener (listen.py) calls a function once
for each warning, with an Advice (step, layer, ...).

    foreshock run -- python plain_loop.py rate --on-warning roll-back
    foreshock run -- python plain_loop.py scores --on-warning raise-precision

`rate` and `scores` (failing.py) are trainings whose loss diverges without --on-warning, or without `foreshock run`.
"""

from __future__ import annotations

import argparse
import copy
import json
import pathlib
import time

import foreshock
import torch
from failing import TRAININGS
from foreshock_torch.advice import Advice
from listen import Listener
from torch import nn

KEEP_EVERY = 40  # steps between two states that are kept for roll_back


class Training:
    """The training loop, and four actions, of which --on-warning chooses one."""

    def __init__(self, model: nn.Module, checkpoint: pathlib.Path) -> None:
        self.model, self.optimizer, self.checkpoint = model, model.optimizer(), checkpoint
        self.step, self.rate_limit = 0, float("inf")  # rate_limit: set by lower_rate()
        self.kept: list[dict] = []  # the last four states for roll_back, the oldest first

    def state(self) -> dict:
        return copy.deepcopy(
            {"step": self.step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        )

    def rate(self) -> float:
        return min(self.model.rate(self.step), self.rate_limit)

    def train_step(self) -> float:
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.zero_grad()
        loss = self.model.loss(self.step)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), float("inf"))  # clips nothing; foreshock reads the norm
        self.optimizer.step()
        if self.step % KEEP_EVERY == 0:
            self.kept = [*self.kept[-3:], self.state()]
        foreshock.report(step=self.step, loss=loss.item())
        return loss.item()

    def save_checkpoint(self, _advice: Advice) -> None:
        torch.save(self.state(), self.checkpoint)

    def lower_rate(self, _advice: Advice) -> None:
        self.rate_limit = self.rate() / 10

    def roll_back(self, advice: Advice) -> None:
        """Restores the last state that was kept before the warning's first step (since_step). Lowers the rate, since
        otherwise the training would diverge again."""
        self.lower_rate(advice)
        before = [state for state in self.kept if state["step"] < advice.since_step]
        if before:
            self.step = before[-1]["step"]
            self.model.load_state_dict(before[-1]["model"])
            self.optimizer.load_state_dict(before[-1]["optimizer"])

    def raise_precision(self, advice: Advice) -> None:
        if advice.layer is not None:
            self.model.raise_precision(advice.layer)


ACTIONS = {
    "checkpoint": Training.save_checkpoint,
    "lower-rate": Training.lower_rate,
    "roll-back": Training.roll_back,
    "raise-precision": Training.raise_precision,
}


def wait_for_agent() -> None:
    """Waits until the agent has read the last step, at most about one second. The steps of these trainings are so short
    that the agent could not keep up. A real training does not wait."""
    for _ in range(1000):
        advice = foreshock.advice()
        time.sleep(0.001)  # also before the return, so that the agent can finish its work on the step
        if advice and advice.age_steps == 0:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description="Train what fails, and listen.")
    parser.add_argument("training", choices=TRAININGS)
    parser.add_argument("--on-warning", choices=ACTIONS)
    parser.add_argument("--steps", type=int, default=440)
    parser.add_argument("--checkpoint", type=pathlib.Path, default=pathlib.Path("warned.pt"))
    parser.add_argument(
        "--patient", action="store_true", help="wait for the agent after each step: always the same end"
    )
    options = parser.parse_args()
    torch.manual_seed(1)
    training = Training(TRAININGS[options.training](), options.checkpoint)

    def act(advice: Advice) -> None:
        print(json.dumps({"step": training.step, "warning": advice._asdict()}), flush=True)
        ACTIONS[options.on_warning](training, advice)

    listener = Listener(act)
    loss = float("nan")
    for _ in range(options.steps):
        loss = training.train_step()
        if options.patient:
            wait_for_agent()
        if options.on_warning:
            listener.step_ended(training.step)
    print(json.dumps({"steps": training.step, "loss": loss}))


if __name__ == "__main__":
    main()
