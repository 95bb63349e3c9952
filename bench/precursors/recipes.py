"""The trainings of the benchmark: what is wrong in the fault arm, and how its twin is made right.

A recipe differs between its arms in the one thing that `fault` names; seed, data and everything else are the same. What
goes wrong in mid-run does so at a step that depends on the seed, so that the step's number tells little.
"""

from __future__ import annotations

from dataclasses import dataclass

ARMS = ("fault", "control")
# Of the seeds that were ever used to choose a threshold none is below this.
FIRST_SEED = 1000


@dataclass(frozen=True)
class Recipe:
    """One row of the table. `steps`: of each training; `begins`: step of the fault for the first seed (0: from the
    start), and by how many steps later it may be for others."""

    name: str
    family: str
    fault: str
    control: str
    steps: int
    begins: int = 0
    later: int = 0
    dose: float = 0.0

    def begin(self, seed: int) -> int:
        """Step at which the fault begins; multiplying by a prime spreads neighbouring seeds."""
        return self.begins + (seed * 7919) % self.later if self.later else self.begins


RECIPES = (
    Recipe(
        "adam-net",
        "optimizer",
        "1-50-1 tanh net, full batch, Adam with beta2 0.999 and eps 1e-8",
        "eps 1e-1",
        6000,
    ),
    Recipe(
        "rate-ramp",
        "optimizer",
        "GPT; the learning rate doubles every 12 steps",
        "it stays",
        600,
        250,
        96,
    ),
    Recipe(
        "rate-jump",
        "optimizer",
        "GPT; the learning rate is suddenly 300 times as large",
        "it stays",
        600,
        250,
        96,
    ),
    Recipe(
        "logit-growth",
        "attention scores",
        "GPT that copies; the weights that make queries and keys grow by 6 % a step",
        "they do not",
        700,
        330,
        96,
    ),
    Recipe(
        "following-bias",
        "attention error",
        "GPT that copies; the output that backward reads errs by 32 ulp in the direction of its gradient",
        "it does not",
        700,
        330,
        96,
        32.0,
    ),
    Recipe(
        "unrelated-bias",
        "harmless error",
        "GPT that copies; attention's output errs by one ulp away from zero",
        "it does not",
        700,
        330,
        96,
        1.0,
    ),
    Recipe(
        "corrupt-batches",
        "data",
        "GPT; eight batches of random bytes",
        "real text",
        500,
        200,
        96,
    ),
)


def recipe(name: str) -> Recipe:
    return next(each for each in RECIPES if each.name == name)
