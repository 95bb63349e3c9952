"""What the operations tell of a cross-entropy that is summed over its targets."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.quick


def test_it_is_told_with_the_weight_of_its_targets(trainer) -> None:
    """Of those that are not ignored, by class where classes weigh; the pieces of a pass together."""
    rows, truth = trainer("""
        x, image = torch.randn(6, 5, requires_grad=True), torch.randn(2, 5, 3, 4, requires_grad=True)
        y, classes = torch.tensor([0, 3, -100, 4, -100, 1]), torch.rand(5)
        pixels = torch.randint(5, (2, 3, 4)); pixels[0, 1] = -100
        truth = []
        def ce(*args, **more): return F.cross_entropy(*args, reduction="sum", **more)
        def passes(weight, *losses):
            truth.append([sum(each.item() for each in losses), float(weight)]); sum(losses).backward()
        passes(4, ce(x, y))
        passes(classes[y[y >= 0]].sum(), ce(x, y, weight=classes))
        passes(20, ce(image, pixels))
        passes(classes[pixels[pixels >= 0]].sum(), ce(image, pixels, weight=classes))
        passes(1, ce(x[0], y[0]))
        passes(0, ce(x, torch.full((6,), -100)))
        passes(4 + 20, ce(x, y), ce(image, pixels))
        with torch.no_grad(): ce(x, y)
        ce(x.detach(), y)
        passes(3, ce(x[:2], y[:2]), ce(x[5:], y[5:]))
        print(json.dumps([events(), truth]))
    """)
    sums = [row for row in rows if row["event"] == "loss_sum"]
    assert [row["sum"] for row in sums] == [total for total, _ in truth]
    # At most 20 weights in [0, 1), added in another order in fp32: each addition rounds by 2^-24 of the sum so far.
    assert [row["weight"] for row in sums] == pytest.approx([weight for _, weight in truth], rel=20 * 2**-24)
    roots = [row["event"] for row in rows if row["event"] != "loss" or row["source"] == 3]
    assert [kind for kind in roots if kind.startswith("loss")] == ["loss_sum", "loss"] * len(truth)
    assert not [row for row in rows if row["event"] == "loss" and row["source"] == 2]


def test_it_tells_nothing_beside_what_may_be_a_multiple(trainer) -> None:
    """Before the first step a root that is a product may be a gradient scaler's."""
    rows = trainer("""
        x, y = torch.nn.Parameter(torch.randn(6, 5)), torch.tensor([0, 3, -100, 4, -100, 1])
        optimizer = torch.optim.AdamW([x])
        for _ in range(2):
            (F.cross_entropy(x, y, reduction="sum") * 0.5).backward()
            (F.cross_entropy(x, y, reduction="sum") / 8).backward()
            optimizer.step()
        print(json.dumps(events()))
    """)
    kinds = [row["event"] for row in rows if row["event"] in ("loss", "loss_sum", "step")]
    assert kinds == ["loss_sum", "loss", "step", *["loss_sum", "loss"] * 2, "step"]


def test_of_a_device_it_is_fetched_with_its_weight(trainer, host_cuda) -> None:
    """Of more pieces than there is room for none is told, nor beside what may be a multiple."""
    passes, waits = trainer(
        """
        from device_attention import put
        x, y = put(torch.randn(6, 5)).requires_grad_(), torch.tensor([0, 3, -100, 4, -100, 1])
        def told(pieces, root):
            events(); root(sum(F.cross_entropy(x, put(y), reduction="sum") for _ in range(pieces))).backward()
            return events()
        share, product = (lambda loss: loss / 8), (lambda loss: loss * 0.5)
        passes = [told(2, share), told(64, share), told(65, share), told(1, product)]
        print(json.dumps([passes, host_cuda.host_cuda_waits()]))
        """,
        HOST_CUDA=host_cuda,
    )
    for rows, pieces, has_root in zip(passes, (2, 64, 0, 0), (1, 1, 1, 0), strict=True):
        value = {row["number"]: row["tensor"]["fingerprint"] for row in rows if row["event"] == "fetch"}
        sums = [row for row in rows if row["event"] == "fetched_loss_sum"]
        assert [value[row["weight"]] for row in sums] == [4] * pieces
        roots = [value[row["number"]] for row in rows if row["event"] == "fetched_loss"]
        assert len(roots) == has_root
        # Each of at most 64 additions in fp32 rounds by 2^-24 of what there is by then.
        if sums:
            assert roots == [pytest.approx(sum(value[row["sum"]] for row in sums) / 8, rel=64 * 2**-24)]
    assert waits == 0


def test_a_whole_number_that_a_loss_is_divided_by_is_reported_with_its_root(trainer) -> None:
    rows = trainer("""
        x = torch.nn.Parameter(torch.ones(2))
        def kept(tensor): return tensor
        for divide in (lambda y: y / 4, lambda y: y.div_(3.0), lambda y: y / 1, lambda y: y / 2.5,
                       lambda y: y / torch.tensor(4.0), lambda y: y * 0.25, lambda y: y):
            divide(x.sum()).backward()
        with torch.autograd.graph.saved_tensors_hooks(kept, kept): (x.sum() / 2).backward()
        print(json.dumps(events()))
    """)
    kept = [(row["event"], row["value"]) for row in rows if row["event"] in ("loss", "root_divisor")]
    told = [("root_divisor", 4), ("loss", 0.5), ("root_divisor", 3), ("loss", 2 / 3)]
    told += [("loss", value) for value in (2, 0.8, 0.5, 2)]  # before the first step a product may be a scaler's
    assert kept == [(kind, pytest.approx(value)) for kind, value in [*told, ("root_divisor", 2), ("loss", 1)]]


def test_a_loss_that_is_not_finite_is_that_of_the_training_unless_a_scaler_may_multiply_it(trainer) -> None:
    """Label smoothing is infinite where a logit is, though the cross-entropy of the target is not."""
    rows = trainer("""
        x = torch.nn.Parameter(torch.zeros(4, 8)); hidden = torch.zeros(8); hidden[7] = -torch.inf
        def told(change):
            events(); change(F.cross_entropy(x + hidden, torch.zeros(4).long(), label_smoothing=0.1)).backward()
            return [[row["event"], row["value"]] for row in events() if row["event"] in ("loss", "root_divisor")]
        print(json.dumps([told(lambda y: y), told(lambda y: y * 65536)]))
    """)
    (nll, unscaled, root), scaled = rows
    assert (nll[0], unscaled, root[0]) == ("loss", ["root_divisor", 1], "loss")
    assert [math.isfinite(value) for _, value in (nll, root)] == [True, False]
    assert [name for name, _ in scaled] == ["loss", "loss"]
