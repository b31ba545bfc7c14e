"""What many workers take together, by theory and by repetition."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.training.distributions import (
    Constant,
    Empirical,
    Exponential,
    Lognormal,
    Normal,
    Pareto,
    Uniform,
)
from simreduce.training.replicas import ReplicasJob, SyncSettings
from simreduce.training.replicas.network import LinkNetwork, delays
from simreduce.training.replicas.processes import simulate_replicas
from simreduce.training.stragglers import compare_backups, interval, repeat
from tests.thorough import corners

EXPONENTIAL, UNIFORM, NORMAL = Exponential(2.0), Uniform(0.0, 1.0), Normal(1.0, 0.1)
ALL = [
    EXPONENTIAL,
    UNIFORM,
    NORMAL,
    Constant(3.0),
    Normal(1.0, 2.0),
    Lognormal(2.0, 1.5),
    Pareto(1.0, 3.0),
    Exponential(2.0, 1.5),
    Empirical((1.0, 2.0, 2.0, 7.0)),
]


def harmonic(n):
    return math.fsum(1.0 / i for i in range(1, n + 1))


def normal_order_statistic(k, n, mid, sd):
    """By quadrature over the times themselves, where ours is over their parts."""
    x = np.linspace(mid - 9 * sd, mid + 9 * sd, 200_001)
    density = (
        k
        * math.comb(n, k)
        * stats.norm.cdf(x, mid, sd) ** (k - 1)
        * stats.norm.sf(x, mid, sd) ** (n - k)
    )
    return float(np.trapezoid(x * density * stats.norm.pdf(x, mid, sd), x))


CLOSED = [
    *(
        (EXPONENTIAL, k, n, 2.0 * (harmonic(n) - harmonic(n - k)))
        for k, n in ((64, 64), (60, 64), (5, 8), (1, 9999), (9999, 9999))
    ),
    *((UNIFORM, k, n, k / (n + 1)) for k, n in ((64, 64), (48, 64), (3, 4))),
    *(
        (NORMAL, k, n, normal_order_statistic(k, n, 1.0, 0.1))
        for k, n in ((64, 64), (32, 64), (7, 8))
    ),
    (Pareto(1.0, 3.0), 7, 8, math.gamma(9) * math.gamma(5 / 3) / math.gamma(9 - 1 / 3)),
    (Constant(3.0), 2, 5, 3.0),
    (Empirical((1.0, 3.0)), 2, 2, 3.0 * 0.75 + 1.0 * 0.25),
]


SCATTERED = [row for row in CLOSED if 2 < row[2] < 10 and isinstance(row[0], (Exponential, Pareto))]


@pytest.mark.parametrize(("times", "k", "n", "expected"), CLOSED)
def test_order_statistics_by_theory(times, k, n, expected):
    """Harmonic numbers, k/(n+1), quadrature, Gamma functions."""
    assert times.order_statistic(k, n) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("times", "k", "n", "expected", "repetitions"),
    corners(
        [(*row, 10_000 if row in SCATTERED else 2000) for row in CLOSED if 2 < row[2] < 100], 3
    ),
)
def test_the_first_update_takes_as_long_as_the_kth_of_n(times, k, n, expected, repetitions):
    """Within 1 % at 10,000 repetitions, and at 2000 where times scatter less."""
    job = ReplicasJob(SyncSettings(k, n, 0), delays(n, 1), times, seed=1)
    spread = repeat(job, 1, repetitions)

    assert spread.step().mean == pytest.approx(expected, rel=0.01)
    assert spread.updates.shape == (repetitions, 1)


def test_without_backups_every_update_takes_as_long_as_the_slowest():
    """Bulk-synchronous steps do not depend on one another: 100 times 100 of them are 10,000."""
    spread = repeat(ReplicasJob(SyncSettings(16), delays(16, 2), EXPONENTIAL, seed=2), 100, 100)

    assert spread.step().mean == pytest.approx(2.0 * harmonic(16), rel=0.01)
    assert 0.0 == spread.wasted


@pytest.mark.parametrize("times", ALL, ids=lambda d: type(d).__name__)
def test_times_have_the_mean_they_say(times):
    """Of many quantiles, evenly spaced."""
    u = (np.arange(1_000_000) + 0.5) / 1_000_000

    assert float(times.quantile(u).mean()) == pytest.approx(times.expected, rel=2e-3)
    assert times.order_statistic(1, 1) == pytest.approx(times.expected, rel=1e-6)


@given(
    st.sampled_from(ALL),
    st.floats(0.0, 1.0, exclude_max=True),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_quantiles_ascend_and_are_no_less_than_zero(times, a, b):
    low, high = times.quantile(np.array(sorted((a, b))))

    assert 0.0 <= low <= high < math.inf


def test_the_spread_of_lognormal_times_is_as_asked():
    found = Lognormal(2.0, 0.5).quantile((np.arange(1_000_000) + 0.5) / 1_000_000)

    assert float(found.std()) == pytest.approx(0.5, rel=2e-3)


def test_without_a_mean_there_is_none():
    assert Pareto(1.0, 1.0).expected == Pareto(1.0, 1.0).order_statistic(4, 4) == math.inf
    assert math.isfinite(Pareto(1.0, 1.0).order_statistic(3, 4))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Exponential(0.0), "mean: above 0"),
        (lambda: Exponential(1.0, 2.0), "least: no more than the mean"),
        (lambda: Uniform(2.0, 1.0), "high: no less than low"),
        (lambda: Normal(1.0, -1.0), "sd: 0 s or more"),
        (lambda: Lognormal(math.inf, 1.0), "mean: above 0"),
        (lambda: Pareto(1.0, math.nan), "shape: above 0"),
        (lambda: Empirical(()), "no times"),
        (lambda: Empirical((1.0, -1.0)), "time 1: 0 s or more"),
        (lambda: Constant(1.0).order_statistic(3, 2), "k from 1 to 2, not 3"),
        (
            lambda: compare_backups(
                ReplicasJob(SyncSettings(1), delays(2, 1), Constant(1.0)), 1, 1, [2]
            ),
            "backups: 0 to 1 of 2",
        ),
        (
            lambda: repeat(ReplicasJob(SyncSettings(1), delays(1, 1), Constant(1.0)), 1, 0),
            "1 repetition, or more",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, problem):
    with pytest.raises(InputError, match=problem):
        make()


def test_an_interval_holds_the_mean_as_often_as_it_says():
    """Nineteen times of twenty, for means of few numbers that are far from normal."""
    drawn = np.random.default_rng(3).exponential(1.0, (2000, 40))
    inside = [abs((i := interval(row)).mean - 1.0) <= i.high - i.mean for row in drawn]

    assert 0.90 < np.mean(inside) < 0.97
    assert interval(np.array([2.0])).high == math.inf
    assert math.isnan(interval(np.array([])).mean)


def test_the_best_number_of_backups():
    """With constant times none; with a heavy tail some; a worker ten times as slow is one."""
    even = compare_backups(ReplicasJob(SyncSettings(8), delays(8, 1), Constant(1.0)), 5, 3)
    heavy = compare_backups(
        ReplicasJob(SyncSettings(8), delays(8, 1), Pareto(1.0, 1.5), seed=1), 20, 200
    )
    slow = compare_backups(
        ReplicasJob(SyncSettings(8), delays(8, 1), Constant(1.0), slow={3: 10.0}), 20, 3
    )

    def best(choices):
        return next(c.backups for c in choices if c.best)

    assert 0 == best(even)
    assert 0 < best(heavy) < 4
    assert 1 == best(slow)
    assert [c.backups for c in slow if c.as_good] == [1]
    assert heavy[0].ideal == pytest.approx(Pareto(1.0, 1.5).order_statistic(8, 8))
    assert slow[0].ideal is None


def test_updates_come_sooner_the_fewer_gradients_they_need():
    """Every choice is given the same times."""
    found = compare_backups(
        ReplicasJob(SyncSettings(12), delays(12, 1, 0.01, 0.01), Lognormal(1.0, 0.4), seed=4),
        10,
        50,
    )

    assert sorted((c.step.mean for c in found), reverse=True) == [c.step.mean for c in found]
    assert all(c.step.low < c.step.mean < c.step.high for c in found)
    assert 0.0 == found[0].wasted < found[3].wasted < found[6].wasted


def test_a_dead_worker_blocks_every_repetition_that_needs_it():
    """It dies in the middle of its third step."""
    job = ReplicasJob(SyncSettings(3), delays(3, 1), Uniform(1.0, 1.1), dies={2: 2.5})
    spread = repeat(job, 10, 20)

    assert 20 == spread.blocked
    assert 0 == len(spread.steps())
    choices = compare_backups(job, 10, 20, [0, 1])
    assert [20, 0] == [c.blocked for c in choices]
    assert [False, True] == [c.best for c in choices] == [c.as_good for c in choices]


def test_gradients_that_arrive_while_the_chief_is_away_count():
    """Two are enough for an update, but the chief is away for ever so long: each mean is of all
    eight, of every variable.
    """
    job = ReplicasJob(SyncSettings(2, 8), delays(8, 2), Constant(0.1), turn=1.0)
    spread = repeat(job, 11, 1)
    run = simulate_replicas(job, 11)

    assert [2 * 8] * 9 == spread.gradients[0, 2:].tolist()
    entered = sum(sum(u.gradients) for u in run.updates[1:]) / 2
    assert entered / (run.updates[-1].time - run.updates[0].time) == pytest.approx(
        spread.rates(1)[0]
    )
    assert compare_backups(job, 11, 2, [6], 1)[0].rate.mean == pytest.approx(spread.rates(1)[0])


def test_any_two_choices_may_be_those_that_are_compared():
    """Of three choices there are three pairs: each interval is wrong in a third of 5 % at most."""
    job = ReplicasJob(SyncSettings(6), delays(6, 1), EXPONENTIAL, seed=6)
    choices = compare_backups(job, 12, 20, [0, 1, 2], 2)
    rates = [
        repeat(replace(job, settings=SyncSettings(6 - b, 6)), 12, 20).rates(2) for b in (0, 1, 2)
    ]
    best = max(rates, key=np.mean)

    assert [interval(best - rate, 1 - 0.05 / 3) for rate in rates] == [c.behind for c in choices]
    assert [interval(rate) for rate in rates] == [c.rate for c in choices]


def test_choices_that_are_alike_are_seldom_told_apart():
    """Whichever seems best of seven that are the same, the others are as good, in 19 comparisons of
    20.
    """
    rng = np.random.default_rng(5)
    apart = 0
    for _ in range(200):
        rates = rng.normal(1.0, 0.1, (7, 30))
        best = rates[rates.mean(axis=1).argmax()]
        apart += any(
            interval(best - rate, 1.0 - 0.05 / math.comb(7, 2)).low > 0.0 for rate in rates
        )

    assert apart <= 0.08 * 200


def test_tokens_of_the_job_are_those_of_every_choice():
    """Two workers' tokens: without four at first, an update of six is refused."""
    job = ReplicasJob(SyncSettings(4, 2, 2), delays(6, 1), Constant(1.0))

    with pytest.raises(InputError, match="with 0 backups: num_tokens: too few tokens"):
        compare_backups(job, 3, 2, [0])
    tokens = replace(job, settings=SyncSettings(4, 2))
    assert [c.step.mean for c in compare_backups(tokens, 6, 2, [2])] == [
        repeat(tokens, 6, 2).step().mean
    ]


def test_progress_is_told_over_all_choices():
    told = []

    def watch(coming, total):
        for done, each in enumerate(coming, 1):
            told.append((done, total))
            yield each

    compare_backups(ReplicasJob(SyncSettings(2), delays(2, 1), Constant(1.0)), 2, 3, watch=watch)

    assert [(i, 6) for i in range(1, 7)] == told


def test_one_seed_gives_one_answer_and_another_seed_another():
    def updates(seed):
        return repeat(
            ReplicasJob(SyncSettings(3, 4), delays(4, 1), EXPONENTIAL, seed=seed), 5, 5
        ).updates.tolist()

    assert updates(1) == updates(1)
    assert updates(1) != updates(2)
    rows = updates(1)
    assert len({tuple(row) for row in rows}) == 5


def test_the_first_updates_may_be_left_out():
    """The tokens at the start make the first one cheap."""
    spread = repeat(
        ReplicasJob(SyncSettings(4, 4, -1), delays(4, 1), Uniform(1.0, 2.0), seed=5), 6, 10
    )

    assert np.allclose(spread.steps(1), (spread.updates[:, -1] - spread.updates[:, 0]) / 5)
    with pytest.raises(InputError, match="skip: 0 to 5 of 6"):
        spread.steps(6)


def test_flows_are_repeated_too_on_any_number_of_processes():
    """The same numbers, whoever works them out."""
    network = LinkNetwork(Setup("switch:4"), ("gpu0", "gpu1", "gpu2"), ("gpu3",), (1 << 20,))
    job = ReplicasJob(SyncSettings(2, 3), network, Uniform(1e-4, 2e-4), seed=1)
    one, two = (repeat(job, 3, 4, processes).updates.tolist() for processes in (1, 2))

    assert one == two


@pytest.mark.slow
def test_a_thousand_repetitions_of_a_hundred_updates_of_64_workers():
    """Under a minute on two cores; in seconds on one."""
    job = ReplicasJob(
        SyncSettings(60, 64), delays(64, 4, 1e-3, 1e-3, 1e-5), Lognormal(0.1, 0.02), seed=1
    )
    began = time.perf_counter()
    spread = repeat(job, 100, 1000)

    assert time.perf_counter() - began < 60.0
    assert 0 == spread.blocked
