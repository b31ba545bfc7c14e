"""Steps whose plans are large, composed of the calls of NCCL that they make.

NCCL's calls of one communicator take turns, so a step by a strategy that NCCL carries out is put
together of single calls (`compose_step`): one call of each size is simulated alone
(`search.packings`), where equal machines are folded and alike channels have one of them for all.
Copies into and out of buckets take what they take for one size. `tests/study/tune/test_composed.py`
compares such steps with whole simulations: they are within `ERROR`.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import fsum

from simreduce.computing import grouped
from simreduce.computing.workers import as_piece
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.plan import verify, wrong_elements
from simreduce.planners.layouts import Decision
from simreduce.planners.packing import Fusion
from simreduce.planners.packing.arrangement import NoPacking
from simreduce.planners.strategy import Strategy
from simreduce.planners.strategy.compiler import proved_on_few
from simreduce.study.scenario import StepScenario
from simreduce.study.tune.search.packings import (
    COLLECTIVE,
    MANY,
    CallSetting,
    CallSize,
    GradientPacking,
    choice_of_nccl,
    copying_of,
    folded_of,
    packing_of,
    simulate_call_on,
)
from simreduce.study.tune.search.setting import Tried
from simreduce.topology import Topology
from simreduce.training import SimulatedStep, StepJob, StepResult
from simreduce.training.calls import (
    ENDLESS,
    FIXED,
    PRECISION,
    CallCost,
    Fused,
    Method,
    busiest_of,
    is_calm,
)
from simreduce.training.simulation import compose_step
from simreduce.workload import Gradient, Workload

ERROR = 2 * PRECISION
"""The part of a step by which its composed time may differ from that of a whole simulation; with
Horovod's cycles it may be another cycle.
"""

_ENDLESS = Fusion(ENDLESS)
"""One buffer of all."""


@as_piece
@lru_cache(maxsize=256)
def is_large(setup: Setup, strategy: Strategy, workload: Workload) -> bool:
    """Whether the plan of a strategy takes several seconds to simulate."""
    return len(setup.layout.tasks) >= MANY or setup.many_ops(strategy, workload) > 0


def is_composed(scenario: StepScenario, strategy: Strategy | None) -> bool:
    """Whether the step of a strategy is composed: its calls take turns, and its plan is large."""
    if strategy is None or scenario.faithful:
        return False
    setup, step = scenario.setup.running(strategy), scenario.step
    plain = strategy.by_nccl and strategy.reduced_by_nccl and not strategy.mean
    one = len(strategy.ranges) == 1 and strategy.ranges[0].shards == 1 and not strategy.chunk
    known = isinstance(setup.machine, Topology) and is_calm(setup)
    if not (plain and one and known and step.streams in (None, 1) and step.job.reduces_once):
        return False
    return is_large(setup, strategy, step.replicated.job.model.workload)


@dataclass(frozen=True)
class ComposedStep:
    """The step of a strategy on a setup, composed of its calls."""

    strategy: Strategy
    job: StepJob
    setup: Setup
    cycle: float

    @cached_property
    def packing(self) -> GradientPacking:
        """The buckets of all gradients."""
        return packing_of(self.strategy.packer, self.job.model.workload.gradients)

    @cached_property
    def method(self) -> Method:
        """Its calls, which take turns; Horovod's as its cycles have them."""
        strategy, packer, layout = self.strategy, self.strategy.packer, self.setup.layout
        if isinstance(packer, Fusion) and self.cycle != FIXED:
            fused = Fused(
                packer, strategy, self.job.model.workload, layout, False, self.cycle, planned=False
            )
            return Method(strategy.text, None, (), streams=1, fusion=fused)
        return self.packing.method(layout.n, strategy.text)

    @cached_property
    def step(self) -> StepResult:
        """The step, with its buckets."""
        if self.method.fusion:
            return compose_step(self.job, self.method, self.setup, self._buffer_cost)
        costs = self.packing.costs(self._cost, self._copying)
        return compose_step(self.job, self.method, self.setup, costs.__getitem__)

    @property
    def simulated(self) -> SimulatedStep:
        """The step with its figures; StrategyError if the machine refuses the strategy."""
        wrong = self.wrong  # refused first
        return SimulatedStep(self.step, self.alone, wrong, self.digest, self.bottleneck)

    @property
    def alone(self) -> float:
        """Seconds of all reductions, with every gradient there from the start."""
        calls = fsum(self._call(size).seconds for size in self.packing.calls)
        return calls + self._copying * (self.packing.copied[0] + self.packing.copied[-1]) / 2

    @property
    def digest(self) -> str:
        """A digest of its calls and how NCCL carries them out."""
        packing = self.packing
        calls = [(*size, *self._decide(size)) for size in packing.calls]
        text = repr((packing.groups, calls, packing.copied))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def bottleneck(self) -> str:
        """The link or memory that the calls need for the longest."""
        return busiest_of(self._call(size).link for size in self.packing.calls)

    @property
    def wrong(self) -> int:
        """Wrong elements of the smallest bucket of each of NCCL's choices.

        Of equal machines, they are those of so few as prove a folded plan. StrategyError if the
        machine refuses the strategy.
        """
        gradients, packing = self.job.model.workload.gradients, self.packing
        ordered = sorted(
            zip(packing.groups, packing.sizes, strict=True),
            key=lambda pair: sum(size.nbytes for size in pair[1]),
        )
        chosen = grouped((self._decide(size), group) for group, sizes in ordered for size in sizes)
        plain = replace(self.strategy, text=self.strategy.spec, packing="none", packer=NoPacking())
        whole = replace(plain, packing="fusion", packer=_ENDLESS)
        return sum(
            _count_wrong(
                self.setup,
                whole if len(group) > 1 else plain,
                tuple((gradients[i].elements, gradients[i].dtype) for i in group),
            )
            for group in dict.fromkeys(groups[0] for groups in chosen.values())
        )

    @cached_property
    def _copying(self) -> float:
        dtype = self.job.model.workload.gradients[0].dtype
        wire = next((size.dtype for size in self.packing.calls), dtype)
        return copying_of(self.setup, dtype, wire)

    def _decide(self, size: CallSize) -> Decision:
        wanted = self.strategy.nccl._replace(
            algorithm=self.strategy.ranges[0].algorithm.partition(":")[2]
        )
        return choice_of_nccl(self.setup, COLLECTIVE, size.nbytes, wanted)

    def _call(self, size: CallSize) -> Tried:
        return _simulate(self.setup, self._decide(size), size.rounded)

    def _cost(self, size: CallSize) -> CallCost:
        return CallCost(self._call(size).seconds, self._decide(size).channels)

    def _buffer_cost(self, buffer: tuple[int, ...]) -> CallCost:
        gradients = self.job.model.workload.gradients
        assert isinstance(self.strategy.packer, Fusion)  # noqa: S101 - the caller has looked
        packing = packing_of(
            replace(_ENDLESS, fp16=self.strategy.packer.fp16), [gradients[i] for i in buffer]
        )
        return CallCost.in_turn([*packing.costs(self._cost, self._copying).values()])


@as_piece
@lru_cache(maxsize=1 << 12)
def _simulate(setup: Setup, how: Decision, size: CallSize) -> Tried:
    """One call alone."""
    return simulate_call_on(setup, CallSetting(how, size))


@as_piece
@lru_cache(maxsize=1 << 8)
def _count_wrong(setup: Setup, strategy: Strategy, held: tuple[tuple[int, int], ...]) -> int:
    """Wrong elements of a bucket with gradients of these elements and dtypes."""
    bucket = Workload("bucket", tuple(Gradient(f"g{i}", *each) for i, each in enumerate(held)))
    with suppress(StrategyError):  # NVLink SHARP needs all machines
        if (folded := folded_of(setup)) is not None:
            return proved_on_few(strategy, bucket, folded.layout)[1]
    return wrong_elements(verify(setup.compile(strategy, bucket)))
