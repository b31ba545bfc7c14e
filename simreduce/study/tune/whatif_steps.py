"""Training looked at closely.

It finds the load of each link, the critical path of a step or the time of synchronous replicas, and
what a little more of each resource would save, every change simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simreduce.computing import grouped
from simreduce.computing.workers import Watch, time_is_up, until_stopped, unwatched
from simreduce.engine import NCCL, Recording, Use
from simreduce.engine.bounds import resource_seconds
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.setup import Setup
from simreduce.engine.simulator import link_use
from simreduce.planners.nccl.choice import NO_CTAS
from simreduce.study.tune.meshes import Ranking
from simreduce.study.tune.steps import StepCase
from simreduce.study.tune.whatif import (
    COMPUTE as FASTER,
    MORE,
    Change,
    Saving,
    changes,
    compare,
    network_changes,
)
from simreduce.training import (
    Bucket,
    PathPiece,
    StepRecording,
)
from simreduce.training.executions import BACKWARD, FORWARD
from simreduce.training.gpus import PERCENTILES, faster_gpu
from simreduce.training.interference import KINDS, Law
from simreduce.training.mesh import MeshJob
from simreduce.training.path import SAME
from simreduce.training.replicas import ReplicasJob, ReplicasQuestion
from simreduce.training.replicas.network import LinkNetwork, Way, lower_ways
from simreduce.training.replicas.processes import ReplicasRun
from simreduce.training.stragglers import ConfidenceInterval, Repetitions, interval, repeat

SETTING = "setting"
"""The sort of changes of NCCL's settings, with which it makes other plans."""
WAIT, READ, COMPUTE, SEND = "wait", "read", "compute", "send"
"""Parts of a worker's time."""

_BOUGHT = ("bandwidth", "lanes")


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


def look_at_step(ranking: Ranking, watch: Watch = unwatched, *, closely: bool = True) -> StepLook:
    """A closer look at the best step of a ranking; unless `closely`, without the loads of links and
    with changes of compute and the network alone. Settings of NCCL that change nothing are left
    out, such as those of kernels that the library lacks.

    Ctrl-C leaves out the changes that are not simulated yet.
    """
    case, step = ranking.case, ranking.closely
    recording = ranking.recording if closely else None

    def simulate(change: Change) -> float:
        if change.sort == SETTING:
            return case.anew(change.apply)
        job = _faster(case) if change is FASTER else case.job
        return case.seconds(job, change.apply(case.setup))

    tried = _changes(case.setup, recording)
    if step.interference and (isinstance(case.job, MeshJob) or case.setup.runtime == NCCL):
        tried += channel_changes(case.setup)

    found = compare(tried, step.seconds, simulate, watch)
    return StepLook(
        step.seconds,
        step.path,
        _loads(recording) if recording else None,
        *_alone(recording, step.path, case.setup),
        tuple(_gains(found, step.seconds)),
        case.missing,
    )


def percentiles_of_step(ranking: Ranking) -> Mapping[str, float]:
    """What the best step takes at most in half, 90 and 99 % of all draws of its GPUs, in seconds.

    Empty where nobody says that they differ, and after a stop.
    """
    case = ranking.case
    if ranking.stopped or time_is_up() or not case.job.spread:
        return {}
    return {
        name: case.seconds(replace(case.job, part=part), case.setup)
        for name, part in PERCENTILES.items()
    }


def losses_by_kind(ranking: Ranking) -> Mapping[str, float]:
    """Seconds that kernels of the best step lose beside collectives, by their `KINDS`.

    What a pass loses beside the channels of each call that was in flight is divided in proportion
    to what each kind loses there by itself. Empty where kernels are not known, and after a stop.
    """
    lost, job = ranking.recommended.step.interference, ranking.case.job
    known = isinstance(job, MeshJob) or job.kernels is not None
    if ranking.stopped or not (lost and known and isinstance(law := ranking.loses, Law)):
        return {}
    spans = ranking.closely.spans
    found = dict.fromkeys(KINDS, 0.0)
    beside = grouped(((f, span.backward), each) for span in spans for f, each in span.lost)
    for (flying, backward), each in beside.items():
        more = law.by_kind(flying, BACKWARD if backward else FORWARD)
        whole = sum(more.values())
        for kind in KINDS if whole else ():
            found[kind] += sum(each) * more[kind] / whole
    part = lost / (sum(found.values()) or 1.0)
    return {kind: each * part for kind, each in found.items() if each > 0.0}


def channel_changes(setup: Setup) -> Iterator[Change]:
    """What leaves kernels beside NCCL's collectives more SMs.

    A half and a quarter of the channels that it takes, all of them and those of NVLS alone, unless
    they have a limit. On one machine, symmetric memory: its kernels need fewer SMs, and copy
    engines none, which move all-gathers and all-to-alls from 2.28 on. Both use memory as others do.
    """
    nccl, facts, model = setup.nccl, setup.communicator.facts, setup.communicator.model
    nvls = model.running_nvls() if facts.multicast and nccl.nvls else 0
    settings = (
        ("NCCL_MAX_CTAS", "max_ctas", nccl.max_ctas, model.channels),
        ("NCCL_NVLS_NCHANNELS", "nvls_channels", nccl.nvls_channels, nvls),
    )
    for name, key, given, count in settings:
        for fewer in () if given else filter(None, dict.fromkeys((count // 2, count // 4))):
            yield Change(SETTING, "NCCL", name, str(fewer), _setting({key: fewer}))
    if facts.nodes == 1:
        if not nccl.symmetric:
            yield Change(SETTING, "NCCL", "symmetric memory", "", _setting({"symmetric": True}))
        if not nccl.cta_policy:
            apply = _setting({"symmetric": True, "cta_policy": NO_CTAS})
            yield Change(SETTING, "NCCL", "copy engines", "", apply)


def _gains(savings: Sequence[Saving], seconds: float) -> Iterator[Saving]:
    """The savings without settings that save nothing, or no more than symmetric memory alone."""
    least, alone = SAME * seconds, "symmetric memory"
    symmetric = max((s.saved for s in savings if s.change.figure == alone), default=0.0)
    for each in savings:
        less = max(symmetric, 0.0) if each.change.figure == "copy engines" else 0.0
        if each.change.sort != SETTING or each.saved > less + least:
            yield each


def _setting(facts: Mapping[str, Any]) -> Callable[[Setup], Setup]:
    """A change of settings of NCCL."""
    return lambda setup: setup.but(nccl=replace(setup.nccl, **facts))


def _faster(case: StepCase) -> Any:
    """The job of a step on devices that compute faster."""
    job = case.job
    if isinstance(job, MeshJob):
        return replace(job, gpu=faster_gpu(job.gpu, MORE))
    slow = {name: job.slow.get(name, 1.0) / MORE for name in case.setup.layout.ranks}
    return replace(job, slow=slow)


def _changes(setup: Setup, recording: StepRecording | None) -> list[Change]:
    """The changes to try; more lanes of the network even if nothing crosses it."""
    if recording is None:
        return [FASTER, *network_changes(setup.topology)]
    moved = {id(each.lowered): (each.plan, each.lowered) for each in recording.moved}
    found = changes(setup, recording.resources, moved.values())
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
    each = (counts[key] * resource_seconds(one, best) for key, one in lowered.items())
    return link_use(best, sum(each, np.zeros(len(best.capacity))), recording.step.seconds)


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
    steps = (*run.steps, *run.unfinished)
    read = Counter(step.worker for step in steps if step.read < run.seconds)
    sent = Counter((a.worker, a.variable) for a in run.arrivals)
    ended = [(ways.pull[worker], count) for worker, count in read.items()]
    ended += [(ways.push[worker][variable], count) for (worker, variable), count in sent.items()]
    each = (count * resource_seconds(way[1], best) for way, count in ended if way is not None)
    return link_use(best, sum(each, np.zeros(len(best.capacity))), run.seconds)


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
    resources = Resources.of(at.topology, at.calibration, at.disturbance)
    for change in _with_network(changes(at, resources, moved), at):
        yield change, replace(job, network=replace(flows, setup=change.apply(at)))
