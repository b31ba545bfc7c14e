"""Links of known rate, without a kernel: what is read, the machine that is simulated, and the
switch in virtual time.
"""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given, strategies as st
from simreduce_validate.running.links import SMALL, Links, read_links
from simreduce_validate.running.shaping import segments, shaping, tcp_settings
from simreduce_validate.running.switch import Switch

import simreduce as sr
from simreduce.errors import InputError
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.workload import Gradient, Workload

MBIT = 1e6 / 8


def test_links_are_read_as_tc_and_we_write_them():
    found = read_links("switch:4", "200mbit", "5ms", ("2=0.1 Gbit/s",))

    assert Links(4, 200 * MBIT, 5e-3, {2: 100 * MBIT}) == found
    assert (
        read_links("switch:4", "25 MB/s")
        == read_links("switch:4", "200Mbit")
        == Links(4, 200 * MBIT)
    )
    assert "4 ports of 200 Mbit/s, port 2 100 Mbit/s, 5 ms" in found.text


def test_every_fault_is_told_at_once():
    with pytest.raises(InputError) as error:
        read_links("ring:4", "200", "5", ("x", "1=2mbit", "1=3mbit", "70=2mbit", "3=1kbit"))
    text = "\n".join(error.value.problems)

    assert 7 == len(error.value.problems)
    for part in ("ring:4: ", "'200' has no unit", "'5' has no unit", "--slow-port x: ",
    "port 1 is given twice",
                 "--slow-port 70: there is no such port; choose from 0 to 63",
                 "--slow-port 3: 0.001 Mbit/s"):  # fmt: skip
        assert part in text
    with pytest.raises(InputError, match="--rate is missing"):
        read_links("switch:4", None)
    with pytest.raises(InputError, match="1 ports: 2 to 64"):
        read_links("switch:1", "1mbit")


def test_headers_are_accounted_for():
    assert 200 * MBIT * 1448 / 1514 == pytest.approx(Links(2, 200 * MBIT).goodput(0))
    assert 200 * MBIT * 8948 / 9000 == pytest.approx(Links(2, 200 * MBIT, 1e-3).goodput(0))


def simulated(links, text, nbytes):
    workload = Workload("w", (Gradient("g", nbytes // 4),))
    plan = compile_plan(text, workload, links.layout())
    return sr.simulate(plan, links.machine(), "tensorflow").seconds


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_ring_takes_what_the_ports_carry(n):
    """2(n-1)/n of the bytes through every port, and 2(n-1) delays."""
    links = Links(n, 200 * MBIT, 5e-3)
    nbytes = n << 20

    assert simulated(links, "ring", nbytes) == pytest.approx(
        2 * (n - 1) * ((nbytes / n) / links.goodput(0) + 5e-3)
    )


def test_a_slow_port_is_in_the_machine_and_in_the_planners_network():
    links = Links(4, 200 * MBIT, slow={2: 50 * MBIT})
    rates = {link.name: link.bandwidth for link in links.machine().links}

    assert rates["worker2>switch0"] == rates["switch0>worker2"] == links.goodput(2)
    assert rates["worker1>switch0"] == links.goodput(1) == pytest.approx(4 * links.goodput(2))
    assert {links.goodput(0), links.goodput(2)} == {
        rate for _, _, rate in links.layout().network().arcs
    }
    assert simulated(links, "ring", 4 << 20) == pytest.approx(6 * (1 << 20) / links.goodput(2))


def test_workers_send_to_several_at_once():
    """They are CPUs of machines of their own: only the shared port limits them."""
    links = Links(4, 200 * MBIT)

    assert simulated(links, "direct", 4 << 20) == pytest.approx(6 * (1 << 20) / links.goodput(0))


def test_queues_hold_all_that_sockets_send():
    """So that nothing is lost: one queue for each pair, at least as long as what a connection may
    have on its way.
    """
    links = Links(5, 200 * MBIT, slow={1: 20 * MBIT})
    lines = shaping(links, 1, "eth0", "dst")
    limits = [
        int(line.split()[-1]) for line in lines if "bfifo" in line and "handle 2:" not in line
    ]
    room = int(tcp_settings(links)["tcp_wmem"].split()[-1])

    assert 4 == len(limits)
    assert min(limits) >= 2 * room
    assert all("20000000bit" in line for line in lines if "class add" in line)
    assert {f"10.77.7.{i}/32" for i in (1, 3, 4, 5)} == {
        line.split()[-3] for line in lines if "ip dst" in line
    }


@pytest.mark.parametrize(
    ("mbit", "seconds"), [(20, 4e-3), (200, 0.4e-3), (1000, 0.25e-3), (5000, 0.25e-3)]
)
def test_what_is_shaped_at_once_neither_delays_nor_is_more_than_the_kernel_takes(mbit, seconds):
    links = Links(2, mbit * MBIT)
    count = segments(links)

    assert 6 <= count <= 65536 // links.mtu
    assert count * links.mtu / links.rate <= seconds


def through(rates, delay, packets):
    """When packets arrive: (source, target, bytes, sent) each, through a switch that is looked at
    only now and then.
    """
    arrived, now = [], [0.0]
    switch = Switch(rates, delay, lambda target, packet: arrived.append((now[0], target, packet)))
    events = [(sent, 0, place) for place, (_, _, _, sent) in enumerate(packets)]
    heapq.heapify(events)
    due = float("inf")
    while events or due < float("inf"):
        now[0] = min(due, events[0][0] if events else float("inf"))
        switch.advance(now[0])
        while events and events[0][0] <= now[0]:
            _, _, place = heapq.heappop(events)
            source, target, size, _ = packets[place]
            switch.send(now[0], source, target, place.to_bytes(4, "big") + bytes(size - 4))
        due = switch.advance(now[0])
    found = {int.from_bytes(packet[:4], "big"): (when, target) for when, target, packet in arrived}
    return [found[place] for place in range(len(packets))]


@pytest.mark.parametrize(("rates"), [(1e6, 5e5), (5e5, 1e6), (5e5, 5e5)])
@pytest.mark.parametrize("delay", [0.0, 1e-4, 0.01])
def test_a_packet_takes_the_slower_port_and_the_delay(rates, delay):
    """As bytes that flow do; several packets take the slower port one after another."""
    ((when, target),) = through(rates, delay, [(0, 1, 1000, 0.0)])
    several = through(rates, delay, [(0, 1, 1000, 0.0)] * 10)

    assert (pytest.approx(delay + 2e-3), 1) == (when, target)
    assert pytest.approx(delay + 20e-3) == several[-1][0]


def test_small_packets_pass_all_others():
    packets = [(0, 1, 1000, 0.0)] * 20 + [(0, 1, 52, 0.0)]

    assert pytest.approx(0.01) == through([1e6, 1e6], 0.01, packets)[-1][0]


def test_pairs_share_a_port_fairly_however_much_they_send():
    """Ten packets come after ninety of another pair: they need not wait for those."""
    packets = [(0, 2, 1000, 0.0)] * 90 + [(1, 2, 1000, 0.0)] * 10
    found = [when for when, _ in through([1e6] * 3, 0.0, packets)]

    assert max(found[90:]) == pytest.approx(21e-3, abs=2e-3)
    assert max(found) == pytest.approx(100e-3, abs=1e-3)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 2), st.integers(SMALL, 1500), st.floats(0, 0.05)
        ),
        max_size=40,
    )
)
def test_no_port_carries_more_than_its_rate_and_nothing_is_lost(packets):
    rates, delay = [1e5, 2e5, 4e5], 1e-3
    found = through(rates, delay, packets)

    for (source, target, size, sent), (when, at) in zip(packets, found, strict=True):
        assert at == target
        assert when >= sent + delay + size / min(rates[source], rates[target]) - 1e-12
    for port, rate in enumerate(rates):
        came = sorted(
            (when, size)
            for (_, target, size, _), (when, _) in zip(packets, found, strict=True)
            if target == port
        )
        for (first, _), (last, _), between in _runs(came):
            assert between <= rate * (last - first) + 1e-6


def _runs(came):
    """Every stretch of arrivals: the first, the last, and the bytes after the first."""
    for i in range(len(came)):
        between = 0
        for j in range(i + 1, len(came)):
            between += came[j][1]
            yield came[i], came[j], between
