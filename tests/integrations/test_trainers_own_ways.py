"""What a trainer may do with its own tensors, modes and optimizers goes as it goes without the monitor."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.quick

TOY = """
class Toy(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.qkv = torch.nn.Linear(32, 96)
    def forward(self, x):
        return sdpa(*[t.view(2, 8, 4, 8).transpose(1, 2) for t in self.qkv(x).split(32, 2)])
def backward(model): model(torch.randn(2, 8, 32)).square().mean().backward()
"""


@pytest.mark.parametrize("helper", [True, False])
def test_tensors_can_be_swapped(trainer, helper: bool) -> None:
    """torch.utils.swap_tensors refuses a tensor that anybody holds a weak reference to."""
    pair = trainer(
        f"""{TOY}
model = Toy(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(3):
    opt.zero_grad(); backward(model); opt.step()
model.requires_grad_(False); torch.nn.utils.get_total_norm(list(model.parameters())); model.requires_grad_()
backward(model); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
torch.__future__.set_swap_module_params_on_conversion(True)
model.double()
print(json.dumps([str(model.qkv.weight.dtype), str(model.qkv.weight.grad.dtype)]))
""",
        **({} if helper else {"PYTHONPATH": ""}),
    )
    assert pair == ["torch.float64", "torch.float64"]


def test_a_norm_belongs_to_its_tensor_not_to_its_address(trainer) -> None:
    rows, truth = trainer(f"""{TOY}
model = Toy(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); weight = model.qkv.weight
backward(model); opt.step(); opt.zero_grad(); backward(model); events()
memory = bytearray(weight.nbytes)  # of every tensor below, so that only the address of the object is left to chance
def tensor_of(value):
    memory[:] = torch.full_like(weight, value).numpy().tobytes()
    return torch.frombuffer(memory, dtype=weight.dtype).view_as(weight)
kept = []
for _ in range(1000):
    other = tensor_of(1.0); other.norm(); address = other._cdata, other.data_ptr(); del other
    kept.append(gradient := tensor_of(2.0))
    if (gradient._cdata, gradient.data_ptr()) == address: break
else: raise SystemExit("the allocator gives no address twice")
weight.grad = gradient
torch.nn.utils.get_total_norm([model.qkv.bias.grad])
truth = {{str(p._cdata): p.grad.double().square().sum().item() for p in model.parameters()}}
opt.step(); print(json.dumps([events("gradients"), truth]))
""")
    for row in rows:
        for parameter, squares in row["squares"].items():
            assert abs(squares - truth[parameter]) <= 1e-5 * truth[parameter]


def test_modes_of_the_trainer_see_nothing_of_ours(trainer) -> None:
    code = f"""
import collections, json
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
torch.manual_seed(0)
def sdpa(q, k, v): return F.scaled_dot_product_attention(q, k, v)
{TOY}
seen = collections.Counter()
class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen[getattr(function, "__name__", str(function))] += 1; return function(*args, **(kwargs or {{}}))
class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        seen[str(operation)] += 1; return operation(*args, **(kwargs or {{}}))
model = Toy(); opt = torch.optim.AdamW(model.parameters(), foreach=True)
for mode in (Functions, Operations):
    with mode():
        for _ in range(3):
            opt.zero_grad(); backward(model); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step()
print(json.dumps(seen, sort_keys=True))
"""
    watched, plain = trainer(code), trainer(code, monitored=False)
    assert watched == plain
    assert plain["aten._foreach_norm.Scalar"] == 3


def test_optimizer_state_of_any_kind(trainer) -> None:
    """A bare tensor as the state of a parameter: the steps are counted."""
    rows = trainer(f"""{TOY}
class Momentum(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p not in self.state: self.state[p] = torch.zeros_like(p)
            p.sub_(self.state[p].mul_(0.9).add_(p.grad), alpha=1e-3)
model = Toy(); opt = Momentum(model.parameters(), {{}})
for _ in range(3):
    opt.zero_grad(); backward(model); opt.step()
print(json.dumps(events()))
""")
    assert not [row for row in rows if row["event"] == "off"]
    assert [(row["step"], row["source"]) for row in rows if row["event"] == "step"] == [(-1, 3)] * 3


@pytest.mark.parametrize("handler", ["stop", "functools.partial(stop)", "Stop().method", "Stop()"])
def test_what_a_signal_handler_raises_reaches_the_trainer(trainer, handler: str) -> None:
    """Also when the signal comes while a hook of ours runs: preemption is told in this way."""
    caught, rows = trainer(f"""{TOY}
import functools, os, signal
from foreshock_torch import start
class Preempted(Exception): pass
def stop(number, frame): raise Preempted(number)
class Stop:
    def method(self, number, frame): stop(number, frame)
    def __call__(self, number, frame): stop(number, frame)
signal.signal(signal.SIGUSR1, {handler})
model = Toy(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); caught = []
def interrupted(real):
    def method(*given):
        os.kill(os.getpid(), signal.SIGUSR1)
        return real(*given)
    return method
for hook in (None, "before_step", "after_step", None):
    opt.zero_grad(); backward(model)
    if hook: setattr(start.monitor, hook, interrupted(getattr(start.monitor, hook)))
    try: opt.step()
    except Preempted as error: caught.append(error.args[0] == signal.SIGUSR1)
    if hook: delattr(start.monitor, hook)
print(json.dumps([caught, events()]))
""")
    assert caught == [True, True]
    assert not [row for row in rows if row["event"] == "off"]
    assert [row["event"] for row in rows].count("step") >= 2, "the first and the last one"


@pytest.mark.parametrize("sampled", [1, 0])
@pytest.mark.parametrize("sent", ["raise Preempted(line)", "send(thread, ctypes.py_object(Preempted))"])
def test_an_exception_of_the_trainer_at_any_line_of_ours_reaches_it(trainer, sent: str, sampled: int) -> None:
    """As a signal handler raises it, which gets the frame that it interrupts, and as another thread sends it. The
    function that traces the lines interrupts them."""
    lost, tried, rows = trainer(f"""{TOY}
import ctypes, threading
_fake.fake_sample({sampled})
from foreshock_torch import start
class Preempted(Exception): pass
send, thread = ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(threading.get_ident())
line = last = 0
def tracer(frame, event, arg):
    global line
    if "foreshock_torch" not in frame.f_code.co_filename: return None
    if event == "line":
        line += 1
        if line == last: {sent}
    return tracer
model = Toy(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); lost = []; log = []
def step():
    global line
    line = 0
    backward(model); sys.settrace(tracer)
    try: opt.step()
    finally: sys.settrace(None)
for _ in range(12): step()
many = line
for last in range(1, many + 1):
    try:
        step()
        if line >= last: lost.append(last)
    except Preempted: pass
last = 0; events(); step(); print(json.dumps([lost, many, events()]))
""")
    assert tried > 50 if sampled else 0 < tried < 12, "a quiet step has only the lines of two hooks"
    assert lost == []
    assert not [row for row in rows if row["event"] == "off"]
    assert [row for row in rows if row["event"] == "step"], "the monitor goes on"


OWN_WAYS = {
    # An iterator can be read only once, and the optimizer has to.
    "parameters of a group": "opt.param_groups[0]['params'] = iter([weight])",
    "groups": "opt.param_groups = iter(list(opt.param_groups))",
    "groups of iterators": "opt.param_groups = (dict(g, params=iter(g['params'])) for g in list(opt.param_groups))",
    "clock": "patch(time, 'perf_counter_ns', iter([10, 20]).__next__)",
    "profile": "patch(sys, 'getprofile', fails)",
    "weak reference": "patch(weakref, 'ref', fails)",
    "mode": "patch(torch._C, 'DisableTorchFunction', fails)",
    "compiler": "patch(torch.compiler, 'is_compiling', fails)",
}


@pytest.mark.parametrize("way", OWN_WAYS, ids=str)
def test_what_the_trainer_replaces_for_one_step(trainer, way: str) -> None:
    code = f"""
import json, sys, time, weakref
torch.manual_seed(0); torch.set_num_threads(1)
def fails(*given, **more): raise RuntimeError("replaced")
class Plain(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]: p.sub_(p.grad, alpha=group["lr"])
weight = torch.nn.Parameter(torch.ones(3, 3)); opt = Plain([weight], dict(lr=0.1)); sums = []; back = []
def patch(owner, name, value): back.append((owner, name, getattr(owner, name))); setattr(owner, name, value)
for n in range(6):
    weight.grad = None; (weight.square().sum() * (n + 1)).backward()
    kept = opt.param_groups, dict(opt.param_groups[0])
    if n == 3: {OWN_WAYS[way]}
    opt.step()
    while back: setattr(*back.pop())
    opt.param_groups = kept[0]; opt.param_groups[0].update(kept[1])
    sums.append(weight.double().sum().item())
"""
    told = trainer(code + "print(json.dumps([sums, events()]))")
    assert told[0] == trainer(code + "print(json.dumps(sums))", monitored=False)
    assert not [row for row in told[1] if row["event"] == "off"]
    assert [row["event"] for row in told[1]].count("step") >= 5


def test_an_optimizer_sees_its_attributes_read_as_ever(trainer) -> None:
    code = f"""
import json
import torch.nn.functional as F
def sdpa(q, k, v): return F.scaled_dot_product_attention(q, k, v)
{TOY}
read = []
class Watching(torch.optim.AdamW):
    def __getattribute__(self, name):
        read.append(name); return super().__getattribute__(name)
    def __getattr__(self, name):
        raise AttributeError(name)
model = Toy(); opt = Watching(model.parameters(), lr=1e-3)
for _ in range(8):
    opt.zero_grad(); backward(model); opt.step()
print(json.dumps(read))
"""
    assert trainer(code) == trainer(code, monitored=False)


DROPPED = """
import os, signal
from foreshock_torch.{module} import {name}
class Preempted(Exception): pass
def stop(number, frame): raise Preempted(number)
signal.signal(signal.SIGUSR1, stop)
def tracer(frame, event, arg):
    global times
    if frame.f_code is {name}.{method}.__code__:
        if event == "{event}" and times == before: times += 1; os.kill(os.getpid(), signal.SIGUSR1)
        return tracer
seen = times = before = 0
"""


@pytest.mark.parametrize("event", ["call", "line", "return"])
def test_a_signal_while_a_model_is_dropped_is_not_lost(trainer, event: str) -> None:
    """The callback of a weak reference runs then, and Python drops what leaves one."""
    seen, times = (
        trainer(f"""{TOY}{DROPPED.format(module="owners", name="Owners", method="_on_module_death", event=event)}
for _ in range(10):
    model = Toy(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    backward(model); opt.step(); opt = None
    before = times
    try:
        sys.settrace(tracer); model = None
        for _ in range(100): pass
    except Preempted: seen += times > before
    finally: sys.settrace(None)
print(json.dumps([seen, times > 0]))
""")
    )
    assert (seen, times) == (10, True)


@pytest.mark.parametrize("event", ["call", "line", "return"])
def test_a_signal_while_a_compiled_step_is_counted_is_not_lost(trainer, event: str) -> None:
    seen, steps = (
        trainer(f"""{TOY}{DROPPED.format(module="compiled", name="Watch", method="_on_token_death", event=event)}
model = Toy(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
step = torch.compile(opt.step, backend="eager")
for _ in range(3):
    opt.zero_grad(); backward(model); step()
events()
for _ in range(5):
    opt.zero_grad(); backward(model)
    try:
        before = times; sys.settrace(tracer); step()
        for _ in range(100): pass
    except Preempted: seen += 1
    finally: sys.settrace(None)
print(json.dumps([seen, times]))
""")
    )
    assert seen == 5
    assert steps >= 5


def test_what_the_trainer_replaces_is_not_called_by_us(trainer) -> None:
    """Functions of torch.distributed, methods of modules and the operators of its own objects."""
    code = f"""
import collections, json
from unittest import mock
import torch.nn.functional as F
import torch.distributed as dist
def sdpa(q, k, v): return F.scaled_dot_product_attention(q, k, v)
torch.manual_seed(0); torch.set_num_threads(1)
{TOY}
calls = collections.Counter(); ranks = []
class Equal(torch.optim.SGD):
    def __eq__(self, other): calls["eq"] += 1; return self is other
    def __hash__(self): return id(self)
class Rate:
    def __float__(self): calls["float"] += 1; return 0.1
class Own(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]: p.sub_(p.grad, alpha=0.1)
class Listing(Toy):
    def named_parameters(self, *a, **k): calls["named"] += 1; return super().named_parameters(*a, **k)
    def named_modules(self, *a, **k): calls["modules"] += 1; return super().named_modules(*a, **k)
    def children(self): calls["children"] += 1; return super().children()
def train(optimizer, **more):
    model = Listing(); one = optimizer(list(model.qkv.parameters()), **more); calls.clear()
    for _ in range(8):
        one.zero_grad(); backward(model); one.step()
    told.append(dict(calls))
told = []
names = ("is_initialized", "get_world_size", "get_rank")
with mock.patch.multiple(dist, is_initialized=mock.Mock(return_value=True), get_world_size=mock.Mock(return_value=2),
                         get_rank=mock.Mock(side_effect=[0, 1])):
    train(Equal, lr=0.1); ranks = [dist.get_rank(), dist.get_rank()]
    told.append([dist.is_initialized.call_count, dist.get_world_size.call_count])
train(Own, defaults=dict(lr=Rate()))
handle = torch.nn.Linear(2, 2).register_forward_hook(print)
print(json.dumps([told, ranks, handle.id]))
"""
    assert trainer(code) == trainer(code, monitored=False)


def test_a_step_near_the_end_of_the_stack_goes_as_ever(trainer) -> None:
    """A program that fails at some depth fails at the same depth."""
    code = f"""
import json, sys
import torch.nn.functional as F
torch.manual_seed(0); torch.set_num_threads(1)
def sdpa(q, k, v): return F.scaled_dot_product_attention(q, k, v)
{TOY}
model = Toy(); opt = torch.optim.AdamW(model.parameters(), lr=0.01); done = []
def down(n):
    if n == 0: return opt.step()
    return down(n - 1)
backward(model); down(3)
base = len(__import__("inspect").stack())
for n in range(230, 300):
    backward(model); sys.setrecursionlimit(300 + base)
    try: down(n); done.append(n)
    except RecursionError: pass
    finally: sys.setrecursionlimit(3000)
print(json.dumps([done, [p.double().sum().item() for p in model.parameters()]]))
"""
    told = trainer(code, FORESHOCK_EVERY="1", FORESHOCK_MAX_SLOWDOWN="100%")
    assert told == trainer(code, monitored=False)


def test_steps_leave_nothing_to_the_collector(trainer) -> None:
    """Trainers that switch the collector off count on that."""
    left = trainer(
        f"""{TOY}
import gc
model = Toy(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); left = []
def train(steps):
    for _ in range(steps):
        opt.zero_grad(); backward(model); opt.step()
train(100); gc.collect(); gc.disable()
for _ in range(4):
    train(50); left.append(gc.collect())
print(json.dumps(left))
""",
        FORESHOCK_EVERY="1",
        FORESHOCK_MAX_SLOWDOWN="100%",
    )
    assert left == [0, 0, 0, 0]


def test_nothing_stays_of_a_model_that_is_gone(trainer) -> None:
    grown = trainer(f"""{TOY}
import gc
def train():
    model = Toy(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        opt.zero_grad(); backward(model); opt.step()
counts = []
for n in range(300):
    train()
    if n in (99, 299): events(); gc.collect(); counts.append(len(gc.get_objects()))
print(json.dumps(counts[1] - counts[0]))
""")
    assert grown < 10, "of 200 models with two modules each"


def test_complex_gradients_are_not_counted_as_nothing(trainer) -> None:
    rows = trainer(f"""{TOY}
model = Toy(); extra = torch.nn.Parameter(torch.ones(4, dtype=torch.complex64))
opt = torch.optim.SGD([*model.parameters(), extra], lr=1e-3)
for _ in range(3):
    opt.zero_grad(); (model(torch.randn(2, 8, 32)).square().mean() + extra.abs().sum()).backward(); opt.step()
print(json.dumps(events()))
""")
    assert [row["event"] for row in rows].count("step") == 3
    assert not [row for row in rows if row["event"] == "gradients"]


def test_two_threads_step_at_once(trainer) -> None:
    """As in a Python without an interpreter lock: ctypes.CDLL gives it up for the time of the call. What is told
    is of one optimizer each time, never a mixture."""
    rows, truth = trainer("""
import os, threading
version = f"torch-{torch.__version__}-{torch.version.git_version[:12]}"
adapter = ctypes.CDLL(os.path.join(os.environ["FORESHOCK_ADAPTERS"], version, "adapter.so"))
begins = adapter.foreshock_adapter_step_begins
begins.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_double, ctypes.c_uint32, ctypes.c_uint32]
tables, truth = [], []
for number, count in enumerate((1, 20, 300, 900)):
    parameters = [torch.nn.Parameter(torch.ones(4)) for _ in range(count)]
    for parameter in parameters: parameter.grad = torch.full((4,), 2.0**number)
    tables.append((parameters, (ctypes.c_void_p * count)(*[parameter._cdata for parameter in parameters])))
    truth.append([count, 4 * 4.0**number])
torch.nn.utils.get_total_norm([parameter.grad for parameters, _ in tables for parameter in parameters])
start = threading.Barrier(len(tables))
def work(table):
    start.wait()
    for _ in range(100): begins(table, len(table), 1.0, 0, 0)
threads = [threading.Thread(target=work, args=(table,)) for _, table in tables]
for thread in threads: thread.start()
for thread in threads: thread.join()
rows = [list(row["squares"].values()) for row in events("gradients")]
print(json.dumps([sorted({(len(row), *set(row)) for row in rows}), truth]))
""")
    assert rows
    assert all(row in truth for row in rows)


PROFILED = """
import copy, json
import torch
from torch.profiler import ProfilerActivity, profile
torch.manual_seed(0); torch.set_num_threads(1)
def events_of(work):
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as found: work()
    return len(found.profiler.kineto_results.events())
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(LAYERS)])
def train():
    for _ in range(8):
        opt.zero_grad(); model(torch.ones(4, 16)).square().mean().backward(); opt.step()
def begin():
    global model, opt
    model = copy.deepcopy(model); opt = torch.optim.AdamW(model.parameters()); train()
print(json.dumps([events_of(begin), events_of(train)]))
"""


def test_a_profile_with_stacks_holds_little_of_ours(trainer) -> None:
    """A fifth of its events at most, and in each step a number that does not grow with the model."""
    a_step = []
    for layers in (4, 16):
        code = PROFILED.replace("LAYERS", str(layers))
        (bare, bare_steps), (watched, watched_steps) = trainer(code, monitored=False), trainer(code)
        assert watched <= 1.2 * bare, (watched, bare)
        a_step.append((watched_steps - bare_steps) / 8)
    assert a_step[0] == a_step[1] <= 120, a_step


def test_names_come_when_the_profile_with_stacks_has_ended(trainer) -> None:
    rows = trainer(f"""{TOY}
from torch.profiler import ProfilerActivity, profile
model = Toy(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
def train():
    for _ in range(2): opt.zero_grad(); backward(model); opt.step()
with profile(activities=[ProfilerActivity.CPU], with_stack=True): train()
during = events(); train(); print(json.dumps([during, events()]))
""")
    kinds = [[row["event"] for row in part] for part in rows]
    assert [kind.count("step") for kind in kinds] == [2, 2]
    assert [kind.count("name") for kind in kinds] == [0, 2]


def test_torch_finds_no_kernel_without_schema(trainer) -> None:
    assert trainer("print(json.dumps(torch._C._dispatch_find_dangling_impls()))") == []


def test_the_first_step_of_another_training_is_marked(trainer) -> None:
    """Its steps are numbered on, since SGD keeps no number of them."""
    rows = trainer(f"""{TOY}
import gc
for _ in range(3):
    model = Toy(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2): opt.zero_grad(); backward(model); opt.step()
    del model, opt; gc.collect()
print(json.dumps(events("step")))
""")
    assert [row["given"] & 64 for row in rows] == [0, 0, 64, 0, 64, 0]


@pytest.mark.parametrize(
    "update",
    [
        "p -= 0.1 * p.grad",
        "p.data = p.data - 0.1 * p.grad",
        "p.data.sub_(p.grad, alpha=0.1)",  # as through another view of the same memory: the version stays
    ],
)
def test_an_update_written_by_hand_is_a_step_until_an_optimizer_steps(trainer, update: str) -> None:
    """The last change is seen at the next call of attention. An optimizer's own steps are not counted twice."""
    by_hand, later = trainer(f"""{TOY}
model = Toy(); backward(model); events()
for _ in range(4):
    with torch.no_grad():
        for p in model.parameters(): {update}
    model.zero_grad(); backward(model); backward(model)
steps = events("step"); opt = torch.optim.AdamW(model.parameters())
for _ in range(3): opt.step(); opt.zero_grad(); backward(model)
print(json.dumps([steps, events("step")]))
""")
    assert [row["source"] for row in by_hand] == [3] * 4  # counted
    assert [(row["source"], row["step"]) for row in later] == [(2, 1), (2, 2), (2, 3)]  # the optimizer's state


def test_hooks_that_run_after_a_graph_break_are_not_traced(trainer) -> None:
    """A hook of the trainer that Dynamo cannot trace makes it run torch's step, and our hooks in it, untraced."""
    plain, watched, rows = trainer("""
from torch.optim import optimizer as hooks
ours = [(registered, dict(registered))
        for registered in (hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks)]
def trained():
    torch._dynamo.reset(); torch.manual_seed(0)
    net = torch.nn.Linear(2, 2); norms = []
    optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.1))
    optimizer.register_step_pre_hook(lambda *_: norms.append(float(net.weight.grad.norm())))
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(6): net(torch.ones(1, 2)).sum().backward(); step(); optimizer.zero_grad()
    return [norms, net.weight.tolist(), net.bias.tolist()]
for registered, _ in ours: registered.clear()
plain = trained()
for registered, kept in ours: registered.update(kept)
events()
print(json.dumps([plain, trained(), events()]))
""")
    assert watched == plain
    assert [row["event"] for row in rows if row["event"] in ("step", "off")] == ["step"] * 6


@pytest.mark.parametrize("given", ["list(args), kwargs", "iter(args), kwargs"])
def test_arguments_of_other_types_reach_the_step(trainer, given: str) -> None:
    """torch lets a hook replace the arguments of step() by any two objects. Ours may run after that hook."""
    failed, rows = trainer(f"""
from torch.optim import optimizer as hooks
hooks.register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: ({given}))
for number in [number for number in hooks._global_optimizer_pre_hooks if number < 0]:
    hooks._global_optimizer_pre_hooks.move_to_end(number)
_fake.fake_sample(0)
net = torch.nn.Linear(2, 2); optimizer = torch.optim.AdamW(net.parameters(), lr=0.1); failed = []
for _ in range(12):
    net(torch.ones(1, 2)).sum().backward()
    try: optimizer.step()
    except Exception as error: failed.append(repr(error))
    optimizer.zero_grad()
print(json.dumps([failed, events()]))
""")
    assert failed == []
    assert [row["event"] for row in rows if row["event"] in ("step", "off")] == ["step"] * 12
