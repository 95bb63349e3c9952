"""Counts words and phrases that the project has agreed not to write, per folder: those that can be found mechanically.

    python tests/layering/language.py            # each place where one stands
    python tests/layering/language.py --write    # lower the numbers in language.toml to today's counts

`prose` is what a user reads: Markdown and HTML, and string literals of programs. `comments` are those of sources.
"""

from __future__ import annotations

import io
import pathlib
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMITS = pathlib.Path(__file__).with_suffix(".toml")

# Phrase, and what to write instead.
PHRASES = {
    r"told|tells?|telling": "report, write, send, read, return, publish; or: distinguish",
    r"whoever|nobody|somebody": "name the component that acts",
    r"(?<!there )is no(?= (?!longer\b|more\b|such\b))|(?<!there )(?:is|are) none": "'invalid', 'missing'",
    r"of (?:after|before)(?= and\b|[.,;:)]| is\b| was\b)": "after, before, older",
    r"anew|afresh": "again",
    r"oftener": "more often",
    r"dear(?:er|est)?": "expensive",
    r"lest": "so that ... not",
    r"erred|errs?|erring": "has an error of, is wrong",
    r"in earnest": "real, production",
    r"to be had": "available",
    r"begun": "started",
    r"gives? way|gave way|giving way": "skips, lets another one run first",
    r"thinks? better of|changes his mind": "say what the code does",
}
SPACED = [phrase.replace(" ", r"\s") for phrase in PHRASES]
PATTERN = re.compile("|".join(rf"(?P<p{i}>\b(?:{phrase})\b)" for i, phrase in enumerate(SPACED)), re.IGNORECASE)
ADVICE = list(PHRASES.values())

C_LIKE = {".h", ".cpp", ".cu", ".cuh", ".c", ".js", ".css", ".in"}
WHOLE = {".md", ".html"}
HASH_COMMENTS = {".sh", ".cmake", ".yml", ".yaml", ".toml", ".txt", ".service"}
C_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)"
    r'|(?P<raw>R"(?P<mark>\w*)\(.*?\)(?P=mark)")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*')",
    re.DOTALL,
)
Piece = tuple[str, int, str]  # prose or comments, line, text


def pieces_of_c(text: str) -> Iterator[Piece]:
    for token in C_TOKEN.finditer(text):
        line = text.count("\n", 0, token.start()) + 1
        if token["comment"]:
            yield "comments", line, re.sub(r"^[/*\s]+|[*/\s]+$", "", token[0])
        else:
            piece = re.sub(r"\$\{[^{}]*\}", "", token[0]) if token[0][0] == "`" else token[0]  # without expressions
            yield "prose", line, piece.strip("\"'`")


def pieces_of_python(text: str) -> Iterator[Piece]:
    is_statement = True  # so that a string here is a docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield "comments", token.start[0], token.string.lstrip("# ")
        elif token.type == tokenize.STRING:
            is_format = "f" in token.string.partition(token.string[-1])[0].lower()
            piece = re.sub(r"\{[^{}]*\}", "", token.string) if is_format else token.string  # without expressions
            yield "comments" if is_statement else "prose", token.start[0], piece.strip("\"'")
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            is_statement = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


def pieces_of(path: pathlib.Path, text: str) -> Iterator[Piece]:
    if path.suffix in WHOLE:
        yield "prose", 1, text
    elif path.suffix in C_LIKE:
        yield from pieces_of_c(text)
    elif path.suffix == ".py" or path.name == "dev":
        yield from pieces_of_python(text)
    elif path.suffix in HASH_COMMENTS:
        yield from (("comments", text.count("\n", 0, at.start()) + 1, at[0]) for at in re.finditer(r"#[^\n]*", text))


def joined(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Puts together what stands in consecutive lines, so that a phrase may be broken over them."""
    last: dict[str, Piece] = {}
    for kind, line, text in pieces:
        before = last.get(kind)
        if before and line - before[1] - before[2].count("\n") <= 1:
            last[kind] = kind, before[1], before[2] + "\n" + text
        else:
            if before:
                yield before
            last[kind] = kind, line, text
    yield from last.values()


def places_in(path: pathlib.Path, text: str) -> Iterator[tuple[str, int, str, str]]:
    """What kind of text, line, phrase, and advice."""
    for kind, line, piece in joined(pieces_of(path, text)):
        flat = re.sub(r"[ \t]*\n[ \t]*", "\n", piece)
        for found in PATTERN.finditer(flat):
            phrase = " ".join(found[0].split())
            yield kind, line + flat.count("\n", 0, found.start()), phrase, ADVICE[int(found.lastgroup[1:])]


def files() -> list[pathlib.Path]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = {pathlib.Path(__file__).relative_to(ROOT), pathlib.Path("tests/layering/test_language.py")}
    return sorted(path for path in map(pathlib.Path, names.split("\0")[:-1]) if path not in ours)


def folder_of(path: pathlib.Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else "root"


def folders() -> dict[str, list[pathlib.Path]]:
    """The files whose text is read, by folder."""
    found: dict[str, list[pathlib.Path]] = {}
    for path in files():
        if (ROOT / path).is_file() and (path.suffix in C_LIKE | WHOLE | HASH_COMMENTS | {".py"} or path.name == "dev"):
            found.setdefault(folder_of(path), []).append(path)
    return found


def count(paths: list[pathlib.Path]) -> Counter[str]:
    found = Counter(prose=0, comments=0)
    for path in paths:
        found.update(kind for kind, *_ in places_in(path, (ROOT / path).read_text()))
    return found


def limits() -> dict[str, dict[str, int]]:
    return tomllib.loads(LIMITS.read_text())


def write(counts: dict[str, Counter[str]]) -> None:
    old = limits() if LIMITS.exists() else {}
    lines = ["# Occurrences that test_language.py allows. `python tests/layering/language.py --write` lowers them.\n"]
    for folder, found in sorted(counts.items()):
        least = {kind: min(found[kind], old.get(folder, found).get(kind, 0)) for kind in ("prose", "comments")}
        lines.append(f'"{folder}" = {{ prose = {least["prose"]}, comments = {least["comments"]} }}\n')
    LIMITS.write_text("".join(lines))


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        write({folder: count(paths) for folder, paths in folders().items()})
        return
    for path in files():
        if (ROOT / path).is_file():
            for kind, line, phrase, advice in places_in(path, (ROOT / path).read_text(errors="replace")):
                print(f"{path}:{line}: {kind}: '{phrase}': {advice}")


if __name__ == "__main__":
    main()
