"""A training step looked at closely: the load of each link, its critical path, and what a little
more of each resource would save, every change simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from simreduce.engine import Recording, Use
from simreduce.engine.results.floors import resource_seconds
from simreduce.engine.simulation import link_use
from simreduce.errors import ScenarioError
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import parse_strategy
from simreduce.training import (
    Bucket,
    Method,
    StepJob,
    StepPrediction,
    StepRecording,
    record_step,
    simulate_step,
)
from simreduce.training.path import PathPiece, step_path
from simreduce.training.sharded import (
    DDP,
    Sharding,
    record_sharded_step,
    running_sharded,
    sharded_method,
    simulate_sharded_step,
)
from simreduce.training.ticks import takes_turns, tick_step
from simreduce.tune.steps import NO_STEP, StepCandidate
from simreduce.tune.whatif import MORE, Change, Saving, changes, compare, find_met, network_changes

MOST_RANKS = 256
"""Of a sharded step with more, plans are not looked at link by link: they would be too large."""

_COMPUTE = Change("compute", "compute", "speed", "+10%", lambda setup: setup)
"""Faster devices. What computes belongs to the job, not to the machine."""

_BOUGHT = ("bandwidth", "lanes")

_TICKED = 12
"""Horovod's steps that are followed, each of which may have buffers of its own to simulate."""


@dataclass(frozen=True, slots=True)
class StepLook:
    """`links` as in a `Result`, over the whole step; None, with the reason in `missing`, if plans
    are too large. `path` is the critical path. `longest` is the transfer with most time on it, and
    `alone` a recording of its plan by itself.
    """

    seconds: float
    setup: Setup
    path: tuple[PathPiece, ...]
    links: tuple[Use, ...] | None
    longest: Bucket | None
    alone: Recording | None
    savings: tuple[Saving, ...]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class _Case:
    """One method's step, to simulate in any setup and at any speed of compute. `record` is None if
    its plans are too large.
    """

    job: StepJob
    setup: Setup
    seconds: Callable[[StepJob, Setup], float]
    record: Callable[[], StepRecording] | None


def look_at_step(
    scenario: Scenario,
    candidate: StepCandidate,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> StepLook:
    """A closer look at a candidate of `rank_steps`. Ctrl-C leaves out the changes that are not
    simulated yet.
    """
    case, step = _case(scenario, candidate.step), candidate.step
    recording = case.record() if case.record else None
    moved = recording.moved if recording else ()
    path = step_path(step, case.job, {m.bucket: m.since for m in moved if m.since is not None})
    tried = _changes(case.setup, recording)

    def simulate(change: Change) -> float:
        job = _faster(case.job, case.setup) if change is _COMPUTE else case.job
        return case.seconds(job, change.apply(case.setup))

    return StepLook(
        step.seconds,
        case.setup,
        path,
        _loads(recording) if recording else None,
        *_alone(recording, path, case.setup),
        compare(tried, step.seconds, simulate, progress),
        "" if recording else _TOO_LARGE.format(len(case.setup.layout), MOST_RANKS),
    )


_TOO_LARGE = (
    "The {} GPUs were simulated as equal machines, one of which stands for all; with more than {} "
    "the load of single links is not worked out."
)


def _case(scenario: Scenario, step: StepPrediction) -> _Case:
    question = scenario.step
    if question is None:
        raise ScenarioError(f"{scenario.name}: {NO_STEP}")
    name, _, text = step.method.rpartition(", ")
    strategy = None if question.mode else parse_strategy(text)
    if strategy is not None and name not in ("", DDP):
        setup = running_sharded(scenario.setup, step.method)
        sharding = question.sharding or Sharding()
        sharded = sharded_method(name, strategy, question.job, setup.layout, sharding)
        large = len(setup.layout) > MOST_RANKS
        return _Case(
            question.job,
            setup,
            lambda job, at: simulate_sharded_step(job, sharded, at).step.seconds,
            None if large else lambda: record_sharded_step(step, sharded, setup),
        )
    question, setup = question.replicated, scenario.setup.running(strategy)
    method = question.method(strategy, setup.layout, faithful=scenario.faithful)
    return _Case(
        question.job,
        setup,
        partial(_seconds, method),
        lambda: record_step(question.job, method, setup),
    )


def _seconds(method: Method, job: StepJob, setup: Setup) -> float:
    if takes_turns(job, method, setup):
        return tick_step(job, method, setup, _TICKED)
    return simulate_step(job, method, setup).seconds


def _faster(job: StepJob, setup: Setup) -> StepJob:
    """The job on devices that compute faster."""
    slow = {name: job.slow.get(name, 1.0) / MORE for name in setup.layout.ranks}
    return replace(job, slow=slow)


def _changes(setup: Setup, recording: StepRecording | None) -> list[Change]:
    """What to try; more lanes of the network even if nothing crosses it."""
    network = list(network_changes(setup.topology))
    if recording is None:
        return [_COMPUTE, *network]
    moved = {id(each.lowered): (each.plan, each.lowered) for each in recording.moved}
    met = changes(find_met(recording.resources, moved.values()), setup)
    # Without a barrier it takes many steps until they are alike: only what can be bought.
    many = len(recording.step.simulated) > 1
    found = [_COMPUTE, *(c for c in met if not many or c.figure in _BOUGHT)]
    known = {(change.resource, change.figure) for change in found}
    return [*found, *(c for c in network if (c.resource, c.figure) not in known)]


def _loads(recording: StepRecording) -> tuple[Use, ...]:
    """Seconds that the bytes of the step need of each link, as a part of it."""
    best, counts = recording.resources.best, Counter(id(each.lowered) for each in recording.moved)
    lowered = {id(each.lowered): each.lowered for each in recording.moved}
    needed = np.zeros(len(best.capacity))
    for key, each in lowered.items():
        needed += counts[key] * resource_seconds(each, best)
    return link_use(best, needed, recording.step.seconds)


def _alone(
    recording: StepRecording | None, path: Sequence[PathPiece], setup: Setup
) -> tuple[Bucket | None, Recording | None]:
    """The transfer with most time on the path, and its plan by itself."""
    pieces = [piece for piece in path if piece.bucket]
    if not pieces:
        return None, None
    longest = max(pieces, key=lambda piece: piece.seconds).bucket
    plans = [each.plan for each in recording.moved if each.bucket == longest] if recording else []
    return longest, setup.record(plans[0]) if plans else None
