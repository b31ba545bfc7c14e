"""NCCL's channel programs: what they sum, which links they load, and how long they take."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from simreduce.engine import TENSORFLOW, Calibration, NcclConstants
from simreduce.engine.runtime import Software
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from simreduce.plan.ops import LAST, count_halvings
from simreduce.planners.algorithms.nccl import switches, tree
from simreduce.planners.algorithms.nccl.paths import rings
from simreduce.planners.layouts import Decision, layout
from simreduce.planners.nccl import Settings
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import seconds_per_call
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload

MIB = 1 << 20
US = 1e-6


def one(elements: int) -> Workload:
    return Workload("one", (Gradient("tensor", elements),))


def sent(machine: str, strategy: str, elements: int) -> Counter[tuple[str, str]]:
    """Elements by sender and receiver."""
    found: Counter[tuple[str, str]] = Counter()
    for source, target, count in Setup(machine).compile(strategy, one(elements)).copies():
        found[source, target] += count
    return found


@pytest.mark.parametrize("elements", [1, 7, 1000, 3 * MIB])
@pytest.mark.parametrize(
    ("machine", "strategy"),
    [
        ("dgx1v", "nccl"),
        ("dgx1v", "nccl:ring+ll128+channels=7"),
        ("dgx1px3", "nccl:ring+simple+channels=8"),
        ("dgx1px3", "nccl:tree+ll+channels=3"),
        ("dgx-a100x2", "nccl:tree+simple+channels=32"),
        ("dgx-h100", "nccl:nvls"),
        ("dgx-h100x3", "nccl:nvlstree+channels=16"),
        ("gb200-nvl72", "nccl:nvls+channels=24"),
        ("switch:5", "nccl:tree+channels=2"),
    ],
)
def test_every_sum_is_right(machine, strategy, elements):
    """With fewer elements than channels too, and with several pieces."""
    assert [] == verify(Setup(machine).compile(strategy, one(elements)))


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_every_gpu_of_a_ring_copies_out_what_it_does_not_send_on(collective):
    """Its last piece, which takes longer than the others; all other pieces go on."""
    setup = Setup("dgx-a100")
    strategy = parse_strategy("nccl:ring+simple+channels=1", collective)
    plan = setup.compile(strategy, one(1 << 15))
    copies = np.flatnonzero(plan.kind == Kind.COPY)
    last = (plan.stream[copies] // len(plan.devices)) & LAST > 0

    assert setup.layout.n == np.count_nonzero(last)
    assert setup.layout.n == len({*plan.device[copies[last]].tolist()})


@pytest.mark.parametrize("elements", [16, 1 << 20])
@pytest.mark.parametrize("machine", ["dgx1v", "dgx-a100x2"])
@pytest.mark.parametrize(
    "collective", ["reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"]
)
def test_every_collective_is_right(collective, machine, elements):
    """From a root that is not the first rank, where there is one."""
    root = 3 if collective in ("broadcast", "reduce") else 0
    assert [] == verify(Setup(machine).compile("nccl", one(elements), collective, root=root))


def test_every_nic_has_a_ring_that_enters_and_leaves_on_one_rail():
    """Two machines with 8 NICs each: 8 ways, and no two leave a machine through the same GPU."""
    shape = layout(load_topology("dgx-h100x2"))
    found = rings(shape, range(16))
    crossing = [
        (a, b)
        for order in found
        for a, b in zip(order, (*order[1:], order[0]), strict=True)
        if a // 8 != b // 8
    ]

    assert 8 == len(found)
    assert Counter(dict.fromkeys(range(16), 1)) == Counter(a for a, _ in crossing)
    assert all(shape.nics[a] == shape.nics[b] for a, b in crossing)


def test_gpus_that_share_a_nic_are_the_ends_of_a_ring_that_has_them_side_by_side():
    """A DGX-1 has 4 NICs, each beside two GPUs. All are entered alike."""
    shape = layout(load_topology("dgx1vx2"))
    found = rings(shape, range(16))
    entered = Counter(shape.nics[order[8]] for order in found)

    assert {3} == set(entered.values())
    assert any(shape.nics[order[0]] == shape.nics[order[7]] for order in found)


def test_four_gpus_have_six_rings():
    """Each arc of the six carries half of a ring's rate."""
    assert 6 == len(set(rings(layout(load_topology("v100-mesh-4")), range(4))))


def test_a_port_of_a_switch_that_sums_carries_the_tensor_and_a_part_of_it():
    """Each way: S (1 + 1/n)."""
    found, elements = sent("dgx-h100", "nccl:nvls", 8000), 8000
    for gpu in range(8):
        out = sum(n for (source, _), n in found.items() if source == f"gpu{gpu}")
        into = sum(n for (_, target), n in found.items() if target == f"gpu{gpu}")
        assert elements * 9 // 8 == out == into


def test_half_of_a_tensor_climbs_each_tree():
    """Between two machines a NIC carries as much as the tensor each way, where a ring needs
    2 (n-1)/n of it.
    """
    crossing = [
        n
        for (source, target), n in sent("dgx-a100x2", "nccl:tree+channels=16", 1600).items()
        if source[:2] != target[:2]
    ]
    assert 2 * 1600 == sum(crossing)


CONSTANTS = NcclConstants(
    launch=10 * US,
    launch_channel=0.0,
    start={"simple": 1 * US, "ll": 2 * US, "ll128": 3 * US},
    channel_rate={"simple": np.inf, "ll": 1e9, "ll128": np.inf},
)


def seconds(strategy: str, nbytes: int, machine: str = "dgx-a100") -> float:
    setup = Setup(machine, TENSORFLOW, Calibration("test", nccl=CONSTANTS))
    return setup.simulate(setup.compile(strategy, one(nbytes // 4))).seconds


@pytest.mark.parametrize(("protocol", "start"), [("simple", 1), ("ll", 2), ("ll128", 3)])
def test_a_small_ring_takes_its_launch_and_the_latency_of_every_step(protocol, start):
    """2 (n-1) steps. By Simple a block pauses in each."""
    pause = CONSTANTS.slice["nvlink"] if protocol == "simple" else 0.0
    steps = 14 * (CONSTANTS.latency["nvlink", protocol] + pause)
    found = seconds(f"nccl:ring+{protocol}+channels=1", 32)
    assert (10 + start) * US + steps == pytest.approx(found, rel=0.01)


def test_every_channel_adds_to_the_launch():
    """7 channels, of one shape or of several; of an all-to-all, 4 for each of 8 peers."""
    more = replace(CONSTANTS, launch_channel=100 * US)
    for strategy, collective, channels in (
        ("nccl:ring+simple+channels=7", "all_reduce", 7),
        ("nccl:tree+simple+channels=7", "all_reduce", 7),
        ("nccl+simple+channels=4", "all_to_all", 32),
    ):
        plan = Setup("dgx-a100").compile(strategy, one(8), collective)
        few, many = (
            Setup("dgx-a100", calibration=Calibration("test", nccl=each)).simulate(plan).seconds
            for each in (CONSTANTS, more)
        )
        assert channels * 100 * US == pytest.approx(many - few)


def test_a_send_fills_a_channel_before_it_takes_another():
    """3 MiB: by NCCL 2.18 2 MiB on one channel and 1 MiB on another, later as much on 4."""
    rates = replace(CONSTANTS, channel_rate={**CONSTANTS.channel_rate, "simple": 1e9})
    setup = Setup("dgx-a100", calibration=Calibration("test", nccl=rates))
    for version, longest in (((2, 18), 2 * MIB), ((2, 19), 3 * MIB / 4)):
        at = replace(setup, nccl=Settings(version=version))
        plan = at.compile("nccl", one(3 * MIB // 4), "send_receive")
        assert [] == verify(plan)
        assert longest / 1e9 == pytest.approx(at.simulate(plan).seconds, rel=0.1)


def test_chunks_of_nvls_wait_for_each_other():
    """4 loops of 32 KiB on 16 channels for 8 heads: each pays the latency before its bytes, and the
    last one the other three stages.
    """
    slow = {**CONSTANTS.latency, ("nvls", "simple"): 1000 * US}
    rates = {**CONSTANTS.channel_rate, "nvls": 10e9}
    known = replace(
        CONSTANTS, latency=slow, channel_rate=rates, start={**CONSTANTS.start, "nvls": 50 * US}
    )
    at = Setup("dgx-h100", calibration=Calibration("test", nccl=known))
    found = at.simulate(at.compile("nccl:nvls+channels=16", one(4 * MIB))).seconds
    assert 60 * US + (4 + 3) * 1000 * US < found
    assert found == pytest.approx(
        60 * US + 7 * 1000 * US + (4 + 1 + 2 / 8) * 4 * MIB / 160e9, rel=0.02
    )


def test_a_large_ring_hides_its_latency():
    """Two slices are under way: what is left are the bytes at the rate of the links, and the time
    in which a block copies out what it received last.
    """
    rate = 12 * 22.5e9 * CONSTANTS.efficiency["nvlink", "simple"]
    bytes_each = (14 + CONSTANTS.copy_out["nvlink"]) / 8 * 256 * MIB
    assert bytes_each / rate == pytest.approx(seconds("nccl:ring+simple", 256 * MIB), rel=0.02)


def test_ll_moves_flags_besides_and_a_channel_has_a_rate_of_its_own():
    """2 channels at 1 GB/s of data each."""
    found = seconds("nccl:ring+ll+channels=2", 64 * MIB)
    assert 2 * 7 / 8 * 64 * MIB / 2e9 == pytest.approx(found, rel=0.02)


def test_a_pair_of_gpus_waits_for_its_last_receives():
    """2 of 2.5 steps send, where a host's memory is between."""
    rate = 24e9 * CONSTANTS.efficiency["shm", "simple"]
    found = seconds("nccl:ring+simple+channels=4", 64 * MIB, "rtx4090-2")
    assert (2 + CONSTANTS.copy_out["shm"]) * 32 * MIB / rate == pytest.approx(found, rel=0.1)


def test_a_tree_pays_more_for_a_hop_over_a_network():
    """Two machines of one GPU: one hop up and one down, as in a ring."""
    machine = "switch:2,bandwidth=1GB/s,latency=4us"
    ring, tree = (seconds(f"nccl:{how}+ll+channels=1", 8, machine) for how in ("ring", "tree"))
    assert 2 * CONSTANTS.join["ll"] == pytest.approx(tree - ring, rel=0.02)


def test_a_small_buffer_costs_more_slices():
    """32 KiB instead of 4 MiB: a slice is 8 KiB, and every GPU of a chain passes 4 KiB on."""
    setup = Setup("dgx-a100", TENSORFLOW, Calibration("test", nccl=CONSTANTS))
    small = replace(setup, nccl=Settings(buffer=1 << 15))
    for collective in ("all_reduce", "broadcast"):
        plans = [
            each.compile("nccl:ring+simple+channels=1", one(MIB), collective)
            for each in (setup, small)
        ]
        few, many = (each.transfers for each in plans)
        assert few < many / 4


def test_a_broadcast_fills_its_chain_once_for_many_calls():
    """On an NVSwitch all rings have one order: a GPU goes on when it has passed its last piece."""
    setup = Setup("dgx-a100", TENSORFLOW, Calibration("test", nccl=CONSTANTS))
    plan = setup.compile("nccl:ring+simple+channels=1", one(MIB), "broadcast")
    result = setup.simulate(plan)
    step = CONSTANTS.latency["nvlink", "simple"]
    step += CONSTANTS.slice["nvlink"]
    step += 2**19 / (270e9 * CONSTANTS.efficiency["nvlink", "simple"])
    for iterations, part in ((0, 1.0), (20, 0.95)):
        fill = result.seconds - seconds_per_call(plan, result, iterations)
        assert 6 * step * part == pytest.approx(fill, rel=0.02)


def test_a_nic_sends_one_chunk_of_ll128_after_another():
    """Each NIC serves two channels. A chunk has the NIC for itself, so that the next machine waits
    for one chunk and not for two that share it.
    """
    few, more = (
        Setup(f"abci-ax{n}").simulate(
            Setup(f"abci-ax{n}").compile("nccl:ring+ll128+channels=8", one(4 * MIB), "broadcast")
        )
        for n in (2, 6)
    )
    share = 600 * 1024 / 9.75e9
    assert share < (more.seconds - few.seconds) / 4 < 2 * share


def test_the_first_pass_of_ll_takes_longer():
    """Once in each step of one channel, whose latencies pass while bytes move."""
    data = 14 * (16384 / 1e9 + CONSTANTS.first_warps)
    found = seconds("nccl:ring+ll+channels=1", 8 * 16384)
    assert 12 * US + CONSTANTS.latency["nvlink", "ll"] + data == pytest.approx(found, rel=0.01)


PART = 14 * 38_400 / 16 / 1e9
"""Seconds of a sixteenth of a chunk by LL128."""


def chain(nbytes: int, machine: str) -> float:
    """Seconds of a broadcast by LL128 on one channel, at 1 GB/s, without its launch."""
    rates, starts = {**CONSTANTS.channel_rate, "ll128": 1e9}, dict.fromkeys(CONSTANTS.start, 0.0)
    constants = replace(CONSTANTS, launch=0.0, start=starts, channel_rate=rates)
    setup = Setup(machine, TENSORFLOW, Calibration("test", nccl=constants))
    plan = setup.compile("nccl:ring+ll128+channels=1", one(nbytes // 4), "broadcast")
    assert [] == verify(plan)
    return setup.simulate(plan).seconds


def test_a_chunk_of_ll128_passes_from_gpu_to_gpu_in_parts():
    """16 parts need 22 turns to come through 7 hops, not 7 times 16."""
    hops = 7 * CONSTANTS.latency["nvlink", "ll128"]
    assert hops + 22 * PART == pytest.approx(chain(14 * 38_400, "dgx-a100"), rel=0.02)


def test_a_network_takes_a_whole_chunk():
    """The NIC waits for the 16th part, and the next machine begins with the first that arrives."""
    hops = 14 * CONSTANTS.latency["nvlink", "ll128"]
    turns = (7 + 15) + (16 + 7)
    assert hops + turns * PART == pytest.approx(chain(14 * 38_400, "dgx-a100x2"), rel=0.02)


def test_pauses_show_where_few_blocks_share_a_link():
    """One block pauses after each of its two slices of each chunk; of 24 others move theirs."""
    pause, rate = 10 * US, 270e9 * CONSTANTS.efficiency["nvlink", "simple"]
    slower = replace(CONSTANTS, slice={**CONSTANTS.slice, "nvlink": pause})
    quick = replace(CONSTANTS, slice={**CONSTANTS.slice, "nvlink": 0.0})
    for blocks, least, most in ((1, 0.95, 1.05), (24, 0.0, 0.3)):
        plan = Setup("dgx-a100").compile(
            f"nccl:ring+simple+channels={blocks}", one(blocks * 2 * MIB), "all_reduce"
        )
        with_pauses, without = (
            Setup("dgx-a100", calibration=Calibration("test", nccl=each)).simulate(plan).seconds
            for each in (slower, quick)
        )
        assert 14 * blocks * MIB / rate < without
        assert least < (with_pauses - without) / (28 * pause) < most


def test_few_threads_pass_a_broadcast_on_slowly():
    """16 KiB for 16 GPUs: 128 threads, two halvings. After the first of 16 parts, which
    comes first over all 15 hops, each byte counts 1 + 3/2 times.
    """
    few = replace(CONSTANTS, few_threads=0.5), replace(CONSTANTS, few_threads=0.0)
    setup = Setup("dgx2")
    plan = setup.compile("nccl:ring+ll+channels=1", one(4096), "broadcast")
    halvings = set(count_halvings(plan.stream[plan.kind == Kind.COPY] // 16).tolist())
    assert {2} == halvings
    slow, quick = (
        setup.but(calibration=Calibration("test", nccl=each)).simulate(plan).seconds for each in few
    )
    first = 1024 / 1e9 + CONSTANTS.first_warps
    parts = (first + 29 * 2.5 * 1024 / 1e9) - (15 * first + 15 * 1024 / 1e9)
    assert slow - quick == pytest.approx(parts, rel=0.02)


def test_messages_of_a_gpu_pass_its_proxy_one_after_another():
    """All four channels of a pair of GPUs: four messages each way for each slice of 16 KiB."""
    machine = "switch:2,bandwidth=1000GB/s,latency=1us"
    slow = replace(CONSTANTS, message=50 * US)
    times = []
    for constants in (CONSTANTS, slow):
        setup = Setup(machine, TENSORFLOW, Calibration("test", nccl=constants))
        times.append(setup.simulate(setup.compile("nccl:ring+ll+channels=4", one(64))).seconds)
    assert 2 * 4 * (slow.message - CONSTANTS.message) == pytest.approx(
        times[1] - times[0], rel=0.01
    )


def test_sums_cost_nothing_besides_the_transfers():
    """They are part of the receive."""
    setup = Setup("dgx-a100")
    result = setup.simulate(setup.compile("nccl:ring+simple", one(1 << 20)))
    adds = result.kind == Kind.ADD
    assert adds.any()
    assert 0.0 == (result.finish - result.start)[adds].max()


def test_nvls_needs_a_switch_that_sums():
    with pytest.raises(StrategyError, match="needs switches that sum"):
        Setup("dgx-a100").compile("nccl:nvls+channels=16+simple", one(8))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ring+ll", "protocols and channels are NCCL's"),
        ("nccl+channels=65", "must be 1 to 64 channels"),
        ("nccl:rings", "well formed"),
    ],
)
def test_what_is_not_nccls_is_refused(text, fault):
    with pytest.raises(StrategyError, match=fault):
        Setup("dgx1v").compile(text, one(8))


@pytest.mark.parametrize(
    ("protocol", "channels", "nbytes", "machines", "local", "chunk"),
    [
        # 64 MiB on 8 channels are 13 chunks of 600 KiB each, and a tree of 540 machines of 4 asks
        # for 166 (10.4 * 64 / 4) down to 128 KiB, then for 41.6 down to 32 KiB.
        ("ll128", 8, 64 * MIB, 540, 4, 72_000),
        ("ll128", 8, 16 * MIB, 540, 4, 36_000),
        ("ll128", 8, 1024 * MIB, 2, 8, 576_000),
        # Depth 7 + 1 = 8: 64 chunks down to 128 KiB, 32 down to 64 KiB, 8 down to 32 KiB.
        ("simple", 16, 1024 * MIB, 2, 8, 1 << 19),
        ("simple", 16, 64 * MIB, 2, 8, 1 << 17),
        ("simple", 16, 16 * MIB, 2, 8, 1 << 16),
        ("simple", 16, 1 * MIB, 2, 8, 1 << 15),
        ("ll", 4, 1 << 14, 2, 8, 1 << 15),
    ],
)
def test_a_chunk_of_a_tree_is_that_of_nccl(protocol, channels, nbytes, machines, local, chunk):
    """NCCL halves a step of its buffer while a tree is not filled."""
    how = Decision("tree", protocol, channels)
    assert chunk == tree.chunk_bytes(how, nbytes, machines, local)


@pytest.mark.parametrize(
    ("nbytes", "machines", "chunk"),
    [
        (1024 * MIB, 1, 1 << 17),
        (512 * MIB, 1, 1 << 16),
        (32 * MIB, 1, 1 << 15),
        (1 * MIB, 1, 1 << 14),
        (1024 * MIB, 2, 1 << 17),
        (32 * MIB, 2, 1 << 16),
        (1024 * MIB, 4, 1 << 16),
        (1 * MIB, 4, 1 << 15),
    ],
)
def test_a_chunk_of_nvls_is_that_of_nccl(nbytes, machines, chunk):
    """Of 8 heads on 16 channels."""
    assert chunk == switches.chunk_bytes(nbytes, machines, 8 * 16)


def test_a_tree_of_many_machines_takes_little_longer_than_its_fullest_link():
    """64 machines of 4: over 100 chunks fill the 24 hops, so that the pipeline costs a quarter."""
    at = Setup("alpsx64")
    result = at.simulate(at.compile("nccl:tree+ll128+channels=8", one(16 * MIB)))
    assert result.floors.seconds < result.seconds < 1.3 * result.floors.seconds


@pytest.mark.parametrize("machine", ["alpsx3", "dgx1vx2", "dgx-h100x2", "polarisx2"])
def test_every_nic_sends_and_receives_the_same(machine):
    """Also where each GPU has its own, and no ring ends where it begins."""
    shape = layout(load_topology(machine))
    local = len(shape.tasks[0])
    sends, receives = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for ring in rings(shape, range(shape.n)):
        for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
            if a // local != b // local:
                sends[a // local, shape.nics[a]] += 1
                receives[b // local, shape.nics[b]] += 1
    assert 1 == len({*sends.values(), *receives.values()})


def timed(
    machine: str, strategy: str, elements: int, collective: str, gpus: int = 0, **constants: object
) -> float:
    """Seconds of a collective of the first GPUs of a machine, with some other constants."""
    calibration = Calibration("test", nccl=replace(CONSTANTS, **constants))
    whole = layout(load_topology(machine))
    part = whole.only(range(gpus or whole.n))
    setup = Setup(machine, TENSORFLOW, calibration, part=part)
    return setup.simulate(setup.compile(strategy, one(elements), collective)).seconds


def test_a_ring_over_slingshot_takes_a_while_for_each_message():
    """64 GPUs: 63 messages leave each machine one after another, 8 us and a message's own each."""
    found = timed("polarisx16", "nccl:ring+ll+channels=1", 64, "all_gather")
    assert 63 * (8 * US + CONSTANTS.message) == pytest.approx(found, rel=0.2)
    assert found > 2 * timed("polarisx16", "nccl:ring+ll+channels=1", 64, "all_gather", software={})


def test_a_tree_over_slingshot_sends_few_messages_by_ll():
    few = {
        timed("polarisx4", "nccl:tree+ll+channels=1", 1, "all_reduce", **given)
        for given in ({}, {"software": {"slingshot": Software()}})
    }
    assert max(few) == pytest.approx(min(few), rel=1e-3)


def test_libfabric_copies_what_ll_sends():
    """Up and down a tree of two machines, 16 KiB each way at 0.7 GB/s."""
    rates = {**CONSTANTS.channel_rate, "ll": np.inf}
    copied, free = (
        timed("p5x2", "nccl:tree+ll+channels=1", 4096, "all_reduce", channel_rate=rates, **given)
        for given in ({}, {"software": {}})
    )
    assert copied - free == pytest.approx(2 * 16384 / 0.7e9, rel=0.1)


def test_sends_of_uneven_parts_do_not_gain_by_channels():
    """A block's threads share out all peers: 1.6 GB/s each, on however many channels."""
    even, odd = (
        timed("dgx-a100", "nccl", 5 * part, "all_to_all", 5, unaligned_peer=1.6e9)
        for part in (MIB, MIB + 1)
    )
    assert 4 * MIB / 1.6e9 == pytest.approx(odd, rel=0.1)
    assert even < 0.1 * odd


MEASURED_TREE = {2: 113, 4: 154, 8: 231, 16: 420, 32: 812}
"""Microseconds by MiB: NCCL_ALGO=Tree on two H100 hosts, a GPU each."""


def test_trees_of_one_gpu_a_node_take_what_was_measured():
    """Within 20 %, and longer for more bytes: a thread that serves four channels holds no message
    of LL128 for as long as one waits.
    """
    machine = load_topology("dgx-h100x2,nics=4")
    only_tree = Settings(algorithms=(("", frozenset({"tree"})),))
    setup = Setup(machine, "nccl", part=layout(machine).only((0, 8)), nccl=only_tree)
    taken = [setup.simulate(setup.compile("nccl", one(mib << 18))).seconds for mib in MEASURED_TREE]

    assert taken == pytest.approx([us * US for us in MEASURED_TREE.values()], rel=0.2)
    assert all(1.3 < b / a < 2 for a, b in pairwise(taken))


RACKS = {
    2: {64: 654.11, 128: 976.1, 256: 1555.75, 512: 2592.03, 4096: 13341.2, 8192: 25812.5},
    20: {512: 7108.4, 4096: 24782},
}
"""Microseconds by MiB: 64 GPUs in each of two racks of GB200 (oracle-quickstart/oci-hpc-oke,
NCCL 2.29), and 20 racks of 72 (coreweave/nccl-tests, NCCL 2.26).
"""


def of_racks(count: int) -> Setup:
    if count == 1:
        return Setup("gb200-nvl72", "nccl")
    if count == 20:
        return Setup("gb200-nvl72x20", "nccl")
    machine = load_topology("oci-gb200x2")
    part = layout(machine).only((*range(64), *range(72, 136)))
    return Setup(machine, "nccl", part=part, nccl=Settings(version=(2, 29)))


def seconds_of(setup: Setup, mib: int) -> float:
    return setup.simulate(setup.compile("nccl", one(mib << 18))).seconds


@pytest.mark.parametrize("mib", RACKS[2])
def test_two_racks_of_gb200_take_what_was_measured(mib):
    """The tree of NVLink SHARP: a block copies chunks for 32 heads."""
    assert seconds_of(of_racks(2), mib) == pytest.approx(RACKS[2][mib] * US, rel=0.25)


def test_a_rack_of_gb200_reaches_what_was_measured():
    """423 GB/s; the ports of its 72 GPUs would allow 557."""
    assert (8 << 30) / seconds_of(of_racks(1), 8 << 10) == pytest.approx(423e9, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("mib", RACKS[20])
def test_times_of_twenty_racks_of_gb200_lie_in_their_intervals(mib):
    """The largest is within 25 %."""
    setup, measured = of_racks(20), RACKS[20][mib] * US
    taken = seconds_of(setup, mib)
    low, high = setup.interval(mib << 20, taken) or (0.0, 0.0)

    assert low < measured < high
    assert mib < 4096 or taken == pytest.approx(measured, rel=0.25)


def test_nvls_has_32_heads_at_most():
    """Of 72 GPUs, 32 get sums of the switch and send them back (NCCL_MAX_NVLS_ARITY)."""
    found = sent("gb200-nvl72", "nccl:nvls+channels=24", 72 * 32)
    given = {target for source, target in found if source == "nvswitch0"}
    out = [n for (source, _), n in found.items() if source != "nvswitch0"]

    assert 72 == len(given) == len(out)
    assert {72 * 32: 40, 72 * 33: 32} == Counter(out)
