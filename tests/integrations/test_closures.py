"""Steps that are given a closure, which makes the gradients: Lightning's automatic optimization, LBFGS."""

import pytest

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("adapters")]

TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 2))
opt = {optimizer}
truth, results, called = [], [], 0
torch.manual_seed(1)
for n in range(4):
    x = torch.randn(8, 6)
    def closure():
        global called, square
        called += 1
        opt.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        square = sum(p.grad.double().square().sum().item() for p in model.parameters())
        if {clip}: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        return loss
    results.append(opt.step({closure}).item())
    truth.append(square)
values = [p.detach().double().sum().item() for p in model.parameters()]
"""
TOLD = TRAINING + "print(json.dumps([events(), truth, results, values, called]))"
ALONE = "import json\ntorch.manual_seed(0)\ntorch.set_num_threads(1)\n" + TRAINING
ADAM = "torch.optim.AdamW(model.parameters(), lr=0.01)"
LBFGS = "torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)"


def filled(text: str, **words: str) -> str:
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    return text


@pytest.mark.parametrize("clip", ["0", "1"])
@pytest.mark.parametrize(
    ("optimizer", "closure"), [(ADAM, "closure"), (ADAM, "closure=closure"), (LBFGS, "closure")], ids=str
)
def test_norm_is_that_of_the_last_evaluation(trainer, optimizer, closure, clip) -> None:
    words = {"optimizer": optimizer, "closure": closure, "clip": clip}
    rows, truth, results, values, called = trainer(filled(TOLD, **words))
    squares = [sum(row["squares"].values()) for row in rows if row["event"] == "gradients"]
    # fp32 norms of torch where the trainer clips: 30 terms, 2^-24 each, squared.
    assert squares == pytest.approx(truth, rel=1e-5)
    steps = [1, 2, 3, 4] if optimizer == ADAM else [-1] * 4  # LBFGS keeps no number of its steps
    assert [row["step"] for row in rows if row["event"] == "step"] == steps
    assert not [row for row in rows if row["event"] == "off"]
    assert called == (4 if optimizer == ADAM else 12)
    alone = trainer(filled(ALONE, **words) + "print(json.dumps([results, values]))", monitored=False)
    assert [results, values] == alone, "to the last bit, as without the monitor"


def test_exception_in_a_closure_reaches_the_trainer(trainer) -> None:
    said, steps = trainer(
        """
        weight = torch.nn.Parameter(torch.ones(2, 2))
        opt = torch.optim.SGD([weight], lr=0.1)
        def good():
            opt.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            return loss
        def bad(): raise KeyError("mine")
        said = []
        for closure in (good, bad, good):
            try: opt.step(closure)
            except KeyError as error: said.append(repr(error))
        print(json.dumps([said, [row["step"] for row in events("step")]]))
        """
    )
    assert said == ["KeyError('mine')"]
    assert len(steps) == 2


# What step() may be called with; `seen` is what the optimizer's own step gets.
CALLERS_OWN = """
class Own(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {"lr": 0.1})
    def step(self, *args, **kwargs):
        got = [*args, *kwargs.values()][0]
        seen.append(got)
        loss = {call}
        with torch.no_grad():
            for p in self.param_groups[0]["params"]: p.sub_(p.grad, alpha=0.1)
        return loss
model = torch.nn.Linear(4, 2)
opt = Own(model.parameters())
seen, hooked = [], []
opt.register_step_pre_hook(lambda optimizer, args, kwargs: hooked.append([*args[1:], *kwargs.values()][0]))
def closure(backward=True):
    opt.zero_grad()
    loss = model(torch.ones(3, 4)).square().sum()
    loss.backward()
    return loss
closure.batch_size = 3
given = {given}
losses = []
for _ in range(3):
    if given is model: closure()
    losses.append(float(opt.step({how})))
print(json.dumps([all(each is given for each in seen + hooked), len(seen), len(hooked), losses]))
"""


@pytest.mark.parametrize(
    ("given", "how", "call"),
    [
        ("closure", "given", "got(False)"),
        ("closure", "given", "got(backward=False)"),
        ("closure", "given", "got() * 0 + got.batch_size"),
        ("closure", "closure=given", "got(False)"),
        ("model", "given", "len(list(got.parameters()))"),
    ],
    ids=["positional argument", "keyword argument", "attribute", "by_name", "model"],
)
def test_the_callers_object_reaches_step_and_its_hooks(trainer, given, how, call) -> None:
    """Whatever it is called with, and whatever it is: step() and the user's own hooks get the caller's object."""
    code = filled(CALLERS_OWN, given=given, how=how, call=call)
    same, *rest = trainer(code)
    assert same
    assert rest[:2] == [3, 3]
    alone = trainer("import json\ntorch.manual_seed(0)\ntorch.set_num_threads(1)\n" + code, monitored=False)
    assert [same, *rest] == alone


@pytest.mark.parametrize("given", ["closure", "closure=closure"])
def test_weights_before_a_step_with_a_closure_are_seen(trainer, given) -> None:
    rows = trainer(
        f"""
        model = torch.nn.Linear(4, 2)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        def closure():
            opt.zero_grad()
            loss = model(torch.ones(3, 4)).square().sum()
            loss.backward()
            return loss
        for _ in range(3): opt.step({given})
        print(json.dumps(events()))
        """
    )
    looks = [(row["event"], row.get("when")) for row in rows if row["event"] in ("weight", "step")]
    assert (
        looks
        == [("weight", 1)] * 2 + [("step", None)] + ([("weight", 0)] * 2 + [("weight", 1)] * 2 + [("step", None)]) * 2
    )


def test_a_closure_without_a_backward_pass_is_no_step(trainer) -> None:
    rows = trainer(
        """
        model = torch.nn.Linear(4, 2)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            if step != 2: model(torch.ones(3, 4)).square().sum().backward()
            opt.step(lambda: None); opt.zero_grad()
        print(json.dumps(events()))
        """
    )
    assert [row["event"] for row in rows].count("step") == 3
