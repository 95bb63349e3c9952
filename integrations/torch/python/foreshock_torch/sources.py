"""Compares the source of a function of another package with the sources that foreshock understands.

Attention that a package writes out in torch operations has no kernel whose meaning is fixed: the statements are the
meaning. A function with changed statements must not be judged by the meaning of the original.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import textwrap
import tokenize
from typing import Any

_BLOCKS = {tokenize.INDENT: "{", tokenize.DEDENT: "}"}
_LEFT_OUT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
_WORDS = (tokenize.NAME, tokenize.NUMBER)


def digest_of(source: str) -> str:
    """A digest of the statements of a function. Its name, its parameters, comments, docstrings, blanks and line breaks
    do not count. All versions of Python have the same digest, although they split f-strings differently."""
    tokens = tokenize.generate_tokens(io.StringIO(textwrap.dedent(source)).readline)
    depth = 0
    for token in tokens:  # up to the colon behind the parameters
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
        if token.string == ":" and depth == 0:
            break
    lines: list[str] = []
    line: list[tokenize.TokenInfo] = []
    for token in tokens:
        if token.type in _BLOCKS:
            lines.append(_BLOCKS[token.type])
        elif token.type == tokenize.NEWLINE:
            is_docstring = len(line) == 1 and line[0].type == tokenize.STRING
            lines += [] if is_docstring or not line else [_text(line)]
            line = []
        elif token.type not in _LEFT_OUT:
            line.append(token)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _text(line: list[tokenize.TokenInfo]) -> str:
    """The tokens of a line, with a blank between words only."""
    before = (None, *(token.type for token in line))
    return "".join(" " * (b in _WORDS and t.type in _WORDS) + t.string for b, t in zip(before, line))


@functools.cache
def digest(function: Any) -> str:
    """The digest of a function's source; empty if its source cannot be read."""
    try:
        return digest_of(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError, ValueError, tokenize.TokenError):
        return ""
