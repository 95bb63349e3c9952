"""The trainings of test_ring.py: `ring_training.py RANKS MODE WRONG STEPS`. The attention of a step is that of a ring
of so many ranks, one rank after the other in this process, with the calls of torch's _templated_ring_attention and its
backward (torch 2.13, distributed/tensor/experimental/_context_parallel/_attention.py). torch's context_parallel itself
does not run on the CPU: "aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy
registered". MODE: full, causal, balanced.
WRONG: the relative error of the query's gradient in the call of the last block of keys of each rank.
"""

import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from agent_view import wait_until_slots_are_free
from tiny_gpt import set_up, tell

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
HEADS, HEAD_DIM, LENGTH = 2, 64, 256
SEQUENCE = 2  # dimension


class WrongBackward:
    """torch's kernel, with an error in the calls for which it is switched on. Below the monitor's hook."""

    def __init__(self, error: float) -> None:
        self.error, self.is_on = error, False
        self.numbers = torch.Generator().manual_seed(7)
        op = "_scaled_dot_product_flash_attention_for_cpu_backward"
        self.original = torch.library.get_kernel(f"aten::{op}", "CPU")
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced
            self.library.impl(op, self, "CPU", with_keyset=True)

    def __call__(self, keys: object, *arguments: object, **more: object) -> tuple[torch.Tensor, ...]:
        gradient, *others = self.original.call_boxed(keys, *arguments, **more)
        if self.is_on and self.error:
            size = gradient.float().pow(2).mean(-1, keepdim=True).sqrt()
            gradient = gradient + self.error * size * torch.randn(gradient.shape, generator=self.numbers)
            gradient = gradient.to(arguments[1].dtype)
        return gradient, *others


class Ring:
    def __init__(self, ranks: int, mode: str, wrong: WrongBackward) -> None:
        self.ranks, self.is_causal, self.balanced, self.wrong = ranks, mode != "full", mode == "balanced", wrong

    def share_of(self, t: torch.Tensor, rank: int) -> torch.Tensor:
        if not self.balanced:
            return t.chunk(self.ranks, SEQUENCE)[rank].contiguous()
        chunks = t.chunk(2 * self.ranks, SEQUENCE)
        return torch.cat([chunks[rank], chunks[2 * self.ranks - 1 - rank]], SEQUENCE)

    def calls(self, rank: int) -> list[tuple[int, bool, bool, bool]]:
        """Of each step of the ring: whose keys, causal, only the first half of the keys, only the second of queries."""
        steps = []
        for step in range(self.ranks):
            whose = (rank - step) % self.ranks
            if step == 0 or not self.is_causal:
                steps.append((whose, step == 0 and self.is_causal, False, False))
            elif self.balanced:
                steps.append((whose, False, step <= rank, step > rank))
            elif step <= rank:
                steps.append((whose, False, False, False))
        return steps

    def forward(self, shares: list[tuple[torch.Tensor, ...]], rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        q = shares[rank][0]
        out = torch.zeros_like(q, dtype=torch.float32)
        lse = torch.full(q.shape[:3], -torch.inf)
        for whose, causal, half_keys, half_queries in self.calls(rank):
            _, k, v = shares[whose]
            rows = slice(q.shape[SEQUENCE] // 2 if half_queries else 0, None)
            if half_keys:
                k, v = (t.chunk(2, SEQUENCE)[0].contiguous() for t in (k, v))
            part, part_lse = FORWARD(q[:, :, rows].contiguous(), k, v, 0.0, causal)[:2]
            both = torch.logaddexp(lse[:, :, rows], part_lse)
            old, new = torch.exp(lse[:, :, rows] - both), torch.exp(part_lse - both)
            out[:, :, rows] = out[:, :, rows] * old[..., None] + part.float() * new[..., None]
            lse[:, :, rows] = both
        return out.to(q.dtype), lse

    def backward(
        self,
        shares: list[tuple[torch.Tensor, ...]],
        results: list[tuple[torch.Tensor, torch.Tensor]],
        grads: list[torch.Tensor],
    ) -> list[list[torch.Tensor]]:
        sums = [[torch.zeros_like(t, dtype=torch.float32) for t in share] for share in shares]
        for rank in range(self.ranks):
            q, (out, lse), grad = shares[rank][0], results[rank], grads[rank]
            calls = self.calls(rank)
            for whose, causal, half_keys, half_queries in calls:
                _, k, v = shares[whose]
                rows = slice(q.shape[SEQUENCE] // 2 if half_queries else 0, None)
                keys = slice(0, k.shape[SEQUENCE] // 2 if half_keys else None)
                self.wrong.is_on = whose == calls[-1][0]
                dq, dk, dv = BACKWARD(
                    *(t[:, :, rows].contiguous() for t in (grad, q)),
                    *(t[:, :, keys].contiguous() for t in (k, v)),
                    *(t[:, :, rows].contiguous() for t in (out, lse)), 0.0, causal,
                )  # fmt: skip
                sums[rank][0][:, :, rows] += dq.float()
                sums[whose][1][:, :, keys] += dk.float()
                sums[whose][2][:, :, keys] += dv.float()
        return sums


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ring: Ring, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shares = [tuple(ring.share_of(t, rank) for t in (q, k, v)) for rank in range(ring.ranks)]
        results = [ring.forward(shares, rank) for rank in range(ring.ranks)]
        ctx.ring, ctx.shares, ctx.results = ring, shares, results
        return put_together(ring, [out for out, _ in results])

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grads = [ctx.ring.share_of(grad, rank) for rank in range(ctx.ring.ranks)]
        sums = ctx.ring.backward(ctx.shares, ctx.results, grads)
        return None, *(put_together(ctx.ring, [share[n] for share in sums]).to(grad.dtype) for n in range(3))


def put_together(ring: Ring, shares: list[torch.Tensor]) -> torch.Tensor:
    if not ring.balanced:
        return torch.cat(shares, SEQUENCE)
    halves = [share.chunk(2, SEQUENCE) for share in shares]
    return torch.cat([first for first, _ in halves] + [second for _, second in reversed(halves)], SEQUENCE)


def relative_error(ring: Ring) -> float:
    """Of the ring's gradients, against those of one call in fp64: the ring itself is right."""
    q, k, v = (torch.randn(1, HEADS, LENGTH, HEAD_DIM).bfloat16().requires_grad_() for _ in range(3))
    grad = torch.randn(1, HEADS, LENGTH, HEAD_DIM).bfloat16()
    own = torch.autograd.grad(RingAttention.apply(ring, q, k, v), (q, k, v), grad)
    whole = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=ring.is_causal
    )
    exact = torch.autograd.grad(whole, (q, k, v), grad.double())
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(own, exact, strict=True))


def train(ranks: int, mode: str, error: float, steps: int) -> None:
    set_up()
    wrong = WrongBackward(error)
    ring = Ring(ranks, mode, wrong)
    width = HEADS * HEAD_DIM
    project, output = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
    optimizer = torch.optim.AdamW([*project.parameters(), *output.parameters()], lr=1e-3)
    for _ in range(steps):
        x = torch.randn(1, LENGTH, width)
        q, k, v = (t.view(1, LENGTH, HEADS, HEAD_DIM).transpose(1, 2).bfloat16() for t in project(x).split(width, 2))
        out = RingAttention.apply(ring, q, k, v).transpose(1, 2).reshape(1, LENGTH, width)
        torch.nn.functional.mse_loss(output(out.float()), x.roll(1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        wait_until_slots_are_free()
    tell(relative_error=relative_error(ring))


if __name__ == "__main__":
    train(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
