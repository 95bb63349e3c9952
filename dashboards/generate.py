"""Writes Prometheus rules, Alertmanager's configuration and Grafana dashboards from values.toml, and updates the
generated parts of docs/runbook.md (PAGE). `./dev docs` runs this file."""

import argparse
import pathlib
import tomllib

from alertmanager import alertmanager_yaml
from attention_board import attention
from board import board_json
from fleet_board import fleet
from overview_board import overview
from rules import rules_yaml  # the rules also depend on bench/precursors/results.json (standing.py)
from runbook import PAGE, runbook
from weights_board import weights

HERE = pathlib.Path(__file__).resolve().parent
BOARDS = (overview, attention, weights, fleet)  # functions that return a dashboard for given values


def texts(values: dict) -> dict[str, str]:
    """The text of each generated file, by its path below the output folder. `values`: content of values.toml."""
    boards = [make_board(values) for make_board in BOARDS]
    return {"rules/foreshock.yml": rules_yaml(values), "alertmanager/alertmanager.yml": alertmanager_yaml(values)} | {
        f"grafana/{board.name}.json": board_json(board) for board in boards
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=pathlib.Path, default=HERE / "values.toml")
    parser.add_argument("--into", type=pathlib.Path, default=HERE, help="folder with rules/, grafana/, alertmanager/")
    options = parser.parse_args()
    for path, text in texts(tomllib.loads(options.values.read_text())).items():
        file = options.into / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if options.into == HERE:  # the runbook belongs to the repository; other folders are a user's own
        PAGE.write_text(runbook())


if __name__ == "__main__":
    main()
