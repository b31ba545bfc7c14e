"""SyncReplicasOptimizer as SimPy processes.

They are workers, accumulators, the token queue and the chief's loop.

A worker repeats: read all variables; compute; send every gradient to its variable's accumulator,
which drops stale ones (their `local_step` is behind); after the last has arrived, take a token from
the queue, waiting if it is empty. The token is the next `local_step`. So a step takes one token,
whatever became of its gradients, and two steps may have the same `local_step`.

The chief repeats: take the mean of each variable as soon as its accumulator has enough gradients,
and update the variable; after the last, increase the global step and put tokens into the queue.
Accumulators add gradients between rounds too, so a mean may contain more than required.

A worker that comes back begins a step with the global step as `local_step` and without a token, as
after making a session. The chief also sets all accumulators to the global step, puts the initial
tokens into the queue again, and begins a round. Accumulators keep their sums. A variable updated in
the round that the chief's death cut off is updated again.

Each variable has its own accumulator: around an update a gradient may be stale for one variable and
added for another, and with backups the means of two variables may come from different workers.

Events of one instant happen in this order, also in `recurrence`: workers die; gradients arrive, by
worker and variable, and means are taken; updates end, by variable; the global step; rounds begin,
by variable; workers ask for tokens; steps begin, by worker; workers come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from typing import Any

import numpy as np
import simpy
from simpy.core import EmptySchedule

from simreduce.computing.workers import as_piece
from simreduce.engine.fabric import NORMAL, Moment
from simreduce.errors import Deadlock, InputError
from simreduce.training.replicas import ReplicasJob
from simreduce.training.replicas.network import Accumulator, GradientRequest, VariableValues


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gradient at its accumulator, from the worker's own step number `step`.

    `update`, from 1, is the one it enters; 0 if it was dropped as stale.
    """

    time: float  # s
    worker: int
    step: int
    local_step: int
    variable: int
    update: int


@dataclass(frozen=True, slots=True)
class Update:
    """The global step reaches `number` at `time`.

    By variable: when its mean was taken, of how many gradients, and with `VariableValues` its new
    value and moving average.
    """

    number: int
    time: float  # s
    taken: tuple[float, ...]
    gradients: tuple[int, ...]
    weights: tuple[Any, ...] = ()
    averages: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """A worker's own step number `step`.

    The worker had its token at `begun`, all variables at `read` and its gradients at `computed`;
    with all delivered, it asked for a token at `asked`.
    """

    worker: int
    step: int
    local_step: int
    begun: float  # s
    read: float
    computed: float
    asked: float


@dataclass(frozen=True, slots=True)
class ReplicasRun:
    """A run in order of time.

    `steps` are over. `unfinished` steps were in flight at the end or at their worker's death; a
    time that they did not reach is that instant. `blocked` says why a run has not made all its
    updates; "" if it has.
    """

    workers: int
    variables: int
    arrivals: tuple[Arrival, ...]
    updates: tuple[Update, ...]
    steps: tuple[WorkerStep, ...]
    unfinished: tuple[WorkerStep, ...] = ()
    blocked: str = ""

    @property
    def seconds(self) -> float:
        """Seconds until the last update."""
        return self.updates[-1].time if self.updates else 0.0

    @property
    def dropped(self) -> tuple[Arrival, ...]:
        """The stale gradients."""
        return tuple(a for a in self.arrivals if not a.update)


Events = Generator[simpy.Event, Any, None]

_FIRST_STEPS = 16
"""Steps of every worker with times drawn at first; doubled when they run out."""


@as_piece
def simulate_replicas(
    job: ReplicasJob, updates: int, values: VariableValues | None = None, repetition: int = 0
) -> ReplicasRun:
    """Simulate until `updates` updates are made or nothing is pending.

    Each `repetition` has random times of its own.
    """
    if updates < 1:
        raise InputError(f"updates: 1 or more, not {updates}")
    if values is not None and len(values.start) != job.variables:
        raise InputError(f"values of {len(values.start)} variables for a job with {job.variables}")
    return _Training(job, updates, values, repetition).run()


class _Tokens:
    """The token queue, first come, first served. A worker's death withdraws its request."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._tokens: deque[int] = deque()
        self._requests: deque[tuple[float, simpy.Event]] = deque()  # until when

    def put(self, token: int, count: int) -> None:
        self._tokens.extend([token] * count)
        self._serve()

    def get(self, until: float) -> simpy.Event:
        event = self._env.event()
        self._requests.append((until, event))
        self._serve()
        return event

    def _serve(self) -> None:
        while self._tokens and self._requests:
            until, event = self._requests.popleft()
            if self._env.now < until:
                event.succeed(self._tokens.popleft())

    def count_requests(self) -> int:
        """How many live workers wait for a token."""
        return sum(self._env.now < until for until, _ in self._requests)


class _Training:
    """The state of one run, and the processes that change it."""

    def __init__(
        self, job: ReplicasJob, updates: int, values: VariableValues | None, repetition: int
    ) -> None:
        self.job, self.updates, self.values, self.repetition = job, updates, values, repetition
        self.env = env = simpy.Environment()
        self.network = job.network.open(env)
        self.messages = job.network.messages
        self.variables = range(job.variables)
        self.accumulators: list[Accumulator[Any]] = [
            values.accumulator(v, faithful=job.settings.faithful) if values else Accumulator()
            for v in self.variables
        ]
        self.weights: list[Any] = list(values.start) if values else []
        self.averages: list[Any] = list(self.weights) if values and values.decay is not None else []
        self.awaited: list[simpy.Event | None] = [None] * job.variables  # by the chief
        self.tokens = _Tokens(env)
        self.lives_until = [job.dies.get(w, inf) for w in range(job.workers)]
        self.steps_of = [count() for _ in range(job.workers)]
        self.global_step = 0
        self.times = job.seconds(repetition, _FIRST_STEPS)
        self.arrivals: list[Arrival] = []
        self.made: list[Update] = []
        self.steps: list[WorkerStep] = []
        self.unfinished: list[WorkerStep] = []
        # By worker: step, local_step, times so far.
        self.in_flight: dict[int, tuple[int, int, list[float]]] = {}

    def run(self) -> ReplicasRun:
        self.tokens.put(0, self.job.settings.initial_tokens)
        self.env.process(self.chief(self.lives_until[_CHIEF]))
        for worker in range(self.job.workers):
            self.env.process(self.worker(worker, self.lives_until[worker], 0))
        for worker in self.job.returns:
            self.env.process(self.come_back(worker))
        blocked = ""
        while self.global_step < self.updates and not blocked:
            try:
                self.env.step()
            except EmptySchedule:
                blocked = self.why()
            except Deadlock as stuck:
                blocked = f"{self.why()}; {stuck}"
        for worker in range(self.job.workers):
            self.cut_off(worker)
        return ReplicasRun(
            self.job.workers,
            self.job.variables,
            tuple(self.arrivals),
            tuple(self.made),
            tuple(self.steps),
            tuple(self.unfinished),
            blocked,
        )

    def worker(self, w: int, until: float, local_step: int) -> Events:
        """A worker until its death at `until`."""
        step = next(self.steps_of[w])
        while True:
            times, read = [self.now], list(self.weights)
            self.in_flight[w] = step, local_step, times
            yield self.network.pull(w)
            times.append(self.now)
            yield self.env.timeout(self.compute_seconds(w, step))
            times.append(self.now)
            if self.now >= until:  # nothing is sent
                return
            yield self.deliver(w, until, step, local_step, read)
            yield self.moment(0.0, _ASK, w)
            if self.now >= until:
                return
            begun, had, computed = times
            self.steps.append(WorkerStep(w, step, local_step, begun, had, computed, self.now))
            del self.in_flight[w]
            local_step = yield self.tokens.get(until)
            step = next(self.steps_of[w])
            yield self.moment(self.messages.token[w], _BEGIN, w)
            if self.now >= until:  # it died while the token was on its way
                return

    def deliver(
        self, w: int, until: float, step: int, local_step: int, read: list[Any]
    ) -> simpy.Event:
        """Send all gradients of a step.

        The event succeeds when the queue knows that the last has arrived. A dead worker's gradients
        never arrive, since the receiver fetches them.

        Callbacks, not processes: a process for each gradient would take half of a run's time.
        """
        known, left = self.env.event(), len(self.variables)

        def pushed(v: int, _: simpy.Event) -> None:
            which = w * len(self.variables) + v
            self.moment(0.0, _ARRIVE, which).callbacks.append(partial(arrived, v))

        def arrived(v: int, _: simpy.Event) -> None:
            if self.now < until:
                self.arrive(w, step, local_step, v, read)
                self.env.timeout(self.messages.report[v]).callbacks.append(reported)

        def reported(_: simpy.Event) -> None:
            nonlocal left
            left -= 1
            if not left:
                known.succeed()

        for v in self.variables:
            self.network.push(w, v).callbacks.append(partial(pushed, v))
        return known

    def arrive(self, w: int, step: int, local_step: int, v: int, read: list[Any]) -> None:
        """Add a gradient to its accumulator, unless it is stale."""
        accumulator = self.accumulators[v]
        request = GradientRequest(w, step, local_step, v, read[v] if read else _NO_NUMBERS)
        update = accumulator.step + 1
        added = accumulator.apply(
            self.values.gradient(request) if self.values else None, local_step
        )
        self.arrivals.append(Arrival(self.now, w, step, local_step, v, update if added else 0))
        self.give(v)

    def come_back(self, w: int) -> Events:
        """Bring a worker back after its death."""
        yield self.moment(self.job.returns[w], _RETURN, w)
        self.cut_off(w)
        self.lives_until[w] = inf
        if w == _CHIEF:
            for accumulator in self.accumulators:
                accumulator.step = self.global_step
            self.awaited = [None] * len(self.variables)
            self.tokens.put(self.global_step, self.job.settings.initial_tokens)
            self.env.process(self.chief(inf))
        yield from self.worker(w, inf, self.global_step)

    def cut_off(self, w: int) -> None:
        """End a worker's step in flight, if any, now or at the worker's death."""
        if w in self.in_flight:
            step, local_step, times = self.in_flight.pop(w)
            end = min(self.now, self.lives_until[w])
            happened = [time for time in times if time <= end]
            self.unfinished.append(
                WorkerStep(w, step, local_step, *happened, *[end] * (4 - len(happened)))
            )

    def chief(self, until: float) -> Events:
        """The chief's loop until its death at `until`."""
        idle = [0.0] * len(self.variables)
        while True:
            rounds = [self.env.process(self.round(v, idle[v], until)) for v in self.variables]
            results = yield self.env.all_of(rounds)
            yield self.moment(0.0, _SYNC, 0)
            if self.now >= until:
                return
            self.global_step += 1
            times, counts = zip(*(results[each] for each in rounds), strict=True)
            if self.values and self.averages:
                self.averages = [
                    self.values.average(a, w, self.global_step)
                    for a, w in zip(self.averages, self.weights, strict=True)
                ]
            values = tuple(self.weights), tuple(self.averages)
            self.made.append(Update(self.global_step, self.now, times, counts, *values))
            self.tokens.put(self.global_step, self.job.settings.tokens_per_step)
            yield self.env.timeout(self.job.averages + self.job.turn)
            idle = self.messages.again.tolist()

    def round(
        self, v: int, delay: float, until: float
    ) -> Generator[simpy.Event, Any, tuple[float, int]]:
        """Take the mean of one variable and update it: the time, and how many gradients."""
        yield self.moment(delay, _ROUND, v)
        taken = self.env.event()
        if self.now < until:
            self.awaited[v] = taken
            self.give(v)
        time, count, mean = yield taken
        yield self.moment(self.job.update, _UPDATED, v)
        if self.values:
            self.weights[v] = self.values.update(self.weights[v], mean)
        yield self.env.timeout(self.messages.report[v])
        return time, count

    def give(self, v: int) -> None:
        """Hand the mean to the chief, if it waits and there are enough gradients."""
        waiting, accumulator = self.awaited[v], self.accumulators[v]
        required = self.job.settings.replicas_to_aggregate
        if waiting is not None and accumulator.ready(required) and not self.is_dead(_CHIEF):
            self.awaited[v] = None
            waiting.succeed((self.now, accumulator.count, accumulator.take()))

    def compute_seconds(self, w: int, step: int) -> float:
        """Seconds that a worker computes in a step."""
        if step >= self.times.shape[1]:
            self.times = self.job.seconds(self.repetition, 2 * self.times.shape[1])
        return float(self.times[w, step])

    @property
    def now(self) -> float:
        """Seconds as a plain float; the fabric may leave one of numpy's."""
        return float(self.env.now)

    def is_dead(self, w: int) -> bool:
        """Whether a worker is dead."""
        return self.now >= self.lives_until[w]

    def moment(self, delay: float, kind: int, which: int) -> Moment:
        """Return an event after `delay` seconds.

        Events of one instant come in the order of the docstring above, after SimPy's own events and
        before the fabric's.
        """
        most = self.job.workers * len(self.variables)
        rank = (kind + which / most) / (_RETURN + 1)
        return Moment(self.env, self.env.now + float(delay), NORMAL + rank)

    def why(self) -> str:
        """Why a run is blocked, in words."""
        dead = [w for w in range(self.job.workers) if self.is_dead(w)]
        parts = [f"update {self.global_step + 1} is never made"]
        required = self.job.settings.replicas_to_aggregate
        short = [v for v in self.variables if self.accumulators[v].count < required]
        if _CHIEF in dead:
            parts.append("the chief, worker 0, is dead")
        elif short:
            v = short[0]
            parts.append(
                f"variable {v} has {self.accumulators[v].count}"
                f" of the {required} gradients it needs"
            )
        if requests := self.tokens.count_requests():
            parts.append(f"{requests} workers wait for a token")
        if dead:
            parts.append(f"dead: {', '.join(map(str, dead))}")
        return "; ".join(parts)


_CHIEF = 0
_NO_NUMBERS = np.zeros(0)
_ARRIVE, _UPDATED, _SYNC, _ROUND, _ASK, _BEGIN, _RETURN = range(7)
