"""Steps that are given a closure, which makes the gradients: Lightning's automatic optimization, LBFGS."""

import pytest

pytestmark = pytest.mark.usefixtures("adapters")

TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 2))
opt = {optimizer}
truth, results, called = [], [], 0
torch.manual_seed(1)
for n in range(4):
    x, first = torch.randn(8, 6), True
    def closure():
        global first, called
        called += 1
        opt.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        if first: truth.append(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        first = False
        if {clip}: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        return loss
    results.append(opt.step({closure}).item())
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
def test_the_norm_is_that_of_the_gradients_which_the_closure_makes(trainer, optimizer, closure, clip) -> None:
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
    assert [results, values] == alone, "to the last bit, as if nobody looked"


def test_what_a_closure_raises_is_the_trainers(trainer) -> None:
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
