"""Rule 1, the part about caches: torch.compile finds the same keys with and without the monitor, and what was cached
under it works without it. That the bits are the same is shown case by case in tests/e2e/test_same_bits.py."""

import json
import pathlib
import textwrap

import monitored
import pytest

pytestmark = pytest.mark.long

TRAINING = textwrap.dedent("""
    import sys
    sys.path.insert(0, {support!r})
    import torch
    from tiny_gpt import Batches, TinyGpt, fingerprint, loss_of, set_up, tell

    set_up()
    model, batches = TinyGpt(layers=1), Batches()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        loss = loss_of(compiled, batches())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    counters = torch._dynamo.utils.counters
    tell(
        digest=fingerprint(losses, model),
        graphs=[counters["inductor"]["fxgraph_cache_" + what] for what in ("hit", "miss", "bypass")],
        autograd=[counters["aot_autograd"]["autograd_cache_" + what] for what in ("hit", "miss", "bypass")],
    )
""").format(support=str(monitored.ROOT / "tests" / "support"))


def keys(cache: pathlib.Path) -> set[str]:
    """Names of the cached graphs: their keys."""
    return {
        f"{kind}/{entry.name}"
        for kind in ("fxgraph", "aotautograd")
        for entry in (*cache.glob(f"{kind}/*"), *cache.glob(f"{kind}/*/*"))
        if entry.is_dir()
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, dict]:
    """Four trainings: alone and watched with an empty cache each, then each with the other's."""
    folder = tmp_path_factory.mktemp("caches")
    (folder / "train.py").write_text(TRAINING)
    command, facts = [monitored.PYTHON, str(folder / "train.py")], {}
    for name, cache, watched in (
        ("alone", "a", False), ("watched", "b", True), ("alone_after_watched", "b", False),
        ("watched_after_alone", "a", True),
    ):  # fmt: skip
        more = {"TORCHINDUCTOR_CACHE_DIR": str(folder / cache)}
        run = monitored.run_monitored(command, *monitored.EVERYTHING, timeout=600, **more) if watched else (
            monitored.run_plain(command, timeout=600, **more)
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        facts[name] = json.loads(run.stdout) | {"keys": keys(folder / cache), "run": run}
    return facts


def test_the_watched_runs_were_watched(runs):
    for name in ("watched", "watched_after_alone"):
        rank = runs[name]["run"].rank()
        monitored.assert_conserved(rank)
        assert rank["attention"]["forward"]["calls"] == 4
        assert rank["attention"]["backward"]["judged"] > 0


def test_equal_keys(runs):
    assert runs["alone"]["keys"]
    assert runs["watched"]["keys"] == runs["alone"]["keys"]


def test_an_empty_cache_is_filled_and_a_full_one_used(runs):
    for name in ("alone", "watched"):
        assert runs[name]["graphs"][0] + runs[name]["autograd"][0] == 0
        assert runs[name]["autograd"][1:] == [1, 0]
    for name in ("alone_after_watched", "watched_after_alone"):
        assert runs[name]["autograd"] == [1, 0, 0]


def test_what_was_cached_under_us_works_without_us_to_the_last_bit(runs):
    assert len({facts["digest"] for facts in runs.values()}) == 1
