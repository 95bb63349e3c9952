"""Trainings that stand still, lack ranks or are not seen. Absence counts only while the run is running."""

from rule import JOB, TARGET, UNLESS_ENDED, Alert, Group, Record, Values

RUNNING = "run:foreshock_running:max"
RANKS, WORLD = "run:foreshock_rank_up:sum", "run:foreshock_world_size:max"
LAST_STEP = "run:foreshock_last_step_timestamp_seconds:max"


def world() -> str:
    """As the living know it: an elastic job that goes on with fewer ranks lacks none. Where none lives, as all did."""
    size = "foreshock_world_size"
    return f"max by ({JOB}) ({size} {UNLESS_ENDED}) or max by ({JOB}) ({size})"


def stalled(of: dict) -> Alert:
    return Alert(
        "ForeshockTrainingStalled", "training", "fleet", "fleet",
        f"""
        time() - {LAST_STEP} > {of["seconds"]}
        and on ({JOB}) {RANKS} > 0
        and on ({JOB}) {RUNNING} == 1
        """,
        "A training makes no steps",
        "Run {{ $labels.run }}: no optimizer step for {{ $value | humanizeDuration }}, though its processes live.",
    )  # fmt: skip


def ranks_missing(of: dict) -> Alert:
    return Alert(
        "ForeshockRanksMissing", "training", "fleet", "fleet",
        f"""
        {WORLD} - {RANKS} > 0
        and on ({JOB}) {RUNNING} == 1
        """,
        "Ranks of a training are missing",
        "Run {{ $labels.run }}: {{ $value }} ranks are dead, or on nodes that nobody watches or reaches.",
        of["for"],
    )  # fmt: skip


def no_data(of: dict) -> Alert:
    return Alert(
        "ForeshockNoData", "training", "fleet", "fleet",
        # A run that has ended is told so, or its agent is no target any more; this one's is, and does not answer.
        f"""
        count by ({JOB}) (
          last_over_time(foreshock_run_state{{state="running"}}[{of["window"]}]) == 1
          and on ({TARGET}) up == 0
        )
        """,
        "An agent does not answer while its training runs",
        "Run {{ $labels.run }}: {{ $value }} agents that last said it was running cannot be scraped.",
        of["for"],
    )  # fmt: skip


def run_id_shared(of: dict) -> Alert:
    return Alert(
        "ForeshockRunIdShared", "monitor", "fleet", "fleet",
        # A rank that moves to another node is up at one agent only, but for a scrape or two.
        f"count by ({JOB}) (count by ({JOB}, rank) (foreshock_rank_up == 1) > 1)",
        "Two trainings have one run id",
        "Run {{ $labels.run }}: {{ $value }} ranks are alive at more than one agent. Two trainings use this run id, or"
        " one agent is scraped twice; figures and alerts of the run mix both. Start each with its own --run-id.",
        of["for"],
    )  # fmt: skip


def fleet_rules(values: Values) -> Group:
    return Group(
        "foreshock-fleet",
        [
            Record(RUNNING, f'max by ({JOB}) (foreshock_run_state{{state="running"}})'),
            Record(RANKS, f"sum by ({JOB}) (foreshock_rank_up)"),
            Record(WORLD, world()),
            Record("run:foreshock_step:max", f"max by ({JOB}) (foreshock_step)"),
            # Those that live may not have made their first step yet: how long ago an attempt made its last is not it.
            Record(LAST_STEP, f"max by ({JOB}) (foreshock_last_step_timestamp_seconds {UNLESS_ENDED})"),
            stalled(values["stalled"]),
            ranks_missing(values["ranks_missing"]),
            no_data(values["no_data"]),
            run_id_shared(values["run_id_shared"]),
        ],
    )
