"""`foreshock agent --tree`: one agent for the runs of several users, kept by an administrator."""

import json
import os
import subprocess
import urllib.error

import monitored
import pytest
from scraping import get, needs, prometheus, wait_until
from service import TOKEN, runs_as


def test_runs_of_several_users_are_followed_and_summarised(service, start_trainer, tree, tmp_path):
    uids = {"ada": 4321, "bob": 4322} if runs_as(4321) else {"ada": None, "bob": None}
    trainers = {user: start_trainer(user, "job", uid=uid) for user, uid in uids.items()}
    for trainer in trainers.values():
        trainer.do("hand.step(20)")
    for user in trainers:
        wait_until(lambda run=f"{user}/job": service.metric("attention_judged_total", run=run))
        assert service.metric("run_state", run=f"{user}/job", state="running") == 1
    runs = {("ada/job", "running", 1), ("bob/job", "running", 1)}
    told = lambda state: {(run["run"], run["state"], run["ranks"]) for run in state["runs"]} == runs  # noqa: E731
    # A run's document is made anew less often than the metrics are.
    state = wait_until(lambda: told(state := json.loads(service.get("/api/v1/state"))) and state)
    if uids["ada"] is not None:
        assert {run["owner"] for run in state["runs"]} == {"4321", "4322"}
    one = wait_until(lambda: (one := json.loads(service.get("/api/v1/state?run=ada%2Fjob")))["ranks"] and one)
    assert (one["run"], len(one["ranks"])) == ("ada/job", 1)

    for user, trainer in trainers.items():
        assert trainer.finish() == 0
        assert "foreshock  job finished, 20 steps in " in trainer.stderr()
        assert not (tree / user / "job").exists(), "the launcher takes its directory away"
        assert service.metric("run_state", run=f"{user}/job", state="finished") == 1
        for way in ("forward", "backward"):
            labels = {"run": f"{user}/job", "pass": way}
            assert service.metric("attention_in_flight", **labels) == 0
            sampled = service.metric("attention_samples_total", **labels)
            assert sampled == service.metric("attention_judged_total", **labels) > 0


def test_a_run_that_has_ended_is_forgotten(start_service, start_trainer):
    service = start_service("--forget-after", "3")
    trainer = start_trainer("ada", "job")
    trainer.do("hand.step(5)")
    wait_until(lambda: service.metric("rank_up", run="ada/job") == 1)
    assert trainer.finish() == 0
    assert service.metric("rank_up", run="ada/job") == 0
    wait_until(lambda: 'run="ada/job"' not in service.get("/metrics"))
    assert json.loads(service.get("/api/v1/state"))["runs"] == []


def test_a_run_of_the_same_name_starts_anew(service, start_trainer):
    for steps in (7, 5):
        trainer = start_trainer("ada", "job")
        trainer.do(f"hand.step({steps})")
        wait_until(lambda: service.metric("steps_total", run="ada/job") == steps)  # noqa: B023
        assert trainer.finish() == 0
        assert f" finished, {steps} steps in " in trainer.stderr()


def test_a_service_that_starts_again_goes_on(start_service, start_trainer):
    service = start_service()
    trainer = start_trainer("ada", "job")
    trainer.do("hand.step(10)")
    wait_until(lambda: service.metric("steps_total", run="ada/job") == 10)
    service.process.kill()
    service.process.wait()
    service.file_sd.unlink()
    trainer.do("hand.step(10)")
    again = start_service()
    wait_until(lambda: again.metric("steps_total", run="ada/job") == 20)
    assert trainer.finish() == 0
    assert " finished, 20 steps in " in trainer.stderr()


def test_without_a_service_the_training_runs_and_is_told(start_trainer):
    trainer = start_trainer("ada", "job")
    trainer.do("hand.step(3)")
    assert trainer.finish() == 0
    told = trainer.stderr()
    assert told.count("no service follows") == 2, "at the start and instead of a summary"
    assert "is `foreshock agent --tree` running?" in told


def test_one_consumer_per_directory(service, start_trainer, start_service, tmp_path):
    trainer = start_trainer("ada", "job")
    trainer.do("hand.step(5)")
    wait_until(lambda: service.metric("rank_up", run="ada/job") == 1)
    (tmp_path / "second").mkdir()
    second = start_service(folder=tmp_path / "second")
    wait_until(lambda: len(json.loads(second.get("/api/v1/targets"))) == 2)
    assert second.metric("rank_up", run="ada/job") is None
    found = {entry["labels"].get("__meta_foreshock_run") for entry in json.loads(second.get("/api/v1/targets"))}
    assert found == {None, "ada/job"}
    service.process.terminate()
    service.process.wait()
    wait_until(lambda: second.metric("rank_up", run="ada/job") == 1)


def test_the_token_is_wanted_and_read_again(service):
    for path in ("/", "/metrics", "/api/v1/state", "/api/v1/targets"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"http://{service.address}{path}")
    assert get(f"http://{service.address}/healthz") == "ok\n"
    assert "foreshock_build_info" in service.get("/metrics")
    other = service.token_file.with_name("other")
    other.write_text(TOKEN.upper())
    other.chmod(0o600)
    other.rename(service.token_file)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        service.get("/metrics")


@needs["prometheus"]
def test_prometheus_finds_it_by_file_and_by_http(service, start_trainer, tmp_path):
    trainer = start_trainer("ada", "job")
    trainer.do("hand.step(5)")
    # Without the type, http_sd of Prometheus 2.42 sends the bare token.
    credentials = f"{{type: Bearer, credentials_file: {service.token_file}}}"
    http = f"[{{url: 'http://{service.address}/api/v1/targets', authorization: {credentials}}}]"
    for kind, where in (("file", f"[{{files: ['{service.file_sd}']}}]"), ("http", http)):
        folder = tmp_path / kind
        folder.mkdir()
        with prometheus("", folder, f"{kind}_sd_configs: {where}", f"authorization: {credentials}") as server:
            wait_until(lambda: server.query('foreshock_rank_up{run="ada/job"} == 1'))  # noqa: B023
    assert trainer.finish() == 0


def test_its_target_file_goes_with_it(service):
    service.process.terminate()
    assert service.process.wait(120) == 0
    assert not service.file_sd.exists()


def test_a_target_file_that_cannot_be_written_is_told_once(service):
    service.file_sd.unlink()
    service.file_sd.mkdir()  # in its place
    says = lambda: service.log.read_text().count("cannot be written")  # noqa: E731
    wait_until(says)
    seen = set()
    for _ in range(4):  # it tries again whenever it publishes
        wait_until(lambda: json.loads(service.get("/api/v1/state"))["agent"]["cpu_seconds"] not in seen)
        seen.add(json.loads(service.get("/api/v1/state"))["agent"]["cpu_seconds"])
    assert says() == 1
    service.file_sd.rmdir()
    wait_until(service.file_sd.is_file)


def test_group_access_is_enough(start_service, start_trainer, tree, tmp_path):
    """A service without root: the set-group-id bit of a user's directory shares what is below it."""
    if not runs_as(4321):
        pytest.skip("needs root, and a build that other users can read")
    base = tree / "ada"
    base.mkdir()
    os.chown(base, 4321, 4399)
    base.chmod(0o2770)
    trainer = start_trainer("ada", "job", uid=4321)
    trainer.do("hand.step(5)")
    command = [str(monitored.FORESHOCK), "agent", "--tree", str(tree), "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        agent = subprocess.Popen(
            command, user=4399, group=4399, extra_groups=[], cwd="/", stdout=log, stderr=log,
            env=monitored.clean_environment(), start_new_session=True,
        )  # fmt: skip
    try:
        wait_until((base / "job" / "agent.json").exists)
        trainer.do("hand.step(5)")
        assert trainer.finish() == 0
        assert " finished, 10 steps in " in trainer.stderr(), (tmp_path / "log").read_text()
    finally:
        agent.terminate()
        agent.wait()
