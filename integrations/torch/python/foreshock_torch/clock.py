"""The clock of a training, seen from its optimizers: steps, their learning rate, names, gradients before clipping."""

from __future__ import annotations

import itertools
import os
import sys
from collections import deque
from sys import getprofile  # bound here: a test of the trainer may replace it
from time import perf_counter_ns
from typing import Any
from weakref import ref

from .budget import DEFAULT, Fuse, Pace, limit_of
from .core import (
    COUNTED,
    GIVEN_OTHER_TRAINING,
    GIVEN_UP,
    GIVEN_UP_FAILED,
    LOSS_REPORTED,
    OPTIMIZER_STATE,
    REPORTED,
    Core,
)
from .modules import Modules, is_part
from .names import Named, layer_labels, naming_order, numbered_labels
from .numbers import on_cpu, step_number, word
from .optimizers import (
    Others,
    Pieces,
    attribute,
    groups,
    is_plain,
    parameters_in,
    parameters_of,
    state_of,
)
from .owners import Owners
from .place import place, ranks
from .replicas import Replicas
from .signals import is_of_trainer
from .unseen import LOOK_AT, attention_unseen
from .weights import ENDED, Weights


def is_profiled() -> bool:
    """Whether a profiler records every Python call of this thread (torch.profiler with stacks, cProfile): it would
    record those of ours. Names, weights and gradients wait meanwhile, since their number of calls grows with the model;
    steps are still counted."""
    return getprofile() is not None


def labels_of(named: dict[int, tuple[Named, Any]]) -> dict[str, str]:
    """{parameter's name: its layer's label}: by the framework's own number where there is one, else by path."""
    rows = [row for row, _ in named.values()]
    matrices = [row.name for row, parameter in named.values() if parameter.dim() == 2]
    return layer_labels(matrices, [row.name for row in rows]) | numbered_labels(rows)


class Monitor:
    """Counts a training step at the step of one optimizer whose call follows a backward pass."""

    UNSEEN_CALLS = 3  # calls without any backward pass seen, after which every call counts
    LOOK_AT = 4  # parameters whose optimizer state is looked at for the step
    MOST_FAILURES = 3  # to name models
    LOOK_EVERY = 16  # steps between two looks at all parameters of a training that has settled
    SETTLED = 3  # ticks after which a process that is not monitored yet will not be

    def __init__(self, torch: Any, core: Core) -> None:
        self.core = core
        self.modules = Modules(torch)
        self.weights = Weights(torch, core)
        self._torch = torch
        self.batch_id: int | None = None
        self.reported = False  # the trainer tells its steps itself
        # Losses told while nobody knows yet of which step: of the one that the optimizer has told, if the trainer tells
        # that one too, else of the next. Bounded, for a trainer that tells losses and never steps.
        self._losses: deque[float] = deque(maxlen=1024)
        self._clock: Any = None  # weak reference to the optimizer that ticks
        self._others = Others()
        self._owners = Owners(torch, self._forget_names, core.call_back)
        self._pieces = Pieces()
        limit = limit_of(os.environ.get("FORESHOCK_MAX_SLOWDOWN"))
        share = min(limit, DEFAULT)
        self._naming = Pace(16, share)
        self._fuse = Fuse(limit)
        self._given_up = 0  # to name tensors and to tell of their gradients and values: the bits of a step's record
        self._once = 0  # bits of the next step's record alone
        self._failures = 0
        self._calls: dict[int, int] = {}  # of the others since the last tick
        self._unseen_calls = 0
        self._seen_backward = False
        self._state_seen: tuple[int, int] | None = None
        self._named_for: tuple[list[int], list[int]] = ([], [])  # optimizers, addresses of their parameters
        self._called: dict[int, tuple[Named, str]] = {}  # name and layer's label by address, as the core has them
        self._described = self._placed = self._has_forgotten = False
        self._whole = True
        self._is_settled = False  # one optimizer ticks, and its tensors have names: quiet steps may follow
        self._is_counted = False  # no optimizer state has the step's number
        self._ticks = 0
        self._told: int | None = None  # the step that the optimizer's steps have told last, as the core numbers it
        self._rate: float | None = None  # learning rate of the step that is told next
        self._spent_ns = 0  # our own time since a step was told
        self._own_ns = 0  # all of it

    def note_module(self, module: Any) -> None:
        """A module grows. Where ranks are spawned without RANK, it is the last sign of theirs before the first call
        of an attention; with it there is a segment, and two of rank 0 cannot be."""
        self._look_again()
        if self._given_up or self.modules.has(module):
            return
        begin = perf_counter_ns()
        self.modules.note(module)
        if not self._placed and ranks() > 1:
            self._placed = True
            self.core.describe(place())
        self._spend(begin)

    def before_step(self, optimizer: Any, has_stepped: bool = False) -> None:
        begin = perf_counter_ns()
        self.core.reports_steps()
        in_core = 0
        if self._clock_is_another_than(optimizer):
            if not has_stepped:
                in_core = self._late(optimizer, self.weights.before)
        elif self._goes_on(optimizer):
            if has_stepped:
                self.weights.forget_due()  # a closure without a backward pass
            if not self._given_up:
                self._pieces.go_on(optimizer)
        elif self._given_up or is_profiled():
            in_core = self._begin_bare(optimizer)
        else:
            in_core = self._begin(optimizer, has_stepped)
        self._spend(begin, in_core)

    def before_closure(self, optimizer: Any) -> None:
        """A step is about to call a closure, in which the gradients are made (Lightning, LBFGS). The closure is the
        caller's and is passed on untouched, so the gradients are read when the step has ended: those of its last call.
        Only the weights are read now, since the step changes them."""
        begin = perf_counter_ns()
        self.core.reports_steps()
        in_core = 0
        if self._clock_is_another_than(optimizer):
            in_core = self._late(optimizer, self.weights.before)
        elif not self._given_up and not is_profiled():
            self.weights.due()
            in_core = self.weights.before(optimizer)
        self._spend(begin, in_core)

    def after_closure(self, optimizer: Any) -> None:
        self.before_step(optimizer, has_stepped=True)
        self.after_step(optimizer)

    def _begin(self, optimizer: Any, has_stepped: bool) -> int:
        """Nanoseconds spent in the core, which accounts for them itself; as of the others here."""
        self._look_again()
        together = [optimizer, *self._others.companions(optimizer)]
        addresses = [p._cdata for o in together for p in parameters_of(o)]
        self._pieces.begin(addresses)
        partners = self._others.partners(True)
        every = addresses + [p._cdata for o in partners for p in parameters_of(o)]
        if not self._names([*together, *partners], self._others.partners(False), every):
            return self._begin_bare(optimizer)
        scale = self._scale(optimizer)
        in_backward = self._torch._C._current_graph_task_id() != -1
        publish = self._whole and scale is not None and not in_backward and not self._pieces.addresses
        untold = "amp_C" in sys.modules  # Apex's kernels may have clipped gradients, and no version of a tensor tells
        in_core = self.core.step_begins(addresses if publish else [], 1 / (scale or 1), self.modules.copies, untold)
        self.weights.due()
        if not has_stepped:
            in_core += self.weights.before(optimizer)
        if self._named_for[0] == [id(optimizer)] and not self._pieces.addresses:
            self._is_settled = is_plain(optimizer, self._torch.Tensor) and self.core.look(optimizer)
        return in_core

    # A training that has settled has one optimizer, whose tensors have names. Its steps that are not sampled are quiet:
    # quiet_steps.h handles them, and none of the methods here is called.

    def _look_again(self) -> None:
        """The next step is not quiet."""
        if self._is_settled:
            self._catch_up()
            self._is_settled = False
            self.core.quiet.disarm()

    def _arm(self, source: int) -> None:
        """Lets quiet steps follow the one that has ended."""
        if not self._is_settled or self._given_up or self._once or self._owners.has_lost:
            return
        waits = self.reported or self._losses or self.batch_id is not None or self.weights.is_any_due
        waits = waits or self.core.logs.has_news()
        self._is_counted = source == COUNTED
        address, step = (0, self._told or 0) if self._is_counted else self._state_seen or (0, 0)
        look_at = min((at for at in LOOK_AT if at > self._ticks), default=self._ticks + 2 * self.LOOK_EVERY)
        self.core.arm(
            not waits,
            self._is_counted,
            step,
            address,
            -self._ticks % self.LOOK_EVERY,
            look_at - self._ticks - 1,
            self.weights.is_any_held,
        )

    def _catch_up(self) -> None:
        """Takes over what quiet steps have counted. The next end of a step comes here, which lets them go on."""
        if not self._is_settled:
            return
        steps, own_ns, spent_ns, ended_at_ns, dearest_ns, step, address = self.core.quiet.take()
        self._own_ns += own_ns
        self._spent_ns += spent_ns
        if steps == 0:
            return
        self._ticks += steps
        self._told = step
        if not self._is_counted:
            self._state_seen = (address, step)
        self._watch_cost(ended_at_ns, steps, dearest_ns)

    def weights_are_due(self, optimizer: Any, count: int) -> None:
        """A quiet step has found that `count` weights have their turn."""
        begin = perf_counter_ns()
        self._spend(begin, self.weights.due_are(self.core.due(count), optimizer))

    def _begin_bare(self, optimizer: Any) -> int:
        """The core still asks whose turn it is, so that the turns that nobody takes are counted."""
        self.weights.due()
        self.weights.forget_due()
        if not self._has_forgotten:
            first = [p._cdata for group in groups(optimizer)[:1] for p in parameters_in(group)[: self.LOOK_AT]]
            if first != self._named_for[1][: len(first)]:  # the addresses that have names are other tensors' now
                self._forget_names()
        return self.core.step_begins([], 1.0, 0, False)

    def after_step(self, optimizer: Any) -> None:
        begin = perf_counter_ns()
        self._catch_up()
        backwards = self.core.adapter.foreshock_adapter_backwards()
        if not self._is_clock(optimizer, backwards):
            if backwards > 0 and (number := self._others.number_of(optimizer)):
                self.core.core.foreshock_loss_is_of(f"loss of optimizer {number}".encode())
            self._spend(begin, self._late(optimizer, self.weights.after))
            return
        self._calls.clear()
        self._others.ticked()
        these = groups(optimizer)
        source, step = self._state_step(optimizer, these)
        if step is None:
            self.weights.forget_due()
            self.core.adapter.foreshock_adapter_step_ended()
            self._spend(begin)
            return
        in_core = self.weights.after(optimizer)
        self._rate = on_cpu(self._torch, these[0].get("lr")) if these else None
        self._tick()
        self._watch_cost(perf_counter_ns())
        self._spend(begin, in_core)
        if not self.reported:
            self._told = step if step >= 0 else (self._told or 0) + 1
            self._tell(step, source)
        begin = perf_counter_ns()
        self.core.adapter.foreshock_adapter_step_ended()
        self._arm(source)
        self._spend(begin)

    def _spend(self, begin: int, in_core: int = 0) -> None:
        own = perf_counter_ns() - begin - in_core
        self._spent_ns += own
        self._own_ns += own

    def spend_around(self, nanoseconds: int) -> None:
        """What a call into here has taken besides, which each of them accounts for itself: of the next step told."""
        self._spent_ns += nanoseconds
        self._own_ns += nanoseconds

    def _watch_cost(self, now_ns: int, steps: int = 1, dearest_ns: int | None = None) -> None:
        if self._fuse.blows(self._own_ns, now_ns, steps, dearest_ns):
            self._given_up = GIVEN_UP
            self.weights.forget_due()
            self._look_again()

    def _clock_is_another_than(self, optimizer: Any) -> bool:
        clock = self._clock() if self._clock is not None else None
        return clock is not None and clock is not optimizer

    def _goes_on(self, optimizer: Any) -> bool:
        """Whether the optimizer that ticks is called again without another backward pass: it is the same step."""
        is_clock = self._clock is not None and self._clock() is optimizer
        return is_clock and self._seen_backward and self.core.adapter.foreshock_adapter_backwards() == 0

    def _tick(self) -> None:
        self._ticks += 1
        if self._ticks in LOOK_AT:
            self._look_for_unseen()

    def _tell(self, step: int, source: int) -> None:
        begin = perf_counter_ns()
        self._pass_losses()
        self.core.logs.tick()
        self._spend(begin, -self.core.logs.take_spent())
        self.core.step_end(step, source, self._rate, self.batch_id, self._spent_ns, self._given_up | self._once)
        self._rate = self.batch_id = None
        self._spent_ns = self._once = 0

    def _pass_losses(self) -> None:
        while self._losses:
            self.core.core.foreshock_observe_loss(self._losses.popleft(), LOSS_REPORTED)

    def _late(self, optimizer: Any, look: Any) -> int:
        """An optimizer that steps after the clock: what it steps is still of the step that the clock has told."""
        if not self.weights.is_any_due:
            return 0
        if self.core.adapter.foreshock_adapter_backwards() > 0 and not self._others.is_partner(optimizer):
            self.weights.forget_due()  # another step has begun
            return 0
        return look(optimizer, 0 if self.reported else ENDED)

    def _is_clock(self, optimizer: Any, backwards: int) -> bool:
        self._seen_backward |= backwards > 0
        clock = self._clock() if self._clock is not None else None
        if self._clock_is_another_than(optimizer):
            if not self._given_up and not is_profiled():
                self._others.stepped(optimizer, clock, backwards > 0)
                self._look_again()
            calls = self._calls[id(optimizer)] = self._calls.get(id(optimizer), 0) + 1
            if calls < 2 or backwards == 0:
                return False
        if backwards == 0:
            self._unseen_calls += 1
            if self._seen_backward or self._unseen_calls <= self.UNSEEN_CALLS:
                return False
        if clock is not optimizer:
            if self._clock is not None:
                self._once = GIVEN_OTHER_TRAINING if clock is None else 0
                self._called = {}  # another training: an address may be another tensor's now
            self._clock, self._state_seen = ref(optimizer, self.core.quiet.disarm), None
            self._others = Others()
            self._pieces.forget()
            self._look_again()
        return True

    def _state_step(self, optimizer: Any, these: list[Any] | tuple[Any, ...]) -> tuple[int, int | None]:
        """(source, absolute step); step None when the optimizer left this step out (overflow, fused)."""
        if (on_cpu(self._torch, attribute(optimizer, "found_inf")) or 0) > 0:
            return COUNTED, None
        every = ((g, p) for g in these for p in parameters_in(g) if p.grad is not None)
        step = parameter = None
        for group, parameter in itertools.islice(every, self.LOOK_AT):
            step = self._step_of(optimizer, group, parameter)
            if step is not None:
                break
        if parameter is None and these:
            # Gradients may be held elsewhere (Megatron-LM's precision-aware optimizer).
            step = self._step_of(optimizer, these[0], None)
        if step is None:
            return COUNTED, -1
        now = (0 if parameter is None else parameter._cdata, step)
        stood_still, self._state_seen = now == self._state_seen, now
        return OPTIMIZER_STATE, None if stood_still else step

    def _step_of(self, optimizer: Any, group: dict[str, Any], parameter: Any) -> int | None:
        """As the state of the parameter has it, or its group: so do the fused optimizers of Apex and
        TransformerEngine."""
        try:
            state = state_of(optimizer, parameter) if parameter is not None else {}
            value = state.get("step")
            if type(value) is self._torch.Tensor and (on_host := self.core.number(value)) is not None:
                return int(on_host) if 0 <= on_host < 2**53 else None
            own = step_number(self._torch, value)
            return own if own is not None else step_number(self._torch, group.get("step"))
        except Exception as error:  # a state of the optimizer's own kind
            if is_of_trainer(error):
                raise
            return None

    def _scale(self, optimizer: Any) -> float | None:
        """What the gradients still carry of a scaler's factor; None when it is on a device."""
        scale = attribute(optimizer, "grad_scale")
        return 1.0 if scale is None else on_cpu(self._torch, scale)

    def _names(self, optimizers: list[Any], unfollowed: list[Any], addresses: list[int]) -> bool:
        """Asks models, wrappers and optimizers of whatever release. False where one of them cannot be told: all else
        goes on, and no tensor keeps a name. Another thread may be at work on a model, so it is tried again."""
        try:
            self._name(optimizers, unfollowed, addresses)
        except Exception as error:
            if is_of_trainer(error):
                raise
            self._failures += 1
            self._given_up = GIVEN_UP | GIVEN_UP_FAILED if self._failures == self.MOST_FAILURES else 0
            self._forget_names()
            return False
        return True

    def _forget_names(self) -> None:
        """Tensors that had names are gone, or may be: what lies at their addresses now is not called as they were."""
        self._look_again()
        self._named_for, self._called, self._has_forgotten = ([], []), {}, True
        self.core.name_parameters([])

    def _name(self, optimizers: list[Any], unfollowed: list[Any], addresses: list[int]) -> None:
        """`addresses` of what `optimizers` step; of those `unfollowed` it is only said that nobody follows them."""
        if self._pieces.addresses:
            addresses = list(dict.fromkeys([*self._pieces.addresses, *addresses]))
        these = [id(optimizer) for optimizer in (*optimizers, *unfollowed)], addresses
        if these == self._named_for:
            return
        if self._owners.has_lost or (self._named_for[1] and not set(self._named_for[1]) <= set(addresses)):
            self._owners.has_lost = False
            self._forget_names()
        if not self._naming.allows():
            return
        begin = perf_counter_ns()
        self._name_anew(optimizers, unfollowed, these)
        self._naming.spend(perf_counter_ns() - begin)

    def _name_anew(self, optimizers: list[Any], unfollowed: list[Any], these: tuple[list[int], list[int]]) -> None:
        addresses = these[1]
        parameters = [p for optimizer in optimizers for p in parameters_of(optimizer)]
        if not self._described:
            self.core.describe(place(parameters, self.modules.alive()))
            self._described = True
        self._named_for = these
        named, labels = self._call(self.modules.named(addresses))
        self._owners.watch(self.modules.owners(named))
        self._whole = self._is_whole(parameters, named)
        rows = [(address, row.name, labels[row.name], p.numel()) for address, (row, p) in self._in_order(named)]
        self.core.name_parameters(rows)
        self._has_forgotten = False
        if self._owners.has_lost:  # meanwhile
            self._forget_names()
        replicas = Replicas(parameters, self.modules.alive())
        is_told = self.weights.name(optimizers, unfollowed, self._pieces.addresses, named, labels, replicas)
        if not is_told or (not self.core.is_monitored() and self._ticks < self.SETTLED):
            self._named_for = ([], [])  # to be told again at the next step

    def _call(self, named: dict[int, tuple[Named, Any]]) -> tuple[dict[int, tuple[Named, Any]], dict[str, str]]:
        """Parameters with their names, and {name: label of its layer}. What was followed before goes on as it was
        called, although another model beside it would have it told apart: a series does not change its name."""
        before = self._called
        labels = labels_of(named)
        called = {a: before.get(a, (row, labels[row.name])) for a, (row, _) in named.items()}
        self._called = called
        named = {a: (called[a][0], p) for a, (_, p) in named.items()}
        return named, {row.name: label for row, label in called.values()}

    @staticmethod
    def _in_order(named: dict[int, tuple[Named, Any]]) -> list[tuple[int, tuple[Named, Any]]]:
        return sorted(named.items(), key=lambda item: naming_order(item[1][0].name, item[1][1].requires_grad))

    @staticmethod
    def _is_whole(parameters: list[Any], named: dict[int, tuple[Named, Any]]) -> bool:
        """False when this rank steps only a part of the model: its gradients are not the run's."""
        if any(is_part(parameter) for parameter in parameters):
            return False
        here = {parameter._cdata for parameter in parameters}
        missing = [p for address, (_, p) in named.items() if p.requires_grad and address not in here]
        return ranks() == 1 or not (missing or here.isdisjoint(named))

    def _look_for_unseen(self) -> None:
        """Who taps takes care of the rest."""
        if self.core.adapter.foreshock_adapter_taps() == 0:
            for name, evidence in attention_unseen():
                self.core.core.foreshock_note_unseen(name.encode(), evidence)

    def compiled_step(self, optimizer: Any) -> None:
        """A step whose hooks torch.compile has traced away; its gradients are still there."""
        self.after_closure(optimizer)

    def report(self, step: Any, loss: Any, batch_id: Any) -> None:
        begin = perf_counter_ns()
        self._catch_up()
        done = step_number(self._torch, step)
        if done is not None and done == self._told and not self.reported:
            self.reported = True
            self._losses.clear()  # told already: what is given with it would be counted into the step after it
            self.batch_id = None
            self._spend(begin)
            return
        if (value := on_cpu(self._torch, loss)) is not None:
            self._losses.append(value)
            if self.reported:
                self._pass_losses()
        if (number := word(batch_id)) is not None:
            self.batch_id = number
        if done is not None and self._clock is None:
            self._tick()
        self._spend(begin)
        if done is not None and self._clock is None:
            self._watch_cost(perf_counter_ns())
        if done is not None:
            self.core.reports_steps()
            self.reported = True
            self._tell(done, REPORTED)
