"""Who is told what, and how often: by amtool, and by a real Alertmanager whose notifications are counted."""

import contextlib
import copy
import datetime
import http.server
import json
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from alert_rules import DASHBOARDS, VALUES, alerts
from alertmanager import alertmanager_yaml
from scraping import ended, free_port, get, needs, wait_until

pytestmark = pytest.mark.quick

CONFIG = DASHBOARDS / "alertmanager" / "alertmanager.yml"
RANKS = 2000


def test_configuration_matches_the_values():
    assert CONFIG.read_text() == alertmanager_yaml(VALUES), "run ./dev docs"


@needs["amtool"]
def test_amtool_accepts_the_configuration():
    checked = subprocess.run(["amtool", "check-config", str(CONFIG)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "4 receivers" in checked.stdout


@needs["amtool"]
@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_alert_is_sent_to_its_receiver(alert):
    by_severity = {"page": "page", "info": "none"}
    who = by_severity.get(alert.severity, "operators" if alert.kind == "monitor" else "owner")
    labels = {"alertname": alert.name, "severity": alert.severity, "kind": alert.kind, "run": "r", "owner": "eve"}
    command = ["amtool", "config", "routes", "test", f"--config.file={CONFIG}", f"--verify.receivers={who}"]
    tested = subprocess.run([*command, *(f"{k}={v}" for k, v in labels.items())], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_inhibition_names_alerts_that_exist():
    names = {alert.name for alert in alerts()}
    named = set(re.findall(r"Foreshock\w+", CONFIG.read_text()))
    assert named <= names
    kinds = set(re.findall(r"\w+", " ".join(re.findall(r'kind=~?"([^"]+)"', CONFIG.read_text()))))
    assert kinds <= {alert.kind for alert in alerts()}


class Receiver(http.server.ThreadingHTTPServer):
    """Keeps the notifications that it is sent, by the last word of the address."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict]] = []
        told = self.told

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told.append((self.path.strip("/"), body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_words: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def alertmanager(folder, receivers: Receiver) -> Iterator[str]:
    """Ours, that waits a second instead of half a minute, and tells `receivers`. Its address."""
    values = copy.deepcopy(VALUES)
    values["receivers"] = {name: f"http://127.0.0.1:{receivers.server_port}/{name}" for name in VALUES["receivers"]}
    values["notifications"] |= {"wait": "1s", "again": "2s"}
    (folder / "alertmanager.yml").write_text(alertmanager_yaml(values))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/data"]
    command += [f"--web.listen-address={address}", "--cluster.listen-address="]
    with (folder / "log").open("w") as log, ended(subprocess.Popen(command, stdout=log, stderr=log)):
        wait_until(lambda: get(f"http://{address}/-/ready"))
        yield address


def post(address: str, labels: list[dict[str, str]]) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    body = json.dumps([{"labels": each, "startsAt": now, "annotations": {"summary": "s"}} for each in labels])
    request = urllib.request.Request(
        f"http://{address}/api/v2/alerts", body.encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=20).close()


def labels_of(name: str, **more: str) -> dict[str, str]:
    alert = next(each for each in alerts() if each.name == name)
    return {"alertname": name, "severity": alert.severity, "kind": alert.kind, "run": "r", "owner": "eve"} | more


@needs["prometheus-alertmanager"]
def test_two_thousand_ranks_give_one_notification_and_none_during_an_incident(tmp_path):
    with receiver() as told, alertmanager(tmp_path, told) as address:
        post(address, [labels_of("ForeshockWeightShift", rank=str(rank)) for rank in range(RANKS)])
        wait_until(lambda: told.told, 30)
        time.sleep(5)  # more than twice what a group waits for more
        assert [(who, len(body["alerts"])) for who, body in told.told] == [("owner", RANKS)]
        assert told.told[0][1]["commonLabels"]["owner"] == "eve"

        post(address, [labels_of("ForeshockLossDiverging")])
        wait_until(lambda: len(told.told) > 1, 30)
        post(address, [labels_of("ForeshockPrecursorsAgree"), labels_of("ForeshockAttentionBias", rank="7")])
        post(address, [labels_of("ForeshockAttentionBias", run="other")])
        wait_until(lambda: len(told.told) > 2, 30)
        time.sleep(5)
        after = [(who, [each["labels"]["run"] for each in body["alerts"]]) for who, body in told.told[1:]]
        assert after == [("page", ["r"]), ("owner", ["other"])]
        listed = json.loads(get(f"http://{address}/api/v2/alerts?active=false&silenced=false&inhibited=true"))
        assert len(listed) == RANKS + 2
