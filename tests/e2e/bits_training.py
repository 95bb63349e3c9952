"""The trainings of test_same_bits.py: `bits_training.py CASE [--profile]` trains and tells its fingerprint."""

import contextlib
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from agent_view import wait_until_slots_are_free
from tiny_gpt import Batches, TinyGpt, fingerprint, leave_group, loss_of, set_up, tell

STEPS = 8
LAYERS = {"compiled_model": 2, "compiled_optimizer": 1}  # else 3; compiling takes its time
PROFILED_FROM = {"compiled_model": 1}  # tracing calls the operations too, on tensors without data
MICRO_BATCHES = {"accumulation": 4}
RECOMPUTE = {"checkpoint": "saved", "checkpoint_reentrant": "reentrant"}


class Counter:
    """Counts the fused attention operations with torch's own profiler, or does nothing."""

    def __init__(self, on: bool) -> None:
        self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if on else None

    def start(self) -> None:
        if self.profiler:
            self.profiler.start()

    def counts(self) -> dict[str, int] | None:
        if not self.profiler:
            return None
        self.profiler.stop()
        op = "aten::_scaled_dot_product_flash_attention_for_cpu"
        seen = [event.name for event in self.profiler.events()]
        return {"forward": seen.count(op), "backward": seen.count(op + "_backward")}


def train(case: str, profile: bool) -> None:
    set_up()
    model = TinyGpt(LAYERS.get(case, 3), recompute=RECOMPUTE.get(case))
    rank = 0
    if case == "ddp":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        runner = torch.nn.parallel.DistributedDataParallel(model)
    else:
        runner = torch.compile(model) if case == "compiled_model" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = torch.compile(optimizer.step) if case == "compiled_optimizer" else optimizer.step
    batches, micro = Batches(seed=1 + rank), MICRO_BATCHES.get(case, 1)
    losses = []
    counter = Counter(profile)
    for number in range(STEPS):
        if number == PROFILED_FROM.get(case, 0):
            counter.start()
        for _ in range(micro):
            loss = loss_of(runner, batches())
            (loss / micro).backward()
            losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step()
        optimizer.zero_grad()
        wait_until_slots_are_free()
    facts = {"digest": fingerprint(losses, model), "losses": losses, "profiler": counter.counts()}
    if case == "ddp":
        del runner, loss  # before the process group goes: torch can deadlock at exit otherwise
        leave_group()
    if case.startswith("compiled"):
        stats = torch._dynamo.utils.counters["inductor"]
        facts["cache"] = {"hit": stats["fxgraph_cache_hit"], "miss": stats["fxgraph_cache_miss"]}
    with contextlib.suppress(KeyError):
        facts["rank"] = int(os.environ["RANK"])
    tell(**facts)


if __name__ == "__main__":
    train(sys.argv[1], "--profile" in sys.argv)
