"""Writes the dashboard and the rules; `./dev docs` calls it.."""

import argparse
import json
import pathlib
import tomllib

from overview import overview
from rules import rules_yaml

HERE = pathlib.Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=pathlib.Path, default=HERE / "values.toml")
    parser.add_argument("--into", type=pathlib.Path, default=HERE, help="folder with rules/ and grafana/")
    options = parser.parse_args()
    values = tomllib.loads(options.values.read_text())
    for folder in ("rules", "grafana"):
        (options.into / folder).mkdir(parents=True, exist_ok=True)
    (options.into / "rules" / "foreshock.yml").write_text(rules_yaml(values))
    (options.into / "grafana" / "overview.json").write_text(json.dumps(overview(values), indent=1) + "\n")


if __name__ == "__main__":
    main()
