"""Variables and gradients as flows on a machine's links."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine import (
    IDEAL,
    TENSORFLOW,
    Calibration,
    Disturbance,
    Fault,
    LinkConstants,
    Processor,
)
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.testing import cable, machine, node
from simreduce.topology import load_topology
from simreduce.training.distributions import Constant, Uniform
from simreduce.training.replicas import ReplicasJob, SyncSettings
from simreduce.training.replicas.network import Delays, LinkNetwork, delays, port_delays
from simreduce.training.replicas.processes import simulate_replicas
from tests.thorough import examples
from tests.training.small import entered

MB = 1_000_000
RATE = 1e9  # bytes/s of `STAR` and `FULL`
FULL = load_topology("full:8,bandwidth=1GB/s,latency=10us")
STAR = load_topology("switch:8,bandwidth=1GB/s,latency=10us")
LATENCY = 10e-6


def gpus(*numbers):
    return tuple(f"gpu{i}" for i in numbers)


def flows(topology, workers, servers, *nbytes, **rest):
    setup = Setup(topology, **{"runtime": IDEAL, **rest})
    return LinkNetwork(setup, gpus(*range(workers)), gpus(*servers), nbytes)


def but(network, **changes):
    return replace(network, setup=network.setup.but(**changes))


@given(
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from([IDEAL, TENSORFLOW]),
    st.integers(0, 50),
)
@settings(max_examples=examples(250))
def test_flows_and_delays_agree_where_nothing_contends(workers, variables, spare, runtime, seed):
    """Every pair has links of its own: the same gradients enter the same updates, at the same
    times.
    """
    sizes = [MB, 3 * MB, 0][:variables]
    network = flows(FULL, workers, range(5, 5 + variables), *sizes, runtime=runtime)
    setting = SyncSettings(max(workers - spare, 1), workers)
    shared = ReplicasJob(setting, network, Uniform(0.01, 0.02), update=1e-3, seed=seed)
    one, other = (
        simulate_replicas(shared, 5),
        simulate_replicas(replace(shared, network=network.uncontended), 5),
    )

    assert [(a.worker, a.step, a.variable, a.update) for a in other.arrivals] == [
        (a.worker, a.step, a.variable, a.update) for a in one.arrivals
    ]
    assert [a.time for a in other.arrivals] == pytest.approx(
        [a.time for a in one.arrivals], rel=1e-12
    )
    assert [u.time for u in other.updates] == pytest.approx(
        [u.time for u in one.updates], rel=1e-12
    )


@pytest.mark.parametrize(("cache", "seconds"), [(0, 4.0), (800, 2.0), (1600, 1.0)])
def test_transfers_have_the_cache_of_a_step(cache, seconds):
    """400 bytes of a variable, as many of its gradient, and both once more where they are sent:
    1600. A core alone takes 1 s to move 400, and memory 4 s.
    """
    one_machine = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 1e9))
    calibration = Calibration(
        "here", cpu=Processor(rates={"copy": 400.0}, cache=cache, memory=100.0)
    )
    network = LinkNetwork(Setup(one_machine, calibration=calibration), ("cpu0",), ("cpu1",), (400,))

    assert network.working_set == {"0": 1600.0}
    assert network.uncontended.pull.tolist() == pytest.approx([seconds])
    assert network.uncontended.push.tolist() == [pytest.approx([seconds])]


@given(
    st.sampled_from([IDEAL, TENSORFLOW]),
    st.lists(st.sampled_from([0, MB, 3 * MB]), min_size=1, max_size=6),
    st.data(),
)
@settings(max_examples=examples(250))
def test_a_worker_shares_its_links_with_itself(runtime, sizes, data):
    """Of one worker, flows are what delays say, though several variables take the same way: there
    is nobody else.
    """
    servers = data.draw(
        st.lists(st.sampled_from([0, 5, 6]), min_size=len(sizes), max_size=len(sizes))
    )
    network = flows(STAR, 1, servers, *sizes, runtime=runtime)
    job = ReplicasJob(SyncSettings(1), network, Uniform(0.01, 0.02))
    one, other = (
        simulate_replicas(job, 4),
        simulate_replicas(replace(job, network=network.uncontended), 4),
    )

    assert [u.time for u in other.updates] == pytest.approx(
        [u.time for u in one.updates], rel=1e-12
    )
    away = sum(size for size, server in zip(sizes, servers, strict=True) if server)
    assert network.uncontended.pull[0] >= away / RATE
    assert network.uncontended.push[0].max() >= away / RATE


def test_a_port_is_that_of_the_machine():
    """What the table of a scenario says with a rate is what a switch with that rate has, for one
    worker.
    """
    sizes = (3 * MB, MB, 0, 2 * MB, MB)
    alone = flows(STAR, 1, [7] * 5, *sizes).uncontended
    table = port_delays(1, sizes, RATE, LATENCY)

    assert table.push == pytest.approx(alone.push)
    assert table.pull == pytest.approx(alone.pull)
    assert [LATENCY + mb * MB / RATE for mb in (7, 4, 0, 6, 4)] == pytest.approx(table.push[0])


def test_what_a_transfer_takes_alone():
    """Latency and bytes; messages have no bytes; what is at home takes nothing; a calibration's
    figures count.
    """
    network = flows(FULL, 2, (7, 0), MB, 2 * MB)
    alone = network.uncontended
    one, two = LATENCY + MB / RATE, LATENCY + 2 * MB / RATE

    assert alone.pull == pytest.approx([one, two])
    assert alone.push.ravel() == pytest.approx([one, 0.0, one, two])
    assert alone.messages.report == pytest.approx([0.0, LATENCY])
    assert alone.messages.token == pytest.approx([LATENCY, LATENCY])
    assert alone.messages.again == pytest.approx([2 * LATENCY, LATENCY])
    link = FULL.links[0].link_class
    slower = Calibration("slower", links={link: LinkConstants(bandwidth=RATE / 2, latency=1e-3)})
    assert but(network, calibration=slower).uncontended.push[0, 0] == pytest.approx(
        1e-3 + 2 * MB / RATE
    )


def test_the_incast_of_a_parameter_server():
    """Seven gradients share one link into the server, and seven copies of the variable the one out
    of it: seven times as long as one.
    """
    network = flows(STAR, 7, (7,), MB)
    run = simulate_replicas(ReplicasJob(SyncSettings(7), network, Constant(0.1)), 2)
    incast = LATENCY + 7 * MB / RATE

    assert run.updates[0].time == pytest.approx(2 * incast + 0.1)
    assert run.updates[1].time - run.updates[0].time == pytest.approx(2 * incast + 0.1 + LATENCY)


def test_stale_gradients_take_bandwidth_too():
    """A backup's gradient is dropped, but it has been sent: while it is under way, another one has
    half of the link.

    Worker 1's 100 MB (0.1 s) leave at 1.0 s. Worker 0's leave at 1.0 s too and are in at 1.2 s,
    when both are, with half of the link each.
    """
    network = flows(STAR, 2, (7,), 100 * MB)
    run = simulate_replicas(ReplicasJob(SyncSettings(1, 2), network, Constant(1.0)), 1)
    alone = simulate_replicas(
        ReplicasJob(SyncSettings(1), replace(network, workers=gpus(0)), Constant(1.0)), 1
    )

    assert run.updates[0].time == pytest.approx(alone.updates[0].time + 0.2, abs=1e-4)


def test_a_link_that_fails_mid_step_delays_a_worker_and_its_backup_steps_in():
    """The first gradient of worker 2 is cut off half-way, for 1 s. Without a backup all wait; with
    one nobody does.
    """
    cut = Disturbance(faults=(Fault(0.15, "gpu2", 0.0), Fault(1.15, "gpu2")))
    network = flows(FULL, 3, (7,), 100 * MB)  # 0.1 s
    calm = simulate_replicas(ReplicasJob(SyncSettings(3), network, Constant(0.0)), 1)
    waits = simulate_replicas(
        ReplicasJob(SyncSettings(3), but(network, disturbance=cut), Constant(0.0)), 1
    )
    backup = simulate_replicas(
        ReplicasJob(SyncSettings(2, 3), but(network, disturbance=cut), Constant(0.0)), 1
    )

    assert calm.updates[0].time == pytest.approx(0.2, abs=1e-4)
    assert waits.updates[0].time == pytest.approx(1.2, abs=1e-4)
    assert backup.updates[0].time == pytest.approx(0.2, abs=1e-4)
    assert [(0, 0), (1, 0)] == entered(backup, 1)


def test_a_link_that_stays_cut_blocks_training_unless_there_is_a_backup():
    cut = Disturbance(faults=(Fault(0.15, "gpu2", 0.0),))
    network = flows(FULL, 3, (7,), 100 * MB, disturbance=cut)
    blocked = simulate_replicas(ReplicasJob(SyncSettings(3), network, Constant(0.0)), 3)
    backed = simulate_replicas(ReplicasJob(SyncSettings(2, 3), network, Constant(0.0)), 3)

    assert "" == backed.blocked
    assert 3 == len(backed.updates)
    assert "no bandwidth on gpu2>gpu7" in blocked.blocked
    assert "has 2 of the 3 gradients it needs" in blocked.blocked


def test_a_slow_device_is_slow_on_its_links():
    network = flows(FULL, 2, (7,), MB)
    slow = but(network, disturbance=Disturbance(slow={"gpu1": 4.0})).uncontended

    assert slow.push[1, 0] - LATENCY == pytest.approx(
        4 * (network.uncontended.push[1, 0] - LATENCY)
    )
    assert slow.push[0, 0] == pytest.approx(network.uncontended.push[0, 0])


def test_faults_of_a_network_are_all_told():
    with pytest.raises(InputError) as caught:
        LinkNetwork(Setup(STAR, IDEAL), ("gpu0", "gpu9"), ("gpux",), (1, -1))

    assert 4 == len(caught.value.problems)
    assert "no device 'gpu9' (did you mean" in caught.value.problems[0]


def test_plain_delays_are_alike_for_all():
    found = delays(2, 3, 1.0, 2.0, 0.5)

    assert isinstance(found, Delays)
    assert (2, 3) == found.push.shape
    assert (found.push == 2.0).all()
    assert (found.messages.again == 1.0).all()


def test_what_a_worker_had_under_way_when_it_died_ends_beside_what_it_sends_when_it_is_back():
    """Worker 0 dies as it reads, which takes 10 ms, and is back 6 ms after the beginning: 4 MB of
    the old variable are on their way, and take half of its link for 8 ms.
    """
    network = flows(STAR, 1, (7,), 10 * MB)
    compute, back = 0.005, 0.006
    question = ReplicasJob(
        SyncSettings(1, 2, 0), network, Constant(compute), dies={0: 0.003}, returns={0: back}
    )
    run = simulate_replicas(question, 2)
    alone = LATENCY + 10 * MB / RATE
    first = back + alone + 4 * MB / RATE + compute + alone

    assert [pytest.approx(first), pytest.approx(first + LATENCY + alone + compute + alone)] == [
        a.time for a in run.arrivals
    ]


def test_who_dies_while_a_token_is_on_its_way_reads_no_more():
    """The token is under way for a second: worker 1 dies in it, and worker 0 has the link for
    itself when it reads.
    """
    machine = load_topology("switch:3,bandwidth=1GB/s,latency=1s")
    network = flows(machine, 2, (2,), 1000 * MB)
    job = ReplicasJob(SyncSettings(1, 2), network, Constant(1.0))
    begun = next(s.begun for s in simulate_replicas(job, 3).steps if (s.worker, s.step) == (1, 1))
    run = simulate_replicas(replace(job, dies={1: begun - 0.5}), 3)

    reads = [s.read - s.begun for s in run.steps if s.worker == 0 and s.step]
    assert reads == pytest.approx([network.uncontended.pull[0]] * len(reads))
    assert reads
    assert not [s for s in run.unfinished if s.worker == 1]
