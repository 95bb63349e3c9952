"""What looks at gradients report: the contributions of the backward passes, and the gradient that is used."""

import textwrap
from zlib import crc32

import pytest

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("adapters")]

# mark() is the sketch that the fake core computes. step(n) trains with `passes` backward passes.
MODEL = """
set_looks((2, 3, 5, 9, 17, 33))
_fake.fake_sample(0)
def mark(t): return float((t.detach().double().flatten() * torch.arange(1, t.numel() + 1)).sum())
model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LayerNorm(4))
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(parameters, lr=0.125)
seen = {}
def forward(): return model(torch.randn(5, 6)).square().mean()
"""


def test_a_look_has_the_sum_of_the_passes_the_last_one_and_the_gradient_that_is_used(trainer):
    told = trainer(
        MODEL
        + textwrap.dedent("""
        made = {}
        for number in range(1, 7):
            events()
            before = [mark(p.grad) if p.grad is not None else 0 for p in parameters]
            sums, last = [0.0] * 4, []
            for _ in range(3):
                loss = forward()
                last = [mark(g) for g in torch.autograd.grad(loss, parameters, retain_graph=True)]
                sums = [a + b for a, b in zip(sums, last)]
                loss.backward()
            parameters[1].grad.mul_(2)
            optimizer.step()
            used = [mark(p.grad) for p in parameters]
            made[number] = dict(looks=events("look"), sums=sums, last=last, before=before, used=used)
            if number != 4:  # before the look at step 5
                optimizer.zero_grad()
        print(json.dumps(made))
        """)
    )
    assert [number for number, step in told.items() if step["looks"]] == ["2", "3", "5"]
    for number in ("2", "3", "5"):
        step = told[number]
        rows = sorted(step["looks"], key=lambda row: row["number"])
        assert [row["number"] for row in rows] == [0, 1, 2, 3]
        assert {(row["parameters"], row["contributions"], row["whole"]) for row in rows} == {(4, 3, 1)}
        assert len({row["seed"] for row in rows}) == 4
        for key, made in (("local", "sums"), ("last", "last"), ("used", "used")):
            assert [row[key] for row in rows] == pytest.approx(step[made], rel=1e-5, abs=1e-6), (number, key)
        # The gradient before the look is read before zero_grad(), which did not clear the one of step 4.
        left = told[str(int(number) - 1)]["used"]
        assert [row["before"] for row in rows] == pytest.approx(left, rel=1e-5, abs=1e-6)
    assert [row for row in told["5"]["before"] if row] == pytest.approx(told["4"]["used"], rel=1e-5)


def test_a_look_leaves_nothing_at_the_parameters(trainer):
    told = trainer(
        MODEL
        + textwrap.dedent("""
        import copy
        found = []
        for number in range(1, 4):
            forward().backward()
            copied = copy.deepcopy(model)
            both = [*parameters, *copied.parameters()]
            found.append([not (p._backward_hooks or p.__dict__) for p in both])
            nodes = [torch.autograd.graph.get_gradient_edge(p).node for p in parameters]
            found.append([not n.metadata for n in nodes])
            del nodes
            optimizer.step()
            optimizer.zero_grad()
        print(json.dumps(dict(found=found, references=[p._use_count() for p in parameters], looks=len(events("look")))))
        """)
    )
    assert told["looks"] == 8
    assert all(all(row) for row in told["found"])
    assert told["references"] == [1] * 4  # after the last look


def test_compiled_autograd_runs_and_the_look_is_not_whole(trainer):
    told = trainer(
        MODEL
        + textwrap.dedent("""
        from torch._dynamo import compiled_autograd
        enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable
        for number in range(1, 4):
            loss = forward()
            with enable(torch.compile(backend="eager", dynamic=False)):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(json.dumps(events("look")))
        """)
    )
    assert told
    assert {row["whole"] for row in told} == {0}


def test_shards_of_fsdp2_have_the_contributions_to_the_whole_and_the_gradient_of_the_part(trainer):
    told = trainer(
        MODEL
        + textwrap.dedent("""
        from torch.distributed.fsdp import fully_shard
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model = fully_shard(torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LayerNorm(4)), mesh=mesh)
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=0.125)
        made = []
        for number in range(1, 4):
            events()
            for _ in range(2): forward().backward()
            parameters[1].grad.mul_(2)
            optimizer.step()
            rows = sorted(events("look"), key=lambda row: row["number"])
            made.append(dict(looks=rows, used=[mark(p.grad.to_local()) for p in parameters]))
            optimizer.zero_grad()
        print(json.dumps(made))
        """)
    )
    for step in told[1:]:  # the first one has no look
        rows = step["looks"]
        assert {(row["contributions"], row["whole"], row["mesh"]) for row in rows} == {(2, 1, 1)}
        assert [row["part"] for row in rows] == [[0, 24], [0, 4], [0, 4], [0, 4]]
        assert [row["used"] for row in rows] == pytest.approx(step["used"], rel=1e-5, abs=1e-6)
        factors = [1, 2, 1, 1]
        local = [row["local"] * factor for row, factor in zip(rows, factors, strict=True)]
        assert local == pytest.approx(step["used"], rel=1e-5, abs=1e-6)


def test_distributed_tensors_have_the_number_of_the_ranks_that_share_them(trainer):
    told = trainer(
        MODEL
        + textwrap.dedent("""
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        from torch.testing._internal.distributed.fake_pg import FakeStore
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
        mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        both = [Shard(1), Replicate()]
        placed = [(mesh, both), (mesh["dp"], [Shard(1)]), (mesh["tp"], [Shard(1)]), (mesh["tp"], [Replicate()])]
        parameters = [torch.nn.Parameter(distribute_tensor(torch.ones(4, 6), *each)) for each in placed]
        optimizer = torch.optim.AdamW(parameters, lr=0.125)
        for number in range(1, 3):
            events()
            sum(p.to_local().square().sum() for p in parameters).backward()
            optimizer.step()
            rows = sorted(events("look"), key=lambda row: row["number"])
            used = [mark(p.grad.to_local()) for p in parameters]
            optimizer.zero_grad()
        torch.distributed.destroy_process_group()
        print(json.dumps(dict(rows=rows, used=used)))
        """)
    )
    meshes = [row["mesh"] for row in told["rows"]]
    assert meshes == [1, *(crc32(ranks) | 2 for ranks in (b"[0, 2]", b"[2, 3]", b"[2, 3]"))]
    # Parts that are sharded in another dimension than the first are read as tensors of their own.
    assert [row["part"] for row in told["rows"]] == [[0, 0], [0, 0], [0, 0], [0, 24]]
    assert [row["used"] for row in told["rows"]] == pytest.approx(told["used"], rel=1e-5)


def test_a_parameter_in_fp64_is_left_out(trainer):
    told = trainer(
        MODEL
        + textwrap.dedent("""
        shift = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        optimizer = torch.optim.AdamW([*parameters, shift], lr=0.125)
        for number in range(1, 4):
            (forward() + shift.square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        print(json.dumps(events("look")))
        """)
    )
    assert [row["parameters"] for row in told] == [4] * 8


@pytest.mark.parametrize(
    ("more", "looks"),
    [
        ("", [2, 3]),
        # Sharpness-aware minimization: the parameters change between two passes, and only the second one counts.
        ("with torch.no_grad(): [p.add_(1e-3) for p in parameters]", []),
        # A gradient scaler has skipped the optimizer's step.
        ("scaler.update(); optimizer.zero_grad(); forward().backward()", []),
    ],
)
def test_steps_that_use_other_gradients_on_purpose_have_no_whole_look(trainer, more, looks):
    told = trainer(
        MODEL
        + textwrap.dedent(f"""
        class Scaler:
            def update(self): torch._amp_update_scale_(torch.ones(1), torch.zeros(1, dtype=torch.int32),
                                                        torch.ones(1), 2.0, 0.5, 100)
        scaler = Scaler()
        whole = []
        for number in range(1, 4):
            events()
            forward().backward()
            {more}
            forward().backward()
            optimizer.step()
            optimizer.zero_grad()
            rows = events("look")
            if rows and all(row["whole"] for row in rows): whole.append(number)
        print(json.dumps(whole))
        """)
    )
    assert told == looks


def test_two_optimizers_with_own_passes_have_no_looks(trainer):
    told = trainer(
        MODEL
        + textwrap.dedent("""
        other = torch.nn.Linear(6, 4)
        second = torch.optim.AdamW(other.parameters())
        for number in range(1, 4):
            forward().backward()
            optimizer.step()
            optimizer.zero_grad()
            other(torch.randn(2, 6)).sum().backward()
            second.step()
            second.zero_grad()
        print(json.dumps(len(events("look"))))
        """)
    )
    assert told == 0


def test_steps_of_later_looks_are_the_same_on_all_ranks():
    import pathlib
    import sys

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
    from foreshock_torch.looks import DISTANCE, FIRST, INTERVAL, READ_OF_ALL, GradientLooks, portions
    from foreshock_torch.weights import Watchable

    def ticks(stride: int) -> set[int]:
        looks = GradientLooks(None, None, list, 0.001)
        looks._stride = stride
        found, tick = set(), 0
        while (tick := looks.next_tick(tick)) < 40 * INTERVAL:
            found.add(tick)
        return found

    every, second = ticks(1), ticks(2)
    assert set(FIRST) < second < every
    later = sorted(every - set(FIRST))
    assert len(later) == 2 * 39
    pairs = list(zip(later[::2], later[1::2], strict=True))
    assert all(b - a == DISTANCE and a // INTERVAL == b // INTERVAL for a, b in pairs)  # the same parameters
    assert len({tick % INTERVAL for tick in every}) > 20  # jittered
    rows = [Watchable(n, n, 5000) for n in range(200)]
    made = portions(rows)
    assert [row for portion in made for row in portion] == rows
    assert all(sum(row.elements for row in portion) <= READ_OF_ALL for portion in made)
