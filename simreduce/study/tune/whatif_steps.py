"""Training looked at closely.

It finds the load of each link, the critical path of a step or the time of synchronous replicas, and
what a little more of each resource would save, every change simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.computing.workers import Watch, until_stopped, unwatched
from simreduce.engine import Recording, Use
from simreduce.engine.bounds import resource_seconds
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.setup import Setup
from simreduce.engine.simulator import link_use
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario import StepScenario
from simreduce.study.tune.composed import ComposedStep
from simreduce.study.tune.steps import (
    MeshRanking,
    MethodRanking,
    mesh_seconds,
    write_mesh,
)
from simreduce.study.tune.whatif import (
    COMPUTE as FASTER,
    MORE,
    Change,
    Saving,
    changes,
    compare,
    find_used,
    network_changes,
)
from simreduce.training import (
    Bucket,
    PathPiece,
    StepJob,
    StepRecording,
    StepResult,
    record_step,
)
from simreduce.training.executions import Execution
from simreduce.training.gpus import faster_gpu, percentiles
from simreduce.training.replicas import LinkNetwork, ReplicasJob, ReplicasQuestion, ReplicasRun
from simreduce.training.replicas.network import Way, lower_ways
from simreduce.training.sharded import (
    DDP,
    Sharding,
    record_sharded_step,
    running_sharded,
    sharded_method,
    simulate_sharded_step,
    write_sharded_execution,
)
from simreduce.training.simulation import step_seconds, write_execution
from simreduce.training.stragglers import ConfidenceInterval, Repetitions, interval, repeat

MOST_RANKS = 256
"""Sharded steps of more ranks are not examined link by link: plans would be too large."""

WAIT, READ, COMPUTE, SEND = "wait", "read", "compute", "send"
"""Parts of a worker's time."""

_BOUGHT = ("bandwidth", "lanes")

_TICKED = 12
"""Horovod's steps that are followed; each may have buffers of its own to simulate."""


@dataclass(frozen=True, slots=True)
class StepLook:
    """A closer look at a step.

    `links` are as in a `Result`, over the whole step; None, with the reason in `missing`, if plans
    are too large. `path` is the critical path. `longest` is the transfer with most time on it, and
    `alone` a recording of its plan by itself.
    """

    seconds: float
    path: tuple[PathPiece, ...]
    links: tuple[Use, ...] | None
    longest: Bucket | None
    alone: Recording | None
    savings: tuple[Saving, ...]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class StepCase:
    """One step, to simulate in any setup and at any speed of compute.

    The job is `faster` where devices compute so. `write` gives what every rank does. `record` is
    None if its plans are not simulated together, for the reason in `missing`.
    """

    job: Any
    faster: Any
    setup: Setup
    seconds: Callable[[Any, Setup], float]
    write: Callable[[], Execution]
    record: Callable[[], StepRecording] | None = None
    missing: str = ""

    def savings(
        self, tried: Sequence[Change], before: float, watch: Watch = unwatched
    ) -> tuple[Saving, ...]:
        """What changes save of the step, which took `before`, the most first."""

        def simulate(change: Change) -> float:
            job = self.faster if change is FASTER else self.job
            return self.seconds(job, change.apply(self.setup))

        return compare(tried, before, simulate, watch)


def look_at_step(ranking: Ranking, watch: Watch = unwatched, *, closely: bool = True) -> StepLook:
    """A closer look at the best step of a ranking; unless `closely`, without the loads of links and
    with changes of compute and the network alone.

    Ctrl-C leaves out the changes that are not simulated yet.
    """
    case, step = case_of(ranking), ranking.closely
    recording = case.record() if case.record and closely else None
    path = recording.step.path if recording else step.path
    return StepLook(
        step.seconds,
        path,
        _loads(recording) if recording else None,
        *_alone(recording, path, case.setup),
        case.savings(_changes(case.setup, recording), step.seconds, watch),
        case.missing,
    )


_COMPOSED = "The step was composed of single calls, so the load of single links is not worked out."
_TOO_LARGE = (
    "The {} GPUs were simulated as equal machines, one of which stands for all; with more than {} "
    "the load of single links is not worked out."
)


Ranking = MethodRanking | MeshRanking


def case_of(ranking: Ranking) -> StepCase:
    """The best step of a ranking, to simulate again."""
    if isinstance(ranking, MethodRanking):
        return _case(ranking.scenario, ranking.recommended.step)
    job, setup = ranking.job, ranking.scenario.setup
    faster = replace(job, gpu=faster_gpu(job.gpu, MORE))
    return StepCase(
        job, faster, setup, mesh_seconds, partial(write_mesh, job, setup), missing=_COMPOSED
    )


def percentiles_of_step(ranking: Ranking) -> Mapping[str, float]:
    """What the best step takes at most in half, 90 and 99 % of all draws of its GPUs, in seconds.

    Empty where nobody says that they differ.
    """
    case = case_of(ranking)
    if not case.job.spread:
        return {}
    return percentiles(lambda part: case.seconds(replace(case.job, part=part), case.setup))


def execution_of_step(ranking: Ranking) -> Execution:
    """What every rank does in the best step; InputError where no execution says it."""
    return case_of(ranking).write()


def _case(scenario: StepScenario, step: StepResult) -> StepCase:
    question = scenario.step
    name, _, text = step.method.rpartition(", ")
    strategy, sharding = None if question.mode else parse_strategy(text), question.sharding
    if strategy is not None and name not in ("", DDP):
        job, setup = question.job, running_sharded(scenario.setup, step.method)
        sharded = sharded_method(name, strategy, job, setup.layout, sharding or Sharding())
        return StepCase(
            job,
            _faster(job, setup),
            setup,
            lambda job, at: simulate_sharded_step(job, sharded, at).step.seconds,
            partial(write_sharded_execution, job, sharded, setup),
            *(
                (partial(record_sharded_step, step, sharded, setup),)
                if len(setup.layout) <= MOST_RANKS
                else (None, _TOO_LARGE.format(len(setup.layout), MOST_RANKS))
            ),
        )
    question, setup = question.replicated, scenario.setup.running(strategy)
    job = question.job
    if step.composed and strategy is not None:
        made = ComposedStep(strategy, job, setup, question.cycle)
        return StepCase(
            job,
            _faster(job, setup),
            setup,
            lambda job, at: replace(made, job=job, setup=at).step.seconds,
            partial(write_execution, job, made.method, setup),
            missing=_COMPOSED,
        )
    method = question.method(strategy, setup.layout, faithful=scenario.faithful)
    return StepCase(
        job,
        _faster(job, setup),
        setup,
        partial(step_seconds, method, most=_TICKED),
        partial(write_execution, job, method, setup),
        partial(record_step, job, method, setup),
    )


def _faster(job: StepJob, setup: Setup) -> StepJob:
    """The job on devices that compute faster."""
    slow = {name: job.slow.get(name, 1.0) / MORE for name in setup.layout.ranks}
    return replace(job, slow=slow)


def _changes(setup: Setup, recording: StepRecording | None) -> list[Change]:
    """The changes to try; more lanes of the network even if nothing crosses it."""
    if recording is None:
        return [FASTER, *network_changes(setup.topology)]
    moved = {id(each.lowered): (each.plan, each.lowered) for each in recording.moved}
    found = changes(find_used(recording.resources, moved.values()), setup)
    if len(recording.step.simulated) > 1:
        # Without a barrier it takes many steps until they are alike: only what can be bought.
        found = (change for change in found if change.figure in _BOUGHT)
    return [FASTER, *_with_network(found, setup)]


def _with_network(found: Iterable[Change], setup: Setup) -> list[Change]:
    """Return the changes, with the network's changes that are not among them."""
    listed = list(found)
    known = {(change.resource, change.figure) for change in listed}
    network = network_changes(setup.topology)
    return [*listed, *(c for c in network if (c.resource, c.figure) not in known)]


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


@dataclass(frozen=True, slots=True)
class Effect:
    """An update with a change, and what that saves of it.

    These are means of the repetitions that made all their updates with and without it, in seconds,
    the saving with its confidence interval.
    """

    change: Change
    seconds: float
    saved: ConfidenceInterval


def worker_time(run: ReplicasRun, skip: int) -> dict[str, float]:
    """Seconds that workers spend on each part of their steps, from the first `skip` updates on.

    The parts are waiting for a token, reading variables, computing, and sending until all is
    delivered.
    """
    begun = run.updates[skip - 1].time if 0 < skip <= len(run.updates) else 0.0
    spent, free = dict.fromkeys((COMPUTE, READ, SEND, WAIT), 0.0), [0.0] * run.workers
    for step in sorted((*run.steps, *run.unfinished), key=lambda each: (each.begun, each.step)):
        since, free[step.worker] = free[step.worker], step.asked
        if step.begun < begun:
            continue
        spent[WAIT] += max(step.begun - max(since, begun), 0.0)
        spent[READ] += step.read - step.begun
        spent[COMPUTE] += step.computed - step.read
        spent[SEND] += step.asked - step.computed
    return spent


def run_loads(job: ReplicasJob, run: ReplicasRun) -> tuple[Use, ...]:
    """How busy each link is in a run, by the transfers that have ended; nothing for plain delays.

    As in a `Result`.
    """
    if not isinstance(job.network, LinkNetwork) or not run.seconds:
        return ()
    ways, at = lower_ways(job.network), job.network.setup
    best = Resources.of(at.topology, at.calibration, at.disturbance).best
    needed: Floats = np.zeros(len(best.capacity))
    steps = (*run.steps, *run.unfinished)
    read = Counter(step.worker for step in steps if step.read < run.seconds)
    sent = Counter((a.worker, a.variable) for a in run.arrivals)
    ended = [(ways.pull[worker], count) for worker, count in read.items()]
    ended += [(ways.push[worker][variable], count) for (worker, variable), count in sent.items()]
    for way, count in ended:
        if way is not None:
            needed += count * resource_seconds(way[1], best)
    return link_use(best, needed, run.seconds)


def update_effects(
    question: ReplicasQuestion,
    spread: Repetitions,
    processes: int = 1,
    watch: Watch = unwatched,
) -> tuple[Effect, ...]:
    """Savings of an update by changes, most first.

    Ctrl-C leaves out those that are not simulated yet, if there is one.
    """
    tried = list(_changes_of_replicas(question.job))

    def each() -> Iterator[Effect]:
        for change, job in tried:
            after = repeat(job, question.updates, question.repetitions, processes)
            whole = spread.whole & after.whole
            old, new = (
                replace(each, updates=each.updates[whole]).steps(question.skip)
                for each in (spread, after)
            )
            yield Effect(change, interval(new).mean, interval(old - new))

    found = until_stopped(watch(each(), len(tried)))
    return tuple(sorted(found, key=lambda each: -each.saved.mean))


def _changes_of_replicas(job: ReplicasJob) -> Iterator[tuple[Change, ReplicasJob]]:
    """Each change, and the job with it."""
    slow = {worker: job.slow.get(worker, 1.0) / MORE for worker in range(job.workers)}
    yield FASTER, replace(job, slow=slow)
    flows = job.network
    if not isinstance(flows, LinkNetwork):
        return
    ways, at = lower_ways(flows), flows.setup
    moved: list[Way] = [way for row in (ways.pull, *ways.push) for way in row if way]
    met = find_used(Resources.of(at.topology, at.calibration, at.disturbance), moved)
    for change in _with_network(changes(met, at), at):
        yield change, replace(job, network=replace(flows, setup=change.apply(at)))
