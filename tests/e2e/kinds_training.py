"""Sixty sound trainings, each of another kind: `kinds_training.py KIND STEPS [FOLDER]`. None has a fault of its loop,
though many do what a rule could take for one: unused experts, frozen parts, rates of 0, resumed processes, games."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import kinds_of_loops
import kinds_of_models
import kinds_of_optimizers
from kind_parts import KINDS
from tiny_gpt import set_up

MODULES = (kinds_of_optimizers, kinds_of_models, kinds_of_loops)  # an import adds the kinds to KINDS

if __name__ == "__main__":
    set_up()
    KINDS[sys.argv[1]]()
