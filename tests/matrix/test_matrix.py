"""Every kind of trainer, with one real training each: what was seen of it, and that it was not changed.

One line per cell: attention calls, samples, samples judged, layers named right, same bits as without the monitor, exit
status. No cell is empty: what is not covered is there with the product's own word for it (`unknown` layers, `counted`
steps).
"""

import collections
import dataclasses
import hashlib
import pathlib
from collections.abc import Callable

import native
import pytest
from monitored import EVERYTHING, EVERYTHING_AND_WEIGHTS, PYTHON, Run, assert_conserved, run_monitored, run_plain

pytestmark = pytest.mark.long

FOLDER = pathlib.Path(__file__).resolve().parent
STEPS, LAYERS = 6, 2
HEAD_DIMS = [8, 16]  # of the layers in matrix_training.py: a sample shows where it was taken
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@dataclasses.dataclass
class Cell:
    """`calls`: forward and backward ones per step and rank. `named`: where a layer's name has to come from.
    `layer_of`: the layer behind a number of the call order."""

    name: str
    calls: tuple[int, int] = (LAYERS, LAYERS)
    named: str = "parameter"
    ranks: int = 1
    steps: str = "optimizer_state"
    layer_of: Callable[[int], int] = lambda number: number


CELLS = [
    Cell("eager"),
    Cell("compile", named="ordinal"),
    Cell("checkpoint", calls=(2 * LAYERS, LAYERS)),
    Cell("ddp", ranks=2),
    Cell("fsdp2", ranks=2),
    # One call per half of the batch: the order is layer 0, layer 0, layer 1, layer 1.
    Cell("vmap", calls=(2 * LAYERS, 2 * LAYERS), named="ordinal", layer_of=lambda number: number // 2),
    Cell("threads", calls=(2 * LAYERS, 2 * LAYERS)),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> pathlib.Path:
    """What is compiled by a plain run is used by the monitored one."""
    return tmp_path_factory.mktemp("matrix")


def show(
    show_line: Callable[[str, str], None], name: str, run: Run, samples: list[dict], layers: str, same_bits: bool
) -> None:
    passes = [rank["attention"][which] for rank in run.summary["ranks"] for which in ("forward", "backward")]
    columns = {key: sum(of[key] for of in passes) for key in ("calls", "sampled", "judged")}
    steps = run.summary["ranks"][0]["step_source"]
    text = "  ".join(f"{key} {value:3}" for key, value in columns.items())
    bits = "same" if same_bits else "CHANGED"
    line = f"{name:15} {text}  steps {steps:15}  layers {layers:36} bits {bits}  exit {run.returncode}"
    show_line("matrix of trainings", line)
    assert columns["sampled"] == len(samples)


def shown_layers(samples: list[dict], is_right: Callable[[dict], bool]) -> str:
    """ "24/24 right (parameter)", and what nothing could name."""
    sources = collections.Counter(sample["layer_source"] for sample in samples)
    unknown = sources.pop("unknown", 0)
    named = [sample for sample in samples if sample["layer"] is not None]
    right = sum(map(is_right, named))
    assert right == len(named), [sample for sample in named if not is_right(sample)]
    return f"{right}/{len(named)} right ({', '.join(sources)})" + (f", {unknown} unknown" if unknown else "")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_cell(cell: Cell, shared: pathlib.Path, show_line):
    start = [PYTHON] if cell.ranks == 1 else TORCHRUN
    command = [*start, str(FOLDER / "matrix_training.py"), cell.name, str(shared)]
    environment = {"PYTHONPATH": str(FOLDER.parent / "support"), "TORCHINDUCTOR_CACHE_DIR": str(shared / "inductor")}
    plain = run_plain(command, **environment)
    run = run_monitored(command, *EVERYTHING_AND_WEIGHTS, **environment)

    def right(sample: dict) -> bool:
        layer = HEAD_DIMS.index(sample["head_dim"])
        if sample["layer_source"] == "ordinal":
            return cell.layer_of(int(sample["layer"].removeprefix("call"))) == layer
        return sample["layer"] == f"{layer:03d}"

    told = [sorted(r.told(), key=lambda facts: facts["rank"]) for r in (plain, run)]
    same_bits = told[0] == told[1]
    samples = run.of("sample")
    show(show_line, cell.name, run, samples, shown_layers(samples, right), same_bits)
    assert same_bits
    assert len(run.summary["ranks"]) == cell.ranks
    for number in range(cell.ranks):
        rank = run.rank(number)
        assert_conserved(rank)
        assert (rank["steps"], rank["step_source"]) == (STEPS, cell.steps)
        seen = tuple(rank["attention"][name]["calls"] for name in ("forward", "backward"))
        assert seen == tuple(STEPS * calls for calls in cell.calls)
        assert all(rank["attention"][name]["judged"] > 0 for name in ("forward", "backward"))
    sources = {sample["layer_source"] for sample in samples}
    assert cell.named in sources
    assert sources <= ({"parameter"} if cell.named == "parameter" else {"ordinal", "unknown"})


# -- without Python --


def native_cell(show_line, name: str, command: list[str], folder: pathlib.Path, is_right: Callable) -> dict:
    dumps = [folder / "plain", folder / "monitored"]
    plain = run_plain([*command, str(dumps[0])])
    run = run_monitored([*command, str(dumps[1])], "--preload", *EVERYTHING)
    assert plain.returncode == run.returncode == 0, plain.stderr + run.stderr
    digests = [hashlib.sha256(dump.read_bytes()).hexdigest() for dump in dumps]
    samples = run.of("sample")
    show(show_line, name, run, samples, shown_layers(samples, is_right), digests[0] == digests[1])
    assert digests[0] == digests[1]
    assert_conserved(run.rank())
    assert samples
    return run.rank()


def by_place(layers: int) -> Callable[[dict], bool]:
    """Forward calls come from layer 0 up, backward ones back down."""

    def right(sample: dict) -> bool:
        place = sample["call"] % (2 * layers)
        layer = place if place < layers else 2 * layers - 1 - place
        return sample["layer"].removeprefix("call") == f"{layer:03d}"

    return right


@pytest.mark.parametrize("words", [[], ["--annotate"]], ids=["libtorch", "libtorch_names"])
def test_libtorch(words, tmp_path, show_line, request):
    trainer = native.link_libtorch_trainer(tmp_path)
    command = [str(trainer), "--steps", "12", "--layers", "3", *words, "--dump"]
    rank = native_cell(show_line, request.node.callspec.id, command, tmp_path, by_place(3))
    assert [rank["attention"][name]["calls"] for name in ("forward", "backward")] == [36, 36]
    assert (rank["steps"], rank["step_source"]) == (12, "reported" if words else "counted")


def test_c(tmp_path, show_line):
    trainer = native.build_c_trainer(tmp_path)
    rank = native_cell(show_line, "c", [str(trainer), "100"], tmp_path, by_place(2))
    assert [rank["attention"][name]["calls"] for name in ("forward", "backward")] == [200, 200]
    assert (rank["steps"], rank["step_source"]) == (100, "reported")


def test_isolated_python(shared: pathlib.Path, tmp_path):
    """python -I does not find the helper: nothing of the training is seen, and `run` says why."""
    program = tmp_path / "isolated.py"
    support = str(FOLDER.parent / "support")
    arguments = ["matrix_training.py", "eager", str(shared)]
    program.write_text(
        f"import runpy, sys\nsys.path.insert(0, {support!r})\nsys.argv = {arguments!r}\n"
        f"runpy.run_path({str(FOLDER / 'matrix_training.py')!r}, run_name='__main__')\n"
    )
    plain, run = run_plain([PYTHON, "-I", str(program)]), run_monitored([PYTHON, "-I", str(program)], *EVERYTHING)
    assert plain.told() == run.told()
    assert "python -I (isolated mode) ignores PYTHONPATH" in run.stderr
    assert run.summary is not None
    assert run.summary["ranks"] == []
