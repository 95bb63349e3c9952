"""Makes the schemas here from a checkout of grafana/grafana-foundation-sdk: `reduce.py CHECKOUT BRANCH OUT.json`.

Kept are the names, types and choices of what our dashboards use: the dashboard, and options, field options and query
of each kind of panel, as `definitions/<KIND>.<Name>`. Three things are made wider: what a panel does not say Grafana
fills in when it loads it, so of panels and queries nothing is required (each version would have other fields); the
first threshold has no value, which Grafana itself writes as null; and what an override sets may be anything, not an
object only.
"""

import json
import pathlib
import subprocess
import sys

KINDS = ("dashboard", "timeseries", "stat", "table", "heatmap", "statetimeline", "trend", "prometheus")
TEXTS = {"description", "default", "$schema", "examples"}


def bare(node: object, kind: str, names: bool = False) -> object:
    """Without texts; `names`: the keys of `node` are names of fields."""
    if isinstance(node, list):
        return [bare(each, kind) for each in node]
    if not isinstance(node, dict):
        return node.replace("#/definitions/", f"#/definitions/{kind}.") if isinstance(node, str) else node
    return {
        key: bare(value, kind, key in ("properties", "definitions") and not names)
        for key, value in node.items()
        if names or key not in TEXTS
    }


def main() -> None:
    checkout, branch, out = sys.argv[1:]
    definitions: dict[str, object] = {}
    for kind in KINDS:
        show = ["git", "-C", checkout, "show", f"{branch}:jsonschema/{kind}.jsonschema.json"]
        schema = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)
        if kind != "dashboard":
            for each in schema["definitions"].values():
                each.pop("required", None)
        else:
            schema["definitions"]["Threshold"]["properties"]["value"]["type"] = ["number", "null"]
            schema["definitions"]["DynamicConfigValue"]["properties"]["value"] = {}
            schema["definitions"]["MatcherConfig"]["properties"]["options"] = {}
        definitions |= {f"{kind}.{name}": bare(each, kind) for name, each in schema["definitions"].items()}
    text = json.dumps({"definitions": definitions}, separators=(",", ":"), sort_keys=True)
    pathlib.Path(out).write_text(text + "\n")


if __name__ == "__main__":
    main()
