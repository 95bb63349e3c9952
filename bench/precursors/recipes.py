"""The trainings of the benchmark: what is wrong in each, and which training is its twin, in which nothing is.

A training and its twin have the seed, the data and everything else in common, up to the step at which the fault begins
to the last bit. That step depends on the seed, so that the step's number tells little. One twin serves all faults of
its model; it goes on for longer than they do, and all of it shows how often detectors cry wolf.
"""

from __future__ import annotations

from dataclasses import dataclass

ARMS = ("fault", "control")
# Of the seeds whose results anybody had seen when a threshold or a detector was chosen none is as large as this.
FIRST_SEED, FIRST_TUNING_SEED = 1003, 500
LAYERS = 2


@dataclass(frozen=True)
class Recipe:
    """One row of the table. `steps`: of each training; `begins`: step of the fault for the first seed (0: from the
    start), and by how many steps later it may be for others. `twin`: the recipe without the fault ("": this is one).
    `plant`: an error of attention in one layer of `dose` ulp, "following" the output's gradient or "unrelated" to it,
    or all of attention "rounded" from fp64; `where`: in which layer (None: that depends on the seed). `growth`: of the
    weights that make queries and keys, a step."""

    name: str
    family: str
    model: str
    what: str
    steps: int
    twin: str = ""
    begins: int = 0
    later: int = 0
    plant: str = ""
    dose: float = 0.0
    where: int | None = None
    growth: float = 0.0

    @property
    def arm(self) -> str:
        return "fault" if self.twin else "control"

    def begin(self, seed: int) -> int:
        """Step at which the fault begins; multiplying by a prime spreads neighbouring seeds."""
        return self.begins + (seed * 7919) % self.later if self.later else self.begins

    def layer(self, seed: int) -> int | None:
        """The layer in which attention errs."""
        if self.plant in ("", "rounded"):
            return None
        return seed % LAYERS if self.where is None else self.where


NET, TEXT, COPYING = "1-50-1 tanh net, full batch", "GPT on text", "GPT that copies"


def following(dose: int) -> Recipe:
    """In the layer by which most of these models copy; in the other one errors do harm later or none
    (`following-bias-unused`)."""
    wrong = f"is off by {dose} ulp in the direction of its gradient"
    what = f"in the layer that copies, the output that backward reads {wrong}"
    return Recipe(
        f"following-bias-{dose}", "attention error", COPYING, what, 700, "stable-copying", 330, 96, "following", dose,
        where=1,
    )  # fmt: skip


def unrelated(dose: float) -> Recipe:
    what = f"in one layer attention's output is off by {dose:g} ulp away from zero"
    return Recipe(
        f"unrelated-bias-{dose:g}", "harmless error", COPYING, what, 700, "stable-copying", 330, 96, "unrelated", dose
    )  # fmt: skip


def growing(name: str, growth: float) -> Recipe:
    what = f"the weights that make queries and keys grow by {100 * growth:g} % a step"
    return Recipe(name, "attention scores", COPYING, what, 700, "stable-copying", 330, 96, growth=growth)


RECIPES = (
    Recipe("stable-net", "none", NET, "Adam with beta2 0.999 and eps 1e-1", 25600),
    Recipe("stable-text", "none", TEXT, "nothing", 4000),
    Recipe("stable-copying", "none", COPYING, "nothing", 4000),
    Recipe("rounded-reference", "none", COPYING, "attention is computed in fp64 and rounded", 2100, plant="rounded"),
    following(32),
    following(16),
    following(8),
    Recipe(
        "following-bias-unused", "attention error", COPYING, "as following-bias-32, in the layer that copies less",
        700, "stable-copying", 330, 96, "following", 32.0, where=0,
    ),
    growing("logit-growth", 0.015),
    growing("logit-jump", 0.06),
    unrelated(16),
    unrelated(4),
    unrelated(1),
    unrelated(0.25),
    Recipe("adam-net", "optimizer", NET, "eps 1e-8", 6000, "stable-net"),
    Recipe(
        "rate-ramp", "optimizer", TEXT, "the learning rate doubles every 12 steps", 600, "stable-text", 250, 96
    ),
    Recipe(
        "rate-jump", "optimizer", TEXT, "the learning rate is suddenly 300 times as large", 600, "stable-text", 250, 96
    ),
    Recipe("corrupt-batches", "data", TEXT, "eight batches of random bytes", 500, "stable-text", 200, 96),
    Recipe("corrupt-ramp", "data", TEXT, "more of the bytes are random at every step", 600, "stable-text", 250, 96),
)  # fmt: skip


def recipe(name: str) -> Recipe:
    return next(each for each in RECIPES if each.name == name)
