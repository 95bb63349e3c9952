"""Reads the counts of a rank out of its .seg and .ctl files, by the layout of segment/layout.h and nothing else."""

import fcntl
import pathlib
import struct

SKIP_REASONS = (
    "budget", "ring_full", "dropout", "capture", "nested", "fp8", "mask", "layout", "too_large", "off", "unknown",
    "device", "device_memory", "set_up",
)  # fmt: skip
LOST_REASONS = ("torn", "damaged", "refused", "unsupported")
PASSES = ("forward", "backward")
OP_NAME = 64  # bytes of an operation's name
CONSUMPTION_OFFSET, MAX_SLOTS = 256, 60
MAX_OPS = 64
# Of a thread: words of its block, and where its counts begin.
BLOCK = struct.Struct(f"<{8 + MAX_OPS + 2 * len(SKIP_REASONS)}Q")
ALL_CALLS, UNSAMPLED, SAMPLED, COSTS, CALLS, SKIPPED = 1, 2, 4, 6, 8, 8 + MAX_OPS
IDENTITY, OPS, THREADS, STEPS, LAYERS, SLOTS = range(6)
STEP_RECORD = struct.Struct("<QqQQdddQIIIIQQQQ")
STEP_FIELDS = (
    "sequence", "step", "time_ns", "duration_ns", "loss", "learning_rate", "gradient_norm", "batch_id", "given",
    "loss_source", "step_source", "sampled", "calls", "skipped_steps", "interval", "cost_ns",
)  # fmt: skip


class Segment:
    """One rank's files at the moment they were read."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.bytes = path.read_bytes()
        self.control = path.with_suffix(".ctl").read_bytes()
        assert self.bytes[:8] == b"FSHKSEG\n"
        assert self.control[:8] == b"FSHKCTL\n"
        self.regions = [struct.unpack_from("<QQQ", self.bytes, 32 + 24 * n) for n in range(8)]

    def _records(self, region: int) -> list[int]:
        offset, size, count = self.regions[region]
        return [offset + size * n for n in range(count)]

    @property
    def slots(self) -> int:
        return self.regions[SLOTS][2]

    @property
    def pid(self) -> int:
        return struct.unpack_from("<Q", self.bytes, self.regions[IDENTITY][0])[0]

    @property
    def rank(self) -> int:
        return struct.unpack_from("<i", self.bytes, self.regions[IDENTITY][0] + 32)[0]

    def is_locked(self) -> bool:
        with self.path.open("r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def attention(self) -> dict[str, dict]:
        """As in the summary: {"forward": {"calls", "unsampled", "sampled", "skipped", "judged", "lost"}, ...}."""
        passes = [struct.unpack_from("<I", self.bytes, at + OP_NAME)[0] for at in self._records(OPS)]
        result = {}
        for number, name in enumerate(PASSES):
            counts = {"calls": 0, "unsampled": 0, "sampled": 0, "judged": 0}
            skipped, lost = dict.fromkeys(SKIP_REASONS, 0), dict.fromkeys(LOST_REASONS, 0)
            for at in self._records(THREADS):
                words = BLOCK.unpack_from(self.bytes, at)
                counts["calls"] += sum(n for n, of in zip(words[CALLS:SKIPPED], passes, strict=True) if of == number)
                counts["unsampled"] += words[UNSAMPLED + number]
                counts["sampled"] += words[SAMPLED + number]
                for index, reason in enumerate(SKIP_REASONS):
                    skipped[reason] += words[SKIPPED + len(SKIP_REASONS) * number + index]
            for slot in range(MAX_SLOTS):
                words = struct.unpack_from("<Q10I", self.control, CONSUMPTION_OFFSET + 64 * slot)
                counts["judged"] += words[1 + number]
                for index, reason in enumerate(LOST_REASONS):
                    lost[reason] += words[3 + len(LOST_REASONS) * number + index]
            result[name] = counts | {"skipped": skipped, "lost": lost}
        return result

    def cost_ns(self) -> int:
        blocks = [BLOCK.unpack_from(self.bytes, at) for at in self._records(THREADS)]
        return sum(sum(words[COSTS:CALLS]) for words in blocks)

    def all_calls(self) -> int:
        """The calls of both passes, by a counter of their own."""
        return sum(BLOCK.unpack_from(self.bytes, at)[ALL_CALLS] for at in self._records(THREADS))

    def steps(self) -> list[dict]:
        """The step records that are in the ring, oldest first."""
        records = [
            dict(zip(STEP_FIELDS, STEP_RECORD.unpack_from(self.bytes, at), strict=True)) for at in self._records(STEPS)
        ]
        return sorted((r for r in records if r["sequence"]), key=lambda record: record["sequence"])


def segments(directory: pathlib.Path) -> list[Segment]:
    """All segments of a run directory, by rank."""
    return sorted((Segment(path) for path in directory.glob("[0-9]*.seg")), key=lambda segment: segment.rank)


def assert_calls_conserved(attention: dict[str, dict]) -> None:
    for name, of in attention.items():
        assert of["calls"] == of["unsampled"] + of["sampled"] + sum(of["skipped"].values()), (name, of)
