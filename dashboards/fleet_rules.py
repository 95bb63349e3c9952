"""Alerts on trainings without progress, with a fault in their loop, without all ranks, without an answering agent, or
with a shared run id, and the recording rules that they read. `limits` is the alert's section of values.toml. From
rule.py: RUN and AT_STEP are text templates for the run's name and step, RUN_KEY and TARGET_KEY the labels of a run or
an agent; UNLESS_ENDED excludes ended ranks. An Alert has name, kind, component, dashboard, expression, summary,
description and hold time."""

from rule import AT_STEP, RUN, RUN_KEY, TARGET_KEY, UNLESS_ENDED, Alert, Group, Record, Values

# Names of recording rules, one series per run.
RUNNING = "run:foreshock_running:max"
RANKS_UP, WORLD_SIZE = "run:foreshock_rank_up:sum", "run:foreshock_world_size:max"
LAST_STEP = "run:foreshock_last_step_timestamp_seconds:max"


def world_size() -> str:
    """Expression of WORLD_SIZE: the largest world size that a rank reports. Ended ranks are excluded, since an elastic
    job may continue with fewer ranks, unless all ranks have ended."""
    size = "foreshock_world_size"
    return f"max by ({RUN_KEY}) ({size} {UNLESS_ENDED}) or max by ({RUN_KEY}) ({size})"


def stalled(limits: dict) -> Alert:
    return Alert(
        "ForeshockTrainingStalled", "training", "fleet", "fleet",
        f"""
        time() - {LAST_STEP} > {limits["seconds"]}
        and on ({RUN_KEY}) {RANKS_UP} > 0
        and on ({RUN_KEY}) {RUNNING} == 1
        """,
        RUN + ": no optimizer step for {{ $value | humanizeDuration }}",
        "The processes of the training are alive, but no optimizer step has ended for {{ $value | humanizeDuration }}"
        f"{AT_STEP}. The training hangs, or it runs a long evaluation or writes a checkpoint. First find the process"
        " rank with the lowest step in the panel 'Steps behind': the others wait for it. On its node, print what it"
        " does: py-spy dump --pid PID. If it evaluates or writes a checkpoint, do nothing. Otherwise restart the job.",
    )  # fmt: skip


def training_loop(limits: dict) -> Alert:
    # ForeshockNonFinite is the page for no_step_taken: the gradient scaler then skips more than half of the steps.
    condition = 'foreshock_condition{condition!="no_step_taken"}'
    return Alert(
        "ForeshockTrainingLoop", "training", "loop", "overview",
        # A fault fires while it holds. Any other condition may be intended, so it fires once, for the window after it
        # began: a series exists from the beginning of its condition on.
        f"""
        max by ({RUN_KEY}, condition) (foreshock_condition{{kind="fault",condition!="no_step_taken"}}) == 1
        or
        max by ({RUN_KEY}, condition) ({condition} unless {condition} offset {limits["window"]})
        """,
        RUN + ": {{ $labels.condition }}",
        f"The condition {{{{ $labels.condition }}}} of the training's loop was found{AT_STEP}. It is in the values of"
        " the training itself, and docs/detectors.md has its rule. A condition that may be intended fires once, a"
        " certain fault as long as it holds. First print it with foreshock status: the line has the first step, the"
        " place and what to do.",
    )  # fmt: skip


def ranks_missing(limits: dict) -> Alert:
    return Alert(
        "ForeshockRanksMissing", "training", "fleet", "fleet",
        f"""
        {WORLD_SIZE} - {RANKS_UP} > 0
        and on ({RUN_KEY}) {RUNNING} == 1
        """,
        RUN + ": {{ $value }} ranks are missing",
        "{{ $value }} process ranks of the job are not visible. They are dead, or foreshock does not run on their"
        " nodes, or Prometheus does not scrape these nodes. If they are dead, the other ranks wait for them. First"
        " find the node in the panel 'Ranks up by node' and see whether its processes live. If they live, start the"
        " agent of that node or scrape it. If they are dead and the launcher does not restart them, restart the job"
        " without that node.",
        limits["for"],
    )  # fmt: skip


def no_data(limits: dict) -> Alert:
    return Alert(
        "ForeshockNoData", "training", "fleet", "fleet",
        # The last reported state of the run is "running", and its agent is a scrape target that does not answer (up is
        # 0). Ended runs are excluded: their last state is not "running", or their agent is not a target any more.
        f"""
        count by ({RUN_KEY}) (
          last_over_time(foreshock_run_state{{state="running"}}[{limits["window"]}]) == 1
          and on ({TARGET_KEY}) up == 0
        )
        """,
        f"{RUN}: its agent does not answer",
        "{{ $value }} agents of this run do not answer Prometheus, although the run was running when they last did."
        " Until they answer, no alert covers their process ranks. First see whether the node of the agent is alive. If"
        " the node is dead, restart the job without it. If it is alive, the training goes on: restart the agent with"
        " systemctl restart foreshock-agent. An agent that foreshock run started is restarted by foreshock run.",
        limits["for"],
    )  # fmt: skip


def run_id_shared(limits: dict) -> Alert:
    return Alert(
        "ForeshockRunIdShared", "monitor", "fleet", "fleet",
        # A rank that moves to another node is up at both agents only for one or two scrapes, less than limits["for"].
        f"count by ({RUN_KEY}) (count by ({RUN_KEY}, rank) (foreshock_rank_up == 1) > 1)",
        f"{RUN}: two trainings use this run id",
        "{{ $value }} process ranks of this run are reported as alive by more than one agent. Two trainings use this"
        " run id, or Prometheus scrapes one agent under two addresses. Until this is resolved, the run's figures and"
        " other alerts cannot be trusted. First compare the label node of the series foreshock_rank_info of one rank."
        " If the nodes differ, there are two trainings: start each with its own --run-id. If they are equal, one agent"
        " is scraped twice: remove one of the two targets.",
        limits["for"],
    )  # fmt: skip


def fleet_rules(values: Values) -> Group:
    return Group(
        "foreshock-fleet",
        [
            Record(RUNNING, f'max by ({RUN_KEY}) (foreshock_run_state{{state="running"}})'),
            Record(RANKS_UP, f"sum by ({RUN_KEY}) (foreshock_rank_up)"),
            Record(WORLD_SIZE, world_size()),
            Record("run:foreshock_step:max", f"max by ({RUN_KEY}) (foreshock_step)"),
            # Excludes ended ranks: the last step of an earlier attempt says nothing about the present one.
            Record(LAST_STEP, f"max by ({RUN_KEY}) (foreshock_last_step_timestamp_seconds {UNLESS_ENDED})"),
            stalled(values["stalled"]),
            training_loop(values["training_loop"]),
            ranks_missing(values["ranks_missing"]),
            no_data(values["no_data"]),
            run_id_shared(values["run_id_shared"]),
        ],
    )
