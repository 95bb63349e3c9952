"""Trains with reported faults of gradients and shows which of them are found, for docs/gradients.md.

    python bench/gradients.py [KIND ...] [-o docs/gradients.md]

Each mechanism is a small training (tests/e2e/conserved_training.py) under `foreshock run`, and has a sound twin that
must stay without a condition. tests/e2e/test_conserved.py runs the same trainings.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import tempfile
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAINING = ROOT / "tests" / "e2e" / "conserved_training.py"
ONE = "blocks.1.up.weight"  # the parameter that most trainings spoil
BLOCK = re.compile(r"(<!-- mechanisms -->).*?(<!-- end -->)", re.S)  # the generated part of the page


class Mechanism(NamedTuple):
    kind: str  # of the training
    ranks: int
    twin: str  # kind of the sound training
    what: str
    reports: str  # of this mechanism or a similar one
    condition: str  # "": it cannot be found
    text: str = ""  # in the sentence of the condition


MECHANISMS = (
    Mechanism(
        "tensor_router", 2, "tensor",
        "DTensor, tensor parallel: the router's outputs leave by to_local() without grad_placements, so that its "
        "gradient is not summed over the ranks",
        "torchtitan#4054, torchtitan#2387", "copies_differ",
        "router.weight (2): the tensor-parallel ranks 0 and 1 hold",
    ),
    Mechanism(
        "tensor_norm", 2, "tensor", "the same of norms that see a part of the sequence: their copies drift apart",
        "Automodel#3822, Automodel#1260", "copies_differ", "norm",
    ),
    Mechanism(
        "tensor_stuck", 2, "tensor", "one of the copies of a norm is not updated", "Automodel#3822, Automodel#1260",
        "copies_apart", "blocks.0.norm.weight: the tensor-parallel ranks 0 and 1 held equal values",
    ),
    Mechanism(
        "grid_router", 4, "grid", "the router's gradient again, on two tensor-parallel pairs of ranks",
        "torchtitan#4054, torchtitan#2387", "copies_differ", "router.weight (2): the tensor-parallel ranks",
    ),
    Mechanism(
        "plane_router", 4, "plane", "the same under FSDP2 over the two pairs", "torchtitan#4054, Megatron-LM#7452",
        "copies_differ", "router.weight (2): the tensor-parallel ranks",
    ),
    Mechanism(
        "plane_stuck", 4, "plane", "there, one of the copies of a norm's shard is not updated", "Automodel#3822",
        "copies_apart", "blocks.0.norm.weight: the tensor-parallel ranks 0 and 1 held equal values",
    ),
    Mechanism(
        "grid_left_out", 4, "grid",
        "a loop over all-reduces between tensor-parallel pairs leaves out a sharded parameter", "", "copies_differ",
        ONE + ": the data-parallel ranks",
    ),
    Mechanism(
        "ignored", 2, "sound", "a parameter in DistributedDataParallel's ignore list", "",
        "gradient_not_summed", ONE + ": the gradient used is that of its own rank only, the ranks were",
    ),
    Mechanism(
        "left_out", 2, "by_hand", "a loop over all-reduces leaves a parameter out", "TransformerEngine#435",
        "gradient_not_summed", ONE,
    ),
    Mechanism(
        "summed_twice", 2, "by_hand", "a gradient is reduced twice", "AReno#496",
        "gradient_multiplied", ONE + ": the gradient used is 2 times",
    ),
    Mechanism(
        "divided_twice", 2, "by_hand", "a gradient is divided by the number of ranks twice", "Megatron-LM#5956",
        "gradient_multiplied", ONE + ": the gradient used is 0.5 times",
    ),
    Mechanism(
        "doubles", 1, "sound", "a gradient is added twice", "pytorch#160285",
        "gradient_multiplied", ONE + ": the gradient used is 2 times",
    ),
    Mechanism(
        "clears_all", 1, "sound", "only the last micro-batch counts", "open-instruct#1498",
        "gradient_last_only", "the gradient used is that of the last backward pass only, since step",
    ),
    Mechanism(
        "clears_one", 2, "sound", "the same of one parameter under DistributedDataParallel", "open-instruct#1498",
        "gradient_last_only", ONE,
    ),
    Mechanism(
        "drops", 2, "sound", "a gradient is lost before the optimizer's step", "DeepSpeed#8224",
        "gradient_dropped", ONE,
    ),
    Mechanism(
        "zero_drops", 2, "zero", "the same on the rank that steps the parameter (ZeroRedundancyOptimizer)",
        "DeepSpeed#8224", "gradient_dropped", ONE,
    ),
    Mechanism("shards_drops", 2, "shards", "the same in shards (FSDP2)", "DeepSpeed#8224", "gradient_dropped", ONE),
    Mechanism(
        "shards_clears_all", 2, "shards", "only the last micro-batch counts, in shards (FSDP2)", "open-instruct#1498",
        "gradient_last_only", "the gradient used is that of the last backward pass only",
    ),
    Mechanism(
        "shards_doubles", 2, "shards", "a gradient in shards is multiplied by the number of ranks", "Megatron-LM#7452",
        "gradient_multiplied", ONE + ": the gradient used is 2 times",
    ),
    Mechanism(
        "shards_rounded", 2, "shards", "FSDP2 reduces gradients of fp32 in bf16", "pytorch#190626",
        "gradient_rounded", "the gradient used is rounded as by a sum in bf16",
    ),
    Mechanism(
        "hybrid_drops", 4, "hybrid", "a gradient in shards of which there are two copies (HSDP) is lost",
        "DeepSpeed#8224", "gradient_dropped", ONE,
    ),
    Mechanism(
        "reads_early", 2, "by_hand", "gradients are reduced before the last backward pass has added to them", "",
        "gradient_lacks_last", ONE,
    ),
    Mechanism("keeps_one", 1, "sound", "a parameter that zero_grad() leaves out", "", "gradient_piled_up", ONE),
    Mechanism("keeps_all", 2, "sound", "gradients that are never cleared", "", "gradient_piled_up"),
    Mechanism(
        "experts_lost", 2, "experts",
        "experts get no gradient from the tokens of other ranks: it is lost inside of the backward pass",
        "transformers#48205, transformers#48687", "",
    ),
)  # fmt: skip


def train(kind: str, ranks: int, *more: str) -> Any:
    """The Run (tests/support/monitored.py) of a training."""
    from forked import forked
    from monitored import run_monitored

    with tempfile.TemporaryDirectory() as folder:
        command = forked(str(TRAINING), kind, str(ranks), str(pathlib.Path(folder, "store")), *more)
        return run_monitored(command, "--max-slowdown", "50%", timeout=600)


def result_of(run: Any) -> tuple[list[str], str, str]:
    """The conditions of a run and the sentence of the first, and how many looks were judged."""
    run.told()
    conditions = run.summary["conditions"]
    judged = re.search(r"conserved\s+(.*)", run.stderr)
    return (
        [each["condition"] for each in conditions],
        conditions[0]["text"] if conditions else "",
        judged.group(1) if judged else "no look",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="kinds of trainings; all of them by default")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="page whose table is replaced")
    options = parser.parse_args()
    if options.output and not options.output.is_file():
        parser.error(f"no page {options.output}: its table would be replaced")
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    chosen = [each for each in MECHANISMS if not options.kinds or each.kind in options.kinds]
    rows, wrong = [], 0
    for mechanism in chosen:
        conditions, text, judged = result_of(train(mechanism.kind, mechanism.ranks))
        print(f"{mechanism.kind}: {conditions} {text} ({judged})", flush=True)
        wrong += conditions != ([mechanism.condition] if mechanism.condition else [])
        reports = mechanism.reports or "-"
        rows.append(
            f"| {mechanism.what} | {reports} | {', '.join(f'`{each}`' for each in conditions) or 'not found'} |"
        )
    for kind, ranks in sorted({(each.twin, each.ranks) for each in chosen}):
        conditions, text, judged = result_of(train(kind, ranks))
        print(f"{kind}, sound, {ranks} ranks: {conditions} {text} ({judged})", flush=True)
        wrong += bool(conditions)
    table = "\n".join(
        ["| what happens to a gradient | reported as, or similar | found as |", "| --- | --- | --- |", *rows]
    )
    print(table)
    if options.output:
        page = options.output.read_text()
        options.output.write_text(BLOCK.sub(lambda found: f"{found[1]}\n{table}\n{found[2]}", page))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
