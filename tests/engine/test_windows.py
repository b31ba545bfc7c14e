"""Connections over a network keep a window of bytes on their way: at most a window a round trip."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simreduce.engine import lowering
from simreduce.engine.runtime import Software
from simreduce.engine.setup import Setup
from simreduce.planners.nccl import Settings
from simreduce.planners.strategy import parse_strategy
from simreduce.testing import cable, machine, node
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload

MIB = 1 << 20


def setup_of(delay, machines=2, **settings):
    """Hosts with one GPU and one NIC, `delay` us of one switch apart."""
    topology = load_topology(f"switch:{machines},bandwidth=50GB/s,latency={delay}us")
    return Setup(topology, "nccl", nccl=Settings(**settings))


def seconds(setup, nbytes, how="ring+simple+channels=1"):
    """Of an all-reduce."""
    return setup.simulate(setup.compile(f"nccl:{how}", f"bytes:{nbytes}")).seconds


def trip(setup, delay, protocol):
    """Seconds there and back, with the software once."""
    return 2 * delay * 1e-6 + setup.constants.nccl.latency["net", protocol]


@pytest.mark.parametrize("mib", [1, 4, 16])
@pytest.mark.parametrize(("machines", "channels"), [(2, 1), (2, 2), (4, 2)])
def test_a_channel_moves_its_buffer_a_round_trip(mib, machines, channels):
    """(T - W) R/W at least and few steps more, where a channel sends T = 2 (n-1)/n S/k bytes."""
    nbytes = 64 * mib * channels * MIB
    setup = setup_of(1000, machines, buffer=mib * MIB)
    sent = 2 * (machines - 1) / machines * nbytes / channels
    least = (sent / (mib * MIB) - 1) * trip(setup, 1000, "simple")

    assert least < seconds(setup, nbytes, f"ring+simple+channels={channels}") < 1.15 * least


@pytest.mark.parametrize(
    ("protocol", "window"), [("ll", 256 << 10), ("ll128", 120 * 640 * 64 * 15 // 16)]
)
def test_protocols_have_buffers_of_their_own(protocol, window):
    """LL 512 KiB with flags, LL128 4.7 MiB (NVIDIA/nccl src/init.cc)."""
    setup, nbytes = setup_of(1000), 64 * window
    least = 63 * trip(setup, 1000, protocol)

    assert least < seconds(setup, nbytes, f"ring+{protocol}+channels=1") < 1.15 * least


def test_a_tree_has_eight_chunks_on_its_way():
    """Chunks of 512 KiB fill the buffer, and a fourth of them a fourth of it."""
    whole, part = (
        seconds(setup_of(1000), nbytes, "tree+simple+channels=1") for nbytes in (64 * MIB, 2 * MIB)
    )
    assert 15 * 2e-3 < whole < 1.2 * 17 * 2e-3
    assert part < 4 * 2e-3


def test_sites_1_ms_apart_keep_a_tenth_of_their_rate():
    """Four hosts with 8 NICs of 400 Gbit/s reach 380 GB/s over short cables. 16 channels of 4 MiB
    a round trip of 2 ms move 33.5, those of 1 MiB a quarter of that, of 16 MiB four times as much.
    """
    topology = load_topology("dgx-h100x4,fabric=fat_tree,radix=2,switch_latency=500us")
    rates, nbytes = [], 1 << 32
    for mib in (1, 4, 16):
        setup = Setup(topology, "nccl", nccl=Settings(buffer=mib * MIB))
        rates.append(2 * 31 / 32 * nbytes / seconds(setup, nbytes, "ring"))

    assert [16 * mib * MIB / 2.002e-3 for mib in (1, 4, 16)] == pytest.approx(rates, rel=0.02)


@pytest.mark.parametrize(("delay", "nbytes"), [(1000, 4 * MIB), (2, 1 << 30)])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_no_window_binds_short_links_or_what_fits_into_it(monkeypatch, algorithm, delay, nbytes):
    """Equal to the bit without any window."""
    setup, how = setup_of(delay), f"{algorithm}+simple+channels=1"
    found = seconds(setup, nbytes, how)
    monkeypatch.setattr(lowering, "limit_by_windows", lambda calls, *_: calls)

    assert found == seconds(setup, nbytes, how)


def test_each_collective_has_a_window_of_its_own(monkeypatch):
    """Ten tensors of 2 MiB, one after another: none waits, to the bit."""
    setup = setup_of(1000)
    tensors = Workload("ten", tuple(Gradient(f"tensor{i}", MIB // 2) for i in range(10)))
    plan = setup.compile("nccl:ring+simple+channels=1", tensors)
    found = setup.simulate(plan).seconds
    monkeypatch.setattr(lowering, "limit_by_windows", lambda calls, *_: calls)

    assert found == setup.simulate(plan).seconds


def test_a_socket_of_linux_keeps_half_of_its_buffer_on_the_way():
    """tcp_rmem is 6 MiB, and half of it data: 3 MiB a round trip, whatever NCCL's buffer."""
    hosts = [node(f"gpu{i}", machine=str(i)) for i in range(2)]
    cables = [
        cable(f"gpu{i}", "switch0", 50e9, 1e-3, holds=False, link_class="tcp_400") for i in range(2)
    ]
    setup = Setup(machine(*hosts, *cables), "nccl", nccl=Settings(buffer=8 * MIB))
    least = (512 - 3) / 3 * trip(setup, 2000, "simple")

    assert least < seconds(setup, 512 * MIB) < 1.1 * least


@pytest.mark.parametrize(("machines", "beyond"), [(4, 0), (9, 0), (10, 1), (17, 8)])
@pytest.mark.parametrize("protocol", ["ll", "ll128"])
def test_the_first_eight_messages_of_a_ring_find_the_thread_idle(protocol, machines, beyond):
    """An all-gather's n - 1 messages over Slingshot; each beyond the eighth waits 8 us for those
    before it.
    """
    hosts = [node(f"gpu{i}", machine=str(i)) for i in range(machines)]
    cables = [
        cable(f"gpu{i}", "switch0", 25e9, 1e-6, holds=False, link_class="slingshot11")
        for i in range(machines)
    ]
    topology = machine(*hosts, *cables)
    how = parse_strategy(f"nccl:ring+{protocol}+channels=1", "all_gather")
    found = []
    for message in (8e-6, 0.0):
        software = {"slingshot": Software(message, 0.7e9)}
        setup = Setup(topology, "nccl")
        nccl = replace(setup.constants.nccl, software=software)
        setup = setup.but(calibration=replace(setup.calibration, nccl=nccl))
        workload = Workload("one", (Gradient("tensor", 16 * machines),))
        found.append(setup.simulate(setup.compile(how, workload)).seconds)

    assert found[0] - found[1] == pytest.approx(8e-6 * beyond, abs=1e-12)
