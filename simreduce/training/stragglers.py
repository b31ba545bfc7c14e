"""Many repetitions of a job with synchronous replicas: what an update takes on average, how sure
that is, and how many backup workers are best.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import comb, inf, nan, sqrt

import numpy as np

from simreduce.arrays import Bools, Floats, Ints
from simreduce.errors import InputError
from simreduce.training.distributions import Distribution
from simreduce.training.replicas import Delays, ReplicasJob, Run, simulate_replicas
from simreduce.training.replicas.recurrence import DelayRuns
from simreduce.workers import in_processes

CONFIDENCE = 0.95
"""Of every interval; where choices are compared, of all comparisons together."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and an interval that holds the true one with some confidence, by Student's t; of a
    single number it is all.
    """

    mean: float
    low: float
    high: float


def interval(numbers: Floats, confidence: float = CONFIDENCE) -> Interval:
    """Of numbers that do not depend on one another; NaN of none."""
    from scipy.special import stdtrit  # noqa: PLC0415 - takes a while to load

    n = len(numbers)
    if n == 0:
        return Interval(nan, nan, nan)
    mean = float(np.mean(numbers))
    if n == 1:
        return Interval(mean, -inf, inf)
    wide = float(stdtrit(n - 1, (1.0 + confidence) / 2.0) * np.std(numbers, ddof=1) / sqrt(n))
    return Interval(mean, mean - wide, mean + wide)


@dataclass(frozen=True, slots=True, eq=False)
class Repetitions:
    """By repetition: when each update was made (NaN if it never was), of how many gradients its
    means are (all variables together), how many gradients arrived, and how many of these were
    dropped.
    """

    job: ReplicasJob
    updates: Floats
    gradients: Ints
    arrived: Ints
    dropped: Ints

    @property
    def whole(self) -> Bools:
        """Whether each repetition made all its updates. Only these have times."""
        return ~np.isnan(self.updates[:, -1])

    @property
    def blocked(self) -> int:
        """Repetitions that did not make all their updates."""
        return int((~self.whole).sum())

    def steps(self, skip: int = 0) -> Floats:
        """Seconds of an update, by repetition: the mean of all but the first `skip`. Of those that
        made all of theirs.
        """
        found: Floats = self._seconds(skip)[self.whole] / (self.updates.shape[1] - skip)
        return found

    def rates(self, skip: int = 0) -> Floats:
        """Gradients of a variable that enter updates in a second, by repetition, after the first
        `skip` updates: of all variables, the mean. More than `replicas_to_aggregate` an update
        where gradients arrive between two rounds.
        """
        entered = self.gradients[:, skip:].sum(axis=1) / self.job.variables
        found: Floats = (entered / self._seconds(skip))[self.whole]
        return found

    def _seconds(self, skip: int) -> Floats:
        """From the first `skip` updates to the last."""
        most = self.updates.shape[1] - 1
        if not 0 <= skip <= most:
            raise InputError(f"skip: 0 to {most} of {most + 1} updates, not {skip}")
        begun = self.updates[:, skip - 1] if skip else 0.0
        found: Floats = self.updates[:, -1] - begun
        return found

    def step(self, skip: int = 0) -> Interval:
        """Seconds of an update."""
        return interval(self.steps(skip))

    @property
    def wasted(self) -> float:
        """The part of the gradients that were dropped."""
        return float(self.dropped.sum() / max(self.arrived.sum(), 1))


def repeat(
    job: ReplicasJob,
    updates: int,
    repetitions: int,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Repetitions:
    """So many runs of a job, each with random times of its own; the same ones for the same seed.
    Flows are simulated on `processes` processes. `progress` is told how many are done, of how many.
    Of what is stopped (Ctrl-C), those until then.
    """
    if repetitions < 1 or updates < 1:
        raise InputError(f"1 update and 1 repetition, or more; not {updates} and {repetitions}")
    rows: list[_Row] = []
    if progress:
        progress(0, repetitions)
    try:
        with closing(_rows(job, updates, repetitions, processes)) as coming:
            for row in coming:
                rows.append(row)
                if progress:
                    progress(len(rows), repetitions)
    except KeyboardInterrupt:
        if not rows:
            raise
    times, gradients, arrived, dropped = zip(*rows, strict=True)
    return Repetitions(
        job, np.array(times), np.array(gradients), np.array(arrived), np.array(dropped)
    )


_Row = tuple[Floats, Ints, int, int]


def _rows(
    job: ReplicasJob, updates: int, repetitions: int, processes: int
) -> Generator[_Row, None, None]:
    """What a `Repetitions` has of every repetition."""
    if isinstance(job.network, Delays):
        return _by_loop(job, updates, repetitions)
    chunk = max(1, min(16, repetitions // (4 * processes)))
    return in_processes(partial(_by_processes, job, updates), range(repetitions), processes, chunk)


def _by_loop(job: ReplicasJob, updates: int, repetitions: int) -> Generator[_Row, None, None]:
    runs = DelayRuns(job, updates, repetitions)
    for repetition in range(repetitions):
        times = runs.run(repetition)
        yield (*_filled(times.update, times.gradients, updates), times.arrived, times.dropped)


def _by_processes(job: ReplicasJob, updates: int, repetition: int) -> _Row:
    run = simulate_replicas(job, updates, repetition=repetition)
    times = np.array([each.time for each in run.updates])
    gradients = np.array([sum(each.gradients) for each in run.updates], np.int64)
    return (*_filled(times, gradients, updates), len(run.arrivals), len(run.dropped))


def _filled(times: Floats, gradients: Ints, updates: int) -> tuple[Floats, Ints]:
    """As many as there should have been: NaN, and 0, for updates that were never made."""
    missing = updates - len(times)
    return np.pad(times, (0, missing), constant_values=nan), np.pad(gradients, (0, missing))


_SHOWN = 4
_MOST_SHOWN = 50_000
"""Gradients: few seconds."""


def sample(job: ReplicasJob, updates: int, skip: int = 0) -> Run | None:
    """The first repetition, gradient by gradient: with a few updates after the first `skip`, or
    fewer if there are very many gradients; None if one update has too many.
    """
    most = _MOST_SHOWN // (job.workers * job.variables)
    return simulate_replicas(job, min(updates, skip + _SHOWN, most)) if most else None


@dataclass(frozen=True, slots=True)
class BackupChoice:
    """So many of the workers are backups. `step` is seconds of an update, `rate` gradients that
    enter updates in a second (see `Repetitions.rates`). `behind` is how much lower that rate is than the
    best choice's, in the same repetitions: all such intervals of a comparison are right together
    with 95 % confidence. A choice with which training stops more often than with others is none to
    compare: its `rate` and `behind` are NaN. `ideal` is what a step would take if everybody began
    it together and nothing had to be sent; None if workers differ.
    """

    backups: int
    best: bool
    step: Interval
    rate: Interval
    behind: Interval
    wasted: float
    blocked: int
    ideal: float | None

    @property
    def as_good(self) -> bool:
        """Whether it may be as good as the best: the repetitions do not tell them apart."""
        return self.behind.low <= 0.0


def compare_backups(
    job: ReplicasJob,
    updates: int,
    repetitions: int,
    choices: Sequence[int] | None = None,
    skip: int = 0,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[BackupChoice, ...]:
    """What becomes of the job if 0, 1, 2, ... of its workers are backups, whose gradients no update
    waits for (up to half of them, unless `choices` says which). A gradient is taken to be worth as
    much in a small update as in a large one, so that the best choice is the one with the most
    gradients in a second; ask `step` for what is best if it is not.

    There are tokens for all workers, unless the job says for how many. All choices are given the
    same random times, and `progress` is told how many repetitions are done, of those of all
    choices. KeyboardInterrupt if it is stopped: there is nothing to compare.
    """
    workers = job.workers
    choices = range(workers // 2 + 1) if choices is None else choices
    wrong = [b for b in choices if not 0 <= b < workers]
    if wrong or not choices:
        raise InputError(f"backups: 0 to {workers - 1} of {workers} workers, not {list(choices)}")
    total = len(choices) * repetitions
    spreads = []
    for tried, each in enumerate([_with(job, b) for b in choices]):
        before = tried * repetitions
        told = (lambda done, _, before=before: progress(before + done, total)) if progress else None
        spreads.append(repeat(each, updates, repetitions, processes, told))
        if len(spreads[-1].updates) < repetitions:
            raise KeyboardInterrupt
    least = min(spread.blocked for spread in spreads)
    compared = [spread.blocked == least < repetitions for spread in spreads]
    # By the repetitions that none of them lost.
    whole = np.all([s.whole for s, is_in in zip(spreads, compared, strict=True) if is_in], axis=0)
    rates = [
        replace(s, updates=s.updates[whole], gradients=s.gradients[whole]).rates(skip)
        if is_in
        else _NONE
        for s, is_in in zip(spreads, compared, strict=True)
    ]
    best = max(range(len(rates)), key=lambda i: float(rates[i].mean()) if len(rates[i]) else -inf)
    # The best is found in the same repetitions, so that any two choices may be those compared
    # (Bonferroni).
    pairs = max(comb(sum(compared), 2), 1)
    sure = 1.0 - (1.0 - CONFIDENCE) / pairs
    return tuple(
        BackupChoice(
            b, i == best and len(rates[i]) > 0, spread.step(skip), interval(rates[i]),
            interval(rates[best] - rates[i], sure) if compared[i] else interval(_NONE), spread.wasted, spread.blocked,
            _ideal(job, b),
        )
        for i, (b, spread) in enumerate(zip(choices, spreads, strict=True))
    )  # fmt: skip


_NONE: Floats = np.zeros(0)


def _with(job: ReplicasJob, count: int) -> ReplicasJob:
    """The job with so many backups among its workers."""
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
