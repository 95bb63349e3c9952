"""The hand trainer as a training that detectors watch: step by step, with an error in attention or in the loss."""

import json
import os
import pathlib
import signal

from live import Live
from records import record_lines
from scraping import wait_until
from segment_file import segments

FOUND_BY_DETECTORS = {"precursor", "loss_spike", "divergence", "loss_rise", "nonfinite_gradient_norm", "resumed"}
KEYS = ("rank", "step", "event", "layer", "value", "detector", "level", "score")
# fp32 results that are too large by a quarter to a half of a unit in the last place of bf16, the unit of the limit.
BIASED = 1 + 2**-9


class Training:
    """The hand trainer, in portions that the agent can follow."""

    def __init__(self, base: pathlib.Path, trainer: Live, run_id: str = "me") -> None:
        self.directory, self.trainer, self.step = base / run_id, trainer, 0

    def agent(self) -> int:
        return json.loads((self.directory / "agent.json").read_text())["pid"]

    def all_judged(self) -> bool:
        counts = [of for each in segments(self.directory) for of in each.attention().values()]
        return bool(counts) and all(of["sampled"] == of["judged"] > 0 for of in counts)

    def run(self, steps: int, **how: float) -> None:
        for count in [10] * (steps // 10):
            given = "".join(f", {name}={value!r}" for name, value in how.items())
            given = given.replace("nan", "float('nan')").replace("inf", "float('inf')")
            self.trainer.do(f"hand.train({self.step + 1}, {count}{given})")
            self.step += count
            wait_until(self.all_judged)

    def plant(self, factor: float) -> None:
        self.trainer.do(f"hand.plant({factor!r})")

    def change_agent(self, how: signal.Signals) -> None:
        before = self.agent()
        os.kill(before, how)
        wait_until(lambda: self.agent() != before)

    def settle(self) -> None:
        """Until the record has every step: an agent that is killed takes the lines of its last second along."""
        wait_until(lambda: any(line["step"] == self.step for line in self.lines() if line["type"] == "step"))

    def lines(self) -> list[dict]:
        return record_lines(self.trainer.record)

    def recorded(self) -> list[tuple]:
        return [tuple(line[key] for key in KEYS) for line in self.lines() if line.get("event") in FOUND_BY_DETECTORS]
