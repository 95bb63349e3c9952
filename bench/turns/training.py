"""The training process that trainers.py starts. For each number on stdin it runs as many steps and prints, as JSON,
their CPU and wall seconds and the wall seconds of the slowest step. For the line `parts STEPS` it prints the
microseconds of parts of a step (see Parts).

    python bench/turns/training.py LAYERS,WIDTH,HEADS,BATCH,LENGTH,DEVICE

Trains the tests' GPT of this size on DEVICE: cpu or cuda.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


def tiny_gpt(layers: int, width: int, heads: int, batch: int, length: int, device: str) -> Callable[[], None]:
    """Returns a function that runs one step of the tests' GPT."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import tiny_gpt as tests_gpt
    import torch

    if device != "cpu":
        torch.set_float32_matmul_precision("high")  # TF32, as usual for trainings on CUDA devices
    model = tests_gpt.TinyGpt(layers, width, heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = tests_gpt.Batches(batch=batch, length=length)

    def step(clip: bool = False) -> None:
        optimizer.zero_grad()
        tests_gpt.loss_of(model, batches().to(device)).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


class Parts:
    """Times the parts of a step that foreshock may slow down: the hooks around the optimizer's step, and the functions
    that compute attention (forward), the loss and the norm of the gradients. Each function is replaced by one that
    measures its time."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(("hooks", "attention", "loss", "norm"), 0)  # nanoseconds of the step in progress

    def timed(self, part: str, function: Callable) -> Callable:
        """Returns a function that does the same as `function` and adds its time to `part`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter_ns()
            result = function(*args, **kwargs)
            self.spent[part] += time.perf_counter_ns() - begin
            return result

        return call

    def wrap(self) -> None:
        """Replaces the functions, in the whole process."""
        import torch
        from torch.optim import optimizer

        for hooks in (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks):
            # Without foreshock there are no hooks. An empty hook is added, so that the cost of the timing is the same.
            timed_hooks = {number: self.timed("hooks", hook) for number, hook in hooks.items()}
            hooks.update(timed_hooks or {0: self.timed("hooks", lambda *arguments: None)})
        functional = torch.nn.functional
        functional.scaled_dot_product_attention = self.timed("attention", functional.scaled_dot_product_attention)
        functional.cross_entropy = self.timed("loss", functional.cross_entropy)
        torch.nn.utils.clip_grad_norm_ = self.timed("norm", torch.nn.utils.clip_grad_norm_)

    def measure(self, step: Callable[[bool], None], steps: int, clip: bool) -> dict[str, list[float]]:
        """{part: [median, mean] over the steps, in microseconds}. `clip`: each step also clips the gradients."""
        step_times: list[dict[str, int]] = []
        for _ in range(steps):
            self.spent = dict.fromkeys(self.spent, 0)
            step(clip)
            step_times.append(self.spent)
        columns = {part: [spent[part] / 1000 for spent in step_times] for part in self.spent}
        return {part: [statistics.median(column), statistics.fmean(column)] for part, column in columns.items()}


def run_steps(step: Callable[[], None], steps: int, wait: Callable[[], None]) -> dict[str, float]:
    """{"cpu" and "wall": the seconds of all steps; "slowest": the wall seconds of the slowest step}. `wait` waits for
    the device at the end."""
    begin, slowest = {name: clock() for name, clock in CLOCKS.items()}, 0.0
    for _ in range(steps):
        before = time.perf_counter()
        step()
        slowest = max(slowest, time.perf_counter() - before)
    wait()
    return {name: clock() - begin[name] for name, clock in CLOCKS.items()} | {"slowest": slowest}


def serve(model: str) -> None:
    import torch

    torch.set_num_threads(1)
    *size, device = model.split(",")
    step = tiny_gpt(*map(int, size), device)
    wait = (lambda: None) if device == "cpu" else torch.cuda.synchronize
    parts = None
    for line in sys.stdin:
        if line.startswith("parts"):
            if parts is None:
                parts = Parts()
                parts.wrap()
            steps = int(line.split()[1])
            answer = {name: parts.measure(step, steps, clip) for name, clip in (("plain", False), ("clipped", True))}
            print(json.dumps(answer), flush=True)
            continue
        print(json.dumps(run_steps(step, int(line), wait)), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
