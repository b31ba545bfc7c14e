"""Synchronous replicas on real parameter servers: TensorFlow's own SyncReplicasOptimizer on
`tf.distribute.Server` processes of this machine, beside what `simreduce.training.replicas` says.

Workers sleep instead of computing, and every gradient marks a place of its own in the variable, so
that it can be read afterwards which gradient entered which update, together with how many others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

from simreduce.training.distributions import Constant
from simreduce.training.replicas import ReplicasJob, SyncSettings
from simreduce.training.replicas.network import delays
from simreduce.training.replicas.processes import simulate_replicas
from simreduce_validate.running.child import START_SECONDS, Child
from simreduce_validate.running.workers import loopback

REPLICA = "simreduce_validate.running.replica"
PACE = 1000
"""Update u has the learning rate 1 + (u - 1) / PACE: what a weight has lost says in which update it
did.
"""

_STEPS = 40
"""Steps of each worker whose gradients can be identified."""
_SECONDS = 60.0
_AHEAD = 0.5
"""Seconds between all being ready and the beginning."""


@dataclass(frozen=True, slots=True)
class Entered:
    """By (worker, its own step): the update that its gradient of a variable entered, from 1, and
    how many are in that; (0, 0) for those that were dropped.
    """

    update: dict[tuple[int, int], tuple[int, int]]
    local_step: dict[tuple[int, int], int]


class Cluster:
    """Parameter servers and workers that run; one training at a time."""

    def __init__(self, servers: Sequence[Child], workers: Sequence[Child]) -> None:
        self._servers, self._workers = servers, workers
        self._names = count()

    def train(
        self, settings: SyncSettings, compute: Sequence[float], seconds: float, variables: int = 1
    ) -> list[Entered]:
        """Train for so many seconds, each worker computing as long as it says: by variable, what
        happened.
        """
        workers = self._workers[: len(compute)]
        name = f"training{next(self._names)}"
        for worker, each in zip(
            workers, compute, strict=True
        ):  # the chief first: it makes the variables
            worker.ask(
                "open", name, settings, len(workers), variables, _STEPS, each, seconds=_SECONDS
            )
        at = time.time() + _AHEAD
        for worker in workers:
            worker.ask("go", at, seconds=_SECONDS)
        time.sleep(at + seconds - time.time())
        # The chief last, as what its workers did is in the variables by then.
        found = [worker.ask("found", seconds=_SECONDS) for worker in reversed(workers)][::-1]
        for worker in workers:
            worker.ask("close", seconds=_SECONDS)
        held = found[0][1]
        steps = {
            (w, s): local_step
            for w, (rows, _) in enumerate(found)
            for s, (local_step, _) in enumerate(rows)
        }
        return [
            Entered({(w, s): _read(-values[w * _STEPS + s]) for w, s in steps if s < _STEPS}, steps)
            for values in held
        ]


def _read(moved: float) -> tuple[int, int]:
    """The update that moved a weight by so much, (1 + (update - 1) / PACE) / gradients, and how
    many gradients it had: up to 15 of these and 50 updates can be identified.
    """
    if moved == 0.0:
        return 0, 0
    gradients = round(1.02 / moved)
    return round((moved * gradients - 1.0) * PACE) + 1, gradients


@contextmanager
def cluster(servers: int, workers: int) -> Iterator[Cluster]:
    """So many processes on this machine; all are stopped in the end. DeviceError if one does not
    start.
    """
    jobs = {
        "ps": [each.address for each in loopback(servers)],
        "worker": [each.address for each in loopback(workers)],
    }
    with ExitStack() as stack:
        children: dict[str, list[Child]] = {"ps": [], "worker": []}
        for job, addresses in jobs.items():
            for task in range(len(addresses)):
                child = Child(REPLICA, f"{job} {task}", (), [("CUDA_VISIBLE_DEVICES", "")])
                stack.callback(child.close)
                child.tell("start", jobs, job, task)
                children[job].append(child)
        for child in (*children["ps"], *children["worker"]):
            child.answer("start", START_SECONDS)
        yield Cluster(children["ps"], children["worker"])


def differences(
    found: Entered,
    settings: SyncSettings,
    compute: Sequence[float],
    until: float,
    variable: int = 0,
) -> list[str]:
    """What happened otherwise than predicted, of all that is predicted to be settled before `until`
    (s). The prediction has no communication time: workers must compute long enough that it does not
    matter.
    """
    job = ReplicasJob(
        settings, delays(len(compute), variable + 1), tuple(Constant(c) for c in compute)
    )
    run = simulate_replicas(job, 10 * _STEPS)
    made = sum(update.time < until for update in run.updates)
    counts = {update.number: update.gradients[variable] for update in run.updates}
    wrong = []
    for a in run.arrivals:
        if a.variable != variable or a.time >= until or a.update > made:
            continue
        key = (a.worker, a.step)
        predicted = (a.update, counts.get(a.update, 0)), a.local_step
        happened = found.update.get(key), found.local_step.get(key)
        if predicted != happened:
            wrong.append(f"worker {a.worker}, step {a.step}: {happened}, predicted {predicted}")
    return wrong
