"""Every strategy of a scenario, ranked by the training step around it: what back-propagation hides costs nothing.

The reduction that is fastest alone need not be that of the fastest step: small packs start early, one large pack moves fast.
So packing and algorithm are chosen together, against the timeline of the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from simreduce.engine import CALM, Disturbance, simulate
from simreduce.errors import Deadlock, InputError, ScenarioError, StrategyError
from simreduce.layouts import Layout
from simreduce.plan import verify, wrong_elements
from simreduce.scenario import Scenario
from simreduce.strategy import Strategy
from simreduce.training import Question, Step, simulate_step
from simreduce.tune.candidates import candidates
from simreduce.tune.chunks import with_best_chunk
from simreduce.tune.rank import first_words
from simreduce.workers import in_processes


@dataclass(frozen=True, slots=True)
class StepCandidate:
    """One method's step. `alone` is the time of all its transfers with every gradient there from the start, in seconds."""

    step: Step
    alone: float
    wrong: int


@dataclass(frozen=True, slots=True)
class StepRanking:
    """Candidates, fastest step first, and the methods that the machine does not accept, with the reason."""

    scenario: Scenario
    question: Question
    layout: Layout
    candidates: tuple[StepCandidate, ...]
    refused: tuple[tuple[str, str], ...]
    disturbance: Disturbance = CALM

    @property
    def best(self) -> StepCandidate:
        """The fastest that is proven right; if none is, the fastest."""
        return next((c for c in self.candidates if not c.wrong), self.candidates[0])


def rank_steps(
    scenario: Scenario,
    shape: Layout,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    disturbance: Disturbance = CALM,
) -> StepRanking:
    """The step of every strategy, or of the mode that the scenario's `[step]` names, on the GPUs of `shape`.

    As in `rank`: what is named and not accepted raises StrategyError, and so does a scenario without a `[step]`.
    """
    question = scenario.step
    if question is None:
        raise ScenarioError(f"{scenario.name}: it has no [step], which says what a step computes")
    methods: tuple[Strategy | None, ...] = (None,)
    if not question.mode:
        methods = scenario.strategies or tuple(candidates(shape))
    work = partial(step_of, scenario, shape, disturbance)
    outcomes: list[StepCandidate | Deadlock | str] = []
    for outcome in in_processes(work, methods, workers):
        outcomes.append(outcome)
        progress(len(outcomes), len(methods))
    names = [m.text if m else question.mode for m in methods]
    refused = [(name, o) for name, o in zip(names, outcomes, strict=True) if isinstance(o, str)]
    if refused and (scenario.strategies or question.mode):
        raise StrategyError([reason for _, reason in refused])
    stuck = [(name, o) for name, o in zip(names, outcomes, strict=True) if isinstance(o, Deadlock)]
    found = [o for o in outcomes if isinstance(o, StepCandidate)]
    if not found:
        raise stuck[0][1] if stuck else StrategyError([reason for _, reason in refused])
    refused += [(name, f"{name}: {first_words(o)}") for name, o in stuck]
    found.sort(key=lambda c: (c.step.seconds, c.alone, c.step.method))
    return StepRanking(scenario, question, shape, tuple(found), tuple(refused), disturbance)


def step_of(
    scenario: Scenario, shape: Layout, disturbance: Disturbance, strategy: Strategy | None
) -> StepCandidate | Deadlock | str:
    """The step of one strategy, of the scenario's mode if it is None; or why it is not accepted or never ends."""
    machine, question = (scenario.topology, scenario.runtime, scenario.calibration), scenario.step
    assert question is not None  # noqa: S101 - `rank_steps` has looked
    try:
        if strategy is not None:
            strategy = with_best_chunk(
                strategy, scenario.workload, scenario.topology, shape, scenario.runtime, scenario.calibration
            )
        method = question.method(strategy, shape, faithful=scenario.faithful)
        step = simulate_step(question.job, method, machine[0], shape.ranks, *machine[1:], disturbance)
        alone = simulate(method.plan, *machine, disturbance=disturbance).seconds
    except Deadlock as error:
        return error
    except StrategyError as error:
        return "; ".join(error.problems)
    except InputError as error:  # GPUs that the plan joins and nothing else does
        name = strategy.text if strategy else question.mode
        return "; ".join(f"{name}: {problem}" for problem in error.problems)
    return StepCandidate(step, alone, wrong_elements(verify(method.plan)))
