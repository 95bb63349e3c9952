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
