"""Many repetitions of a job with synchronous replicas: what an update takes on average, how sure that is, and how many
backup workers are best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import inf, nan, sqrt

import numpy as np
import numpy.typing as npt

from simreduce.errors import InputError
from simreduce.training.distributions import Distribution
from simreduce.training.replicas import Delays, Job, replicas
from simreduce.training.replicas.recurrence import Runs

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
"""Of every interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and an interval that holds the true one with 95 % confidence, by Student's t; of a single number it is all."""

    mean: float
    low: float
    high: float


def interval(numbers: Floats) -> Interval:
    """Of numbers that do not depend on one another; NaN of none."""
    from scipy.special import stdtrit  # noqa: PLC0415 - takes a while to load

    n = len(numbers)
    if n == 0:
        return Interval(nan, nan, nan)
    mean = float(np.mean(numbers))
    if n == 1:
        return Interval(mean, -inf, inf)
    wide = float(stdtrit(n - 1, (1.0 + CONFIDENCE) / 2.0) * np.std(numbers, ddof=1) / sqrt(n))
    return Interval(mean, mean - wide, mean + wide)


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """By repetition: when each update was made (NaN if it never was), how many gradients arrived, and how many of these were
    dropped.
    """

    job: Job
    updates: Floats
    arrived: npt.NDArray[np.int64]
    dropped: npt.NDArray[np.int64]

    @property
    def blocked(self) -> int:
        """Repetitions that did not make all their updates."""
        return int(np.isnan(self.updates[:, -1]).sum())

    def steps(self, skip: int = 0) -> Floats:
        """Seconds of an update, by repetition: the mean of all but the first `skip`. Of those that made all of theirs."""
        whole = self.updates[~np.isnan(self.updates[:, -1])]
        most = whole.shape[1] - 1
        if not 0 <= skip <= most:
            raise InputError(f"skip: 0 to {most} of {most + 1} updates, not {skip}")
        begun = whole[:, skip - 1] if skip else 0.0
        found: Floats = (whole[:, -1] - begun) / (whole.shape[1] - skip)
        return found

    def step(self, skip: int = 0) -> Interval:
        """Seconds of an update."""
        return interval(self.steps(skip))

    @property
    def wasted(self) -> float:
        """The part of the gradients that were dropped."""
        return float(self.dropped.sum() / max(self.arrived.sum(), 1))


def repeat(
    job: Job,
    updates: int,
    repetitions: int,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Spread:
    """So many runs of a job, each with random times of its own; the same ones for the same seed. Flows are simulated on
    `processes` processes. `progress` is told how many are done, of how many.
    """
    if repetitions < 1 or updates < 1:
        raise InputError(f"1 update and 1 repetition, or more; not {updates} and {repetitions}")
    rows = []
    for row in _rows(job, updates, repetitions, processes):
        rows.append(row)
        if progress:
            progress(len(rows), repetitions)
    times, arrived, dropped = zip(*rows, strict=True)
    return Spread(job, np.array(times), np.array(arrived), np.array(dropped))


_Row = tuple[Floats, int, int]


def _rows(job: Job, updates: int, repetitions: int, processes: int) -> Iterator[_Row]:
    """What a `Spread` has of every repetition."""
    if isinstance(job.network, Delays):
        yield from _by_loop(job, updates, repetitions)
    elif processes == 1:
        yield from (_by_processes(job, updates, each) for each in range(repetitions))
    else:
        with ProcessPoolExecutor(processes) as pool:
            each = max(1, min(16, repetitions // (4 * processes)))
            yield from pool.map(
                _by_processes,
                [job] * repetitions,
                [updates] * repetitions,
                range(repetitions),
                chunksize=each,
            )


def _by_loop(job: Job, updates: int, repetitions: int) -> Iterator[_Row]:
    runs = Runs(job, updates, repetitions)
    for repetition in range(repetitions):
        times = runs.run(repetition)
        there = ~np.isnan(times.arrived)
        yield (
            _filled(times.update, updates),
            int(there.sum()),
            int((there & (times.entered == 0)).sum()),
        )


def _by_processes(job: Job, updates: int, repetition: int) -> _Row:
    run = replicas(job, updates, repetition=repetition)
    times = np.array([each.time for each in run.updates])
    return _filled(times, updates), len(run.arrivals), len(run.dropped)


def _filled(times: Floats, count: int) -> Floats:
    found = np.full(count, nan)
    found[: len(times)] = times
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """So many of the workers are backups. `step` is seconds of an update, `rate` gradients that enter updates in a second.
    `behind` is how much lower that rate is than the best choice's, in the same repetitions. `ideal` is what a step would take
    if everybody began it together and nothing had to be sent; None if workers differ.
    """

    backups: int
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


def backups(
    job: Job,
    updates: int,
    repetitions: int,
    choices: Sequence[int] | None = None,
    skip: int = 0,
    processes: int = 1,
) -> tuple[Choice, ...]:
    """What becomes of the job if 0, 1, 2, ... of its workers are backups, whose gradients no update waits for (up to half of
    them, unless `choices` says which). A gradient is taken to be worth as much in a small update as in a large one, so that
    the best choice is the one with the most gradients in a second; ask `step` for what is best if it is not.

    All choices are given the same random times.
    """
    workers = job.workers
    choices = range(workers // 2 + 1) if choices is None else choices
    wrong = [b for b in choices if not 0 <= b < workers]
    if wrong or not choices:
        raise InputError(f"backups: 0 to {workers - 1} of {workers} workers, not {list(choices)}")
    spreads = [repeat(_with(job, b), updates, repetitions, processes) for b in choices]
    # Choices are compared by the repetitions that none of them lost.
    whole = np.all([~np.isnan(each.updates[:, -1]) for each in spreads], axis=0)
    rates = []
    for b, spread in zip(choices, spreads, strict=True):
        kept = replace(spread, updates=spread.updates[whole])
        rates.append((workers - b) / kept.steps(skip))
    best = max(rates, key=lambda rate: float(rate.mean()) if len(rate) else -inf)
    return tuple(
        Choice(
            b, spread.step(skip), interval(rate), interval(best - rate), spread.wasted, spread.blocked,
            _ideal(job, b),
        )
        for b, spread, rate in zip(choices, spreads, rates, strict=True)
    )  # fmt: skip


def _with(job: Job, count: int) -> Job:
    """The job with so many backups among its workers, and tokens for all of them."""
    settings = replace(
        job.settings, replicas_to_aggregate=job.workers - count, total_num_replicas=job.workers
    )
    return replace(job, settings=settings)


def _ideal(job: Job, count: int) -> float | None:
    alike = isinstance(job.compute, Distribution) and not job.slow and not job.dies
    if not alike or not isinstance(job.compute, Distribution):
        return None
    return job.compute.order_statistic(job.workers - count, job.workers)
