"""Steps of a settled training that are neither sampled nor have norms of gradients: no parameter is looked at."""

from __future__ import annotations

import pytest

TRAINING = """
net = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(20)])
optimizer = torch.optim.{optimizer}
from foreshock_torch import clock
looks, read = [], clock.parameters_of
def counted(optimizer): looks[-1] += 1; return read(optimizer)
clock.parameters_of = counted
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
    program = TRAINING.format(optimizer=optimizer, sampled=list(sampled), between=between, dropped=dropped)
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
    assert {n for n in range(3, 40) if looks[n] > 0} == {12, 16, 25, 30, 32}


def test_a_gradient_that_is_kept_over_the_steps_is_followed(trainer):
    _, passed = train(trainer, sampled=[1, 12, 30], dropped=False)
    assert steps_with(passed, "gradients") == [1, 12, 30]


def test_new_parameters_have_names_at_once(trainer):
    add = "if step == 20: more = torch.nn.Linear(2, 2); optimizer.add_param_group({'params': list(more.parameters())})"
    _, passed = train(trainer, between=add)
    assert 20 in steps_with(passed, "name")


def test_a_step_that_a_scaler_leaves_out_is_not_reported(trainer):
    skip = "optimizer.found_inf = torch.tensor(float(step == 20))"
    _, passed = train(trainer, "AdamW(net.parameters(), lr=0.5, fused=True)", between=skip)
    assert steps_with(passed, "step") == [n for n in range(40) if n != 20]
