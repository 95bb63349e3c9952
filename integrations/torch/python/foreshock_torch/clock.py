"""Detects training steps from optimizer hooks, and reports step numbers, learning rate, names, gradients and weights.

"The helper" is this Python package. "The core" is libforeshock.so (in class Core: Core.core). "The adapter" is a
library with hooks in torch (Core.adapter).
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import deque
from sys import getprofile  # bound at import, since the training's own tests may replace sys.getprofile
from time import perf_counter_ns
from typing import Any
from weakref import ref

from . import seams, written
from .budget import DEFAULT_LIMIT, OverheadGuard, RateLimit, limit_of
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
from .inventory import ATTENTION, mixers_of
from .looks import GradientLooks
from .modules import Modules
from .names import Named, layer_labels, naming_order, numbered_labels
from .numbers import low_64_bits, number_on_cpu, step_number
from .optimizers import (
    FormerClocks,
    OtherOptimizers,
    SplitStep,
    attribute,
    groups,
    is_plain,
    parameters_in,
    parameters_of,
    state_of,
)
from .owners import Owners
from .replicas import Replicas
from .signals import is_of_trainer
from .topology import is_shard, topology, torch_world_size
from .unseen import UNSEEN_CHECK_TICKS, attention_unseen
from .weights import ENDED, Weights


def is_profiled() -> bool:
    """Whether a profiler records every Python call of this thread (torch.profiler with stacks, cProfile).

    The profiler would also record the helper's calls. The number of calls for names, weights and gradients grows with
    the model, so these three are left out while a profiler runs. Steps are still counted.
    """
    return getprofile() is not None


def labels_of(named: dict[int, tuple[Named, Any]]) -> dict[str, str]:
    """{parameter name: layer label} of {address: (name, parameter)}. The label is the layer number that the framework
    (Megatron) gives, if any, else it comes from the path of the module."""
    rows = [row for row, _ in named.values()]
    matrices = [row.name for row, parameter in named.values() if parameter.dim() == 2]
    return layer_labels(matrices, [row.name for row in rows]) | numbered_labels(rows)


class Monitor:
    """Counts training steps and reports them to the core.

    One optimizer is the clock: a training step ends when the clock steps after a backward pass. The end of such a step
    is also called a tick. Of the other optimizers, a companion steps after the clock without a backward pass of its
    own, and a partner steps after a backward pass of its own. Methods that return only an int (`in_core`) return the
    nanoseconds that they spent in the core, which measures this time itself. The address of a tensor is that of its
    TensorImpl (tensor._cdata).
    """

    CALLS_WITHOUT_BACKWARD = 3  # if no backward pass is detected, the clock's calls after so many count as steps
    STATE_PARAMETERS = 4  # parameters whose optimizer state is searched for the step number
    MOST_FAILURES = 3  # after so many failed attempts to name tensors, GIVEN_UP is reported
    CHECK_EVERY = 64  # every 64th step is not quiet (see _settle), to check whether the optimizer's parameters changed
    SHARE_OF_LOOKS = 0.1  # share of the helper's limit that looks at gradients may take
    UNMONITORED_TICKS = 3  # a process that is not monitored after so many ticks is assumed to stay so

    def __init__(self, torch: Any, core: Core) -> None:
        self.core = core
        self.modules = Modules(torch)
        self.weights = Weights(torch, core)
        limit = limit_of(os.environ.get("FORESHOCK_MAX_SLOWDOWN"))
        self.looks = GradientLooks(core, self.weights, self.modules.alive, share=self.SHARE_OF_LOOKS * limit)
        self._torch = torch
        self.batch_id: int | None = None
        self.steps_are_reported = False  # the training reports its steps with report(step=...)
        # Losses passed to report() whose step is not known yet. If report() later names the step that the optimizer
        # has already reported, they belonged to that step and are dropped; otherwise they belong to the next step.
        # Bounded, for a training that reports losses and never steps.
        self._losses: deque[float] = deque(maxlen=1024)
        self._clock: Any = None  # weak reference to the optimizer whose steps are counted
        self._former_clocks = FormerClocks()
        self._other_optimizers = OtherOptimizers(core.quiet.stop)
        self._owners = Owners(torch, self._clear_names, core.weakref_callback)  # detects destroyed modules with names
        self._split_step = SplitStep()  # parameters of a clock that is called several times in one step (DeepSpeed)
        # Naming, only a part of the helper's work, gets at most the default share even if the limit is higher.
        self._naming_limit = RateLimit(free=16, share=min(limit, DEFAULT_LIMIT))
        self._overhead_guard = OverheadGuard(limit)  # detects, once, that the helper takes several times its limit
        # Bits of the reports of steps, GIVEN_... in core.py. _off_bits: GIVEN_UP..., in all further reports; if not 0,
        # names, gradients and weights are off for good. _next_step_bits: in the next report only.
        self._off_bits = 0
        self._next_step_bits = 0
        self._failures = 0  # failed attempts to name the tensors
        self._calls_of_others: dict[int, int] = {}  # {id of another optimizer: its calls since the last tick}
        self._calls_without_backward = 0
        self._seen_backward = False
        self._last_state: tuple[int, int] | None = None  # parameter address and step number of the last tick
        self._named_for: tuple[list[int], list[int]] = ([], [])  # last named: ids of optimizers, parameter addresses
        self._published_names: dict[int, tuple[Named, str]] = {}  # {address: (name, layer label)} that the core has
        self._is_described = False  # core.describe() was called with the parallel coordinates, which need parameters
        self._is_rank_described = False  # core.describe() was called without the coordinates
        self._has_cleared_names = False  # the core's names were cleared and not set again
        self._steps_whole_model = True  # this rank steps the whole model, so its gradient norms are those of the run
        # A module with named parameters has registered one without a name, for example a copy of tied weights. It may
        # be in no optimizer, so the next naming must not depend on a change of the optimizers' parameters.
        self._has_replaced_tensors = False
        self._is_settled = False  # all optimizers are known, and their tensors have names: quiet steps may follow
        self._quiet_others: list[int] = []  # ids of the optimizers other than the clock whose steps may be quiet
        self._is_step_counted = False  # the helper counts the steps, since no optimizer state has the step number
        self._ticks = 0
        self._last_step: int | None = None  # number of the last step that the clock reported, as the core counts
        self._learning_rate: float | None = None  # learning rate of the step that is reported next
        self._unreported_ns = 0  # time spent in the helper since the last reported step
        self._total_ns = 0  # time spent in the helper in total

    def note_module(self, module: Any, has_new_tensors: bool = True, parameter: Any = None) -> None:
        """Called when a module registers `parameter` or a submodule. `has_new_tensors`: false for a submodule, whose
        parameters were registered before. A submodule does not end quiet steps (see _settle), because Hugging Face's
        models register some in every forward pass: a slice of a ModuleList is a new module.

        Also describes the rank of this process to the core, once. This must be done before the first attention call,
        which creates the segment (the shared memory that the agent reads), and this is the last hook before that call.
        If ranks are spawned without RANK in the environment, each process would otherwise create a segment of rank 0.
        """
        if has_new_tensors:
            self._stop_quiet_steps()
            if self._owners.has(module) and parameter is not None and parameter._cdata not in self._published_names:
                self._has_replaced_tensors = True
        if self._off_bits or self.modules.has(module):
            return
        begin = perf_counter_ns()
        self.modules.note(module)
        if not self._is_rank_described and torch_world_size() > 1:
            self._is_rank_described = True
            self.core.describe(topology())
        self._add_time(begin)

    def before_step(self, optimizer: Any, has_stepped: bool = False) -> None:
        """Called before the optimizer's work; for a step with a closure, after the work, with `has_stepped`."""
        begin = perf_counter_ns()
        self.core.stop_counting_steps()  # the adapter's counting, since this class reports the steps
        in_core = 0
        if self._is_other_than_clock(optimizer):
            if not has_stepped:  # if it has, before_closure() has already reported the weights
                in_core = self._observe_late(optimizer, self.weights.observe_before)
        elif self._continues_step(optimizer):
            if has_stepped:
                self.weights.forget_due()  # the closure ran no backward pass
            if not self._off_bits:
                self._split_step.add(optimizer)
        elif self._off_bits or is_profiled():
            in_core = self._begin_without_names(optimizer)
        else:
            in_core = self._begin(optimizer, has_stepped)
        self._add_time(begin, in_core)

    def before_closure(self, optimizer: Any) -> None:
        """Called before a step with a closure, a function of the training that computes the gradients during the step
        (Lightning, LBFGS). The closure is not wrapped. So the gradients of its last call are read after the step, by
        after_closure(). Only the weights are read here, since the step changes them."""
        begin = perf_counter_ns()
        self.core.stop_counting_steps()
        in_core = 0
        self.looks.cancel()
        if self._is_other_than_clock(optimizer):
            in_core = self._observe_late(optimizer, self.weights.observe_before)
        elif not self._off_bits and not is_profiled():
            self.weights.fetch_due()  # gets the numbers of the weights to measure in this step
            in_core = self.weights.observe_before(optimizer)
        self._add_time(begin, in_core)

    def after_closure(self, optimizer: Any) -> None:
        self.before_step(optimizer, has_stepped=True)
        self.after_step(optimizer)

    def _begin(self, optimizer: Any, has_stepped: bool) -> int:
        """Names the tensors if they changed, and publishes gradients and weights before the clock's work.
        `has_stepped`: the work is already done, so the weights were published by before_closure()."""
        self._stop_quiet_steps()
        if has_stepped:
            self.looks.cancel()
        self._add_look(self.looks.end())
        # A partner that keeps pace steps about as often as the clock, so its tensors are measured too.
        with_companions = [optimizer, *self._other_optimizers.companions(optimizer)]
        partners = self._other_optimizers.partners(keep_pace=True)
        rare_partners = self._other_optimizers.partners(keep_pace=False)
        addresses = [p._cdata for o in with_companions for p in parameters_of(o)]
        self._split_step.begin(addresses)
        # The parameters of former clocks are named too, so that no other tensor gets their names.
        others = [*partners, *self._former_clocks.alive(optimizer)]
        measured = list(dict.fromkeys(addresses + [p._cdata for o in others for p in parameters_of(o)]))
        if not self._try_to_name([*with_companions, *partners], rare_partners, measured):
            return self._begin_without_names(optimizer)
        scale = self._scale(optimizer)
        in_backward = self._torch._C._current_graph_task_id() != -1  # a hook of the backward pass calls the optimizer
        # Gradients are read only if all of them exist now (this rank steps the whole model, no backward pass is
        # running, and the clock is called once per step) and their scale is known (not on a device).
        publish = self._steps_whole_model and scale is not None and not in_backward and not self._split_step.addresses
        # amp_C is the module of Apex's kernels, which clip gradients without changing the version of a tensor.
        writes_untracked = "amp_C" in sys.modules
        in_core = self.core.step_begins(
            addresses if publish else [], 1 / (scale or 1), self.modules.averaging_writes, writes_untracked
        )
        self.weights.fetch_due()
        if not has_stepped:
            in_core += self.weights.observe_before(optimizer)
        self._settle([*with_companions, *partners, *rare_partners])
        return in_core

    # In a settled training all optimizers are known, and their tensors have names. A step in which the core samples no
    # attention call is then quiet: its hooks run in quiet_steps.h (C++) and call no method of this class.

    def _settle(self, optimizers: list[Any]) -> None:
        """Determines whether the training is settled. `optimizers`: the clock, then all others that are known."""
        if self._named_for[0] != [id(o) for o in optimizers] or self._split_step.addresses:
            return  # their tensors have no names yet, or the clock is called several times in one step
        # Undecided: a partner is new, so it is not known whether it keeps pace. Plain: C++ can read its parameters.
        if self._other_optimizers.is_any_undecided() or not all(is_plain(o, self._torch.Tensor) for o in optimizers):
            return
        clock, *others = optimizers
        self._quiet_others = [id(o) for o in others]
        # set_optimizers() passes the optimizers to quiet_steps.h, and returns False if their steps cannot be quiet.
        self._is_settled = self.core.set_optimizers(clock, [(o, self._other_optimizers.number_of(o)) for o in others])

    def _stop_quiet_steps(self) -> None:
        """Stops quiet steps until the training has settled again."""
        if self._is_settled:
            self._collect_quiet_steps()
            self._is_settled = False
            self.core.quiet.stop()

    def _allow_quiet_steps(self, source: int) -> None:
        """Lets quiet steps follow the step that has just ended. `source`: of its number, COUNTED or OPTIMIZER_STATE."""
        if not self._is_settled or self._off_bits or self._next_step_bits or self._owners.has_lost:
            return  # has_lost: a module with named parameters was destroyed; other tensors may get their addresses
        # If the end of the next step has work that only Python can do, only its beginning may be quiet.
        needs_python = self.steps_are_reported or self._losses or self.batch_id is not None or self.weights.is_any_due
        needs_python = needs_python or self.core.logs.has_news()
        self._is_step_counted = source == COUNTED
        address, step = (0, self._last_step or 0) if self._is_step_counted else (self._last_state or (0, 0))
        # The next tick that must run in Python, because it searches for attention that no hook sees. After the last
        # such tick, one so far ahead that `begins_left` is the lower limit.
        check_at = min((t for t in UNSEEN_CHECK_TICKS if t > self._ticks), default=self._ticks + 2 * self.CHECK_EVERY)
        if self.weights.is_any_measured:
            check_at = min(check_at, self.looks.next_tick(self._ticks + 1) - 1)  # its end begins the look
        self.core.allow_quiet_steps(
            may_end_quietly=not needs_python,
            is_counted=self._is_step_counted,
            step=step,
            address=address,
            # So many beginnings (up to a multiple of CHECK_EVERY) and ends of steps (before check_at) may be quiet.
            begins_left=0 if self.looks.tick != 0 else -self._ticks % self.CHECK_EVERY,
            ends_left=check_at - self._ticks - 1,
            has_weights=self.weights.is_any_measured,
        )

    def _collect_quiet_steps(self) -> None:
        """Adds the counts of the quiet steps. The end of the next step then runs in Python and may allow more."""
        if not self._is_settled:
            return
        # The values are about the quiet steps since the last call. own_ns: time in hooks; unreported_ns: its unreported
        # part; max_step_ns: most in a step; address, step: as in _last_state; others: bit n: _quiet_others[n] stepped.
        steps, own_ns, unreported_ns, ended_at_ns, max_step_ns, step, address, others = self.core.quiet.take()
        for n, other in enumerate(self._quiet_others):
            if others >> n & 1:
                self._calls_of_others[other] = self._calls_of_others.get(other, 0) + 1
        self._total_ns += own_ns
        self._unreported_ns += unreported_ns
        if steps == 0:
            return
        self._ticks += steps
        self._last_step = step
        if not self._is_step_counted:
            self._last_state = (address, step)
        self._check_overhead(ended_at_ns, steps, max_step_ns)

    def weights_are_due(self, optimizer: Any, count: int) -> None:
        """Called before a step that would be quiet if `count` weights were not due."""
        begin = perf_counter_ns()
        self._add_time(begin, self.weights.observe_before_due(self.core.due_in_quiet_step(count), optimizer))

    def _begin_without_names(self, optimizer: Any) -> int:
        """Begins a step without names, gradients and weights. The core counts the weights that are due as left out."""
        self.looks.cancel()
        self.weights.fetch_due()
        self.weights.forget_due()
        if not self._has_cleared_names:
            first = [p._cdata for group in groups(optimizer)[:1] for p in parameters_in(group)[: self.STATE_PARAMETERS]]
            # Comparing only the first addresses is fast. If they differ, other tensors may have addresses with names.
            if first != self._named_for[1][: len(first)]:
                self._clear_names()
        return self.core.step_begins([], 1.0, 0, False)

    def after_step(self, optimizer: Any) -> None:
        """Called after the optimizer's work. Reports a step if this call of the optimizer ends one."""
        begin = perf_counter_ns()
        self._collect_quiet_steps()
        backwards = self.core.adapter.foreshock_adapter_backwards()
        if not self._ends_step(optimizer, backwards):
            # If a partner steps, the losses since the last step belong to the partner, not to the clock. The core
            # records them as a scalar of this name.
            if backwards > 0 and (number := self._other_optimizers.number_of(optimizer)):
                self.core.core.foreshock_loss_is_of(f"loss of optimizer {number}".encode())
            self._add_time(begin, self._observe_late(optimizer, self.weights.observe_after))
            return
        self._calls_of_others.clear()
        self._other_optimizers.note_tick()
        param_groups = groups(optimizer)
        source, step = self._state_step(optimizer, param_groups)
        if step is None:  # the optimizer has skipped this step
            self.weights.forget_due()
            self.core.adapter.foreshock_adapter_step_ended()  # the adapter counts backward passes from 0 again
            self._add_time(begin)
            return
        if self._former_clocks.take_turns:  # the number in an optimizer's state goes back when its turn comes
            source, step = COUNTED, -1
        self.weights.end_step()
        in_core = self.weights.observe_after(optimizer)
        self._learning_rate = number_on_cpu(self._torch, param_groups[0].get("lr")) if param_groups else None
        self._tick()
        self._check_overhead(perf_counter_ns())
        self._add_time(begin, in_core)  # before _report_step(), which reports this time
        if not self.steps_are_reported:
            self._last_step = step if step >= 0 else (self._last_step or 0) + 1  # -1: the core counts the step
            self._report_step(step, source)
        begin = perf_counter_ns()
        self.core.adapter.foreshock_adapter_step_ended()
        self._begin_look()
        self._allow_quiet_steps(source)
        self._add_time(begin)

    def _begin_look(self) -> None:
        """Begins a look at the gradients of the next step, if it has one. With two optimizers that have backward passes
        of their own, a gradient may be cleared before it is used, on purpose. A clock that is called several times in
        one step has copies of the parameters."""
        in_backward = self._torch._C._current_graph_task_id() != -1  # a hook of the backward pass calls the optimizer
        is_possible = self.weights.is_any_measured and not self._off_bits and not in_backward and not is_profiled()
        if is_possible and not self._other_optimizers.has_partners() and not self._split_step.addresses:
            self.looks.begin(self._ticks + 1)
        else:
            self.looks.cancel()

    def _add_look(self, in_passes: int) -> None:
        """Adds the time that a look has taken in backward passes."""
        self._unreported_ns += in_passes
        self._total_ns += in_passes

    def _add_time(self, begin: int, in_core: int = 0) -> None:
        """Adds the time since `begin`, without the part that was spent in the core."""
        own = perf_counter_ns() - begin - in_core
        self._unreported_ns += own
        self._total_ns += own

    def add_outside_time(self, nanoseconds: int) -> None:
        """Adds time that the helper has spent outside of this class. Each method here counts its own time."""
        self._unreported_ns += nanoseconds
        self._total_ns += nanoseconds

    def _check_overhead(self, now_ns: int, steps: int = 1, max_step_ns: int | None = None) -> None:
        """Switches names, gradients and weights off for the rest of the process if they cost too much time. `steps`:
        steps since the last call. `max_step_ns`: the helper's time in the most expensive of them; None: one step."""
        if self._overhead_guard.finds_excess(self._total_ns, now_ns, steps, max_step_ns):
            self._off_bits = GIVEN_UP
            self.looks.cancel()
            self.weights.forget_due()
            self._stop_quiet_steps()

    def _is_other_than_clock(self, optimizer: Any) -> bool:
        clock = self._clock() if self._clock is not None else None
        return clock is not None and clock is not optimizer

    def _continues_step(self, optimizer: Any) -> bool:
        """Whether this call of the clock belongs to the step that has ended: no backward pass has started since."""
        is_clock = self._clock is not None and self._clock() is optimizer
        return is_clock and self._seen_backward and self.core.adapter.foreshock_adapter_backwards() == 0

    def _tick(self) -> None:
        self._ticks += 1
        if self._ticks in UNSEEN_CHECK_TICKS:
            self._report_unseen_attention()

    def _report_step(self, step: int, source: int) -> None:
        begin = perf_counter_ns()
        self._flush_losses()
        self.core.logs.tick()  # reports the values that the training has logged
        self._add_time(begin, -self.core.logs.take_spent())  # negative: adds the time that the logging wrappers took
        self.core.step_end(
            step, source, self._learning_rate, self.batch_id, self._unreported_ns, self._off_bits | self._next_step_bits
        )
        self._learning_rate = self.batch_id = None
        self._unreported_ns = self._next_step_bits = 0

    def _flush_losses(self) -> None:
        while self._losses:
            self.core.core.foreshock_observe_loss(self._losses.popleft(), LOSS_REPORTED)

    def _observe_late(self, optimizer: Any, observe: Any) -> int:
        """Reports the due weights of an optimizer that steps after the clock. They belong to the step that the clock
        has ended (flag ENDED), unless the training reports its steps itself. `observe`: Weights.before or .after."""
        if not self.weights.is_any_due:
            return 0
        if self.core.adapter.foreshock_adapter_backwards() > 0 and not self._other_optimizers.is_partner(optimizer):
            self.weights.forget_due()  # the optimizer has no backward pass of its own, so the next step has started
            return 0
        return observe(optimizer, 0 if self.steps_are_reported else ENDED)

    def _ends_step(self, optimizer: Any, backwards: int) -> bool:
        """Whether this call of `optimizer` ends a training step. `backwards`: backward passes since the last step.

        An optimizer that ends a step is the clock from then on. While there is a clock, another optimizer ends a step
        only if it steps for at least the second time since the clock's last step, and after a backward pass.
        """
        self._seen_backward |= backwards > 0
        clock = self._clock() if self._clock is not None else None
        if self._is_other_than_clock(optimizer):
            is_followed = not self._off_bits and not is_profiled()
            if is_followed and self._other_optimizers.note_step(optimizer, clock, backwards > 0):
                self._stop_quiet_steps()  # the optimizer is new, or its step() calls the clock's
                self.looks.cancel()
            calls = self._calls_of_others.get(id(optimizer), 0) + 1
            self._calls_of_others[id(optimizer)] = calls
            if calls < 2 or backwards == 0:
                return False
        if backwards == 0:
            self._calls_without_backward += 1
            if self._seen_backward or self._calls_without_backward <= self.CALLS_WITHOUT_BACKWARD:
                return False
        if clock is not optimizer:
            if self._clock is not None:
                self._next_step_bits = GIVEN_OTHER_TRAINING if clock is None else 0  # None: the clock was destroyed
                self._former_clocks.note(clock, optimizer)
                if clock is None:  # another training: other tensors may have the same addresses
                    self._published_names = {}
            # quiet.stop() is called when the clock is destroyed.
            self._clock, self._last_state = ref(optimizer, self.core.quiet.stop), None
            self._other_optimizers = OtherOptimizers(self.core.quiet.stop)
            self._split_step.forget()
            self._stop_quiet_steps()
        return True

    def _state_step(self, optimizer: Any, param_groups: list[Any] | tuple[Any, ...]) -> tuple[int, int | None]:
        """(source of the step number, step number). The optimizer keeps the number in its state. COUNTED, -1: no state
        has a number. None as the number: the optimizer has skipped this step, since a gradient scaler found an overflow
        (fused optimizers), or the number has not changed since the last tick."""
        if (number_on_cpu(self._torch, attribute(optimizer, "found_inf")) or 0) > 0:
            return COUNTED, None
        with_gradient = ((g, p) for g in param_groups for p in parameters_in(g) if p.grad is not None)
        step = parameter = None
        for group, parameter in itertools.islice(with_gradient, self.STATE_PARAMETERS):
            step = self._step_of(optimizer, group, parameter)
            if step is not None:
                break
        if parameter is None and param_groups:
            # No parameter has .grad: Megatron-LM's precision-aware optimizer keeps gradients in another attribute.
            step = self._step_of(optimizer, param_groups[0], None)
        if step is None:
            return COUNTED, -1
        state = (0 if parameter is None else parameter._cdata, step)
        is_unchanged = state == self._last_state
        self._last_state = state
        return OPTIMIZER_STATE, None if is_unchanged else step

    def _step_of(self, optimizer: Any, group: dict[str, Any], parameter: Any) -> int | None:
        """The step number in the state of the parameter, or (fused optimizers of Apex) in its group; None: unknown."""
        try:
            state = state_of(optimizer, parameter) if parameter is not None else {}
            value = state.get("step")
            # core.number() is the fast way for a plain tensor in host memory.
            if type(value) is self._torch.Tensor and (on_host := self.core.number(value)) is not None:
                return int(on_host) if 0 <= on_host < 2**53 else None  # below 2**53 a double holds every integer
            of_parameter = step_number(self._torch, value)
            return of_parameter if of_parameter is not None else step_number(self._torch, group.get("step"))
        except Exception as error:  # the optimizer keeps its state in a class of its own
            if is_of_trainer(error):
                raise  # a signal handler or another thread of the training has raised it
            return None

    def _scale(self, optimizer: Any) -> float | None:
        """The factor by which a gradient scaler multiplied the gradients, 1 without one. None: it is on a device."""
        scale = attribute(optimizer, "grad_scale")
        return 1.0 if scale is None else number_on_cpu(self._torch, scale)

    def _try_to_name(self, optimizers: list[Any], unfollowed: list[Any], addresses: list[int]) -> bool:
        """Names the tensors if they changed. Returns False if naming failed, for example in an unknown release of a
        framework. No tensor then keeps a name, and everything else continues. Later steps try again, up to
        MOST_FAILURES times, since the reason may be another thread that was changing the model. The arguments are those
        of _name_if_changed()."""
        try:
            self._name_if_changed(optimizers, unfollowed, addresses)
        except Exception as error:
            if is_of_trainer(error):
                raise
            self._failures += 1
            self._off_bits = GIVEN_UP | GIVEN_UP_FAILED if self._failures == self.MOST_FAILURES else 0
            self._clear_names()
            return False
        return True

    def _clear_names(self) -> None:
        """Forgets all names, because tensors with names may have been freed and their addresses reused."""
        self._stop_quiet_steps()
        self.looks.cancel()
        self._named_for, self._published_names, self._has_cleared_names = ([], []), {}, True
        self.core.name_parameters([])

    def _name_if_changed(self, optimizers: list[Any], unfollowed: list[Any], addresses: list[int]) -> None:
        """Names the tensors if optimizers or addresses have changed since the last naming. `addresses`: those of the
        parameters of `optimizers`. Parameters of optimizers in `unfollowed` are listed but not measured."""
        if self._split_step.addresses:
            addresses = list(dict.fromkeys([*self._split_step.addresses, *addresses]))
        named_for = [id(optimizer) for optimizer in (*optimizers, *unfollowed)], addresses
        if named_for == self._named_for and not self._has_replaced_tensors:
            return
        # Names of destroyed tensors must not stay, because other tensors may get their addresses.
        if self._owners.has_lost or (self._named_for[1] and not set(self._named_for[1]) <= set(addresses)):
            self._owners.has_lost = False
            self._clear_names()
        if not self._naming_limit.allows():
            return
        begin = perf_counter_ns()
        self._name_tensors(optimizers, unfollowed, named_for)
        self._naming_limit.spend(perf_counter_ns() - begin)

    def _name_tensors(
        self, optimizers: list[Any], unfollowed: list[Any], named_for: tuple[list[int], list[int]]
    ) -> None:
        """Sends the names of all parameters, and the list of tensors to measure, to the core. `named_for`: the new
        value of _named_for."""
        addresses = named_for[1]
        self._has_replaced_tensors = False
        parameters = [p for optimizer in optimizers for p in parameters_of(optimizer)]
        if not self._is_described:
            self.core.describe(topology(parameters, self.modules.alive()))
            self._is_described = True
        self._named_for = named_for
        named, labels = self._keep_names(self.modules.named(addresses))
        self._owners.watch(self.modules.owners(named))
        self._steps_whole_model = self._is_whole(parameters, named)
        # The core keeps a limited number of names, so those that identify attention layers go first.
        in_order = sorted(named.items(), key=lambda item: naming_order(item[1][0].name, item[1][1].requires_grad))
        self.core.name_parameters([(a, row.name, labels[row.name], p.numel()) for a, (row, p) in in_order])
        has_inventory = self._send_inventory(named, labels)
        self._has_cleared_names = False
        if self._owners.has_lost:  # a module was destroyed while its tensors were named
            self._clear_names()
        replicas = Replicas(parameters, self.modules.alive())
        stepped = [*parameters, *(p for optimizer in unfollowed for p in parameters_of(optimizer))]
        # With several optimizers, one that has not stepped yet may have the others.
        is_only = len(optimizers) + len(unfollowed) == 1 and not self._former_clocks.alive(optimizers[0])
        outside = self.modules.outside(named, stepped) if is_only else {}
        temporary = self._split_step.addresses
        is_listed = self.weights.send_list(optimizers, unfollowed, temporary, named, labels, replicas, outside)
        if not (is_listed and has_inventory) or (not self.core.is_monitored() and self._ticks < self.UNMONITORED_TICKS):
            # The next step names them again: the core was busy, or this process may still become a monitored one.
            self._named_for = ([], [])

    def _send_inventory(self, named: dict[int, tuple[Named, Any]], labels: dict[str, str]) -> bool:
        """Sends the attention modules of the models of `named`. Returns False if the core was busy: call again."""
        layers = {address: labels[row.name] for address, (row, _) in named.items()}
        try:
            mixers = mixers_of(self.modules.roots_of(named), lambda parameter: layers.get(parameter._cdata))
        except Exception as error:  # of a parameter of an unknown class; the attention layers are then unknown
            if is_of_trainer(error):
                raise
            return True
        written.follow({mixer.owner for mixer in mixers if mixer.kind == ATTENTION})
        return self.core.name_mixers(mixers)

    def _keep_names(self, named: dict[int, tuple[Named, Any]]) -> tuple[dict[int, tuple[Named, Any]], dict[str, str]]:
        """(parameters with their names, {name: layer label}). A parameter that already has a name keeps it, even if a
        second model now uses the same name: a time series must not be renamed."""
        published = self._published_names
        labels = labels_of(named)
        kept = {a: published.get(a, (row, labels[row.name])) for a, (row, _) in named.items()}
        self._published_names = kept
        named = {a: (kept[a][0], p) for a, (_, p) in named.items()}
        return named, {row.name: label for row, label in kept.values()}

    @staticmethod
    def _is_whole(parameters: list[Any], named: dict[int, tuple[Named, Any]]) -> bool:
        """Whether this rank steps the whole model. If not, its gradient norms are not those of the run. `parameters`:
        those that the optimizers step; `named`: those of the model."""
        if any(is_shard(parameter) for parameter in parameters):
            return False
        here = {parameter._cdata for parameter in parameters}
        missing = [p for address, (_, p) in named.items() if p.requires_grad and address not in here]
        # Disjoint: the optimizer steps copies of the parameters (DeepSpeed, Megatron-LM), maybe of a part of them.
        return torch_world_size() == 1 or not (missing or here.isdisjoint(named))

    def _report_unseen_attention(self) -> None:
        """Reports attention that no hook sees, unless the training uses tap()."""
        if self.core.adapter.foreshock_adapter_taps() == seams.reported():  # calls of wrapped functions are no taps
            for name, evidence in attention_unseen():
                self.core.core.foreshock_note_unseen(name.encode(), evidence)

    def compiled_step(self, optimizer: Any) -> None:
        """Called after a step whose hooks torch.compile has traced away (compiled.py). The gradients still exist."""
        self.after_closure(optimizer)

    def report(self, step: Any, loss: Any, batch_id: Any) -> None:
        """Called by foreshock.report(). After the first call with a step number, only these calls report steps."""
        begin = perf_counter_ns()
        self._collect_quiet_steps()
        number = step_number(self._torch, step)  # None: no step number was given
        if number is not None and number == self._last_step and not self.steps_are_reported:
            # The clock has already reported this step. Loss and batch id are dropped: they would count for the next.
            self.steps_are_reported = True
            self._losses.clear()
            self.batch_id = None
            self._add_time(begin)
            return
        if (value := number_on_cpu(self._torch, loss)) is not None:
            self._losses.append(value)
            if self.steps_are_reported:
                self._flush_losses()
        if (batch := low_64_bits(batch_id)) is not None:
            self.batch_id = batch
        is_tick = number is not None and self._clock is None  # with a clock, after_step() has done this work
        if is_tick:
            self._tick()
        self._add_time(begin)
        if is_tick:
            self._check_overhead(perf_counter_ns())
        if number is not None:
            self.core.stop_counting_steps()
            self.steps_are_reported = True
            self._report_step(number, REPORTED)
