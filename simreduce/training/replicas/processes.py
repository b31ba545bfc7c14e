"""SyncReplicasOptimizer as SimPy processes: workers, accumulators, the token queue and the chief's
loop.

Every worker, for ever: read all variables; compute; send every gradient to its variable's
accumulator, which drops it if its `local_step` is behind; when all are there, take a token from the
queue, waiting if there is none; the token is the next `local_step`. So one token a step, whatever
became of the gradients, and not always a new one.

The chief, for ever: of every variable, as soon as its accumulator has enough, take the mean and
update; when all are updated, the global step goes up by one and the queue gets its tokens. While no
round is on, gradients are added all the same, so that the next mean may be of more than it needs.

A worker that comes back does what every worker does when its session is made: its `local_step` is
the global step, and it begins a step; it needs no token for that one, so that there is again a
token for everybody. The chief also sets all accumulators to the global step, puts the initial
tokens into the queue once more, and begins a round. What accumulators hold, they keep; a variable
that was updated in the round that the chief did not live to end is then updated again.

Accumulators go on one by one: about the time of an update a gradient may be dropped for one
variable and added for another, and with more workers than needed each variable may get the mean of
other workers.

What happens at one instant goes in this order: workers die; gradients arrive, by worker and
variable, and are taken as soon as there are enough; updates end, by variable; the global step;
rounds begin, by variable; tokens are asked for, by worker; steps begin, by worker; workers come
back. (`recurrence` has the same order.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from functools import partial
from math import inf
from typing import Any

import numpy as np
import simpy
from simpy.core import EmptySchedule

from simreduce.engine.events import NORMAL, Moment
from simreduce.errors import Deadlock, InputError
from simreduce.training.replicas.accumulator import Accumulator, CountAccumulator
from simreduce.training.replicas.job import ReplicasJob
from simreduce.training.replicas.run import Arrival, Run, Update, WorkerStep
from simreduce.training.replicas.values import GradientRequest, VariableValues

Events = Generator[simpy.Event, Any, None]

_FIRST_STEPS = 16
"""Steps of every worker whose times are drawn at first; then twice as many, and so on."""


def simulate_replicas(
    job: ReplicasJob, updates: int, values: VariableValues | None = None, repetition: int = 0
) -> Run:
    """Train until so many updates are made, or until nothing happens any more. `repetition` chooses
    other random times.
    """
    if updates < 1:
        raise InputError(f"updates: 1 or more, not {updates}")
    if values is not None and len(values.start) != job.variables:
        raise InputError(f"values of {len(values.start)} variables for a job with {job.variables}")
    return _Training(job, updates, values, repetition).run()


class _Tokens:
    """The queue: tokens and those who wait for one, first come, first served. A request goes with
    the worker that made it.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._tokens: deque[int] = deque()
        self._waiting: deque[tuple[float, simpy.Event]] = deque()  # until when

    def put(self, token: int, count: int) -> None:
        self._tokens.extend([token] * count)
        self._serve()

    def get(self, until: float) -> simpy.Event:
        event = self._env.event()
        self._waiting.append((until, event))
        self._serve()
        return event

    def _serve(self) -> None:
        while self._tokens and self._waiting:
            until, event = self._waiting.popleft()
            if self._env.now < until:
                event.succeed(self._tokens.popleft())

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(self._env.now < until for until, _ in self._waiting)


class _Delivery:
    """The gradients of a worker's step, sent together: `all` succeeds when the queue knows that the
    last one has arrived. Of a dead worker, nothing arrives: the receiver fetches what is sent, and
    there is nobody to give it.

    Callbacks, not processes: there are as many of these as gradients, and a process would take half
    of a run's time.
    """

    def __init__(
        self,
        training: _Training,
        worker: int,
        until: float,
        step: int,
        local_step: int,
        read: list[Any],
    ) -> None:
        self._training, self._worker, self._until = training, worker, until
        self._step, self._local_step, self._read = step, local_step, read
        self._left = len(training.variables)
        self.all = training.env.event()
        for v in training.variables:
            training.network.push(worker, v).callbacks.append(partial(self._pushed, v))

    def _pushed(self, v: int, _: simpy.Event) -> None:
        which = self._worker * len(self._training.variables) + v
        self._training.moment(0.0, _ARRIVE, which).callbacks.append(partial(self._arrived, v))

    def _arrived(self, v: int, _: simpy.Event) -> None:
        training = self._training
        if training.now < self._until:
            training.arrive(self._worker, self._step, self._local_step, v, self._read)
            training.env.timeout(training.messages.report[v]).callbacks.append(self._reported)

    def _reported(self, _: simpy.Event) -> None:
        self._left -= 1
        if not self._left:
            self.all.succeed()


class _Training:
    """The state of one run, and the processes that change it."""

    def __init__(
        self, job: ReplicasJob, updates: int, values: VariableValues | None, repetition: int
    ) -> None:
        self.job, self.updates, self.values, self.repetition = job, updates, values, repetition
        self.env = env = simpy.Environment()
        self.network = job.network.opened(env)
        self.messages = self.network.messages
        self.variables = range(job.variables)
        self.accumulators: list[Accumulator[Any]] = [
            values.accumulator(v, faithful=job.settings.faithful) if values else CountAccumulator()
            for v in self.variables
        ]
        self.weights: list[Any] = list(values.start) if values else []
        self.averages: list[Any] = list(self.weights) if values and values.decay is not None else []
        self.asked_for: list[simpy.Event | None] = [None] * job.variables  # by the chief
        self.tokens = _Tokens(env)
        self.lives_until = [job.death(w) for w in range(job.workers)]
        self.steps_of = [0] * job.workers
        self.global_step = 0
        self.times = job.seconds(repetition, _FIRST_STEPS)
        self.arrivals: list[Arrival] = []
        self.made: list[Update] = []
        self.steps: list[WorkerStep] = []
        self.unfinished: list[WorkerStep] = []
        # Of a worker: step, local_step, times so far.
        self.under_way: dict[int, tuple[int, int, list[float]]] = {}

    def run(self) -> Run:
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
        return Run(
            self.job.workers,
            self.job.variables,
            tuple(self.arrivals),
            tuple(self.made),
            tuple(self.steps),
            tuple(self.unfinished),
            blocked,
        )

    def worker(self, w: int, until: float, local_step: int) -> Events:
        """One life of a worker, which ends at `until`."""
        step = self.next_step(w)
        while True:
            times, read = [self.now], list(self.weights)
            self.under_way[w] = step, local_step, times
            yield self.network.pull(w)
            times.append(self.now)
            yield self.env.timeout(self.computing(w, step))
            times.append(self.now)
            if self.now >= until:  # nothing is sent
                return
            yield _Delivery(self, w, until, step, local_step, read).all
            yield self.moment(0.0, _ASK, w)
            if self.now >= until:
                return
            begun, had, computed = times
            self.steps.append(WorkerStep(w, step, local_step, begun, had, computed, self.now))
            del self.under_way[w]
            local_step = yield self.tokens.get(until)
            step = self.next_step(w)
            yield self.moment(self.messages.token[w], _BEGIN, w)
            if self.now >= until:  # it died while the token was on its way
                return

    def arrive(self, w: int, step: int, local_step: int, v: int, read: list[Any]) -> None:
        """A gradient is at its accumulator."""
        accumulator = self.accumulators[v]
        asked = GradientRequest(w, step, local_step, v, read[v] if read else _NO_NUMBERS)
        update = accumulator.step + 1
        added = accumulator.apply(self.values.gradient(asked) if self.values else None, local_step)
        self.arrivals.append(Arrival(self.now, w, step, local_step, v, update if added else 0))
        self.give(v)

    def come_back(self, w: int) -> Events:
        """A worker that died begins again."""
        yield self.moment(self.job.back(w), _RETURN, w)
        self.cut_off(w)
        self.lives_until[w] = inf
        if w == _CHIEF:
            for accumulator in self.accumulators:
                accumulator.step = self.global_step
            self.asked_for = [None] * len(self.variables)
            self.tokens.put(self.global_step, self.job.settings.initial_tokens)
            self.env.process(self.chief(inf))
        yield from self.worker(w, inf, self.global_step)

    def cut_off(self, w: int) -> None:
        """A worker's step, if one is under way, has ended now, or when it died."""
        if w in self.under_way:
            step, local_step, times = self.under_way.pop(w)
            end = min(self.now, self.lives_until[w])
            happened = [time for time in times if time <= end]
            self.unfinished.append(
                WorkerStep(w, step, local_step, *happened, *[end] * (4 - len(happened)))
            )

    def chief(self, until: float) -> Events:
        """One life of the chief's loop."""
        idle = [0.0] * len(self.variables)
        while True:
            rounds = [self.env.process(self.round(v, idle[v], until)) for v in self.variables]
            results = yield self.env.all_of(rounds)
            yield self.moment(0.0, _SYNC, 0)
            if self.now >= until:
                return
            self.global_step += 1
            self.record([results[each] for each in rounds])
            self.tokens.put(self.global_step, self.job.settings.tokens_per_step)
            rest = self.job.averages + self.job.turn
            yield self.env.timeout(rest)
            idle = self.messages.again.tolist()

    def round(
        self, v: int, delay: float, until: float
    ) -> Generator[simpy.Event, Any, tuple[float, int]]:
        """Take the mean of one variable and update it: when it was taken, and of how many gradients
        it is.
        """
        yield self.moment(delay, _ROUND, v)
        taken = self.env.event()
        if self.now < until:
            self.asked_for[v] = taken
            self.give(v)
        time, count, mean = yield taken
        yield self.moment(self.job.update, _UPDATED, v)
        if self.values:
            self.weights[v] = self.values.updated(self.weights[v], mean)
        yield self.env.timeout(self.messages.report[v])
        return time, count

    def give(self, v: int) -> None:
        """Hand the mean to the chief, if it waits for it and there are enough gradients."""
        asked, accumulator = self.asked_for[v], self.accumulators[v]
        required = self.job.settings.replicas_to_aggregate
        if asked is not None and accumulator.ready(required) and not self.gone(_CHIEF):
            self.asked_for[v] = None
            count = accumulator.count
            asked.succeed((self.now, count, accumulator.take()))

    def record(self, taken: list[tuple[float, int]]) -> None:
        if self.values and self.averages:
            self.averages = [
                self.values.averaged(a, w, self.global_step)
                for a, w in zip(self.averages, self.weights, strict=True)
            ]
        times, counts = zip(*taken, strict=True)
        self.made.append(
            Update(
                self.global_step, self.now, times, counts, tuple(self.weights), tuple(self.averages)
            )
        )

    def next_step(self, w: int) -> int:
        """The number of the step that a worker now has a token for, among its own."""
        self.steps_of[w] += 1
        return self.steps_of[w] - 1

    def computing(self, w: int, step: int) -> float:
        """How long a worker computes in a step."""
        if step >= self.times.shape[1]:
            self.times = self.job.seconds(self.repetition, 2 * self.times.shape[1])
        return float(self.times[w, step])

    @property
    def now(self) -> float:
        """The fabric may leave a number of numpy's on the clock."""
        return float(self.env.now)

    def gone(self, w: int) -> bool:
        """Whether a worker has died, and is not back."""
        return self.now >= self.lives_until[w]

    def moment(self, delay: float, kind: int, which: int) -> Moment:
        """An event after `delay` seconds; those of one instant come in the order of the docstring
        above, after SimPy's own events and before the fabric's.
        """
        most = self.job.workers * len(self.variables)
        rank = (kind + which / most) / (_RETURN + 1)
        return Moment(self.env, self.env.now + float(delay), NORMAL + rank)

    def why(self) -> str:
        """What a run that is blocked waits for."""
        dead = [w for w in range(self.job.workers) if self.gone(w)]
        parts = [f"update {self.global_step + 1} is never made"]
        required = self.job.settings.replicas_to_aggregate
        short = [v for v in self.variables if self.accumulators[v].count < required]
        if _CHIEF in dead:
            parts.append("the chief, worker 0, is dead")
        elif short:
            v = short[0]
            parts.append(
                f"variable {v} has {self.accumulators[v].count} of the {required} gradients it needs"
            )
        if self.tokens.waiting:
            parts.append(f"{self.tokens.waiting} workers wait for a token")
        if dead:
            parts.append(f"dead: {', '.join(map(str, dead))}")
        return "; ".join(parts)


_CHIEF = 0
_NO_NUMBERS = np.zeros(0)
_ARRIVE, _UPDATED, _SYNC, _ROUND, _ASK, _BEGIN, _RETURN = range(7)
