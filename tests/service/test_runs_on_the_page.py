"""An agent that serves several runs: its status page shows each with its own history."""

from service import TOKEN, Service
from status_page import LIVE

HIGHEST = "Math.max(...ui.charts[0].chart.data.datasets.flatMap((set) => set.data.map((p) => p.y)))"


def choose(run: str) -> str:
    return f"byId('runs').value = '{run}', byId('runs').dispatchEvent(new Event('change'))"


def test_two_runs_have_each_their_history(service: Service, start_trainer, tab):
    for run_id, loss in (("low", 2.0), ("high", 40.0)):
        start_trainer("me", run_id).do(f"hand.train(1, 30, loss={loss})")
    tab.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {TOKEN}"})
    tab.open(f"http://{service.address}/")
    tab.wait_for(f"{LIVE} && document.querySelectorAll('#runs option').length === 2 && {HIGHEST} > 1")
    labels = {label.split("/")[-1]: label for label in tab.texts("#runs option")}
    for name, expected in (("low", "< 3"), ("high", "> 30"), ("low", "< 3")):
        tab.value(choose(labels[name]))
        tab.wait_for(
            f"ui.state.run === '{labels[name]}' && byId('runs').value === ui.state.run && {HIGHEST} {expected}"
        )
    runs = {table["run"] for table in tab.value("ui.history.tables.map(({ run }) => ({ run }))")}
    assert runs == {labels["low"]}, "nothing of the other is even sent"
    assert tab.console == []
