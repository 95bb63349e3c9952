"""What the training logs is read along, and the loggers notice nothing. Stand-ins have the real loggers' shapes."""

import importlib
import inspect
import json
import pathlib
import sys
import types

import monitored
import pytest
from forked import forked

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "integrations" / "torch" / "python"


@pytest.fixture
def module():
    sys.path.insert(0, str(PACKAGE))
    try:
        yield importlib.import_module("foreshock_torch.logs")
    finally:
        sys.path.remove(str(PACKAGE))


@pytest.fixture
def modules():
    """modules(name, **contents): a module of that name, gone at the end."""
    made = []

    def make(name: str, **contents: object) -> types.ModuleType:
        parts = name.split(".")
        for n in range(1, len(parts) + 1):
            if (path := ".".join(parts[:n])) not in sys.modules:
                sys.modules[path] = types.ModuleType(path)
                made.append(path)
        vars(sys.modules[name]).update(contents)
        return sys.modules[name]

    yield make
    for name in made:
        sys.modules.pop(name, None)


class Run:
    """As wandb.sdk.wandb_run.Run."""

    def __init__(self) -> None:
        self.got: list[tuple] = []

    def log(self, data: dict, step: int | None = None, commit: bool | None = None, sync: bool | None = None) -> str:
        """Logs."""
        if not isinstance(data, dict):
            raise ValueError("no dictionary")
        self.got.append((data, step, commit))
        return "done"


class Writer:
    """As torch.utils.tensorboard.writer.SummaryWriter."""

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, new_style=False, double_precision=False):
        return (tag, scalar_value, global_step)


@pytest.fixture
def logs(module):
    """(Logs, the list of what it has passed on)."""
    passed: list[list[tuple]] = []
    return module.Logs(passed.append), passed


def test_wandb_is_read_with_its_step(logs, modules):
    mine, passed = logs
    cls = type("Run", (Run,), {"log": Run.log})
    run = cls()
    wandb = modules("wandb", log=run.log)  # bound before anything was wrapped, as after wandb.init()
    modules("wandb.sdk.wandb_run", Run=cls)
    mine.tick()
    assert wandb.log({"loss": 2.5, "n": 3, "text": "x"}, step=7) == "done"
    assert run.log({"accuracy": 0.5}) == "done"
    mine.tick()
    assert passed == [[("loss", 2.5, 7), ("accuracy", 0.5, -1)]]
    assert run.got == [({"loss": 2.5, "n": 3, "text": "x"}, 7, None), ({"accuracy": 0.5}, None, None)]
    mine.tick()
    assert len(passed) == 1, "nothing new, nothing said"


def test_a_wrapper_looks_as_what_it_wraps(logs, modules):
    cls = type("Run", (Run,), {"log": Run.log})
    modules("wandb.sdk.wandb_run", Run=cls)
    logs[0].tick()
    assert cls.log is not Run.log
    assert inspect.signature(cls.log) == inspect.signature(Run.log)
    assert (cls.log.__name__, cls.log.__qualname__, cls.log.__doc__) == ("log", "Run.log", "Logs.")
    with pytest.raises(ValueError, match="no dictionary"):
        cls().log("text")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        cls().log()
    again = cls.log
    modules("something_else")
    logs[0].tick()
    assert cls.log is again, "wrapped once"


def test_modules_that_come_late_are_found(logs, modules):
    mine, passed = logs
    mine.tick()
    cls = type("SummaryWriter", (Writer,), {"add_scalar": Writer.add_scalar})
    modules("tensorboardX.writer", SummaryWriter=cls)
    writer = cls()
    writer.add_scalar("before", 1.0, 1)
    mine.tick()
    assert writer.add_scalar("a", 1.5, global_step=3) == ("a", 1.5, 3)
    assert writer.add_scalar(tag="b", scalar_value=2.5) == ("b", 2.5, None)
    mine.tick()
    assert passed == [[("a", 1.5, 3), ("b", 2.5, -1)]]


def test_trainer_and_lightning(logs, modules):
    mine, passed = logs

    class Trainer:
        def __init__(self):
            self.state = types.SimpleNamespace(global_step=40)

        def log(self, logs, start_time=None):
            return logger.log_metrics({"inner/" + name: value for name, value in logs.items()}, 41)

    class Logger:
        def log_metrics(self, metrics, step=None):
            raise NotImplementedError

        log_metrics.__isabstractmethod__ = True

    class CSVLogger(Logger):
        def log_metrics(self, metrics, step=None):
            return "kept"

    logger = CSVLogger()
    modules("transformers.trainer", Trainer=Trainer)
    modules("lightning.fabric.loggers.logger", Logger=Logger)
    mine.tick()
    assert Trainer().log({"loss": 2.0, "epoch": 1}) == "kept"
    mine.tick()
    assert logger.log_metrics({"train": 3.0}, step=5) == "kept"
    mine.tick()
    assert passed == [[("loss", 2.0, 40)], [("train", 3.0, 5)]], "of nested loggers the outermost"


def test_only_floats_are_touched(logs, modules):
    mine, passed = logs

    class Tensor:
        def __getattribute__(self, name):
            if name in ("__class__", "__dict__"):
                return object.__getattribute__(self, name)
            raise AssertionError(f"{name} was asked for")

        def __float__(self):
            raise AssertionError("read")

    cls = type("Run", (Run,), {"log": Run.log})
    modules("wandb.sdk.wandb_run", Run=cls)
    mine.tick()
    cls().log({"tensor": Tensor(), "flag": True, 3: 1.0, "nested": {"x": 1.0}, "nan": float("nan")}, step="7")
    cls().log({str(n): 1.0 for n in range(1000)})
    cls().log({"one too many": 1.0, "nan": 2.0})
    mine.tick()
    assert tuple(passed[0][0][:3]) == ("nan", 2.0, -1)
    assert len(passed[0]) <= 256, "bounded between two steps"


def test_of_a_tensor_it_is_read_what_tensorboard_writes(logs, modules):
    """The writer fetches it from its device by itself."""
    mine, passed = logs

    class Value(types.SimpleNamespace):
        def HasField(self, name):  # noqa: N802, protobuf's own
            return name in vars(self)

    class FileWriter:
        def add_summary(self, summary, global_step=None, walltime=None):
            return "written"

    class Device:
        def dim(self):
            return 0

    class SummaryWriter(Writer):
        def add_scalar(self, tag, scalar_value, global_step=None):
            fetched = Value(tag=tag, simple_value=0.25) if tag != "other" else Value(tag=tag, tensor=0.25)
            return FileWriter().add_summary(types.SimpleNamespace(value=[fetched]), global_step)

    modules("torch.utils.tensorboard.writer", SummaryWriter=SummaryWriter, FileWriter=FileWriter)
    mine.tick()
    writer = SummaryWriter()
    for tag, value in (("lm loss", Device()), ("whole", 3), ("float", 1.5), ("other", Device())):
        assert writer.add_scalar(tag, value, 7) == "written"
    mine.tick()
    assert passed == [[("lm loss", 0.25, 7), ("float", 1.5, 7)]]


def test_a_reader_that_fails_is_not_seen(logs, modules, module, monkeypatch):
    def broken(args, kwargs):
        raise RuntimeError("ours")

    monkeypatch.setattr(module, "LOGGERS", [("wandb.sdk.wandb_run", "Run", "log", broken)])
    cls = type("Run", (Run,), {"log": Run.log})
    modules("wandb.sdk.wandb_run", Run=cls)
    logs[0].tick()
    assert cls().log({"loss": 1.0}) == "done"


TRAINING = """
import sys
sys.path.insert(0, {support!r})
import torch
from tiny_gpt import Batches, TinyGpt, fingerprint, loss_of, set_up, tell
set_up()
model, batches, losses = TinyGpt(), Batches(), []
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
writer = None
for step in range(1, 21):
    optimizer.zero_grad()
    loss = loss_of(model, batches())
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 3:
        from torch.utils.tensorboard import SummaryWriter  # late, after the first ticks
        writer = SummaryWriter({folder!r})
    if writer is not None:
        writer.add_scalar("train/loss", losses[-1], step)
        writer.add_scalar("tensor", loss.detach(), step)
        for n in range(20):
            writer.add_scalar(f"many/{{n:02}}", float(n), 100 * step)
writer.close()
tell(losses=losses, fingerprint=fingerprint(losses, model))
"""


def test_a_real_summary_writer_under_foreshock(tmp_path):
    pytest.importorskip("tensorboard")
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def program(folder: str) -> list[str]:
        text = TRAINING.format(support=str(ROOT / "tests" / "support"), folder=str(tmp_path / folder))
        return forked("-c", text)

    run = monitored.run_monitored(program("with"), *monitored.EVERYTHING)
    (told,) = run.told()
    plain = monitored.run_plain(program("without"))
    assert plain.told()[0]["fingerprint"] == told["fingerprint"]
    steps = {line["step"]: line for line in run.of("step")}
    logged = {number: line["logged"] for number, line in steps.items() if line["logged"]}
    # The writer came after tick 3, was found at tick 4; what is logged after a step rides on the next one's record.
    assert min(logged) == 5
    assert max(logged) == 20
    for number, values in logged.items():
        assert values["train/loss"] == told["losses"][number - 2]
        assert steps[number]["logged_step"]["train/loss"] == number - 1
        assert steps[number]["logged_step"]["many/00"] == 100 * (number - 1)
        assert len(values) == 16
        assert values["tensor"] == values["train/loss"], "what the writer made of it"

    def written(folder: str) -> dict:
        events = event_accumulator.EventAccumulator(str(tmp_path / folder), size_guidance={"scalars": 0})
        events.Reload()
        return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    assert written("with") == written("without")


@pytest.mark.long
def test_the_switch_leaves_the_loggers_alone(tmp_path):
    program = (
        "import torch, torch.utils.tensorboard.writer as w; p = torch.nn.Parameter(torch.ones(2))\n"
        "o = torch.optim.SGD([p], lr=0.1)\n"
        "for _ in range(5): (p * p).sum().backward(); o.step()\n"
        "import json; print(json.dumps({'wrapped': hasattr(w.SummaryWriter.add_scalar, '__wrapped__')}))"
    )
    pytest.importorskip("tensorboard")
    command = forked("-c", program)
    assert monitored.run_monitored(command).told() == [{"wrapped": True}]
    assert monitored.run_monitored(command, FORESHOCK="0").told() == [{"wrapped": False}]
    assert json.loads(monitored.run_plain(command).stdout) == {"wrapped": False}
