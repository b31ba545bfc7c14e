"""SyncReplicasOptimizer: what was measured on a real cluster, and what its rules say."""

from __future__ import annotations

from collections import Counter
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import InputError
from simreduce.training.distributions import Constant, Empirical, Exponential
from simreduce.training.replicas import ReplicasJob, SyncSettings, easyrec
from simreduce.training.replicas.network import (
    Delays,
    Messages,
    Slices,
    VariableValues,
    delays,
    port_delays,
)
from simreduce.training.replicas.processes import simulate_replicas
from tests.thorough import examples
from tests.training.small import constant_gradients, entered

# Measured on a cluster of one process with TensorFlow 1.14's optimizer: R, T, tokens, seconds of
# each worker, then what happened. Gradients of workers 0, 1, 2 are 1, 100, 10000; the rate is 1.
# (s, worker, its step, local_step, added) of gradients; (s, update, gradients in it, weight).
MEASURED = {
    "a free first update, and a slow worker": (
        (2, 2, 2, (0.2, 0.5)),
        1.6,
        [(0.2, 0, 0, 0, True), (0.4, 0, 1, 0, True), (0.5, 1, 0, 0, False), (0.6, 0, 2, 0, False),
         (0.8, 0, 3, 1, True), (1.0, 1, 1, 1, True), (1.2, 0, 4, 2, True), (1.5, 1, 2, 2, True)],
        [(0.4, 1, 2, -1.0), (1.0, 2, 2, -51.5), (1.5, 3, 2, -102.0)],
    ),
    "no tokens at the start": (
        (2, 2, 0, (0.2, 0.5)),
        1.6,
        [(0.2, 0, 0, 0, True), (0.5, 1, 0, 0, True), (0.7, 0, 1, 1, True), (1.0, 1, 1, 1, True),
         (1.2, 0, 2, 2, True), (1.5, 1, 2, 2, True)],
        [(0.5, 1, 2, -50.5), (1.0, 2, 2, -101.0), (1.5, 3, 2, -151.5)],
    ),
    "a backup": (
        (2, 3, 0, (0.2, 0.3, 0.75)),
        1.25,
        [(0.2, 0, 0, 0, True), (0.3, 1, 0, 0, True), (0.5, 0, 1, 1, True), (0.6, 1, 1, 1, True),
         (0.7, 0, 2, 1, False), (0.75, 2, 0, 0, False), (0.9, 0, 3, 2, True), (0.9, 1, 2, 2, True),
         (1.1, 0, 4, 3, True), (1.2, 1, 3, 3, True)],
        [(0.3, 1, 2, -50.5), (0.6, 2, 2, -101.0), (0.9, 3, 2, -151.5), (1.2, 4, 2, -202.0)],
    ),
    "more gradients than workers": (
        (3, 2, 1, (0.2, 0.5)),
        1.6,
        [(0.2, 0, 0, 0, True), (0.4, 0, 1, 0, True), (0.5, 1, 0, 0, True), (0.7, 0, 2, 1, True),
         (0.9, 0, 3, 1, True), (1.0, 1, 1, 1, True), (1.2, 0, 4, 2, True), (1.4, 0, 5, 2, True),
         (1.5, 1, 2, 2, True)],
        [(0.5, 1, 3, -34.0), (1.0, 2, 3, -68.0), (1.5, 3, 3, -102.0)],
    ),
}  # fmt: skip


def job(*setting, compute, network=None, **rest):
    compute = tuple(Constant(c) for c in compute)
    return ReplicasJob(SyncSettings(*setting), network or delays(len(compute), 1), compute, **rest)


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_on_a_real_cluster(name):
    """Every gradient, what became of it, every update and the weight after it."""
    (required, total, tokens, compute), until, gradients, updates = MEASURED[name]
    run = simulate_replicas(
        job(required, total, tokens, compute=compute), 12, constant_gradients([1, 100, 10000])
    )

    assert gradients == [
        (round(a.time, 9), a.worker, a.step, a.local_step, a.update > 0)
        for a in run.arrivals
        if a.time < until
    ]
    assert updates == [
        (round(u.time, 9), u.number, *u.gradients, float(u.weights[0]))
        for u in run.updates
        if u.time < until
    ]


def test_the_first_update_is_free_for_nobody_unless_faithful():
    """Upstream's tokens at the start let a worker send two gradients to the first update."""
    compute = {"network": delays(2, 1), "compute": (Constant(0.2), Constant(0.5))}
    intended = simulate_replicas(ReplicasJob(SyncSettings(2), **compute), 1)
    upstream = simulate_replicas(ReplicasJob(SyncSettings(2, faithful=True), **compute), 1)

    assert [(0, 0), (1, 0)] == entered(intended, 1)
    assert [(0, 0), (0, 1)] == entered(upstream, 1)
    assert upstream == simulate_replicas(ReplicasJob(SyncSettings(2, num_tokens=-1), **compute), 1)


def test_easyrec_waits_for_everybody_from_the_first_step():
    """R = T = workers, no tokens. One worker is not synchronised."""
    with pytest.raises(InputError, match="several workers, not 1"):
        easyrec(1)
    run = simulate_replicas(ReplicasJob(easyrec(3), delays(3, 1), Exponential(1.0), seed=7), 20)

    assert all([0, 1, 2] == sorted(w for w, _ in entered(run, u)) for u in range(1, 21))
    assert () == run.dropped


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((3, 2, 0), "too few tokens to finish the first step: 0 given, 1 needed"),
        ((0,), "replicas_to_aggregate: an update takes 1 gradient or more"),
        ((2, 0), "total_num_replicas: 1 or more"),
        ((2, 2, -2), "num_tokens: 0 or more, or -1"),
    ],
)
def test_settings_that_upstream_refuses(given, problem):
    with pytest.raises(InputError, match=problem):
        SyncSettings(*given)


def test_every_fault_of_a_job_is_told():
    with pytest.raises(InputError) as caught:
        ReplicasJob(
            SyncSettings(1),
            delays(2, 0),
            (Constant(1.0),),
            slow={5: 0.0},
            dies={0: -1.0},
            update=-1.0,
        )

    assert len(caught.value.problems) == 6
    with pytest.raises(InputError, match="updates: 1 or more"):
        simulate_replicas(job(1, compute=(1.0,)), 0)


# Around an update, accumulators are on their own.


def test_a_gradient_may_be_late_for_one_variable_and_in_time_for_another():
    """Worker 2's gradients take 0 and 1 s, as variable 1 is far from it: variable 0 takes it,
    variable 1 takes worker 1's.
    """
    push = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    network = Delays(np.zeros(3), push, Messages(np.zeros(2), np.zeros(3), np.zeros(2)))
    run = simulate_replicas(job(2, 3, 0, compute=(1.0, 1.25, 1.5), network=network), 1)

    assert [(0, 0), (2, 0)] == entered(run, 1, variable=0)
    assert [(0, 0), (1, 0)] == entered(run, 1, variable=1)
    assert (1.5, 1.25) == run.updates[0].taken
    assert 1.5 == run.updates[0].time

    run = simulate_replicas(job(2, 3, 0, compute=(1.0, 1.25, 1.5), network=network), 2)
    late = {(a.worker, a.variable) for a in run.dropped if a.step == 0}

    assert {(1, 0), (2, 1)} == late


def test_gradients_that_come_while_no_round_is_on_are_all_in_the_next_mean():
    """The chief is away for 10 s after the first update: what all workers send meanwhile is divided
    by 3, not by 2.
    """
    run = simulate_replicas(
        job(2, 3, 3, compute=(1.0, 1.0, 1.5), turn=10.0), 2, constant_gradients([1.0, 2.0, 9.0])
    )

    assert (2,) == run.updates[0].gradients
    assert [(0, 0), (1, 0)] == entered(run, 1)
    assert 3 <= run.updates[1].gradients[0]
    among = [(1.0, 2.0, 9.0)[w] for w, _ in entered(run, 2)]
    assert run.updates[1].weights[0] == pytest.approx(-1.5 - np.mean(among))


def test_delays_add_up_to_the_step():
    """Pull, compute, push, update, report and token, in turn; the chief's route is shorter."""
    network = Delays(
        np.array([0.5]),
        np.array([[0.25]]),
        Messages(np.array([0.125]), np.array([2.0]), np.array([0.0])),
    )
    run = simulate_replicas(job(1, compute=(1.0,), network=network, update=4.0, seed=3), 3)

    first = 0.5 + 1.0 + 0.25 + 4.0 + 0.125
    each = 2.0 + first
    assert [first, first + each, first + 2 * each] == [u.time for u in run.updates]


def test_a_moving_average_follows_the_variable():
    values = VariableValues((np.array(8.0),), lambda _: np.array(1.0), decay=0.75)
    run = simulate_replicas(job(1, compute=(1.0,)), 2, values)

    assert [7.0, 6.0] == [u.weights[0] for u in run.updates]
    assert [7.75, 7.3125] == [u.averages[0] for u in run.updates]


def test_a_moving_average_may_warm_up():
    """As ExponentialMovingAverage with num_updates: after update n its decay is (1 + n) / (10 + n),
    until that is the greater.
    """
    values = VariableValues((np.array(8.0),), lambda _: np.array(1.0), decay=0.2, warm_up=True)
    run = simulate_replicas(job(1, compute=(1.0,)), 2, values)
    first = 8.0 - (1.0 - 2 / 11) * 1.0

    assert [pytest.approx(first), pytest.approx(first - 0.8 * (first - 6.0))] == [
        float(u.averages[0]) for u in run.updates
    ]


def test_gradients_may_depend_on_what_was_read():
    """A worker reads before its step: the second, whose token is old, has read the weight of its
    beginning.
    """
    read = []

    def gradient(asked):
        read.append((asked.worker, asked.local_step, float(asked.read)))
        return asked.read

    simulate_replicas(
        job(1, 2, 0, compute=(1.0, 1.5)), 3, VariableValues((np.array(16.0),), gradient, rate=0.5)
    )

    assert (0, 0, 16.0) == read[0]
    assert (1, 0, 16.0) == read[1]
    assert (0, 1, 8.0) in read


def test_sparse_gradients_are_means_unless_faithful():
    """Row 0 has a gradient of worker 0 alone: upstream moves it as far as if both had it."""
    rows = {0: Slices((0, 1), np.array([2.0, 2.0])), 1: Slices((1,), np.array([4.0]))}
    values = VariableValues((np.zeros(2),), lambda asked: rows[asked.worker], sparse=frozenset([0]))
    intended = simulate_replicas(job(2, compute=(1.0, 1.0)), 1, values)
    upstream = simulate_replicas(job(2, 2, 0, True, compute=(1.0, 1.0)), 1, values)

    assert [-1.0, -3.0] == intended.updates[0].weights[0].tolist()
    assert [-2.0, -3.0] == upstream.updates[0].weights[0].tolist()


# Failures.


def test_a_dead_backup_costs_nothing_but_its_gradients():
    """Worker 2 dies at 2.5 s; two of three are enough."""
    compute = (1.0, 1.0, 1.0)
    run = simulate_replicas(job(2, 3, 0, compute=compute, dies={2: 2.5}), 6)

    assert "" == run.blocked
    assert 2 == max(a.step for a in run.arrivals if a.worker == 2) + 1
    assert all(a.time < 2.5 for a in run.arrivals if a.worker == 2)


def test_without_enough_workers_training_blocks_and_says_why():
    run = simulate_replicas(job(2, compute=(1.0, 1.0), dies={1: 2.5}), 6)

    assert 2 == len(run.updates)
    assert (
        "update 3 is never made; variable 0 has 1 of the 2 gradients it needs; 1 workers wait for "
        "a token; dead: 1" == run.blocked
    )


def test_the_token_of_a_worker_that_dies_waiting_goes_to_another():
    """Who then sends two gradients to every update: training goes on without it. One that dies
    computing takes its token along.
    """
    run = simulate_replicas(job(2, compute=(1.0, 0.5), dies={1: 0.75}), 4)

    assert "" == run.blocked
    assert [(1, 0), (0, 0)] == entered(run, 1)
    assert [(0, 1), (0, 2)] == entered(run, 2)


def test_without_the_chief_no_update_is_made():
    run = simulate_replicas(job(1, 2, 0, compute=(1.0, 1.0), dies={0: 1.5}), 6)

    assert 1 == len(run.updates)
    assert "the chief, worker 0, is dead" in run.blocked


def test_what_is_on_its_way_when_a_worker_dies_is_lost():
    network = delays(2, 1, push=1.0)
    run = simulate_replicas(job(1, 2, 0, compute=(5.0, 1.0), dies={1: 1.5}, network=network), 1)

    assert [(0, 0)] == entered(run, 1)


def test_a_worker_that_comes_back_begins_at_the_global_step():
    """Worker 1 dies in its third step, after update 2. What it needs to go on is no token: there is
    again one for everybody.
    """
    run = simulate_replicas(job(2, compute=(1.0, 1.0), dies={1: 2.5}, returns={1: 5.0}), 5)
    back = [
        (a.time, a.step, a.local_step, a.update)
        for a in run.arrivals
        if a.worker == 1 and a.time > 2.5
    ]

    assert [1.0, 2.0, 6.0, 7.0, 8.0] == [u.time for u in run.updates]
    assert [(6.0, 3, 2, 3), (7.0, 4, 3, 4), (8.0, 5, 4, 5)] == back


def test_what_a_worker_computes_before_it_notices_is_dropped():
    """It is back at step 2, and when its gradient comes 3 s later others have made updates 3, 4 and
    5.
    """
    run = simulate_replicas(job(1, 2, 0, compute=(1.0, 3.0), dies={1: 0.5}, returns={1: 2.5}), 7)
    first = next(a for a in run.arrivals if a.worker == 1)

    assert (5.5, 2, 0) == (first.time, first.local_step, first.update)


def test_a_worker_that_comes_back_does_not_answer_for_what_it_had_asked():
    """Worker 1 dies waiting for a token, before which it is back: the two that come after update 1
    are for both workers.
    """
    run = simulate_replicas(job(2, compute=(2.0, 0.5), dies={1: 0.75}, returns={1: 1.0}), 3)

    assert [(1, 0), (1, 1)] == entered(run, 1)  # its first gradient was there before it died
    assert 1.5 == run.updates[0].time


def test_a_chief_that_comes_back_begins_a_round():
    """Nothing is updated meanwhile. Accumulators keep what came, which is taken at once."""
    run = simulate_replicas(job(1, 2, 0, compute=(1.0, 1.0), dies={0: 3.5}, returns={0: 6.25}), 5)

    assert [1.0, 2.0, 3.0, 6.25, 7.25] == [u.time for u in run.updates]
    assert [(1, 3)] == entered(run, 4)


def test_a_chief_that_comes_back_puts_out_the_initial_tokens_again():
    """Worker 1 waits since 4 s for a token of update 3. It gets one of step 2, and what it then
    sends is dropped.
    """
    run = simulate_replicas(job(2, 2, 2, compute=(1.0, 1.0), dies={0: 3.5}, returns={0: 6.25}), 3)

    assert [1.0, 3.0, 7.25] == [u.time for u in run.updates]
    assert [(1, 3), (0, 4)] == entered(run, 3)
    assert (7.25, 1, 2, 0) == [(a.time, a.worker, a.local_step, a.update) for a in run.arrivals][-1]


def test_a_round_that_the_chief_did_not_end_is_made_again():
    """Variable 0 is updated, variable 1 not, when it dies. Back, it sets both accumulators to the
    global step.
    """
    push = np.array([[0.0, 1.0], [0.0, 1.0]])
    network = Delays(np.zeros(2), push, Messages(np.zeros(2), np.zeros(2), np.zeros(2)))
    question = job(1, 2, 0, compute=(1.0, 1.25), network=network, dies={0: 1.5}, returns={0: 4.0})
    run = simulate_replicas(question, 2, constant_gradients([1.0, 10.0], variables=2))

    # Variable 0 took worker 0's gradient at 1 s, and holds worker 1's, dropped then. Variable 1 got
    # worker 1's at 2.25 s.
    assert [(1.25, 1, 0, 0), (2.25, 1, 1, 1)] == [
        (a.time, a.worker, a.variable, a.update) for a in run.arrivals if 1.0 < a.time < 4.0
    ]
    first = run.updates[0]
    assert (5.0, (5.0, 4.0)) == (first.time, first.taken)
    assert [-2.0, -10.0] == list(first.weights)


# Invariants.


@given(
    st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), st.integers(0, 99)
)
@settings(max_examples=examples(60))
def test_what_every_run_obeys(workers, required, variables, more, seed):
    """Means are of what entered, nobody enters late, and there is a token for every step but the
    first.
    """
    times = Empirical((0.5, 1.0, 1.0, 1.5))
    tokens = max(required - workers, 0) + more
    setting = SyncSettings(required, workers, tokens)
    question = ReplicasJob(
        setting, delays(workers, variables, 0.25, 0.125, 0.0625), times, seed=seed
    )
    run = simulate_replicas(
        question, 5, constant_gradients(range(1, workers + 1), variables, rate=1.0)
    )

    assert 5 == len(run.updates)
    for update in run.updates:
        for v in range(variables):
            there = entered(run, update.number, v)
            assert update.gradients[v] == len(there) >= required
            before = run.updates[update.number - 2].weights[v] if update.number > 1 else 0.0
            mean = np.mean([w + 1.0 for w, _ in there])
            assert update.weights[v] == pytest.approx(before - mean)
    assert all(a.local_step >= a.update - 1 for a in run.arrivals if a.update)
    taken = sum(step.step > 0 for step in run.steps)
    assert taken <= tokens + 5 * setting.tokens_per_step
    assert run == simulate_replicas(
        question, 5, constant_gradients(range(1, workers + 1), variables, rate=1.0)
    )


@st.composite
def lives(draw):
    """Jobs with workers that die and come back; the chief stays, as what a round without end took
    is taken twice.
    """
    workers, variables = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    required = draw(st.integers(1, workers))
    dies = draw(
        st.dictionaries(
            st.integers(1, workers - 1), st.sampled_from([0.0, 1.0, 1.75, 3.5]), max_size=3
        )
    )
    returns = {w: at + 2.25 for w, at in dies.items() if draw(st.booleans())}
    network = draw(
        st.sampled_from(
            [
                delays(workers, variables),
                port_delays(workers, range(1, variables + 1), 4.0, 0.125),
            ]
        )
    )
    return ReplicasJob(
        SyncSettings(required, workers, draw(st.sampled_from([None, -1]))),
        network,
        Empirical((0.5, 1.0, 1.0, 1.5)),
        slow={workers - 1: draw(st.sampled_from([1.0, 3.0]))},
        dies=dies,
        returns=returns,
        turn=draw(st.sampled_from([0.0, 2.0])),
        seed=draw(st.integers(0, 99)),
    )


@given(lives())
@settings(max_examples=examples(100))
def test_every_gradient_that_is_computed_is_somewhere(question):
    """In a mean, in an accumulator, dropped, or under way: of the step that a worker has begun
    last, or in which it died. So gradients of steps that are over are variables times steps.
    """
    run = simulate_replicas(question, 6)
    made, variables = len(run.updates), range(question.variables)
    arrived = Counter((a.worker, a.step) for a in run.arrivals)
    over = Counter((step.worker, step.step) for step in run.steps)

    assert len(run.arrivals) == len({(a.worker, a.step, a.variable) for a in run.arrivals})
    assert all(arrived[step] == len(variables) for step in over)
    for w in range(question.workers):
        lost = [step for step in arrived if step[0] == w and step not in over]
        cut = [step for step in run.unfinished if step.worker == w]
        assert {(step.worker, step.step) for step in cut} >= set(lost)
        assert len(cut) <= 1 + (w in question.dies)
        for step in cut:
            death = question.dies.get(
                w, inf
            )  # it may have died between two steps, and begun one since
            gone = min(death, run.seconds) if step.begun <= death else run.seconds
            assert step.begun <= step.read <= step.computed <= step.asked
            assert run.blocked or step.asked <= gone
    for v in variables:
        mine = [a for a in run.arrivals if a.variable == v]
        means = sum(update.gradients[v] for update in run.updates)
        held = sum(
            a.update > made for a in mine
        )  # taken for an update that not all variables have yet, or not yet
        assert len(mine) == means + held + sum(not a.update for a in mine)
        assert [len(entered(run, u.number, v)) for u in run.updates] == [
            u.gradients[v] for u in run.updates
        ]
