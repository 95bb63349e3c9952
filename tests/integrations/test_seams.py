"""Python functions that compute attention: calls are described by argument name, the functions stay as they are."""

from __future__ import annotations

from pathlib import Path

import engine_package
import pytest

pytestmark = pytest.mark.quick

MASK, LAYOUT, UNKNOWN = 6, 7, 10  # FORESHOCK_SKIP_... of hook.h
FLOAT32 = 2.0**-22  # stand-ins round once to fp32 what they compute in fp64; sums of a row add up

ENGINE = """
import sys; sys.path.insert(0, FOLDER)
import engine_package, inspect, pickle
from transformer_engine.pytorch import attention as engine
from transformer_engine.pytorch.cpp_extensions import fused_attn
torch.manual_seed(0)
linear = torch.nn.Linear(32, 32)
AXES = dict(b=2, s=16, h=4, d=8)
def tensor(layout, **sizes): return torch.randn([(AXES | sizes)[axis] for axis in layout])
cu = torch.tensor([0, 16, 32], dtype=torch.int32)
def call(layout="bshd_bshd_bshd", mask="causal", q=None, kv=None, back=True, is_training=True, keys=16, **more):
    of_query, of_key = engine_package.formats(layout)
    q = linear(torch.randn(2, 16, 32)).view(2, 16, 4, 8).permute(
        *("bshd".index(axis) for axis in of_query)) if not torch.is_tensor(q) else q
    k, v = kv or (tensor(of_key, h=2, s=keys), tensor(of_key, h=2, s=keys))
    same = dict(attn_scale=0.25, qkv_layout=layout, attn_mask_type=mask, **more)
    if "o_format" in inspect.signature(engine.fused_attn_fwd).parameters:  # its default is wrong for other layouts
        same = dict(o_format=of_query, do_format=of_query, dqkv_layout=layout) | same
    ahead = {name: same.pop(name) for name in ("softmax_offset", "return_max_logit", "new") if name in same}
    out, aux, *_ = engine.fused_attn_fwd(
        is_training, 16, keys, cu, cu, q, k, v, torch.float32, 1, **{k: w for k, w in same.items()
        if k not in ("do_format", "dqkv_layout")}, **ahead)
    if not back: return
    g = tensor(same.get("do_format", of_query))
    dtype = [1] if "dqkv_dtype" in inspect.signature(engine.fused_attn_bwd).parameters else []
    engine.fused_attn_bwd(16, keys, cu, cu, q, k, v, out, g, torch.float32, *dtype, aux, 1, **same)
def fingerprint(t): return (t.double().flatten() * torch.arange(1, t.numel() + 1, dtype=torch.double)).sum().item()
def calls(*more, **named):
    events(); call(*more, **named); rows = [row for row in events() if row["event"] in ("leave", "skip")]
    for row in rows[1:]: row["truth"] = [fingerprint(t) for t in engine_package.LAST]
    return rows
"""


@pytest.mark.parametrize("release", engine_package.PARAMETERS)
def test_dense_calls_of_transformer_engine_are_described(release, trainer, tmp_path) -> None:
    engine_package.write(tmp_path, release)
    layouts = ["bshd_bshd_bshd", "sbhd_sbhd_sbhd", "sbh3d", "bshd_bs2hd", "sbhd_bshd_bshd"]
    rows, layer, more = trainer(f"""FOLDER = {str(tmp_path)!r}\n{ENGINE}
rows = [calls(layout) for layout in {layouts}] + [calls(mask="no_mask", keys=24), calls(window_size=(-1, 0))]
rows += [calls(window_size=(5, 0)), calls(mask="no_mask", window_size=(3, 2))]
rows += [calls("sbhd_sbhd_sbhd", window_size=(4, -1))]
more = {{}}
if {release == "2.20.2"}:
    more["formats"] = calls("bshd_sbhd_sbhd", o_format="sbhd", do_format="sbhd", dqkv_layout="sbhd_bshd_bshd")
print(json.dumps([rows, linear.weight._cdata, more]))
""")
    for ahead, back in [*rows, *more.values()]:
        assert (ahead["event"], back["event"]) == ("leave", "leave")
        assert ahead["op"] == "foreshock::transformer_engine"
        assert back["op"] == "foreshock::transformer_engine_backward"
        assert ahead["query"]["shape"] == [2, 4, 16, 8]
        assert ahead["key"]["shape"][:2] == [2, 2]
        assert ahead["lse"]["shape"][:3] == [2, 4, 16]
        assert (ahead["layer"], ahead["scale"]) == (layer, 0.25)
        # The fake core recomputes the call, so a wrong axis, mask or scale is an error near 1.
        assert 0 <= ahead["errors"]["out"] <= FLOAT32, ahead
        assert 0 <= ahead["errors"]["lse"] <= 16 * FLOAT32
        for name, truth in zip(("grad_key", "grad_value"), back["truth"], strict=True):
            # The stand-in's fp64 numbers, rounded once to fp32: each may be wrong by 2^-24 of itself.
            assert abs(back[name]["fingerprint"] - truth) <= 1e-5 * (1 + abs(truth)), name
        assert 0 <= back["errors"]["grad_query"] <= FLOAT32
    assert [ahead["causal"] for ahead, _ in rows] == [1] * 5 + [0, 1, 1, 0, 1]
    windows = [[1, 5, 0], [2, 3, 2], [1, 4, 0]]
    assert [ahead.get("window") for ahead, _ in rows] == [None] * 7 + windows


def test_other_calls_of_transformer_engine_have_a_reason(trainer, tmp_path) -> None:
    engine_package.write(tmp_path, "2.20.2")
    seen = trainer(f"""FOLDER = {str(tmp_path)!r}\n{ENGINE}
def reason(**named):
    rows = calls(back=False, **named)
    return [[row["event"], row.get("reason")] for row in rows]
packed = torch.randn(32, 4, 8)
print(json.dumps(dict(
    packed=reason(layout="thd_thd_thd", q=packed, kv=(packed, packed)), window=reason(window_size=(4, 0), keys=24),
    sink=reason(softmax_type="learnable"), bias=reason(attn_bias_type="post_scale_bias", attn_bias=torch.zeros(1)),
    corner=reason(keys=24, bottom_right_diagonal=True), square=reason(bottom_right_diagonal=True),
    alibi=reason(attn_bias_type="alibi"), pages=reason(page_table_k=cu), max=reason(return_max_logit=True))))
""")
    skips = {name: reason for name, ((event, reason),) in seen.items() if event == "skip"}
    assert skips == {
        "packed": LAYOUT, "window": MASK, "sink": MASK, "bias": MASK, "corner": MASK, "alibi": MASK, "pages": LAYOUT,
    }  # fmt: skip


def test_a_release_with_other_parameters_is_never_judged_wrongly(trainer, tmp_path) -> None:
    """A new parameter is not understood once a call uses it. A function without a known parameter is not wrapped."""
    ahead, back = engine_package.PARAMETERS["2.20.2"]
    (tmp_path / "more").mkdir()
    (tmp_path / "less").mkdir()
    engine_package.write(tmp_path / "more", "2.20.2", ahead=ahead + ", new=None")
    engine_package.write(tmp_path / "less", "2.20.2", ahead=ahead.replace("attn_scale", "scale"), back="*more")
    rows = trainer(f"""FOLDER = {str(tmp_path / "more")!r}\n{ENGINE}
rows = [calls(back=False), calls(back=False, new=torch.ones(1))]
print(json.dumps([[row["event"], row.get("reason")] for one in rows for row in one]))
""")
    assert rows == [["leave", None], ["skip", UNKNOWN]]
    names, wrapped = trainer(f"""
import sys; sys.path.insert(0, {str(tmp_path / "less")!r})
from transformer_engine.pytorch.cpp_extensions import fused_attn
print(json.dumps([[row["name"] for row in events("unseen")], hasattr(fused_attn.fused_attn_fwd, "__wrapped__")]))
""")
    assert names == [f"transformer_engine fused_attn_{way}: other arguments" for way in ("fwd", "bwd")]
    assert wrapped is False


def test_a_wrapped_function_stays_what_it_was(trainer, tmp_path) -> None:
    engine_package.write(tmp_path, "2.20.2")
    facts = trainer(f"""FOLDER = {str(tmp_path)!r}
{ENGINE}
import copy, importlib, importlib.machinery, traceback
f = engine.fused_attn_fwd
def error(work):
    try: work()
    except Exception as raised: return repr(raised)
def fails(given): raise KeyError("mine")
nonsense, plain = error(lambda: f(1, nonsense=4)), error(lambda: f.__wrapped__(1, nonsense=4))
engine_package.ahead = fails
spec = fused_attn.__spec__
facts = dict(
    mine=error(call), nonsense=nonsense == plain, name=f.__name__, module=f.__module__, doc=f.__doc__,
    first=str(inspect.signature(f))[:13],
    pickled=pickle.loads(pickle.dumps(f)) is f, copied=copy.deepcopy(f) is f, same=f is fused_attn.fused_attn_fwd,
    loader=type(spec.loader) is importlib.machinery.SourceFileLoader, rest=list(vars(spec.loader)),
    source="ahead(locals())" in inspect.getsource(f))
importlib.reload(fused_attn)
facts["reloaded"] = hasattr(fused_attn.fused_attn_fwd, "__wrapped__") and not hasattr(
    fused_attn.fused_attn_fwd.__wrapped__, "__wrapped__")
print(json.dumps(facts))
""")
    assert sorted(facts.pop("rest")) == ["name", "path"]
    assert facts == {
        "mine": "KeyError('mine')", "nonsense": True, "name": "fused_attn_fwd",
        "module": "transformer_engine.pytorch.cpp_extensions.fused_attn",
        "doc": "The forward pass.", "first": "(is_training,", "pickled": True, "copied": True, "same": True,
        "loader": True, "source": True, "reloaded": True,
    }  # fmt: skip


def test_nothing_is_wrapped_without_a_run(trainer, tmp_path) -> None:
    engine_package.write(tmp_path, "2.20.2")
    python = str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python")
    facts = trainer(
        f"""
import json, sys, torch
sys.path.insert(0, {str(tmp_path)!r})
from transformer_engine.pytorch.cpp_extensions import fused_attn
finders = [type(finder).__module__ for finder in sys.meta_path]
print(json.dumps([hasattr(fused_attn.fused_attn_fwd, "__wrapped__"), any("foreshock" in name for name in finders)]))
""",
        monitored=False,
        PYTHONPATH=f"{python}:{Path(engine_package.__file__).parent}",
    )
    assert facts == [False, False]


# The parameters of flash-attn 4.0.0b36 that change the attention, and a few of the others.
FLASH4 = """
from attention_packages import backward, forward

def _flash_attn_fwd(q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,
                    page_table=None, softmax_scale=None, causal=False, softcap=None, window_size_left=None,
                    window_size_right=None, learnable_sink=None, num_splits=1, score_mod=None, mask_mod=None,
                    return_lse=False, new=None):
    window = [size if isinstance(size, int) else -1 for size in (window_size_left, window_size_right)]
    out, lse = forward(q, k, v, softmax_scale, causal, None, None, *window, softcap or 0.0)
    return out, lse, None, None, None

def _flash_attn_bwd(q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0, window_size_left=None,
                    window_size_right=None, deterministic=False, cu_seqlens_q=None, cu_seqlens_k=None, score_mod=None,
                    mask_mod=None, dlse=None, learnable_sink=None):
    assert _flash_attn_bwd.compile_cache == {}
    window = [size if isinstance(size, int) else -1 for size in (window_size_left, window_size_right)]
    return backward(dout, q, k, v, softmax_scale, causal, None, None, *window, softcap)

_flash_attn_bwd.compile_cache = {}
"""


def test_flash_attn_4_is_described_by_name(trainer, tmp_path) -> None:
    package = tmp_path / "flash_attn" / "cute"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "interface.py").write_text(FLASH4)
    rows, layer, seen = trainer(f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from flash_attn.cute import interface
linear = torch.nn.Linear(32, 32)
q = linear(torch.randn(2, 16, 32)).view(2, 16, 4, 8); k, v = torch.randn(2, 2, 24, 2, 8).unbind(0)
same = dict(softmax_scale=0.25, causal=True); events()
out, lse, *_ = interface._flash_attn_fwd(q, k, v, **same, num_splits=2)
interface._flash_attn_bwd(q, k, v, out, torch.randn_like(out), lse, **same)
for more in (dict(window_size_left=4), dict(softcap=0.5), dict(causal=False, window_size_left=4, window_size_right=2)):
    more = same | more
    out, lse, *_ = interface._flash_attn_fwd(q, k, v, **more)
    interface._flash_attn_bwd(q, k, v, out, torch.randn_like(out), lse, **more)
rows = events("leave")
def reason(ahead=True, q=q, **more):
    events()
    if ahead: interface._flash_attn_fwd(q, k, v, **same, **more)
    else: interface._flash_attn_bwd(q, k, v, out, out, lse, **same, **more)
    return [row.get("reason") for row in events() if row["event"] in ("leave", "skip")]
long = torch.randn(2, 30, 4, 8)
print(json.dumps([rows, linear.weight._cdata, dict(
    window=reason(window_size_left=-2), blind=reason(q=long), sink=reason(learnable_sink=lse),
    uncapped=reason(softcap=0.0),
    score=reason(score_mod=print), mask=reason(mask_mod=print), packed=reason(cu_seqlens_q=lse), new=reason(new=1),
    of_lse=reason(ahead=False, dlse=lse))]))
""")
    assert [row["op"] for row in rows] == ["foreshock::flash_attn_4", "foreshock::flash_attn_4_backward"] * 4
    for row in rows:
        assert (row["layer"], row["key"]["shape"]) == (layer, [2, 2, 24, 8])
        assert 0 <= row["errors"]["out"] <= FLOAT32
    for row in rows[1::2]:
        assert 0 <= row["errors"]["grad_query"] <= FLOAT32
    assert [row.get("window") for row in rows[::2]] == [None, [2, 4, 0], None, [2, 4, 2]]
    assert [row["soft_cap"] for row in rows[::2]] == [0, 0, 0.5, 0]
    assert seen == {
        "window": [MASK], "blind": [MASK], "sink": [MASK], "uncapped": [None], "score": [MASK], "mask": [MASK],
        "packed": [LAYOUT], "new": [UNKNOWN], "of_lse": [UNKNOWN],
    }  # fmt: skip
