"""What the agent of `foreshock run` knows of the process that asks, which is its only rank."""

import json
import os
import pathlib
import time
import urllib.request
from collections.abc import Callable

from segment_file import Segment, segments


def run_directory() -> pathlib.Path:
    return pathlib.Path(os.environ["FORESHOCK_DIR"], os.environ["FORESHOCK_RUN_ID"])


def agent_state(accept: Callable[[dict], object], seconds: float = 120) -> dict:
    """The rank's part of /api/v1/state, as soon as `accept` does."""
    port = json.loads((run_directory() / "agent.json").read_text())["port"]
    end = time.monotonic() + seconds
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/state", timeout=60) as reply:
            state = json.load(reply)
        if state["ranks"] and accept(state["ranks"][0]):
            return state["ranks"][0]
        if time.monotonic() > end:
            raise TimeoutError(f"the agent still says {state}")
        time.sleep(0.02)


def _has_judged_all(rank: dict) -> bool:
    return all(of["in_flight"] == 0 for of in rank["attention"].values())


def wait_until_judged(step: int) -> None:
    """Until the agent has seen the record of `step` and judged all that was sampled: every slot is free again."""
    agent_state(lambda rank: rank["step"] == step and _has_judged_all(rank))


def wait_until_called(calls: int) -> None:
    """Until the agent has seen so many forward calls and judged all that was sampled, for trainings whose steps begin
    anew."""
    agent_state(lambda rank: rank["attention"]["forward"]["calls"] >= calls and _has_judged_all(rank))


def wait_until_slots_are_free(seconds: float = 120) -> None:
    """Between two steps: until the agent has taken all that was sampled, so that the next samples find free slots
    however busy the machine is. Without a run it returns at once."""
    end = time.monotonic() + seconds
    while "FORESHOCK_RUN_ID" in os.environ and not all(map(_is_taken, segments(run_directory()))):
        if time.monotonic() > end:
            raise TimeoutError("the agent has not taken all samples")
        time.sleep(0.005)


def _is_taken(segment: Segment) -> bool:
    return all(of["judged"] + sum(of["lost"].values()) >= of["sampled"] for of in segment.attention().values())
