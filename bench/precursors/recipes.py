"""The trainings of the benchmark of detectors. Each recipe is run with many seeds. A recipe with a planted fault names
its twin, a recipe without a fault.

With equal seeds, a training and its twin have the same data and are equal bit for bit until the step at which the fault
begins. In most recipes this step depends on the seed, so that step numbers predict little. All faults of a model share
one twin. The twin is longer than the trainings with a fault; false alarms are counted over its whole length.
"""

from __future__ import annotations

from dataclasses import dataclass

ARMS = ("fault", "control")  # values of Recipe.arm
# First seeds of results and of tuning. All seeds with which thresholds and detectors were chosen are below FIRST_SEED.
FIRST_SEED, FIRST_TUNING_SEED = 1003, 500
LAYERS = 2  # attention layers of the models TEXT and COPYING


@dataclass(frozen=True)
class Recipe:
    """One row of the table RECIPES.

    family  kind of the fault; "none": no fault
    model   one of NET, TEXT and COPYING
    what    the fault, as text for tables; without a fault, what differs from the model's usual configuration
    steps   length of each training
    twin    name of the recipe without the fault; "": this recipe has no fault
    begins  first step at which the fault may begin; 0: it is there from the start
    later   the fault begins at a step in [begins, begins + later) that depends on the seed; 0: at `begins`
    plant   attention error of `dose` ulp (spacings of bf16) in one layer: "following", only in the output that backward
            reads, in the direction of the output's gradient; "unrelated": in the output itself; "rounded": no error,
            all attention is computed in fp64 and rounded; "": none
    where   layer of the error; None: it depends on the seed
    growth  growth of the query and key weights per step, as a fraction
    """

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
        """The step at which the fault begins. The prime factor gives neighbouring seeds distant steps."""
        return self.begins + (seed * 7919) % self.later if self.later else self.begins

    def layer(self, seed: int) -> int | None:
        """The layer with the attention error; None: the error is not in a single layer, or does not exist."""
        if self.plant in ("", "rounded"):
            return None
        return seed % LAYERS if self.where is None else self.where


NET, TEXT, COPYING = "1-50-1 tanh net, full batch", "GPT on text", "GPT that copies"


# Below, most fields of a Recipe are given by position, in the order of the class.


def following(dose: int) -> Recipe:
    """A recipe with an attention error of `dose` ulp along the gradient, in the layer that most of these models use for
    copying. An error in the other layer does harm later or not at all (`following-bias-unused`)."""
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
