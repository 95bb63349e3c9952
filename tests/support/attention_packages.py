# ruff: noqa: UP045 (older releases of torch read Optional[Tensor] only)
"""Stand-ins for packages that bring attention operations of their own: the same names, schemas and arguments, computed
on the CPU in fp64 and rounded once. flash_attn 2.8, flash_attn_3, xformers 0.0.32, and a stranger.

define(NAME) registers the operations of one of them, as importing it would.
"""

from typing import NamedTuple, Optional

import torch

Tensor = torch.Tensor

# What the operations get wrong: "out", "grad_query", "grad_key", "grad_value" (by 5 %), "off_by_one" (the window),
# "ignored" (the window).
wrong = ""


class Rules(NamedTuple):
    """Which keys a query sees, and the soft cap of its scores."""

    causal: bool
    left: int = -1
    right: int = -1
    cap: float = 0.0

    def visible(self, queries: int, keys: int) -> Tensor:
        """Aligned at the bottom right, as flash-attention does since 2.1."""
        distance = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
        left, right = self.left, 0 if self.causal else self.right
        if wrong == "off_by_one" and left >= 0:
            left += 1
        if wrong == "ignored":
            left = -1
        return (distance >= (-left if left >= 0 else -keys)) & (distance <= (right if right >= 0 else keys))

    def scores(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Of (position, head, d): scores and their slopes, (head, query, key)."""
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        slopes = torch.ones_like(scores)
        if self.cap:
            tanh = (scores / self.cap).tanh()
            scores, slopes = self.cap * tanh, 1 - tanh**2
        return scores.masked_fill(~self.visible(q.shape[0], k.shape[0]), float("-inf")), slopes


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, rules: Rules) -> tuple[Tensor, Tensor]:
    """(position, head, d) in fp64: out and log-sum-exp (head, position)."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    scores, _ = rules.scores(q, k, scale)
    lse = scores.logsumexp(-1)
    return torch.einsum("hqk,khd->qhd", (scores - lse[..., None]).exp(), v), lse


def gradients(g: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, rules: Rules) -> tuple[Tensor, Tensor, Tensor]:
    """(position, head, d) in fp64: of query, key and value."""
    out, lse = attend(q, k, v, scale, rules)
    group = q.shape[1] // k.shape[1]
    keys, values = (t.repeat_interleave(group, 1) for t in (k, v))
    scores, slopes = rules.scores(q, keys, scale)
    weights = (scores - lse[..., None]).exp()
    dot = (g * out).sum(-1).T[..., None]
    inner = weights * (torch.einsum("qhd,khd->hqk", g, values) - dot) * slopes * scale
    shape = (k.shape[0], k.shape[1], group, -1)
    of_key = torch.einsum("hqk,qhd->khd", inner, q).reshape(shape).sum(2)
    of_value = torch.einsum("hqk,qhd->khd", weights, g).reshape(shape).sum(2)
    return torch.einsum("hqk,khd->qhd", inner, keys), of_key, of_value


def sequences(q: Tensor, k: Tensor, cu_q: Tensor | None, cu_k: Tensor | None) -> list[tuple]:
    """Where each sequence's queries and keys are: indices into q and k."""
    if cu_q is None:
        return [(n, n) for n in range(q.shape[0])]
    edges_q, edges_k = cu_q.tolist(), (cu_q if cu_k is None else cu_k).tolist()
    return [(slice(*edges_q[n : n + 2]), slice(*edges_k[n : n + 2])) for n in range(len(edges_q) - 1)]


def forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, cu_q: Tensor | None, cu_k: Tensor | None,
    left: int = -1, right: int = -1, cap: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rules = Rules(causal, left, right, cap)
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=torch.double)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1]) if cu_q is None else torch.empty(q.shape[1], q.shape[0])
    for a, b in sequences(q, k, cu_q, cu_k):
        out[a], one = attend(q[a].double(), k[b].double(), v[b].double(), scale, rules)
        if cu_q is None:
            lse[a] = one
        else:
            lse[:, a] = one
    return (out * (1.05 if wrong == "out" else 1)).to(q.dtype), lse


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, cu_q: Tensor | None, cu_k: Tensor | None,
    left: int = -1, right: int = -1, cap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rules = Rules(causal, left, right, cap)
    grads = [torch.zeros_like(t, dtype=torch.double) for t in (q, k, v)]
    for a, b in sequences(q, k, cu_q, cu_k):
        some = gradients(*(t.double() for t in (g[a], q[a], k[b], v[b])), scale, rules)
        for whole, part, at in zip(grads, some, (a, b, b), strict=True):
            whole[at] += part
    for grad, name in zip(grads, ("query", "key", "value"), strict=True):
        grad *= 1.05 if wrong == f"grad_{name}" else 1
    return tuple(grad.to(t.dtype) for grad, t in zip(grads, (q, k, v), strict=True))


def nothing(q: Tensor) -> Tensor:
    return torch.empty(0, dtype=q.dtype)


def flash_attn() -> None:
    @torch.library.custom_op("flash_attn::_flash_attn_forward", mutates_args=())
    def flash_forward(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor], return_softmax: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        out, lse = forward(q, k, v, softmax_scale, causal, None, None, window_size_left, window_size_right, softcap)
        return out, lse, nothing(q), torch.empty(2, dtype=torch.int64)

    @flash_forward.register_fake
    def _(q, k, v, *more):  # noqa: ANN001, ANN002, ANN202
        lse = torch.empty(q.shape[0], q.shape[2], q.shape[1])
        return torch.empty_like(q), lse, nothing(q), torch.empty(2, dtype=torch.int64)

    @torch.library.custom_op("flash_attn::_flash_attn_backward", mutates_args=("dq", "dk", "dv"))
    def flash_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Optional[Tensor],
        dk: Optional[Tensor], dv: Optional[Tensor], dropout_p: float, softmax_scale: float, causal: bool,
        window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor],
        deterministic: bool, rng_state: Optional[Tensor] = None,
    ) -> Tensor:  # fmt: skip
        grads = backward(dout, q, k, v, softmax_scale, causal, None, None, window_size_left, window_size_right, softcap)
        for filled, grad in zip((dq, dk, dv), grads, strict=True):
            if filled is not None:
                filled.copy_(grad)
        return torch.empty(q.shape[0], q.shape[2], q.shape[1])

    @flash_backward.register_fake
    def _(dout, q, *more):  # noqa: ANN001, ANN002, ANN202
        return torch.empty(q.shape[0], q.shape[2], q.shape[1])

    @torch.library.custom_op("flash_attn::_flash_attn_varlen_forward", mutates_args=())
    def varlen_forward(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1,
        window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
        return_softmax: bool = False, block_table: Optional[Tensor] = None, leftpad_k: Optional[Tensor] = None,
        seqused_k: Optional[Tensor] = None, zero_tensors: bool = False, num_splits: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        out, lse = forward(
            q, k, v, softmax_scale, causal, cu_seqlens_q, cu_seqlens_k, window_size_left, window_size_right, softcap
        )
        return out, lse, nothing(q), torch.empty(2, dtype=torch.int64)

    @torch.library.custom_op("flash_attn::_flash_attn_varlen_backward", mutates_args=("dq", "dk", "dv"))
    def varlen_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Optional[Tensor],
        dk: Optional[Tensor], dv: Optional[Tensor], cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor], deterministic: bool,
        rng_state: Optional[Tensor] = None, zero_tensors: bool = False,
    ) -> Tensor:  # fmt: skip
        grads = backward(
            dout, q, k, v, softmax_scale, causal, cu_seqlens_q, cu_seqlens_k, window_size_left, window_size_right,
            softcap,
        )  # fmt: skip
        for filled, grad in zip((dq, dk, dv), grads, strict=True):
            if filled is not None:
                filled.copy_(grad)
        return torch.empty(q.shape[1], q.shape[0])


def flash_attn_3() -> None:
    library = torch.library.Library("flash_attn_3", "FRAGMENT")
    library.define(
        "fwd(Tensor q, Tensor k, Tensor v, float scale, bool causal, Tensor? cu_q, Tensor? cu_k, int left, int right, "
        "float cap) -> Tensor[]"
    )
    library.impl("fwd", lambda *a: list(forward(*a)), "CPU")
    flash_attn_3.library = library  # for the life of the process

    @torch.library.custom_op("flash_attn_3::_flash_attn_forward", mutates_args=())
    def forward_3(
        q: Tensor, k: Tensor, v: Tensor, k_new: Optional[Tensor] = None, v_new: Optional[Tensor] = None,
        qv: Optional[Tensor] = None, out_: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
        cu_seqlens_k: Optional[Tensor] = None, cu_seqlens_k_new: Optional[Tensor] = None,
        seqused_q: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None, max_seqlen_q: Optional[int] = None,
        max_seqlen_k: Optional[int] = None, page_table: Optional[Tensor] = None,
        kv_batch_idx: Optional[Tensor] = None, leftpad_k: Optional[Tensor] = None,
        rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
        seqlens_rotary: Optional[Tensor] = None, q_descale: Optional[Tensor] = None,
        k_descale: Optional[Tensor] = None, v_descale: Optional[Tensor] = None, softmax_scale: Optional[float] = None,
        causal: bool = False, window_size_left: int = -1, window_size_right: int = -1, attention_chunk: int = 0,
        softcap: float = 0.0, rotary_interleaved: bool = True, scheduler_metadata: Optional[Tensor] = None,
        num_splits: int = 1, pack_gqa: Optional[bool] = None, sm_margin: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
        out, lse = torch.ops.flash_attn_3.fwd(
            q, k, v, scale, causal, cu_seqlens_q, cu_seqlens_k, window_size_left, window_size_right, softcap
        )
        return out, lse, nothing(q), torch.empty(0)

    @torch.library.custom_op("flash_attn_3::_flash_attn_backward", mutates_args=("dq", "dk", "dv"))
    def backward_3(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
        cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k: Optional[Tensor] = None,
        sequed_q: Optional[Tensor] = None, sequed_k: Optional[Tensor] = None, max_seqlen_q: Optional[int] = None,
        max_seqlen_k: Optional[int] = None, dq: Optional[Tensor] = None, dk: Optional[Tensor] = None,
        dv: Optional[Tensor] = None, softmax_scale: Optional[float] = None, is_causal: bool = False,
        window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0, deterministic: bool = False,
        sm_margin: int = 0,
    ) -> Tensor:  # fmt: skip
        scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
        grads = backward(
            dout, q, k, v, scale, is_causal, cu_seqlens_q, cu_seqlens_k, window_size_left, window_size_right, softcap
        )
        for filled, grad in zip((dq, dk, dv), grads, strict=True):
            if filled is not None:
                filled.copy_(grad)
        return torch.empty(0)


def xformers() -> None:
    @torch.library.custom_op("xformers_flash::flash_fwd", mutates_args=())
    def flash_fwd(
        query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor],
        seqused_k: Optional[Tensor], max_seqlen_q: int, max_seqlen_k: int, p: float, softmax_scale: float,
        is_causal: bool, window_left: int, window_right: int, return_softmax: bool, block_tables: Optional[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        out, lse = forward(
            query, key, value, softmax_scale, is_causal, cu_seqlens_q, cu_seqlens_k, window_left, window_right
        )
        return out, lse, torch.empty(2, dtype=torch.int64)

    @torch.library.custom_op("xformers_flash::flash_bwd", mutates_args=())
    def flash_bwd(
        grads_share_storage: bool, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
        cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, p: float,
        softmax_scale: float, is_causal: bool, window_left: int, window_right: int, rng_state: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        return backward(
            grad, query, key, value, softmax_scale, is_causal, cu_seqlens_q, cu_seqlens_k, window_left, window_right
        )


class Vendor:
    """flash-attn 2 in a namespace of another package, as the Hugging Face hub has it. `more`: further arguments."""

    def __init__(self, namespace: str, more: str = "") -> None:
        self.library, self.ops = torch.library.Library(namespace, "FRAGMENT"), getattr(torch.ops, namespace)
        same = (
            "float dropout_p, float softmax_scale, bool causal, int window_size_left, int window_size_right, "
            "float softcap, Tensor? alibi_slopes, "
        )
        self.library.define(
            f"_flash_attn_forward(Tensor q, Tensor k, Tensor v, {same}bool return_softmax{more})"
            " -> (Tensor, Tensor, Tensor, Tensor)"
        )
        self.library.define(
            "_flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
            "Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv, "
            + same
            + "bool deterministic, Tensor? rng_state=None) -> Tensor"
        )
        self.library.impl("_flash_attn_forward", self._forward, "CPU")
        self.library.impl("_flash_attn_backward", self._backward, "CPU")
        self.library.impl("_flash_attn_forward", self._shapes, "Meta")

    def unload(self) -> None:
        self.library._destroy()

    @staticmethod
    def _forward(q: Tensor, k: Tensor, v: Tensor, _: float, scale: float, causal: bool, *more: object) -> tuple:
        out, lse = forward(q, k, v, scale, causal, None, None)
        return out, lse, nothing(q), torch.empty(2, dtype=torch.int64)

    @staticmethod
    def _shapes(q: Tensor, *more: object) -> tuple:
        return torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1]), q.new_empty(0), q.new_empty(2)

    @staticmethod
    def _backward(
        g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
        _: float, scale: float, causal: bool, *more: object,
    ) -> Tensor:  # fmt: skip
        for filled, grad in zip((dq, dk, dv), backward(g, q, k, v, scale, causal, None, None), strict=True):
            filled.copy_(grad)
        return torch.empty(0)

    def call(self, q: Tensor, k: Tensor, v: Tensor) -> tuple:
        return self.ops._flash_attn_forward(q, k, v, 0.0, 0.25, True, -1, -1, 0.0, None, False)

    def back(self, g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grads: list[Tensor]) -> None:
        self.ops._flash_attn_backward(
            g, q, k, v, out, lse, *grads, 0.0, 0.25, True, -1, -1, 0.0, None, False, None
        )  # fmt: skip


def flash_attn_3_raw() -> None:
    """The compiled part of flash-attn 3, which returns the gradients if it is given no tensors for them."""
    library = torch.library.Library("raw_3", "FRAGMENT")
    packed = "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    lengths = "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    window = "int window_size_left=-1, int window_size_right=-1, "
    library.define(
        "fwd(Tensor q, Tensor k, Tensor v, Tensor(a!)? k_new=None, Tensor(b!)? v_new=None, Tensor? q_v=None, "
        f"Tensor(c!)? out=None, {packed}Tensor? cu_seqlens_k_new=None, {lengths}Tensor? page_table=None, "
        "Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None, "
        "Tensor? seqlens_rotary=None, Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, "
        f"float? softmax_scale=None, bool is_causal=False, {window}int attention_chunk=0, float softcap=0.0, "
        "bool is_rotary_interleaved=False, Tensor? scheduler_metadata=None, int num_splits=0, bool? pack_gqa=None, "
        "int sm_margin=0) -> (Tensor, Tensor, Tensor, Tensor)"
    )
    library.define(
        "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a!)? dq=None, "
        f"Tensor(b!)? dk=None, Tensor(c!)? dv=None, {packed}{lengths}float? softmax_scale=None, bool is_causal=False, "
        f"{window}float softcap=0.0, bool deterministic=False, int sm_margin=0) -> (Tensor, Tensor, Tensor, Tensor)"
    )

    # torch passes the arguments in their order, up to the last one that is given: is_causal.
    def ahead(q: Tensor, k: Tensor, v: Tensor, *more: object) -> tuple:
        out, lse = forward(q, k, v, q.shape[-1] ** -0.5, more[-1] is True, None, None)
        return out, lse, nothing(q), nothing(q)

    def back(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *more: object) -> tuple:
        return *backward(dout, q, k, v, q.shape[-1] ** -0.5, more[-1] is True, None, None), nothing(q)

    library.impl("fwd", ahead, "CPU")
    library.impl("bwd", back, "CPU")
    flash_attn_3_raw.library = library


def stranger() -> None:
    """Nobody has heard of it."""
    library = torch.library.Library("stranger", "FRAGMENT")
    library.define("attend(Tensor q, Tensor k, Tensor v, float scale) -> Tensor")
    library.define("mix(Tensor q, Tensor k) -> Tensor")
    library.impl("attend", lambda q, k, v, scale: q.clone(), "CompositeExplicitAutograd")
    stranger.library = library


def define(name: str) -> None:
    {
        "flash_attn": flash_attn,
        "flash_attn_3": flash_attn_3,
        "xformers": xformers,
        "stranger": stranger,
        "flash_attn_3_raw": flash_attn_3_raw,
    }[name]()


class FlashAttention(torch.autograd.Function):
    """As flash_attn.flash_attn_func: (batch, position, head, d)."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:  # noqa: ANN001
        scale = q.shape[-1] ** -0.5
        out, lse, _, state = torch.ops.flash_attn._flash_attn_forward(
            q, k, v, 0.0, scale, causal, -1, -1, 0.0, None, False
        )
        ctx.save_for_backward(q, k, v, out, lse, state)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:  # noqa: ANN001
        q, k, v, out, lse, state = ctx.saved_tensors
        grads = [torch.empty_like(t) for t in (q, k, v)]
        torch.ops.flash_attn._flash_attn_backward(
            grad, q, k, v, out, lse, *grads, 0.0, ctx.scale, ctx.causal, -1, -1, 0.0, None, False, state
        )
        return *grads, None
