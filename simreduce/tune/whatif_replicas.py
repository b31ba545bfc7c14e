"""Synchronous replicas looked at closely: what workers do with their time, the load of each link,
and what a little more of each resource saves of an update, with the same random times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from simreduce.arrays import Floats
from simreduce.engine import Use
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.results.floors import resource_seconds
from simreduce.engine.simulation import link_use
from simreduce.training.replicas import LinkNetwork, ReplicasJob, ReplicasQuestion, Run
from simreduce.training.replicas.network import Way, lower_ways
from simreduce.training.stragglers import Interval, Repetitions, interval, repeat
from simreduce.tune.whatif import MORE, Change, changes, find_met, network_changes

WAIT, READ, COMPUTE, SEND = "wait", "read", "compute", "send"

_COMPUTE = Change("compute", "compute", "speed", "+10%", lambda setup: setup)
"""Faster workers. What computes belongs to the job, not to the machine."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An update with a change, and what that saves of it: means of the repetitions that made all
    their updates with and without it, in seconds, the saving with its confidence interval.
    """

    change: Change
    seconds: float
    saved: Interval


def worker_time(run: Run, skip: int) -> dict[str, float]:
    """Seconds that workers spend on each part of their steps, from the first `skip` updates on:
    waiting for a token, reading variables, computing, and sending until all is delivered.
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


def run_loads(job: ReplicasJob, run: Run) -> tuple[Use, ...]:
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
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> tuple[Effect, ...]:
    """What changes save of an update, most first. Ctrl-C leaves out those that are not simulated
    yet, if there is one.
    """
    tried, found = list(_changes(question.job)), list[Effect]()
    progress(0, len(tried))
    try:
        for done, (change, job) in enumerate(tried, 1):
            after = repeat(job, question.updates, question.repetitions, processes)
            if len(after.updates) < question.repetitions:  # stopped
                break
            found.append(_effect(change, spread, after, question.skip))
            progress(done, len(tried))
    except KeyboardInterrupt:
        if not found:
            raise
    return tuple(sorted(found, key=lambda each: -each.saved.mean))


def _effect(change: Change, before: Repetitions, after: Repetitions, skip: int) -> Effect:
    whole = before.whole & after.whole
    old, new = (replace(each, updates=each.updates[whole]).steps(skip) for each in (before, after))
    return Effect(change, interval(new).mean, interval(old - new))


def _changes(job: ReplicasJob) -> Iterator[tuple[Change, ReplicasJob]]:
    """Each change, and the job with it."""
    slow = {worker: job.slow.get(worker, 1.0) / MORE for worker in range(job.workers)}
    yield _COMPUTE, replace(job, slow=slow)
    flows = job.network
    if not isinstance(flows, LinkNetwork):
        return
    ways, at = lower_ways(flows), flows.setup
    moved: list[Way] = [way for row in (ways.pull, *ways.push) for way in row if way]
    met = find_met(Resources.of(at.topology, at.calibration, at.disturbance), moved)
    found = list(changes(met, at))
    known = {(change.resource, change.figure) for change in found}
    found += [c for c in network_changes(at.topology) if (c.resource, c.figure) not in known]
    for change in found:
        yield change, replace(job, network=replace(flows, setup=change.apply(at)))
