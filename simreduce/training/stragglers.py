"""Repetitions of a job with synchronous replicas.

They give the mean time of an update, its confidence interval, and the best number of backup
workers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import comb, inf, nan, sqrt

import numpy as np

from simreduce.computing.arrays import Bools, Floats, Ints
from simreduce.computing.workers import Watch, charge, in_processes, unwatched
from simreduce.errors import InputError
from simreduce.training.distributions import Distribution
from simreduce.training.replicas import ReplicasJob
from simreduce.training.replicas.network import Delays
from simreduce.training.replicas.processes import ReplicasRun, simulate_replicas
from simreduce.training.replicas.recurrence import DelayRuns

CONFIDENCE = 0.95
"""Confidence of every interval; of all comparisons of choices together."""


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A mean and its confidence interval by Student's t; unbounded for a single number."""

    mean: float
    low: float
    high: float


def interval(numbers: Floats, confidence: float = CONFIDENCE) -> ConfidenceInterval:
    """The mean of independent numbers and its interval; NaN without numbers."""
    from scipy.special import stdtrit  # noqa: PLC0415 - takes a while to load

    n = len(numbers)
    if n == 0:
        return ConfidenceInterval(nan, nan, nan)
    mean = float(np.mean(numbers))
    if n == 1:
        return ConfidenceInterval(mean, -inf, inf)
    wide = float(stdtrit(n - 1, (1.0 + confidence) / 2.0) * np.std(numbers, ddof=1) / sqrt(n))
    return ConfidenceInterval(mean, mean - wide, mean + wide)


@dataclass(frozen=True, slots=True, eq=False)
class Repetitions:
    """Results by repetition.

    They are when each update was made (NaN: never), how many gradients its means contain over all
    variables, how many gradients arrived, and how many of these were dropped.
    """

    job: ReplicasJob
    updates: Floats
    gradients: Ints
    arrived: Ints
    dropped: Ints

    @property
    def whole(self) -> Bools:
        """Whether each repetition made all its updates. Only those have times."""
        return ~np.isnan(self.updates[:, -1])

    @property
    def blocked(self) -> int:
        """Repetitions that did not make all their updates."""
        return int((~self.whole).sum())

    def steps(self, skip: int = 0) -> Floats:
        """Mean seconds of an update after the first `skip`, by whole repetition."""
        found: Floats = self._seconds(skip)[self.whole] / (self.updates.shape[1] - skip)
        return found

    def rates(self, skip: int = 0) -> Floats:
        """Gradients that enter updates in a second after the first `skip` updates.

        They are by whole repetition: the mean over variables. An update may contain more than
        `replicas_to_aggregate`, if gradients arrive between rounds.
        """
        entered = self.gradients[:, skip:].sum(axis=1) / self.job.variables
        found: Floats = (entered / self._seconds(skip))[self.whole]
        return found

    def _seconds(self, skip: int) -> Floats:
        """Seconds from the first `skip` updates to the last."""
        most = self.updates.shape[1] - 1
        if not 0 <= skip <= most:
            raise InputError(f"skip: 0 to {most} of {most + 1} updates, not {skip}")
        return self.updates[:, -1] - (self.updates[:, skip - 1] if skip else 0.0)

    def step(self, skip: int = 0) -> ConfidenceInterval:
        """Mean seconds of an update, with its interval, none of which is below 0."""
        found = interval(self.steps(skip))
        return replace(found, low=max(found.low, 0.0)) if found.mean >= 0.0 else found

    @property
    def wasted(self) -> float:
        """The share of gradients that were dropped."""
        return float(self.dropped.sum() / max(self.arrived.sum(), 1))


def repeat(
    job: ReplicasJob,
    updates: int,
    repetitions: int,
    processes: int = 1,
    watch: Watch = unwatched,
) -> Repetitions:
    """Simulate a job several times, each with random times of its own, the same for the same seed.

    Jobs on shared links run on `processes` processes. If `watch` ends early, returns the
    repetitions until then.
    """
    if repetitions < 1 or updates < 1:
        raise InputError(f"1 update and 1 repetition, or more; not {updates} and {repetitions}")
    return _collect(job, watch(_run_all(job, updates, repetitions, processes), repetitions))


def _collect(job: ReplicasJob, results: Iterable[_Result]) -> Repetitions:
    return Repetitions(job, *map(np.array, zip(*results, strict=True)))


_Result = tuple[Floats, Ints, int, int]


def _run_all(
    job: ReplicasJob, updates: int, repetitions: int, processes: int
) -> Generator[_Result, None, None]:
    """The results of each repetition."""
    if isinstance(job.network, Delays):
        return _run_loop(job, updates, repetitions)
    chunk = max(1, min(16, repetitions // (4 * processes)))
    return in_processes(partial(_run_processes, job, updates), range(repetitions), processes, chunk)


def _run_loop(job: ReplicasJob, updates: int, repetitions: int) -> Generator[_Result, None, None]:
    runs = DelayRuns(job, updates, repetitions)
    for repetition in range(repetitions):
        times = runs.run(repetition)
        yield times.update, times.gradients, *times.totals.tolist()


def _run_processes(job: ReplicasJob, updates: int, repetition: int) -> _Result:
    run = simulate_replicas(job, updates, repetition=repetition)
    times, gradients = np.full(updates, nan), np.zeros(updates, np.int64)
    for i, each in enumerate(run.updates):
        times[i], gradients[i] = each.time, sum(each.gradients)
    charge(_ARRIVAL * len(run.arrivals))
    return times, gradients, len(run.arrivals), len(run.dropped)


_ARRIVAL = 200
"""Ops of a plan that take as long as one gradient of one worker."""

_SAMPLE = 4
_MOST_IN_SAMPLE = 50_000
"""Upper limit of the gradients of a sample, for a few seconds of work."""


def sample(job: ReplicasJob, updates: int, skip: int = 0) -> ReplicasRun | None:
    """Simulate the first repetition, gradient by gradient.

    It goes up to a few updates after the first `skip`; fewer with very many gradients, None if one
    update has too many.
    """
    most = _MOST_IN_SAMPLE // (job.workers * job.variables)
    return simulate_replicas(job, min(updates, skip + _SAMPLE, most)) if most else None


@dataclass(frozen=True, slots=True)
class BackupChoice:
    """The outcome of a number of backup workers.

    `step` is seconds of an update, `rate` gradients that enter updates in a second (see
    `Repetitions.rates`). `behind` is the rate's distance to the best choice's in the same
    repetitions; all these intervals hold together with 95 % confidence. `rate` and `behind` are NaN
    where training blocks more often than with another choice. `ideal` is the seconds of a step that
    all workers begin together with free communication; None if workers differ.
    """

    backups: int
    best: bool
    step: ConfidenceInterval
    rate: ConfidenceInterval
    behind: ConfidenceInterval
    wasted: float
    blocked: int
    ideal: float | None

    @property
    def as_good(self) -> bool:
        """Whether the repetitions do not distinguish it from the best."""
        return self.behind.low <= 0.0


def compare_backups(
    job: ReplicasJob,
    updates: int,
    repetitions: int,
    choices: Sequence[int] | None = None,
    skip: int = 0,
    processes: int = 1,
    watch: Watch = unwatched,
) -> tuple[BackupChoice, ...]:
    """Compare numbers of backup workers, whose gradients no update waits for.

    `choices` are the numbers, by default 0 to half of the workers.

    The best choice has the most gradients in a second, as if a gradient were worth as much in a
    small update as in a large one; otherwise compare `step`. There are tokens for all workers,
    unless the job counts them. All choices get the same random times. `watch` gets the repetitions
    of all choices.
    """
    workers = job.workers
    choices = range(workers // 2 + 1) if choices is None else choices
    if not choices or not all(0 <= b < workers for b in choices):
        raise InputError(f"backups: 0 to {workers - 1} of {workers} workers, not {list(choices)}")
    jobs = [_with(job, b) for b in choices]
    coming = (result for each in jobs for result in _run_all(each, updates, repetitions, processes))
    results = iter(watch(coming, len(jobs) * repetitions))
    spreads = [_collect(each, islice(results, repetitions)) for each in jobs]
    least = min(spread.blocked for spread in spreads)
    compared = [spread.blocked == least < repetitions for spread in spreads]
    # Compare the repetitions that all of them made.
    whole = np.all([s.whole for s, is_in in zip(spreads, compared, strict=True) if is_in], axis=0)
    rates = [
        replace(s, updates=s.updates[whole], gradients=s.gradients[whole]).rates(skip)
        if is_in
        else _NONE
        for s, is_in in zip(spreads, compared, strict=True)
    ]
    best = max(range(len(rates)), key=lambda i: float(rates[i].mean()) if len(rates[i]) else -inf)
    # The same repetitions choose the best, so correct for every pair (Bonferroni).
    sure = 1.0 - (1.0 - CONFIDENCE) / max(comb(sum(compared), 2), 1)
    return tuple(
        BackupChoice(
            b, i == best and len(rates[i]) > 0, spread.step(skip), interval(rates[i]),
            interval(rates[best] - rates[i], sure) if compared[i] else interval(_NONE),
            spread.wasted, spread.blocked, _ideal(job, b),
        )
        for i, (b, spread) in enumerate(zip(choices, spreads, strict=True))
    )  # fmt: skip


_NONE: Floats = np.zeros(0)


def _with(job: ReplicasJob, count: int) -> ReplicasJob:
    """The job with `count` backups among its workers."""
    total = job.settings.total_num_replicas
    try:
        settings = replace(
            job.settings,
            replicas_to_aggregate=job.workers - count,
            total_num_replicas=job.workers if total is None else total,
        )
    except InputError as error:
        raise InputError(
            [f"with {count} backups: {problem}" for problem in error.problems]
        ) from error
    return replace(job, settings=settings)


def _ideal(job: ReplicasJob, count: int) -> float | None:
    if not isinstance(job.compute, Distribution) or job.slow or job.dies:
        return None
    return job.compute.order_statistic(job.workers - count, job.workers)
