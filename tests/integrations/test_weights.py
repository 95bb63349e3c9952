"""The tensors of a model as the helper shows them to the core around an optimizer's step."""

import pytest

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("adapters")]

TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LayerNorm(4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.125, betas=(0.5, 0.75), eps=0.5, weight_decay=0.25{more})
for _ in range(3):
    events()
    model(torch.randn(5, 6)).square().mean().backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    seen = events("weight")
    grads = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
def mark(t): return float((t.double().flatten() * torch.arange(1, t.numel() + 1)).sum())
state = [optimizer.state[p] for p in model.parameters()]
def marks(ts): return [mark(t) for t in ts]
print(json.dumps(dict(seen=seen, before=marks(before), after=marks([p.detach() for p in model.parameters()]),
                      grads=marks(grads), average=marks([s["exp_avg"] for s in state]),
                      square=marks([s["exp_avg_sq"] for s in state]))))
"""


@pytest.mark.parametrize("more", ["", ", foreach=True", ", foreach=False", ", fused=True"])
def test_values_before_and_after_the_step_with_the_state_of_adam(trainer, more):
    told = trainer(TRAINING.replace("{more}", more))
    for when, values in ((0, told["before"]), (1, told["after"])):
        rows = sorted((row for row in told["seen"] if row["when"] == when), key=lambda row: row["number"])
        assert [row["number"] for row in rows] == [0, 1, 2, 3]
        assert [row["parameter"]["fingerprint"] for row in rows] == pytest.approx(values)
        assert [row["gradient"]["fingerprint"] for row in rows] == pytest.approx(told["grads"])
        assert {(row["lr"], row["beta1"], row["beta2"], row["eps"], row["decay"]) for row in rows} == {
            (0.125, 0.5, 0.75, 0.5, 0.25)
        }
        assert {row["step"] for row in rows} == {2 + when}
        if when == 1:
            assert [row["average"]["fingerprint"] for row in rows] == pytest.approx(told["average"])
            assert [row["square_average"]["fingerprint"] for row in rows] == pytest.approx(told["square"])


def test_an_optimizer_without_state_has_parameters_and_gradients(trainer):
    told = trainer(
        """
        layer = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        for _ in range(2):
            events()
            layer(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        print(json.dumps([row for row in events("weight") if row["when"] == 1]))
        """
    )
    assert [row["parameter"]["shape"][:2] for row in told] == [[2, 3], [2, 1]]
    assert all(row["average"] is None for row in told)
    assert all(row["step"] == -1 for row in told)


def test_dimensions_of_one_element_may_have_any_stride(trainer):
    """The last of five dimensions are shown as one. In channels_last_3d those of length 1 have the stride 8."""
    told = trainer(
        """
        layer = torch.nn.Conv3d(8, 2, 1).to(memory_format=torch.channels_last_3d)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        for _ in range(2):
            events()
            layer(torch.ones(1, 8, 2, 2, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert layer.weight.stride() == (8, 1, 8, 8, 8)
        print(json.dumps([row for row in events("weight") if row["when"] == 1]))
        """
    )
    assert [row["parameter"]["shape"] for row in told] == [[2, 8, 1, 1], [2, 1, 1, 1]]


TWO = """
first, second = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)
one = torch.optim.SGD(first.parameters(), lr=0.5)
other = torch.optim.AdamW(second.parameters(), lr=0.125)
def mark(t): return float((t.detach().double().flatten() * torch.arange(1, t.numel() + 1)).sum())
def marks(): return [mark(p) for m in (first, second) for p in m.parameters()]
for _ in range(4):
    events()
    second(first(torch.randn(5, 6))).square().mean().backward()
    before = marks()
    one.step()
    other.step()
    after = marks()
    seen = [row for row in events() if row["event"] in ("weight", "step")]
    grads = [mark(p.grad) for m in (first, second) for p in m.parameters()]
    steps = [float(other.state[p]["step"]) for p in second.parameters()]
    first.zero_grad(), second.zero_grad()
print(json.dumps(dict(seen=seen, before=before, after=after, grads=grads, steps=steps)))
"""


def test_of_two_optimizers_each_is_looked_at_around_its_own_step(trainer):
    told = trainer(TWO)
    order = [(row["event"], row.get("number"), row.get("when")) for row in told["seen"]]
    assert order == [
        *(("weight", n, 0) for n in (0, 1)),
        *(("weight", n, 1) for n in (0, 1)),
        ("step", None, None),
        *(("weight", n, 2) for n in (2, 3)),  # of the step that has just been told
        *(("weight", n, 3) for n in (2, 3)),
    ]
    rows = [row for row in told["seen"] if row["event"] == "weight"]
    for row in rows:
        values = told["after" if row["when"] & 1 else "before"]
        assert row["parameter"]["fingerprint"] == pytest.approx(values[row["number"]])
        assert row["gradient"]["fingerprint"] == pytest.approx(told["grads"][row["number"]])
    assert [row["step"] for row in rows if row["when"] == 3] == told["steps"]


def test_a_step_left_out_shows_nothing_of_the_optimizers_after_it(trainer):
    seen = trainer(
        """
        first, second = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)
        one = torch.optim.AdamW(first.parameters(), fused=True)
        other = torch.optim.AdamW(second.parameters())
        for n in range(4):
            events()
            second(first(torch.randn(5, 6))).square().mean().backward()
            one.found_inf = torch.tensor(float(n == 3))
            one.grad_scale = torch.tensor(1.0)
            one.step()
            other.step()
        print(json.dumps([row["when"] for row in events("weight")]))
        """
    )
    assert seen == [0, 0], "what stood before the step that was not taken"


@pytest.mark.parametrize(
    ("optimizer", "is_shown"),
    [
        ("AdamW(p, weight_decay=0.1)", True),
        ("Adam(p)", True),
        ("Adam(p, weight_decay=0.1)", False),  # it adds the decay to the gradient, and squares the sum
        ("NAdam(p, weight_decay=0.1, decoupled_weight_decay=True)", True),
        ("NAdam(p, weight_decay=0.1)", False),
    ],
)
def test_the_second_moment_is_shown_where_it_is_the_gradient_s(trainer, optimizer, is_shown):
    rows = trainer(
        f"""
        layer = torch.nn.Linear(3, 2)
        p = list(layer.parameters())
        optimizer = torch.optim.{optimizer}
        for _ in range(3):
            events()
            layer(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        print(json.dumps([row for row in events("weight") if row["when"] == 1]))
        """
    )
    assert len(rows) == 2
    assert [row["square_average"] is not None for row in rows] == [is_shown] * 2
    assert all(row["average"] is not None for row in rows)


FREED = """
flat = torch.ones(1 << 16)
layer = torch.nn.Linear(8, 8)
layer.view = torch.nn.Parameter(flat[1 << 15:])
layer.deep = torch.nn.Parameter(flat[:1 << 15].view(2, 2, 2, 2, -1))
optimizer = torch.optim.SGD(layer.parameters())
for n in range(3):
    layer(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    if n == 0: flat.untyped_storage().resize_({bytes})
events()
layer(torch.ones(1, 8)).sum().backward()
optimizer.step()
print(json.dumps([(row["number"], row["parameter"] is None) for row in events("weight") if row["when"] == 1]))
"""


@pytest.mark.parametrize("left", [0, 1 << 17])  # bytes of 1 << 18; those of `view` are gone
def test_a_parameter_whose_memory_was_taken_away_is_not_read(trainer, left):
    seen = dict(trainer(FREED.format(bytes=left)))
    gone = [number for number, is_gone in sorted(seen.items()) if is_gone]
    assert len(seen) == 4
    assert gone == ([2, 3] if left == 0 else [2])


def test_a_parameter_of_an_optimizer_and_its_wrapper_counts_once(trainer):
    """Around the step of the inner one, which the wrapper that subclasses Optimizer calls."""
    told = trainer(
        """
        class Lookahead(torch.optim.Optimizer):
            def __init__(self, base): super().__init__(base.param_groups, {}); self.base = base
            def step(self, closure=None): self.base.step()
        net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        optimizer = Lookahead(torch.optim.SGD(net.parameters(), lr=0.5))
        for _ in range(5):
            named = events("weight_name") + (named if _ else [])
            net(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        rows = events("weight")
        print(json.dumps([[row["name"] for row in named[:4]], len(named), [(r["when"], r["number"]) for r in rows]]))
        """
    )
    assert told[0] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert told[1] in (4, 8), "named again when the one that steps is known"
    assert told[2] == [[when, number] for when in (0, 1) for number in range(4)]


def test_what_cannot_be_read_of_one_tensor_leaves_the_others(trainer):
    seen = trainer(
        """
        class Odd(dict):
            def get(self, key, default=None): raise RuntimeError("no state like that")
        net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        optimizer = torch.optim.AdamW(net.parameters())
        for n in range(4):
            events()
            net(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            if n == 1: optimizer.state[net[0].weight] = Odd(optimizer.state[net[0].weight])
        print(json.dumps([(r["event"], r.get("number"), r.get("reason")) for r in events() if r["event"] in
                          ("weight", "off") and r.get("when") != 0]))
        """
    )
    assert seen == [["weight", n, None] for n in (1, 2, 3)]


RANKS = """
import os
rank = 0 if os.fork() else 1
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, debugging_hooks
dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=2)
DDP, how = nn.parallel.DistributedDataParallel, os.environ["HOW"]
class Net(nn.Module):
    def __init__(self): super().__init__(); self.body, self.expert = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x): return self.expert(self.body(x))
inner = Net()
if how == "ignored": DDP._set_params_and_buffers_to_ignore_for_model(inner, ["expert.weight", "expert.bias"])
net = inner if how == "plain" else DDP(inner)
if how == "faithful": net.register_comm_hook(None, default_hooks.fp16_compress_hook)
if how == "hook": net.register_comm_hook(None, debugging_hooks.noop_hook)
head = nn.Linear(4, 2)          # sharded by hand
flat = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([*net.parameters(), *head.parameters(), flat])
for _ in range(2):
    (head(net(torch.ones(1, 4))).sum() + flat.sum()).backward()
    optimizer.step()
rows = events("weight_name")[-7:]
found = [None] * 2
dist.all_gather_object(found, [row["name"] for row in rows])
del net, optimizer
from tiny_gpt import leave_group
leave_group()
if rank: os._exit(0)
os.wait()
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("how", "equal"),
    [("ddp", 4), ("faithful", 4), ("ignored", 2), ("hook", 0), ("plain", 0)],
)
def test_only_what_a_framework_keeps_equal_has_one_name_on_all_ranks(trainer, tmp_path, how, equal):
    names = trainer(RANKS, HOW=how, MEETING=str(tmp_path / "meeting"))
    kept = ["body.weight", "body.bias", "expert.weight", "expert.bias"]
    for rank in (0, 1):
        own = [f"rank{rank}.{name}" for name in (*kept[equal:], "weight", "bias", "parameters.6")]
        if how == "hook":  # its ranks may drift apart and meet again
            own[: len(kept)] = [f"local{rank}.{name}" for name in kept]
        assert sorted(names[rank]) == sorted([*kept[:equal], *own])


def test_names_shapes_and_layers(trainer):
    rows = trainer(
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 3) for _ in range(2)])
                self.kernel = torch.nn.Parameter(torch.zeros(2, 3, 4, 5, 6))
                self.scale = torch.nn.Parameter(torch.tensor(1.0))
            def forward(self, x):
                return sum(b(x).sum() for b in self.blocks) * self.scale + self.kernel.sum()
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(2):
            net(torch.ones(1, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
        print(json.dumps(events("weight_name")))
        """
    )
    named = {row["name"]: row for row in rows}
    assert set(named) == {"kernel", "scale", *(f"blocks.{n}.{kind}" for n in (0, 1) for kind in ("weight", "bias"))}
    assert named["blocks.1.weight"]["layer"] == "001"
    assert named["blocks.1.weight"]["shape"] == named["blocks.1.weight"]["part"] == [3, 4]
    assert named["kernel"]["dims"] == 4
    assert named["scale"]["dims"] == 0
    assert all(row["offset"] == [0, 0] for row in rows)


def test_names_that_found_another_thread_in_the_way_are_told_again(trainer):
    told = trainer(
        """
        _fake.fake_names_busy(2)
        layer = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        for _ in range(4):
            layer(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        print(json.dumps([row["event"] for row in events() if row["event"].startswith("weight")]))
        """
    )
    assert told == [*["weight_name"] * 2, *["weight"] * 2 * 2 * 2], "once, then two steps of two tensors"
