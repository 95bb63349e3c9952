"""Which of a model's parameters are followed, and what is said of the others."""

import pytest

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("adapters")]

GAN = """
def half(): return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
judge, artist = half(), torch.nn.Linear(2, 4)
one, other = torch.optim.SGD(judge.parameters(), lr=0.5), torch.optim.AdamW(artist.parameters(), lr=0.5)
rows = []
for n in range(12):
    judge(torch.ones(1, 4)).sum().backward()
    one.step(), one.zero_grad()
    if n % {every} == 0:
        other.zero_grad()
        judge(artist(torch.ones(1, 2))).sum().backward()
        before = [float(p.detach().double().sum()) for p in artist.parameters()]
        other.step()
        one.zero_grad()
    rows = events()
    named = [row for row in rows if row["event"] == "weight_name"] or named
print(json.dumps([[(r["name"], r["unfollowed"]) for r in named], [(r["when"], r["number"]) for r in rows
                  if r["event"] == "weight"], [r["identity"] for r in rows if r["event"] == "gradient"]]))
"""
JUDGE = ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_both_halves_of_a_gan_are_followed(trainer):
    named, seen, gradients = trainer(GAN.replace("{every}", "1"))
    assert named == [[name, 0] for name in (*JUDGE, "weight", "bias")]
    assert seen == [[when, n] for whens, ns in (((0, 1), range(4)), ((2, 3), (4, 5))) for when in whens for n in ns]
    assert len(gradients) in (0, 4), "the other half's are of another backward pass"


def test_what_is_followed_keeps_its_name_when_another_model_joins(trainer):
    """Two models of one class have the same names, which the later ones are told apart by."""
    told = trainer(
        """
        def half(): return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        first, second = half(), half()
        one, other = (torch.optim.SGD(each.parameters(), lr=0.5) for each in (first, second))
        called = []
        for n in range(12):
            first(torch.ones(1, 4)).sum().backward()
            one.step(), one.zero_grad()
            second(first(torch.ones(1, 4))).sum().backward()
            other.step(), other.zero_grad(), one.zero_grad()
            rows = [[row["name"], row["layer"]] for row in events("weight_name")]
            if rows: called.append(rows)
        print(json.dumps(called))
        """
    )
    first = [[f"{n}.{leaf}", f"00{n}"] for n in (0, 1) for leaf in ("weight", "bias")]
    followed = [[row for row in rows if not row[0].startswith("parameters.")] for rows in told]
    assert followed[0] == first
    assert followed[-1] == [*first, *([f"Sequential_1.{name}", f"Sequential_1.{layer}"] for name, layer in first)]
    assert all(rows[:4] == first for rows in followed)


def test_an_optimizer_at_a_pace_of_its_own_is_said_to_be_left_alone(trainer):
    named, seen, _ = trainer(GAN.replace("{every}", "3"))
    assert named == [*([name, 0] for name in JUDGE), *(["parameters.4", 3], ["parameters.5", 3])]
    assert {number for _, number in seen} == {0, 1, 2, 3}


def test_what_cannot_be_told_apart_is_counted(trainer):
    rows = trainer(
        """
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        def shard(at): return torch.nn.Parameter(DTensor.from_local(torch.ones(2, 3, 2, 2, 2), mesh, [Shard(at)],
                                                                    run_check=False))
        net = torch.nn.Linear(3, 2)
        net.first, net.last = shard(0), shard(4)
        net.bias._is_flat_param = True
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, foreach=False)
        for _ in range(2):
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        print(json.dumps(events("weight_name")))
        """
    )
    found = {row["name"].removeprefix("rank1."): row for row in rows}
    unfollowed = {name: row["unfollowed"] for name, row in found.items()}
    assert unfollowed == {"weight": 0, "bias": 1, "first": 0, "last": 2}
    first = found["first"]
    assert (first["dims"], first["shape"], first["part"], first["offset"]) == (4, [4, 3], [2, 3], [2, 0])
