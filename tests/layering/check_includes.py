"""A folder is a layer: who may include whom. Run as a test with the root of the repository as argument."""

import pathlib
import re
import sys

# "foreshock" are the public headers, libmonitor/include/foreshock.
MAY_INCLUDE = {
    "segment": set(),
    "text": set(),
    "kernels": set(),
    "detect": set(),
    "libmonitor": {"segment", "kernels", "foreshock"},
    "libmonitor/include": {"foreshock"},
    "shadow": {"kernels"},
    "exporters": {"segment", "detect", "text"},
    "agent": {"segment", "shadow", "detect", "exporters", "text"},
    "integrations": {"foreshock"},
    "lab": {"shadow", "kernels", "text"},
}
# May include anything of the above; nothing includes them.
ROOTS = {"cli", "tests", "bench"}
SOURCES = {".h", ".cpp", ".cc", ".c", ".cu", ".cuh"}
INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([\w-]+)/')


def allowed_for(path: pathlib.Path) -> set[str]:
    if path.parts[:2] == ("libmonitor", "include"):
        return MAY_INCLUDE["libmonitor/include"]
    folder = path.parts[0]
    return MAY_INCLUDE[folder] | {folder}


def wrong_edges(root: pathlib.Path) -> list[str]:
    """One line for each include against the table."""
    layers = {name for name in MAY_INCLUDE if "/" not in name} | ROOTS | {"foreshock"}
    wrong = []
    for folder in sorted(layers - ROOTS - {"foreshock"}):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            relative = path.relative_to(root)
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if match and match[1] in layers and match[1] not in allowed_for(relative):
                    wrong.append(f"{relative}:{number}: {folder} must not include {match[1]}/")
    return wrong


if __name__ == "__main__":
    found = wrong_edges(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or "every include follows the table")
    sys.exit(1 if found else 0)
