"""Writes model files as those of transformers: a package with an eager attention function of given statements."""

from __future__ import annotations

from pathlib import Path

MODEL = """
import torch
from torch import nn

def repeat_kv(hidden_states, n_rep):
    return hidden_states.repeat_interleave(n_rep, 1)

def eager_attention_forward({parameters}, **kwargs):
    '''The attention of this model.'''
{body}
"""
SCORES = ["attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling"]
SHARED = [
    "key_states = repeat_kv(key, module.num_key_value_groups)",
    "value_states = repeat_kv(value, module.num_key_value_groups)",
]
MASKED = ["if attention_mask is not None:\n    attn_weights = attn_weights + attention_mask"]
REST = [
    "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)",
    "attn_weights = nn.functional.dropout(attn_weights, p=dropout, training=module.training)",
    "attn_output = torch.matmul(attn_weights, value_states)",
    "attn_output = attn_output.transpose(1, 2).contiguous()",
    "return attn_output, attn_weights",
]
CAPPED = [
    "if softcap is not None:\n    attn_weights = attn_weights / softcap\n    attn_weights = torch.tanh(attn_weights)\n"
    "    attn_weights = attn_weights * softcap"
]
_SINKS = "module.sinks.reshape(1, -1, 1, 1).expand(query.shape[0], -1, query.shape[-2], -1)"
SUNK = [  # as in gpt_oss
    f"sinks = {_SINKS}",
    "combined_logits = torch.cat([attn_weights, sinks], dim=-1)",
    "combined_logits = combined_logits - combined_logits.max(dim=-1, keepdim=True).values",
    "probs = nn.functional.softmax(combined_logits, dim=-1, dtype=combined_logits.dtype)",
    "scores = probs[..., :-1]",
    "attn_weights = nn.functional.dropout(scores, p=dropout, training=module.training).to(value_states.dtype)",
]
SOMETIMES_SUNK = [  # as in mimo_v2_flash
    f"if module.sinks is not None:\n    sinks = {_SINKS}\n    attn_weights = torch.cat([attn_weights, sinks], dim=-1)",
    "attn_weights = attn_weights - attn_weights.max(dim=-1, keepdim=True).values",
    "probs = nn.functional.softmax(attn_weights, dim=-1, dtype=attn_weights.dtype)",
    "if module.sinks is not None:\n    probs = probs[..., :-1]",
    "attn_weights = nn.functional.dropout(probs, p=dropout, training=module.training).to(value_states.dtype)",
]
BIASED = ["if position_bias is not None:\n    attn_weights = attn_weights + position_bias"]
DEFAULT = [f"if scaling is {None}:\n    scaling = module.head_dim ** -0.5"]


def write_model(folder: Path, name: str, *parts: list[str], more: str = "") -> None:
    """Writes transformers/models/NAME/modeling_NAME.py. `parts`: the statements; none: those of most models. `more`:
    further parameters."""
    package = folder / "transformers" / "models" / name
    package.mkdir(parents=True)
    for parent in (package, package.parent, package.parent.parent):
        (parent / "__init__.py").touch()
    parts = parts or (SHARED, SCORES, MASKED, REST)
    parameters = f"module, query, key, value, attention_mask, scaling=None, dropout=0.0{more}"
    lines = [line for part in parts for statement in part for line in statement.splitlines()]
    body = "\n".join(f"    {line}" for line in lines)
    (package / f"modeling_{name}.py").write_text(MODEL.format(parameters=parameters, body=body))
