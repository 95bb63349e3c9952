"""Steps of a settled training that are not sampled: no Python code lists the parameters."""

from __future__ import annotations

import statistics

import pytest

COUNTED = """
from foreshock_torch import clock, start
start.monitor.CHECK_EVERY = 16
looks, read = [], clock.parameters_of
def counted(optimizer): looks[-1] += 1; return read(optimizer)
clock.parameters_of = counted
"""
TRAINING = """
net = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(20)])
optimizer = torch.optim.{optimizer}
{counted}
passed = []
for step in range(40):
    looks.append(0)
    _fake.fake_sample(int(step in {sampled}))
    net(torch.ones(1, 2)).sum().backward()
    {between}
    optimizer.step()
    optimizer.zero_grad(set_to_none={dropped})
    passed.append([(r["event"], r.get("step"), r.get("learning_rate")) for r in events()])
print(json.dumps([looks, passed]))
"""
ADAM, SGD = "AdamW(net.parameters(), lr=0.5)", "SGD(net.parameters(), lr=0.5)"


def train(trainer, optimizer=ADAM, sampled=(), between="", dropped=True):
    """Per step: how often all parameters were listed, and what the core received."""
    program = TRAINING.format(
        counted=COUNTED, optimizer=optimizer, sampled=list(sampled), between=between, dropped=dropped
    )
    return trainer(program)


def steps_with(passed, event):
    return [n for n, rows in enumerate(passed) if event in [row[0] for row in rows]]


@pytest.mark.parametrize("optimizer", [ADAM, SGD])
def test_parameters_are_listed_now_and_then_alone(trainer, optimizer):
    looks, passed = train(trainer, optimizer)
    assert steps_with(passed, "step") == list(range(40)), "each step is reported, and once"
    assert [rows[-1][1:] for rows in passed[3:]] == [[n + 1 if optimizer == ADAM else -1, 0.5] for n in range(3, 40)]
    if optimizer == ADAM:
        assert {n for n in range(3, 40) if looks[n] > 0} == {16, 32}


def test_a_step_with_norms_or_a_sample_has_its_gradients(trainer):
    clip = "if step == 25: torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
    looks, passed = train(trainer, sampled=[12, 30], between=clip)
    assert steps_with(passed, "gradients") == [12, 25, 30]
    assert {n for n in range(3, 40) if looks[n] > 0} == {12, 16, 30, 32}


CLIPPED = """
_fake.fake_sample(0)
net = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(4)])
optimizer = torch.optim.AdamW([{{"params": list(net[:1].parameters())}}, {{"params": list(net[1:].parameters())}}])
{counted}
rows = []
for step in range(40):
    looks.append(0)
    net(torch.ones(1, 2)).sum().backward()
    {between}
    taken = {{p._cdata: float(p.grad.double().norm()) ** 2 for g in optimizer.param_groups for p in g["params"]}}
    events()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach={foreach})
    optimizer.step()
    told = [row["squares"] for row in events("gradients")]
    optimizer.zero_grad()
    rows.append([taken, told])
print(json.dumps([looks, rows]))
"""


@pytest.mark.parametrize("foreach", [True, False])
def test_quiet_steps_report_the_norms_that_clipping_takes(trainer, foreach):
    looks, rows = trainer(CLIPPED.format(counted=COUNTED, between="", foreach=foreach))
    assert {n for n in range(3, 40) if looks[n] > 0} == {16, 32}
    for taken, told in rows[3:]:
        assert told == [pytest.approx(taken, rel=1e-6)]  # norms are fp32


CHANGES = {
    "a parameter in the middle": (
        "if step == 20: new = torch.nn.Parameter(net[1].bias.detach().clone()); new.grad = net[1].bias.grad; "
        "optimizer.param_groups[1]['params'][1] = net[1].bias = new; del new"
    ),
    "two in another order": "if step == 20: these = optimizer.param_groups[1]['params']; these[1:3] = these[2:0:-1]",
    "one fewer": "if step == 20: del optimizer.param_groups[1]['params'][2]",
}


@pytest.mark.parametrize("change", CHANGES)
def test_norms_are_those_of_the_parameters_that_the_optimizer_steps_now(trainer, change):
    looks, rows = trainer(CLIPPED.format(counted=COUNTED, between=CHANGES[change], foreach=True))
    assert looks[20] > 0
    for taken, told in rows[3:]:
        assert told == [pytest.approx(taken, rel=1e-6)]


def test_a_gradient_that_is_kept_over_the_steps_is_followed(trainer):
    _, passed = train(trainer, sampled=[1, 12, 30], dropped=False)
    assert steps_with(passed, "gradients") == [1, 12, 30]


def test_new_parameters_have_names_at_once(trainer):
    add = "if step == 20: more = torch.nn.Linear(2, 2); optimizer.add_param_group({'params': list(more.parameters())})"
    _, passed = train(trainer, between=add)
    assert 20 in steps_with(passed, "name")


@pytest.mark.parametrize("also", ["", "import foreshock; foreshock.report(loss=1.0)", "net[0].weight.grad = None"])
def test_a_parameter_that_is_exchanged_without_a_hook_gets_its_name_in_the_next_step(trainer, also):
    """Also if Python code handles the end of every step: the loss is reported, or the first gradient is missing."""
    exchange = (
        "if step == 20: new = torch.nn.Parameter(net[19].bias.detach().clone()); new.grad = net[19].bias.grad; "
        "optimizer.param_groups[0]['params'][-1] = net[19]._parameters['bias'] = new; del new"
    )
    _, passed = train(trainer, between=f"{also}\n    {exchange}")
    assert 21 in steps_with(passed, "name")


def test_a_parameter_that_is_exchanged_in_a_step_with_norms_is_named_in_the_next(trainer):
    between = (
        "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
        "    new = torch.nn.Parameter(net[19].bias.detach().clone())\n"
        "    def swap(*_): optimizer.param_groups[0]['params'][-1] = net[19]._parameters['bias'] = new\n"
        "    if step == 20: handle = optimizer.register_step_post_hook(swap)\n"
        "    if step == 21: handle.remove()"
    )
    _, passed = train(trainer, between=between)
    assert 21 in steps_with(passed, "name")
    for event in ("step", "gradients"):
        assert [[row[0] for row in rows].count(event) for rows in passed[3:]] == [1] * 37, event


def test_a_step_that_a_scaler_leaves_out_is_not_reported(trainer):
    skip = "optimizer.found_inf = torch.tensor(float(step == 20))"
    _, passed = train(trainer, "AdamW(net.parameters(), lr=0.5, fused=True)", between=skip)
    assert steps_with(passed, "step") == [n for n in range(40) if n != 20]


CALLS = """
_fake.fake_sample(0)
from foreshock_torch import start
start.monitor.CHECK_EVERY = 16
calls = []
def counted(name):
    real = getattr(start.monitor, name)
    def method(*given, **named): calls.append((name, step)); return real(*given, **named)
    setattr(start.monitor, name, method)
for name in ("before_step", "before_closure", "after_step"): counted(name)
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.{optimizer}
for step in range(40):
    net(torch.ones(1, 2)).sum().backward()
    for group in optimizer.param_groups: group["lr"] = 0.5 + step
    {before}
    optimizer.step({argument})
    {after}
    optimizer.zero_grad()
print(json.dumps([calls, events()]))
"""


def calls_of(trainer, optimizer=ADAM, before="", after="", argument=""):
    """Steps at which Python code of the monitor ran before and after the optimizer's work, and what the core received
    of each step."""
    code = CALLS.format(optimizer=optimizer, before=before, after=after, argument=argument)
    calls, rows = trainer(code)
    assert not [row for row in rows if row["event"] == "off"]
    steps = [row for row in rows if row["event"] == "step"]
    return [{n for name, n in calls if name.startswith(kind) and n >= 4} for kind in ("before", "after")], steps


@pytest.mark.parametrize("optimizer", [ADAM, SGD])
@pytest.mark.parametrize("argument", ["", "closure=None", "lambda: None", "closure=lambda: None"])
def test_a_quiet_step_runs_no_method_of_the_monitor(trainer, optimizer, argument):
    (before, after), steps = calls_of(trainer, optimizer, argument=argument)
    # The end of a step with a closure in Python does the work of both hooks.
    assert before == ({9, 16, 32} if "lambda" in argument else {16, 32})
    assert after == {9, 16, 32}, "the tenth step looks for attention that no hook sees"
    assert [row["learning_rate"] for row in steps] == [0.5 + n for n in range(40)]
    known = "SGD" not in optimizer
    assert [(row["step"], row["source"]) for row in steps] == [(n + 1, 2) if known else (-1, 3) for n in range(40)]


STATES = {  # what happens before the step with index 20: (code, numbers of the steps from there on)
    "equal": ("optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))", range(21, 41)),
    "older": ("optimizer.load_state_dict(kept)", range(11, 31)),
    "newer": ("[state['step'].add_(100) for state in optimizer.state.values()]", range(121, 141)),
    "shared": ("[state['step'].share_memory_() for state in optimizer.state.values()]", range(21, 41)),
    "other": ("[state.update(step=state['step'] + 100) for state in optimizer.state.values()]", range(121, 141)),
    "packed": (
        "[state.update(step=torch.tensor([20.0, 1.0])[0]) for state in optimizer.state.values()]",
        range(21, 41),
    ),
    "freed": (
        "old = [state['step'] for state in optimizer.state.values()]; "
        "[state.update(step=state['step'].clone()) for state in optimizer.state.values()]; "
        "[step_tensor.untyped_storage().resize_(0) for step_tensor in old]",
        range(21, 41),
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_steps_have_the_numbers_of_an_exchanged_state(trainer, state):
    code, numbers = STATES[state]
    before = f"""
    if step == 10: import copy; kept = copy.deepcopy(optimizer.state_dict())
    if step == 20: {code}"""
    _, steps = calls_of(trainer, before=before)
    assert [row["step"] for row in steps] == [*range(1, 21), *numbers]


def test_a_step_without_gradients_has_no_number_of_an_older_state(trainer):
    before = """
    if step == 18: import copy; kept = copy.deepcopy(optimizer.state_dict())
    if step == 20: optimizer.load_state_dict(kept); import foreshock; foreshock.report(loss=1.0)
    if step == 21: net.zero_grad()"""
    _, steps = calls_of(trainer, before=before)
    assert [row["step"] for row in steps] == [*range(1, 21), 19, -1, *range(20, 38)]


def test_slices_of_a_module_list_leave_steps_quiet(trainer):
    """Hugging Face's models run `for layer in self.layers[:n]`: a new ModuleList in every forward pass."""
    (before, after), _ = calls_of(trainer, before="[*torch.nn.ModuleList([net, torch.nn.Identity()])[:1]]")
    assert (before, after) == ({16, 32}, {9, 16, 32})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("optimizer.param_groups[0]['lr'] = torch.tensor(0.5)", ""),
        ("optimizer.param_groups[0]['lr'] = 1", ""),
        ("if step == 20: sys.modules['another'] = sys", ""),
        ("sys.setprofile(lambda *given: None)", "sys.setprofile(None)"),
        ("if step == 20: optimizer.state[net.weight]['step'] = torch.tensor(100.0)", ""),
        ("if step == 20: optimizer.param_groups[0]['params'] = list(optimizer.param_groups[0]['params'])", ""),
        ("if step == 20: optimizer.__class__ = type('Other', (torch.optim.AdamW,), {})", ""),
        ("if step == 20: swap(net.weight, torch.nn.Parameter(net.weight.detach().clone()))", ""),
    ],
)  # fmt: skip
def test_all_steps_are_reported_whatever_is_not_plain(trainer, before, after):
    if "swap" in before:
        before = f"swap = torch.utils.swap_tensors\n    {before}\n    net.weight.grad = torch.ones(2, 2)"
    _, steps = calls_of(trainer, before=before, after=after)
    jump = 80 if "100.0" in before else 0
    assert [row["step"] for row in steps] == [n + 1 + (jump if n >= 20 else 0) for n in range(40)]


def test_the_cost_of_quiet_steps_is_reported(trainer):
    """The time around a quiet step, and the time that a module took in between, which Python code has measured."""
    _, steps = calls_of(trainer)
    assert all(row["prepare_ns"] > 0 for row in steps)
    slow = "import time; from foreshock_torch.modules import Modules; note = Modules.note\n"
    slow += "def slowly(*given): time.sleep(0.01); note(*given)\nModules.note = slowly\n"
    code = slow + CALLS.format(optimizer=SGD, before="", argument="", after="if step == 20: torch.nn.Linear(1, 1)")
    rows = trainer(code)[1]
    costs = [row["prepare_ns"] for row in rows if row["event"] == "step"]
    # The median: the machine may stop any one step for as long.
    assert costs[21] > 10_000_000 > statistics.median(costs[12:20])


def test_an_optimizer_that_reads_specially_is_left_to_python(trainer):
    """A property, __getattr__ or __getattribute__ of the trainer's own is read as before: not at quiet steps alone."""
    own_class = "class Own(torch.optim.AdamW):\n    {own}\noptimizer = Own(net.parameters(), lr=0.5)"
    code = CALLS.replace("optimizer = torch.optim.{optimizer}", own_class)
    for own in ("def __getattr__(self, name): raise AttributeError(name)", "found_inf = None"):
        calls, rows = trainer(code.format(own=own, before="", after="", argument=""))
        assert {n for name, n in calls if n >= 4 and name == "before_step"} == set(range(4, 40))
        assert [row["step"] for row in rows if row["event"] == "step"] == list(range(1, 41))


def test_a_new_optimizer_at_the_address_of_the_old_one_is_another(trainer):
    rows = trainer("""
_fake.fake_sample(0)
net = torch.nn.Linear(2, 2)
def train(steps):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.5)
    for step in range(steps):
        net(torch.ones(1, 2)).sum().backward(); optimizer.step(); optimizer.zero_grad()
for _ in range(5): train(7)
print(json.dumps(events("step")))
""")
    assert [row["step"] for row in rows] == [*range(1, 8)] * 5


def test_a_quiet_step_runs_no_python_code_but_the_hooks(trainer):
    """So the cost of a quiet step does not grow with what the helper does in other steps."""
    ran = trainer("""
_fake.fake_sample(0)
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.5)
ran = []
def tracer(frame, event, arg):
    hooks = [f.f_code.co_name for f in (frame, frame.f_back) if "foreshock_torch" in f.f_code.co_filename]
    if hooks: ran[-1].append(frame.f_code.co_name)
for step in range(16):
    net(torch.ones(1, 2)).sum().backward()
    ran.append([])
    sys.settrace(tracer)
    try: optimizer.step()
    finally: sys.settrace(None)
    optimizer.zero_grad()
print(json.dumps(ran))
""")
    for step in (4, 5, 8, 12, 15):
        assert [name for name in ran[step] if name != "is_dynamo_compiling"] == ["_before_step", "_after_step"]
    assert len(ran[0]) > 50


def test_what_is_logged_at_a_quiet_step_goes_with_that_step(trainer):
    rows = trainer("""
_fake.fake_sample(0)
import types
writer = types.ModuleType("tensorboardX.writer")
class SummaryWriter:
    def add_scalar(self, tag, scalar_value, global_step=None): pass
writer.SummaryWriter = SummaryWriter; sys.modules[writer.__name__] = writer
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.5)
for step in range(30):
    net(torch.ones(1, 2)).sum().backward()
    if step in (6, 7, 20): SummaryWriter().add_scalar("a", float(step))
    optimizer.step(); optimizer.zero_grad()
print(json.dumps(events()))
""")
    ends = [n for n, row in enumerate(rows) if row["event"] == "step"]
    logged = {row["value"]: sum(end < n for end in ends) for n, row in enumerate(rows) if row["event"] == "scalar"}
    assert logged == {6.0: 6, 7.0: 7, 20.0: 20}


def test_a_reported_loss_goes_with_its_step(trainer):
    """Also where the trainer reports it between quiet steps, and where it reports the steps itself."""
    rows = trainer("""
_fake.fake_sample(0)
import foreshock
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.5)
for step in range(40):
    loss = net(torch.ones(1, 2)).sum(); loss.backward()
    if step in (6, 7, 20): foreshock.report(loss=float(step), batch_id=step)
    optimizer.step(); optimizer.zero_grad()
    if step >= 25: foreshock.report(step=100 + step)
print(json.dumps(events()))
""")
    steps = [row for row in rows if row["event"] == "step"]
    assert [row["step"] for row in steps[:25]] == list(range(1, 26))
    assert {n for n, row in enumerate(steps) if row["given"] & 8} == {6, 7, 20}
    assert [row["step"] for row in steps if row["source"] == 1] == [100 + n for n in range(25, 40)]


def test_a_torch_function_mode_sees_nothing_of_quiet_steps(trainer):
    code = """
import collections, json, torch
from torch.overrides import TorchFunctionMode
torch.manual_seed(0); torch.set_num_threads(1)
seen = collections.Counter()
class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen[getattr(function, "__name__", str(function))] += 1
        return function(*args, **(kwargs or {}))
class Own(torch.nn.Parameter):
    pass
net = torch.nn.Linear(2, 2)
net.bias = Own(net.bias.detach())
optimizer = torch.optim.AdamW(net.parameters(), lr=0.5)
with Functions():
    for step in range(15):
        net(torch.ones(1, 2)).sum().backward(); optimizer.step(); optimizer.zero_grad()
told = [seen, [parameter.tolist() for parameter in net.parameters()]]
"""
    watched, calls = trainer(f"""
_fake.fake_sample(0)
from foreshock_torch import start
calls, real = [], start.monitor.before_step
def counted(*given): calls.append(1); real(*given)
start.monitor.before_step = counted
{code}
print(json.dumps([told, len(calls)]))
""")
    assert watched == trainer(code + "print(json.dumps(told))", monitored=False)
    assert calls < 6, "most steps were quiet"


CLOSURES = """
_fake.fake_sample(0)
from foreshock_torch import start
start.monitor.CHECK_EVERY = 16
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.{optimizer}
inside, rows = [], []
for name in ("before_step", "before_closure", "after_step"):
    def method(*given, real=getattr(start.monitor, name), **named): inside.append(step); return real(*given, **named)
    setattr(start.monitor, name, method)
for step in range(40):
    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(1, 2)).square().sum()
        loss.backward()
        if {clip}: torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        rows[-1].append({{p._cdata: p.grad.double().square().sum().item() for p in net.parameters()}})
        return loss
    rows.append([])
    events()
    _fake.fake_sample(int(step == 20))
    optimizer.step(closure)
    _fake.fake_sample(0)
    rows[-1] = [rows[-1], events()]
print(json.dumps([inside, rows]))
"""


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("optimizer", [ADAM, "LBFGS(net.parameters(), lr=1e-3, max_iter=2)"])
def test_steps_with_a_closure_are_quiet(trainer, optimizer, clip):
    """Lightning's steps. The gradients exist only after the closure; a sampled step has all of them."""
    inside, rows = trainer(CLOSURES.format(optimizer=optimizer, clip=clip))
    assert {n for n in inside if n >= 4} == {9, 16, 20, 32}
    for n, (taken, told) in enumerate(rows):
        assert [row["event"] for row in told].count("step") == 1
        squares = [row["squares"] for row in told if row["event"] == "gradients"]
        if n >= 4:
            assert len(squares) == (clip or n == 20)
        if squares and clip:  # clipped to 1e-3, so the norm before it is larger
            assert sum(squares[0].values()) > sum(taken[-1].values())
        elif squares:
            assert squares == [pytest.approx(taken[-1], rel=1e-6)]


OTHERS = """
_fake.fake_sample(0)
from foreshock_torch import start
start.monitor.CHECK_EVERY = 16
first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
both = torch.nn.Sequential(first, second)
one = torch.optim.AdamW(first.parameters(), lr=0.5)
two = torch.optim.{optimizer}
inside, rows = [], []
for name in ("before_step", "after_step"):
    def method(*given, real=getattr(start.monitor, name)): inside.append(step); return real(*given)
    setattr(start.monitor, name, method)
for step in range(40):
    events()
    {training}
    rows.append(events())
    both.zero_grad()
print(json.dumps([inside, rows]))
"""
COMPANIONS = "both(torch.ones(1, 2)).sum().backward(); {clip}; one.step(); two.step()"
PARTNERS = (
    "torch.nn.functional.mse_loss(first(torch.ones(1, 2)), torch.ones(1, 2)).backward(); one.step(); "
    "torch.nn.functional.mse_loss(second(torch.ones(1, 2)), torch.ones(1, 2)).backward(); two.step()"
)
SECOND = "SGD(second.parameters(), lr=0.5)"


@pytest.mark.parametrize("clip", ["pass", "torch.nn.utils.clip_grad_norm_(both.parameters(), 1e-3)"])
def test_two_optimizers_after_one_backward_pass_are_quiet(trainer, clip):
    """Muon for matrices beside AdamW for the rest. The norms are those of the parameters of both."""
    inside, rows = trainer(OTHERS.format(optimizer=SECOND, training=COMPANIONS.format(clip=clip)))
    assert {n for n in inside if n >= 4} <= {9, 10, 16, 17, 32, 33}
    assert all([row["event"] for row in told].count("step") == 1 for told in rows)
    squares = [[row["squares"] for row in told if row["event"] == "gradients"] for told in rows[4:]]
    assert all([len(each) for each in of] == ([] if clip == "pass" else [4]) for of in squares)


def test_two_optimizers_with_backward_passes_of_their_own_are_quiet(trainer):
    """A GAN. The loss of the second optimizer is kept apart from that of the clock at each step."""
    inside, rows = trainer(OTHERS.format(optimizer=SECOND, training=PARTNERS))
    assert len({n for n in inside if n >= 8}) <= 6
    assert all([row["event"] for row in told].count("step") == 1 for told in rows)
    named = [[row["name"] for row in told if row["event"] == "loss_is_of"] for told in rows[4:]]
    assert named == [["loss of optimizer 2"]] * 36


@pytest.mark.parametrize(
    ("change", "at_change"),
    [
        ("if step >= 20: one.step = lambda: None", 1),
        ("if step == 20: del two; import gc; gc.collect(); two = torch.optim.{optimizer}", 1),
        ("if step == 20: two.add_param_group(dict(params=[torch.nn.Parameter(torch.ones(2))]))", 1),
        ("if step == 20: two.step()", 2),
    ],
)
def test_a_change_among_two_optimizers_is_seen(trainer, change, at_change):
    """The clock stops, the other one is replaced, gets more parameters, or steps twice, which makes it the clock."""
    training = f"{change}\n    {PARTNERS}".replace("{optimizer}", SECOND)
    _, rows = trainer(OTHERS.format(optimizer=SECOND, training=training))
    counts = [[row["event"] for row in told].count("step") for told in rows]
    assert counts[:20] == [1] * 20
    assert counts[20:] == [at_change] + [1] * 19
    assert not [row for told in rows for row in told if row["event"] == "off"]


CLIPPED_BOTH = COMPANIONS.format(clip="torch.nn.utils.clip_grad_norm_(both.parameters(), 1e-3)")
DEATHS = {
    "while a profiler runs": (
        "if step == 10: sys.setprofile(lambda *given: None); two = None\n"
        "    if step == 12: sys.setprofile(None)\n"
        "    {training} if two else None"
    ),
    "in a hook of the clock's step": (
        "def end(*given):\n"
        "        global two\n"
        "        two = None\n"
        "    if step == 10: one.register_step_post_hook(end)\n"
        "    {training} if two else None"
    ),
}


@pytest.mark.parametrize("when", DEATHS)
def test_nothing_is_read_of_a_destroyed_optimizer(trainer, when):
    """The parameters of all optimizers are compared with those that were clipped, at each quiet step."""
    training = DEATHS[when].format(training=CLIPPED_BOTH)
    inside, rows = trainer("import sys\n" + OTHERS.format(optimizer=SECOND, training=training))
    assert 12 in inside or 11 in inside, "no step is quiet until the optimizers were looked at again"
    assert [[row["event"] for row in told].count("step") for told in rows] == [1] * 40
    assert not [row for told in rows for row in told if row["event"] == "off"]


def test_weights_that_were_due_at_an_earlier_step_are_not_shown(trainer):
    """A scaler may leave out the step of one optimizer, whose weights were due."""
    training = (
        "both(torch.ones(1, 2)).sum().backward()\n"
        "    _fake.fake_sample(int(step == 20)); one.step(); _fake.fake_sample(0)\n"
        "    if step != 20: two.step()"
    )
    _, rows = trainer(OTHERS.format(optimizer=SECOND, training=training))
    shown = [sum(row["event"] == "weight" for row in told) for told in rows]
    assert shown[20] == 4, "two tensors of the clock, before and after its step"
    assert shown[21:24] == [0, 0, 0]


def test_new_parameters_of_a_second_optimizer_are_listed_at_the_next_step(trainer):
    change = "if step == 20: two.add_param_group(dict(params=[torch.nn.Parameter(torch.ones(2))]))"
    code = OTHERS.replace("inside.append(step)", "inside.append((real.__name__, step, given[0] is one))")
    inside, _ = trainer(code.format(optimizer=SECOND, training=f"{change}\n    {COMPANIONS.format(clip='pass')}"))
    assert ["before_step", 21, True] in inside, "the clock's next step is not quiet"
