"""The loop over arrays against the SimPy processes: the same runs, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.computing.loops import Native
from simreduce.errors import InputError
from simreduce.training.distributions import Constant, Empirical, Exponential, Uniform
from simreduce.training.replicas import ReplicasJob, SyncSettings
from simreduce.training.replicas.network import Delays, Messages, delays
from simreduce.training.replicas.processes import ReplicasRun, simulate_replicas
from simreduce.training.replicas.recurrence import DelayRuns, RunOutcome
from tests.thorough import examples

ROUND = st.sampled_from([0.0, 0.25, 0.5, 1.0])
"""Few and exact, so that many things happen at one instant."""

ANY = st.floats(0.0, 1.0).map(lambda x: round(x, 6))


@st.composite
def jobs(draw: st.DrawFn) -> ReplicasJob:
    """Workers, variables and settings of all sorts, with figures that tie often or hardly ever."""
    workers, variables = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    delay = draw(st.sampled_from([ROUND, ANY]))

    def some(count: int) -> np.ndarray:
        return np.array(draw(st.lists(delay, min_size=count, max_size=count)))

    required, total = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    least = max(required - total, 0)
    dies = draw(
        st.dictionaries(
            st.integers(0, workers - 1),
            st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 4.25]),
            max_size=3,
        )
    )
    away = st.one_of(st.none(), st.sampled_from([0.25, 0.5, 1.0, 1.5]), st.floats(0.01, 3.0))
    returns = {w: at + more for w, at in dies.items() if (more := draw(away)) is not None}
    compute = st.one_of(
        st.sampled_from([0.25, 0.5, 1.0]).map(Constant),
        st.just(Empirical((0.25, 0.5, 0.5, 2.0))),
        st.just(Uniform(0.1, 1.5)),
        st.just(Exponential(1.0, 0.1)),
    )
    return ReplicasJob(
        SyncSettings(required, total, draw(st.sampled_from([None, -1, least, least + 2]))),
        Delays(
            some(workers),
            some(workers * variables).reshape(workers, -1),
            Messages(some(variables), some(workers), some(variables)),
        ),
        draw(st.one_of(compute, st.tuples(*[compute] * workers))),
        slow=draw(
            st.dictionaries(st.integers(0, workers - 1), st.sampled_from([0.5, 3.0]), max_size=2)
        ),
        dies=dies,
        returns=returns,
        update=draw(delay),
        averages=draw(delay),
        turn=draw(delay),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


def differences(run: ReplicasRun, times: RunOutcome) -> list[str]:
    """What one has and the other has not."""
    found, made = [], ~np.isnan(times.update)
    times = times._replace(update=times.update[made], gradients=times.gradients[made])
    if [u.time for u in run.updates] != times.update.tolist():
        found.append(f"updates at {[u.time for u in run.updates]} and {times.update.tolist()}")
    if [sum(u.gradients) for u in run.updates] != times.gradients.tolist():
        found.append(
            f"means of {[u.gradients for u in run.updates]} and {times.gradients.tolist()}"
        )
    if (len(run.arrivals), len(run.dropped)) != tuple(times.totals.tolist()):
        found.append(f"{len(run.arrivals)}, {len(run.dropped)} and {times.totals.tolist()}")
    if not times.arrived.size:
        return found
    gradients = {
        (a.worker, a.step, a.variable): (a.time, a.local_step, a.update) for a in run.arrivals
    }
    rows = np.argwhere(~np.isnan(times.arrived))
    others = {
        (w, s, v): (times.arrived[w, s, v], times.local_step[w, s], times.entered[w, s, v])
        for w, s, v in rows.tolist()
    }
    found += [
        f"{key}: {gradients.get(key)} and {others.get(key)}"
        for key in gradients.keys() | others
        if gradients.get(key) != others.get(key)
    ]
    return found


@given(jobs(), st.integers(1, 12), st.integers(0, 3))
@settings(max_examples=examples(200))
def test_both_give_the_same_run(job, updates, repetition):
    """Every arrival, what became of it, every token and every update."""
    run = simulate_replicas(job, updates, repetition=repetition)
    runs = DelayRuns(job, updates, 1)
    times = runs.run(repetition, log=True)

    assert [] == differences(run, times)
    assert [] == differences(run, runs.run(repetition))
    assert bool(run.blocked) == bool(np.isnan(times.update).any())


def test_a_worker_that_dies_as_tokens_come_gets_none():
    """Worker 1 waits from 0.5 s on and dies at 1 s, when the first update is made: its token goes
    to worker 0.
    """
    job = ReplicasJob(SyncSettings(2), delays(2, 1), (Constant(1.0), Constant(0.5)), dies={1: 1.0})
    run, times = simulate_replicas(job, 3), DelayRuns(job, 3, 1).run(0)

    assert [1.0, 3.0, 5.0] == [u.time for u in run.updates] == times.update.tolist()


def test_compiled_it_gives_the_same_bits():
    """Also when a worker needs more steps than were foreseen."""
    job = ReplicasJob(
        SyncSettings(6, 9, 40),
        Delays(
            np.linspace(0, 1e-2, 9),
            np.arange(27.0).reshape(9, 3) * 1e-3,
            Messages(np.full(3, 1e-4), np.full(9, 2e-4), np.zeros(3)),
        ),
        Exponential(0.1),
        slow={0: 1e-3, 4: 3.0},
        dies={0: 1.0, 7: 2.0},
        returns={0: 1.3, 7: 2.1},
        update=1e-3,
    )
    runs = DelayRuns(job, 60, 10_000)
    first = runs._steps

    assert isinstance(runs._loop, Native)
    times = runs.run(5, log=True)
    run = simulate_replicas(job, 60, repetition=5)
    assert runs._steps > first
    assert [] == differences(run, times)
    assert [] == differences(run, runs.run(5))


def test_what_does_not_fit_into_memory_is_refused():
    """Times are drawn for all steps of a repetition."""
    job = ReplicasJob(SyncSettings(1000), delays(1000, 1), Exponential(1.0))

    with pytest.raises(
        InputError, match="steps of 1,000 workers are more than the 67,108,864 of one repetition"
    ):
        DelayRuns(job, 1_000_000, 1).run(0)
