"""Limits and sandboxes, around the trainer alone and around everything that `foreshock run` starts."""

import pytest
from fault_scene import assert_conserved

STEPS = "40"


def shell(condition: str) -> tuple[str, ...]:
    return ("sh", "-c", f'{condition} && exec "$@"', "sh")


def check(scene, told, fault: str, says: str | None, before: tuple[str, ...] = (), around: tuple[str, ...] = ()):
    def both():
        # A plain trainer is under the same limit.
        return scene.plain(STEPS, "return", before=before or around), scene.monitored(
            STEPS, "return", before=before, around=around
        )

    plain, watched = both()
    if plain.returncode == 98:
        pytest.skip("no seccomp filters here")
    assert plain.returncode == 0
    told(fault, scene, plain, watched, says, again=both)
    if says is None:
        assert_conserved(watched.summary)
        assert [rank["steps"] for rank in watched.summary["ranks"]] == [40] * 7


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("-v 40000", None),
        ("-v 4200", "(no_mapping)"),
        ("-n 5", "(no_descriptor)"),
        ("-f 0", "(file_limit)"),
        ("-f 4000", None),
        ("-c 0", None),
        ("-s 256", None),
    ],
)
def test_limits_of_the_trainer(scene, told, limit, says):
    check(scene, told, f"ulimit {limit} of the trainer", says, before=shell(f"ulimit {limit}"))


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("-v 14000", "not monitoring: no agent can be had: "),
        ("-n 8", "not monitoring: no agent can be had: "),
        ("-f 0", "not monitoring: files are limited to 0 KiB here"),
    ],
)
def test_limits_of_all(scene, told, limit, says):
    check(scene, told, f"ulimit {limit} of all", says, around=shell(f"ulimit {limit}"))


REFUSED = {
    "positional_writes": "(not_permitted)",
    "wipe_on_fork": "(no_mapping)",
    "record_locks": "(not_permitted)",
    "fallocate": "(not_permitted)",
    "statfs": "(no_tmpfs)",
    "rename": "(not_permitted)",
    "reading_directories": None,
}


@pytest.mark.parametrize("what", REFUSED)
def test_seccomp_of_the_trainer(scene, told, what):
    check(scene, told, f"seccomp refuses {what}, trainer", REFUSED[what], before=(scene.programs["refuse"], what))


# The launcher and the agent need some of it too: then the trainer is not watched from the start.
REFUSED_TO_ALL = REFUSED | dict.fromkeys(("fallocate", "statfs", "rename", "reading_directories"), "not monitoring: ")


@pytest.mark.parametrize("what", REFUSED)
def test_seccomp_of_all(scene, told, what):
    check(scene, told, f"seccomp refuses {what}, all", REFUSED_TO_ALL[what], around=(scene.programs["refuse"], what))
