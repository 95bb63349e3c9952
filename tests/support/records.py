"""The lines of a record, also of one that an agent is still writing."""

import json
import pathlib


def record_lines(path: pathlib.Path) -> list[dict]:
    """What stands there in whole lines: none if there is no file yet, and not the beginning of a line."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
