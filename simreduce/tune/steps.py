"""Every strategy of a scenario, ranked by the training step around it: what back-propagation hides
costs nothing.

The reduction that is fastest alone need not be that of the fastest step: small packs start early,
one large pack moves fast. So packing and algorithm are chosen together, against the timeline of the
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from simreduce.errors import Deadlock, ScenarioError, StrategyError
from simreduce.plan import verify, wrong_elements
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import Strategy
from simreduce.training import StepPrediction, StepQuestion, simulate_step
from simreduce.tune.candidates import candidates
from simreduce.tune.chunks import with_best_chunk
from simreduce.tune.rank import attempt, evaluate_all
from simreduce.variable_update import STRATEGIES

NO_STEP = "it has no [step], which says what a step computes"


@dataclass(frozen=True, slots=True)
class StepCandidate:
    """One method's step. `alone` is the time of all its transfers with every gradient there from
    the start, in seconds; `singly` samples a second of all devices if each trained by itself, with
    its own reads and updates. `also` are the other methods with the same step and the same plan,
    which `digest` names.
    """

    step: StepPrediction
    alone: float
    wrong: int
    singly: float
    digest: str = ""
    runtime: str = "tensorflow"
    also: tuple[str, ...] = ()

    @property
    def efficiency(self) -> float:
        """What the devices do together, as a part of what they would do singly."""
        return self.step.images_per_second / self.singly if self.step.seconds else 1.0


@dataclass(frozen=True, slots=True)
class StepRanking:
    """Candidates, one for each plan and step, fastest first; and the methods that the machine
    refuses, with the reason. `untried` counts those that Ctrl-C left out.
    """

    scenario: Scenario
    question: StepQuestion
    candidates: tuple[StepCandidate, ...]
    refused: tuple[tuple[str, str], ...]
    untried: int = 0

    @property
    def recommended(self) -> StepCandidate:
        """The fastest that is proven right; if none is, the fastest."""
        return next((c for c in self.candidates if not c.wrong), self.candidates[0])


def rank_steps(
    scenario: Scenario,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> StepRanking:
    """The step of every strategy, or of the mode that the scenario's `[step]` names.

    As in `rank`: what is named and not accepted raises StrategyError, and so does a scenario
    without a `[step]`.
    """
    question = scenario.step
    if question is None:
        raise ScenarioError(f"{scenario.name}: {NO_STEP}")
    methods: tuple[Strategy | None, ...] = (None,)
    if not question.mode:
        methods = scenario.strategies or tuple(candidates(scenario.setup.layout))
    found, refused, untried = evaluate_all(
        partial(step_of, scenario),
        methods,
        [m.text if m else question.mode for m in methods],
        workers,
        progress,
        by_name=bool(scenario.strategies or question.mode),
    )
    if not found:
        raise StrategyError([reason for _, reason in refused])
    return StepRanking(scenario, question, tuple(_one_for_each_step(found)), refused, untried)


def _one_for_each_step(found: Sequence[StepCandidate]) -> list[StepCandidate]:
    """Candidates in order. Of those with the same plan and the same step, the one with the shortest
    name has the others in `also`.
    """
    rows: list[list[StepCandidate]] = []
    for c in sorted(found, key=lambda c: (len(c.step.method), c.step.method)):
        step = replace(c.step, method="")
        for row in rows:
            same = row[0].digest == c.digest and row[0].runtime == c.runtime
            if same and replace(row[0].step, method="") == step:
                row.append(c)
                break
        else:
            rows.append([c])
    merged = [replace(c, also=tuple(other.step.method for other in more)) for c, *more in rows]
    return sorted(merged, key=lambda c: (c.step.seconds, c.alone, c.step.method))


def step_of(scenario: Scenario, strategy: Strategy | None) -> StepCandidate | Deadlock | str:
    """The step of one strategy, of the scenario's mode if it is None; or why it is not accepted or
    never ends.
    """
    assert scenario.step is not None  # noqa: S101 - `rank_steps` has looked
    name = strategy.text if strategy else scenario.step.mode
    return attempt(name, partial(_predict, scenario, scenario.step, strategy))


def _predict(
    scenario: Scenario, question: StepQuestion, strategy: Strategy | None
) -> StepCandidate:
    setup = scenario.setup.running(strategy)
    if strategy is not None:
        strategy = with_best_chunk(strategy, scenario.workload, setup)
    method = question.method(strategy, setup.layout, faithful=scenario.faithful)
    return StepCandidate(
        step=simulate_step(question.job, method, setup),
        alone=setup.simulate(method.plan).seconds,
        wrong=wrong_elements(verify(method.plan)),
        runtime=setup.runtime.name,
        singly=_singly(question, setup),
        digest=method.plan.digest,
    )


def _singly(question: StepQuestion, setup: Setup) -> float:
    """Samples a second of all devices, each by itself: one of every kind and slowness is simulated.
    Where gradients are only reduced, one device has nothing to wait for.
    """
    job, shape, disturbance = question.job, setup.layout, setup.disturbance
    kinds: dict[tuple[float, str], list[int]] = {}
    for rank, name in enumerate(shape.ranks):
        factor = job.slow.get(name, 1.0) * disturbance.slow.get(name, 1.0)
        kinds.setdefault((factor, setup.topology.nodes[name].model), []).append(rank)
    total = 0.0
    for (factor, _), ranks in kinds.items():
        if question.mode in STRATEGIES or not question.mode:
            launch = setup.calibration.step if job.barrier and setup.runtime.dispatch else 0.0
            seconds = launch + factor * (job.profile.seconds + job.update)
        else:
            one = shape.only(ranks[:1])
            flags = replace(question.flags, ps_tasks=())  # there is one machine
            method = replace(question, flags=flags).method(None, one)
            alone = setup.but(part=one, disturbance=replace(disturbance, faults=()))
            seconds = simulate_step(job, method, alone).seconds
        total += len(ranks) * job.batch / seconds if seconds else inf
    return total
