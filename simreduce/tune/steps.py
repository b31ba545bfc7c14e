"""Every strategy of a scenario, ranked by the training step around it: what back-propagation hides
costs nothing.

The reduction that is fastest alone need not be that of the fastest step: small packs start early,
one large pack moves fast. So packing and algorithm are chosen together, against the timeline of the
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from simreduce.errors import Deadlock, InputError, ScenarioError, StrategyError
from simreduce.plan import verify, wrong_elements
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import Strategy
from simreduce.training import StepPrediction, StepQuestion, simulate_step
from simreduce.tune.candidates import candidates
from simreduce.tune.chunks import with_best_chunk
from simreduce.tune.rank import first_words
from simreduce.variable_update import STRATEGIES
from simreduce.workers import in_processes

NO_STEP = "it has no [step], which says what a step computes"


@dataclass(frozen=True, slots=True)
class StepCandidate:
    """One method's step. `alone` is the time of all its transfers with every gradient there from
    the start, in seconds; `singly` samples a second of all devices if each trained by itself, with
    its own reads and updates.
    """

    step: StepPrediction
    alone: float
    wrong: int
    singly: float

    @property
    def efficiency(self) -> float:
        """What the devices do together, as a part of what they would do singly."""
        return self.step.images_per_second / self.singly if self.step.seconds else 1.0


@dataclass(frozen=True, slots=True)
class StepRanking:
    """Candidates, fastest step first, and the methods that the machine does not accept, with the
    reason. `untried` are those that there was no time for, as somebody stopped it (Ctrl-C).
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
    work = partial(step_of, scenario)
    outcomes: list[StepCandidate | Deadlock | str] = []
    progress(0, len(methods))
    try:
        with closing(in_processes(work, methods, workers)) as coming:
            for outcome in coming:
                outcomes.append(outcome)
                progress(len(outcomes), len(methods))
    except KeyboardInterrupt:
        if not any(isinstance(o, StepCandidate) for o in outcomes):
            raise
    names = [m.text if m else question.mode for m in methods[: len(outcomes)]]
    refused = [(name, o) for name, o in zip(names, outcomes, strict=True) if isinstance(o, str)]
    if refused and (scenario.strategies or question.mode):
        raise StrategyError([reason for _, reason in refused])
    stuck = [(name, o) for name, o in zip(names, outcomes, strict=True) if isinstance(o, Deadlock)]
    found = [o for o in outcomes if isinstance(o, StepCandidate)]
    if not found:
        raise stuck[0][1] if stuck else StrategyError([reason for _, reason in refused])
    refused += [(name, f"{name}: {first_words(o)}") for name, o in stuck]
    found.sort(key=lambda c: (c.step.seconds, c.alone, c.step.method))
    untried = len(methods) - len(outcomes)
    return StepRanking(scenario, question, tuple(found), tuple(refused), untried)


def step_of(scenario: Scenario, strategy: Strategy | None) -> StepCandidate | Deadlock | str:
    """The step of one strategy, of the scenario's mode if it is None; or why it is not accepted or
    never ends.
    """
    setup, question = scenario.setup, scenario.step
    assert question is not None  # noqa: S101 - `rank_steps` has looked
    try:
        if strategy is not None:
            strategy = with_best_chunk(strategy, scenario.workload, setup)
        method = question.method(strategy, setup.layout, faithful=scenario.faithful)
        step = simulate_step(question.job, method, setup)
        alone = setup.simulate(method.plan).seconds
        singly = _singly(question, setup)
    except Deadlock as error:
        return error
    except StrategyError as error:
        return "; ".join(error.problems)
    except InputError as error:  # GPUs that the plan joins and nothing else does
        name = strategy.text if strategy else question.mode
        return "; ".join(f"{name}: {problem}" for problem in error.problems)
    return StepCandidate(step, alone, wrong_elements(verify(method.plan)), singly)


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
