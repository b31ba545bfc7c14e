"""A point of the space that `tune` searches, and its simulation, on several processes.

The search is best-first: the point with the lowest bound is looked at next, until no bound is below
the best time found.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count
from math import inf
from operator import itemgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from simreduce import dtypes
from simreduce.computing import group_by
from simreduce.computing.workers import Progress, answering, time_is_up, working
from simreduce.engine import AtLeast
from simreduce.engine.setup import Setup
from simreduce.errors import Deadlock, InputError, StrategyError
from simreduce.files.formats.syntax import Faults
from simreduce.planners.nccl.constants import Rule
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.study.ranking import ask
from simreduce.study.scenario import Scenario, StepScenario, with_step
from simreduce.study.tune.simulate import simulate_up_to
from simreduce.topology import Folded
from simreduce.training import StepQuestion
from simreduce.training.memory import buffers_of_calls
from simreduce.training.sharded import DDP, HSDP, SHARDING, Sharding
from simreduce.training.sharded.collectives import ShardedMethod, sharded_method
from simreduce.training.sharded.simulation import running_sharded, simulate_sharded_step
from simreduce.training.simulation import MemoryFit, fit_of, least_memory, step_seconds
from simreduce.training.variable_update import Flags
from simreduce.units import short_size

R = TypeVar("R")
T = TypeVar("T")

S = TypeVar("S", bound=Scenario)
S_co = TypeVar("S_co", bound=Scenario, covariant=True)

SAME = 1e-9
"""A relative difference that is rounding."""


class Tried(NamedTuple):
    """The seconds of a point; if the simulation was stopped (not `exact`), it takes at least that.

    `ops` were simulated, which represent `whole` ops of all machines of a single call, whose
    busiest `link` is known, with the seconds that bytes need of it.
    """

    seconds: float
    ops: int = 0
    exact: bool = True
    whole: int = 0
    link: tuple[str, float] = ("", 0.0)


@dataclass(slots=True)
class SearchOutcome(Generic[T]):
    """The outcome of a search: seconds of the points that were simulated, bounds of the others."""

    seconds: dict[T, float] = field(default_factory=dict)
    excluded: dict[T, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The shortest time so far."""
        return min(self.seconds.values(), default=inf)

    @property
    def bound(self) -> float:
        """Seconds that no point can be below."""
        return min(min(self.excluded.values(), default=inf), self.best)


def search(
    points: Iterable[tuple[float, T]],
    sharpen: Callable[[T], float | None],
    simulate: Callable[[Sequence[T]], list[Tried]],
    outcome: SearchOutcome[T],
    width: int = 1,
    enough: Callable[[], bool] = lambda: False,
    progress: Progress = lambda _done, _all: None,
    gap: float = SAME,
) -> None:
    """Fill `outcome`, which keeps what there is if an interrupt ends the search.

    `points` come with bounds in seconds. `sharpen` gives a better bound of a point that has come to
    the front, once; None if it has none. `simulate` takes up to `width` points at a time, and may
    stop those that are slower than `outcome.best`. The search ends early once `enough` says so, and
    once nothing is left that may be faster by more than a part of `gap`.
    """
    order = count()
    heap = [(bound, next(order), False, point) for bound, point in points]
    heapq.heapify(heap)
    total = len(heap)
    outcome.excluded |= {point: bound for bound, _, _, point in heap}
    first = True
    while heap:
        front: list[T] = []
        # The first alone, sharpened or not: what it takes may exclude all others, and is an answer
        # for those who do not wait for the end.
        most = 1 if first else width
        while heap and len(front) < most and heap[0][0] < outcome.best * (1.0 - gap):
            bound, _, sharp, point = heapq.heappop(heap)
            better = None if sharp else sharpen(point)
            if better is not None and better > bound:
                outcome.excluded[point] = better
                if not first:
                    heapq.heappush(heap, (better, next(order), True, point))
                    continue
            front.append(point)
        if not front or (outcome.seconds and enough()):
            break
        first = False
        for point, tried in zip(front, simulate(front), strict=True):
            if tried.exact:
                outcome.seconds[point] = tried.seconds
                del outcome.excluded[point]
            else:
                outcome.excluded[point] = max(outcome.excluded[point], tried.seconds)
        progress(total - sum(1 for each in heap if each[0] < outcome.best), total)


_UNSET = Sharding()


@dataclass(frozen=True, slots=True)
class Setting:
    """A strategy with the settings of its system.

    `rules` are how NCCL chooses for each size, empty for its own choice, and `channels` is
    NCCL_MIN_NCHANNELS, 0 where it is as the scenario has it; `order` is of the GPUs of
    each machine in rings, empty for theirs; `cycle` is Horovod's, in seconds. `nodes` are the tasks
    that ranks are laid out on, in their order; empty for all.

    Of a step, a `method` other than `ddp` shards by `sharding`. A `mode` of tf_cnn_benchmarks, with
    variables on a `device`, replaces the strategy.
    """

    strategy: str
    rules: tuple[Rule, ...] = ()
    channels: int = 0
    order: tuple[int, ...] = ()
    cycle: float | None = None
    method: str = DDP
    sharding: Sharding | None = None
    mode: str = ""
    device: str = ""
    nodes: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The setting in one line."""
        parts = [
            f"{self.method}," if self.sharding is not None else "",
            f"{self.mode}, variables on each {self.device.upper()}"
            if self.mode
            else self.as_strategy or f"{self.strategy} [{rules_text(self.rules)}]",
            f"NCCL_MIN_NCHANNELS={self.channels}" if self.channels else "",
            f"gpu_indices {','.join(map(str, self.order))}" if self.order else "",
            f"cycle {self.cycle * 1e3:g} ms" if self.cycle is not None else "",
            *(f"{key}={value}" for key, value in self.knobs.items()),
        ]
        return " ".join(filter(None, parts))

    @property
    def as_strategy(self) -> str:
        """The strategy with the rule, if there is one, as commands take it; "" for several rules
        and those of shards.
        """
        if self.rules[1:] or (self.rules and self.sharding is not None):
            return ""
        return self.strategy.replace(
            "nccl", f"nccl{':' * len(self.rules)}{rules_text(self.rules)}", 1
        )

    @property
    def knobs(self) -> dict[str, object]:
        """The values of `sharding` that are not the defaults, in a scenario's words."""
        found = dict[str, object]()
        for key in SHARDING.keys if self.sharding else ():
            value = getattr(self.sharding, key)
            if value == getattr(_UNSET, key):
                continue
            if key == "units" and isinstance(value, int):
                value = short_size(value)
            if key.endswith("dtype"):
                value = dtypes.NAMES[value]
            found[key] = str(value).lower() if isinstance(value, bool) else value
        return found

    @property
    def tie_break(self) -> tuple[int, int, int, str]:
        """A key that sorts settings as fast: first those with fewer words."""
        text = self.label if self.mode or self.sharding else self.strategy
        more = len(self.order) + len(self.knobs) + bool(self.channels)
        return len(self.rules), more, len(text), text

    @property
    def parsed(self) -> Strategy | None:
        """The strategy; None of a mode."""
        return None if self.mode else parse_strategy(self.strategy)

    @property
    def reduction(self) -> Strategy:
        """The strategy; of a mode NCCL's, about."""
        return self.parsed or parse_strategy("nccl")

    def setup(self, base: Setup) -> Setup:
        """The setup of `base` with these rules, channels, this order and these nodes."""
        if self.rules:  # and no kernels that come before them
            nccl = replace(base.nccl, tuner=self.rules)
            if not isinstance(base.machine, Folded) and base.communicator.model.lists_first:
                nccl = replace(nccl, msccl=False)
            base = base.but(nccl=nccl)
        base = with_channels(base, self.channels)
        if self.order:
            base = base.but(part=base.layout.with_order(list(self.order)))
        if self.nodes:
            base = base.but(part=base.layout.on(self.nodes))
        return base

    def scenario(self, base: S) -> S:
        """The scenario with this setting as its only strategy."""
        if (step := base.step) is not None:
            more: dict[str, Any] = {} if self.cycle is None else {"cycle": self.cycle}
            if self.mode:
                more |= {"mode": self.mode, "flags": Flags(local_parameter_device=self.device)}
            if self.sharding is not None:
                more |= {"methods": (self.method,), "sharding": self.sharding}
            step = replace(step, **more)
        strategies = () if self.parsed is None else (self.parsed,)
        return replace(base, setup=self.setup(base.setup), strategies=strategies, step=step)


@lru_cache(maxsize=64)
def with_channels(setup: Setup, channels: int) -> Setup:
    """The setup with this NCCL_MIN_NCHANNELS; as it is for 0."""
    return setup.but(nccl=replace(setup.nccl, min_channels=channels)) if channels else setup


def rules_text(rules: Sequence[Rule]) -> str:
    """Rules as one line, by where each gives way to the next of its collective:
    `to 65536 B ring+ll+channels=8, nvls+simple+channels=16`.
    """
    return ", ".join(
        (f"{name} " if name != "all_reduce" and rule is mine[0] else "")
        + (f"to {rule.most} B " if rule is not mine[-1] else "")
        + f"{rule.algorithm}+{rule.protocol}"
        + (f"+channels={rule.channels}" if rule.channels > 0 else "")
        for name, mine in group_by(rules, lambda rule: rule.collective).items()
        for rule in mine
    )


def reducing_scenario(scenario: S) -> S:
    """The scenario for DDP: gradients of a step have the dtype in which it reduces."""
    if scenario.step is None:
        return scenario
    step = scenario.step.replicated
    return replace(scenario, step=step, workload=step.job.model.workload)


def evaluate(scenario: Scenario, setting: Setting, limit: float = inf) -> Tried:
    """Seconds of one step by this setting, or of one all-reduce without a step.

    Of an all-reduce that takes longer than `limit`, at least that. Infinite for a setting that the
    machine refuses or never finishes.
    """
    if setting.sharding is not None:
        return Tried(simulate_whole(with_step(scenario), setting).seconds)
    own, strategy = setting.scenario(scenario), setting.parsed
    setup = own.setup.running(strategy)
    try:
        if own.step is not None:
            method = own.step.method(strategy, setup.layout, faithful=own.faithful)
            return Tried(step_seconds(method, own.step.job, setup), len(method.whole))
        found = simulate_up_to(ask(own, setting.reduction), limit)
    except (Deadlock, InputError):
        return Tried(inf)
    return (
        Tried(found.seconds, exact=False)
        if isinstance(found, AtLeast)
        else Tried(found.result.seconds / own.repeat, own.repeat * len(found.plan))
    )


def refusal(name: str, find: Callable[[], object], why: str) -> StrategyError:
    """The error of a setting without a time: what the machine has against it, or else `why`."""
    faults = Faults()
    faults.attempt(name, find)
    return StrategyError(faults.problems or f"{name}: {why}")


def method_of_setting(scenario: StepScenario, setting: Setting) -> ShardedMethod | None:
    """The method of a setting; None if the machine refuses it."""
    strategy, layout = parse_strategy(setting.strategy), setting.setup(scenario.setup).layout
    job, sharding = scenario.step.job, setting.sharding or Sharding()
    try:
        return sharded_method(setting.method, strategy, job, layout, sharding)
    except InputError:
        return None


class Simulated(NamedTuple):
    """A whole step that was simulated.

    It has its seconds, infinite if the machine refuses it, the bytes that a GPU needs, and wrong
    elements of its plans.
    """

    seconds: float
    needed: int = 0
    wrong: int = 0


def simulate_whole(scenario: StepScenario, setting: Setting) -> Simulated:
    """A whole step by a setting that shards."""
    step, method = scenario.step, method_of_setting(scenario, setting)
    setup = running_sharded(setting.setup(scenario.setup), setting.label)
    if method is None:
        return Simulated(inf)
    try:
        found = simulate_sharded_step(step.job, method, setup)
    except (Deadlock, InputError):
        return Simulated(inf)
    held = found.step.memory
    assert held is not None  # noqa: S101 - steps that shard say it
    calls = [(each.collective, each.nbytes) for each in found.step.buckets]
    group = method.group if setting.method == HSDP else 0
    buffers = buffers_of_calls(
        setup, parse_strategy(setting.strategy), calls, method.sharding, group
    )
    needed = replace(held.plus(step.activations), nccl_buffers=buffers).needed
    return Simulated(found.step.seconds, needed, found.wrong)


def shared_by(setting: Setting, setup: Setup) -> int:
    """The ranks that hold one copy of the shards."""
    if setting.method != HSDP or setting.sharding is None:
        return setup.layout.n
    return setting.sharding.group or min(len(task) for task in setup.layout.tasks)


def least_fit(step: StepQuestion, setup: Setup, setting: Setting) -> MemoryFit:
    """The bytes that a GPU holds at least by a setting, and its memory."""
    memory = least_memory(
        setting.method,
        step.job.model,
        setting.sharding or step.numerics,
        shared_by(setting, setup),
        step.activations,
    )
    return fit_of(memory, setup.topology, setup.layout.ranks)


class Working(Protocol[S_co]):
    """Works on every item of a list with the scenario, several at a time."""

    def __call__(self, work: Callable[[S_co, T], R], items: Sequence[T], /) -> list[R]:
        """The results in order."""


Do: TypeAlias = Working[Scenario]


@contextmanager
def simulating(scenario: S, workers: int = 1) -> Iterator[Working[S]]:
    """Processes that have `scenario`, until the end of the context."""
    with working(partial(_work, scenario), workers) as work_on:

        def do(work: Callable[[S, T], R], items: Sequence[T]) -> list[R]:
            done = work_on([(work, item) for item in items])
            return [each for _, each in sorted(done, key=itemgetter(0))]

        yield do


@contextmanager
def keeping(
    scenario: S, workers: int, has_answer: Callable[[], bool]
) -> Iterator[tuple[Working[S], dict[str, Any]]]:
    """`simulating`, until Ctrl-C or the end of a budget of time at most, once there is an answer.

    With it comes how it ended, as an `Ending` takes it: empty until it is stopped.
    """
    ended = dict[str, Any]()
    try:
        with answering(has_answer), simulating(scenario, workers) as do:
            yield do, ended
    except KeyboardInterrupt:
        if not has_answer():
            raise
        ended |= {"stopped": True, "hurried": time_is_up()}


def _work(scenario: S, asked: tuple[Callable[[S, Any], Any], Any]) -> Any:
    work, item = asked
    return work(scenario, item)
