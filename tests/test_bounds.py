"""No plan beats what any algorithm must take on the machine: cuts and the latency of the farthest
pair, found by brute force over all subsets of small random graphs.

M is the size of the tensor, n the number of ranks, and B+(S) the bandwidth of all links that leave
the set S of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise

import networkx as nx
import pytest
from hypothesis import given, reject, settings, strategies as st

import simreduce as sr
from simreduce.engine.runtime import LINK_KINDS, PROTOCOLS, NcclConstants
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.plan import Executor, Kind, Plan
from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES, FAMILIES, TWO_LEVEL
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_collective
from simreduce.study.tune.sizes import tensor
from simreduce.testing.strategies import ANY, ROUND, topologies
from simreduce.topology import Cable, Node, Topology, build
from tests.thorough import examples


def _sides(machine: Topology) -> Iterator[tuple[frozenset[str], Fraction]]:
    """Every set of nodes with some of the ranks, not all, and what leaves it in bytes/s."""
    names = list(machine.nodes)
    for size in range(1, len(names)):
        for chosen in combinations(names, size):
            inside = frozenset(chosen)
            ranks = len(inside.intersection(machine.devices))
            if 0 < ranks < len(machine.devices):
                leaving = sum(
                    Fraction(link.bandwidth)
                    for link in machine.links
                    if link.source in inside and link.target not in inside
                )
                yield inside, Fraction(leaving)


def _bytes_that_leave(
    collective: str, nbytes: int, inside: Sequence[bool], has_root: bool
) -> Fraction:
    """What must leave a side, whatever the algorithm (part sums may be added up first); `inside`
    says of every rank whether the side has it.
    """
    n, ranks = len(inside), sum(inside)
    part = Fraction(nbytes, n)
    return {
        "all_reduce": Fraction(nbytes),
        "reduce_scatter": part * (n - ranks),  # a sum for each of the parts that end outside
        "all_gather": part * ranks,
        "reduce": Fraction(0 if has_root else nbytes),
        "broadcast": Fraction(nbytes if has_root else 0),
        "all_to_all": part
        * ranks
        * (n - ranks),  # one part from every rank inside to every rank outside
        # All that a rank inside has, if the next one is outside.
        "send_receive": Fraction(nbytes)
        * sum(mine and not after for mine, after in pairwise([*inside, inside[0]])),
    }[collective]


def bound(
    machine: Topology, collective: str, nbytes: int, root: int, *, by_nccl: bool = False
) -> float:
    """Seconds that nothing can be below; `by_nccl`, no plan of NCCL's ops."""
    home = machine.devices[root]
    cut = max(
        (
            _bytes_that_leave(
                collective, nbytes, [name in side for name in machine.devices], home in side
            )
            / leaving
            for side, leaving in _sides(machine)
            if leaving
        ),
        default=Fraction(0),
    )
    far = _farthest(machine, collective, home, by_nccl=by_nccl) if nbytes else 0.0
    return max(float(cut), far)


def _ports(machine: Topology, nbytes: int) -> float:
    """Seconds for 2(n-1) tensors, which leave some rank each, through all ports of ranks together:
    n-1 to make the sum in some places, n-1 to bring it to all others.
    """
    ports = sum(link.bandwidth for link in machine.links if link.source in machine.devices)
    return 2 * (len(machine.devices) - 1) * nbytes / ports if ports else 0.0


def _farthest(machine: Topology, collective: str, home: str, *, by_nccl: bool) -> float:
    """Seconds of latency between the two ranks that must hear of each other and are farthest apart,
    over any path. A send of NCCL within a machine has the latency of NCCL's constants in place of
    the links' (`NcclConstants`), which then count nothing here.
    """
    delays = nx.DiGraph()
    delays.add_nodes_from(machine.nodes)
    for link in machine.links:
        before = delays.get_edge_data(link.source, link.target, {"delay": float("inf")})["delay"]
        latency = 0.0 if by_nccl and link.holds_lane else link.latency
        delays.add_edge(link.source, link.target, delay=min(before, latency))
    pairs = [(a, b) for a in machine.devices for b in machine.devices if a != b]
    if collective in ("reduce", "broadcast"):
        pairs = [(a, b) for a, b in pairs if home == (b if collective == "reduce" else a)]
    if collective == "send_receive":
        pairs = list(pairwise([*machine.devices, machine.devices[0]]))
    return max(
        (
            nx.shortest_path_length(delays, a, b, weight="delay")
            for a, b in pairs
            if nx.has_path(delays, a, b)
        ),
        default=0.0,
    )


def _constants(machine: Topology) -> NcclConstants:
    """NCCL's constants as `simulate` takes them."""
    return Setup(machine, "ideal").constants.nccl


def _launch_and_sends(plan: Plan, constants: NcclConstants) -> float:
    """Seconds of NCCL's launch and of the longest chain of its sends, each at the least latency of
    its protocol over any kind of link.
    """
    depth = [0.0] * len(plan)
    for op in range(len(plan)):
        operands = plan.operands[plan.operand_start[op] : plan.operand_start[op + 1]].tolist()
        depth[op] = max((depth[each] for each in operands), default=0.0)
        by = plan.executor[op]
        if plan.kind[op] == Kind.COPY and by in (Executor.KERNEL, Executor.KERNEL_LL):
            kernels = constants.kernels
            depth[op] += kernels.flag if by == Executor.KERNEL_LL else kernels.load
        elif plan.kind[op] == Kind.COPY and by:
            protocol = PROTOCOLS[by - 1]
            depth[op] += min(constants.latency[link, protocol] for link in LINK_KINDS)
    kernel = (plan.executor >= Executor.KERNEL).any()
    return (constants.kernels.launch if kernel else constants.launch) + max(depth)


@st.composite
def reducing(draw, figures):
    """GPUs on one or two switches that sum, or on two leaves under one or two such spines."""
    tops = [
        Node(f"top{i}", "switch", machine="", reduces=True) for i in range(draw(st.integers(1, 2)))
    ]
    leaves = draw(
        st.sampled_from(
            [[], [Node(f"leaf{i}", "switch", machine="", reduces=True) for i in range(2)]]
        )
    )
    gpus = [Node(f"gpu{i}", "gpu", machine="0") for i in range(draw(st.integers(2, 4)))]
    pairs = [(leaf, top) for leaf in leaves for top in tops]
    pairs += (
        [(gpu, leaves[i % 2]) for i, gpu in enumerate(gpus)]
        if leaves
        else [(g, t) for g in gpus for t in tops]
    )
    cables = [
        Cable(
            a.name,
            b.name,
            "port",
            1,
            draw(figures.bandwidth),
            draw(figures.bandwidth),
            draw(figures.delay),
            False,
        )
        for a, b in pairs
    ]
    return build("random", "", "a test", [*gpus, *leaves, *tops], cables)


def machines(name: str, figures) -> st.SearchStrategy[Topology]:
    """Small random machines, of a kind that the algorithm takes."""
    if name == "in_switch":
        return reducing(figures)
    if name == "hierarchical_copy_gcp_v100":
        return topologies(figures, most_gpus=8, least_gpus=8)
    if "/" in name:
        return topologies(figures, most_gpus=4, least_gpus=2, least_machines=2)
    return topologies(figures, most_gpus=4)


CASES = [
    *((collective, name) for collective, known in COLLECTIVES.items() for name in known),
    *(("all_reduce", pair) for pair in TWO_LEVEL),
]


@pytest.mark.parametrize(("collective", "name"), CASES)
@settings(max_examples=examples(6, usual=3))
@given(data=st.data())
def test_no_plan_beats_the_bounds_of_its_machine(collective, name, data):
    """Every algorithm of every collective, on random machines that take it; also in chunks."""
    check(data, collective, name)


@settings(max_examples=examples(60))
@given(data=st.data())
def test_no_two_families_beat_the_bounds_of_their_machine(data):
    """Any `inner/outer`."""
    check(data, "all_reduce", data.draw(st.sampled_from(ALGORITHMS.pairs())))


def check(data: st.DataObject, collective: str, name: str) -> None:
    """One random machine and tensor. What the algorithm refuses does not count: where it refuses
    all, hypothesis fails.
    """
    machine = data.draw(machines(name, data.draw(st.sampled_from([ROUND, ANY]))))
    n = len(machine.devices)
    size = 4 * n * data.draw(st.integers(1, 50_000))
    root = data.draw(st.integers(0, n - 1))
    chunk = (
        data.draw(st.sampled_from(["", "+chunk=4k"]))
        if COLLECTIVES[collective][name].pipelined
        else ""
    )
    strategy = parse_strategy(name + chunk, collective)
    try:
        plan = compile_collective(
            collective, strategy, tensor(size, 0, n), sr.layout(machine), root=root
        )
        seconds = sr.simulate(plan, machine, "ideal").seconds
    except InputError:
        reject()  # not for this number of ranks, or no way through this machine

    assert not sr.verify(plan)
    by_nccl = bool(plan.executor.any())
    assert bound(machine, collective, size, root, by_nccl=by_nccl) <= seconds * (1 + 1e-9)
    if by_nccl:
        assert _launch_and_sends(plan, _constants(machine)) <= seconds * (1 + 1e-9)
    alone = name in FAMILIES or name in ALGORITHMS.pairs()
    if collective == "all_reduce" and alone:  # the ranks alone add and pass on
        assert _ports(machine, size) <= seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("machine", "link", "protocol"),
    [
        ("dgx-a100", "nvlink", "ll"),
        ("dgx-a100", "nvlink", "simple"),
        ("v100-pcie-4", "pci", "ll128"),
        ("pcie-no-p2p-8", "shm", "ll"),
    ],
)
def test_a_ring_inside_a_machine_pays_each_of_its_sends(machine, link, protocol):
    """Of 8 bytes for each rank only the launch and 2 (n - 1) latencies count; by Simple also
    as many pauses after a slice.
    """
    machine = sr.load_topology(machine)
    plan = compile_collective(
        "all_reduce",
        parse_strategy(f"nccl:ring+{protocol}+channels=1", "all_reduce"),
        tensor(8 * len(machine.devices), 0),
        sr.layout(machine),
    )
    constants, sends = _constants(machine), 2 * (len(machine.devices) - 1)
    least = constants.launch + constants.launch_channel + constants.start[protocol]
    pause = constants.slice[link] if protocol == "simple" else 0.0
    least += sends * (constants.latency[link, protocol] + pause)

    assert least == pytest.approx(sr.simulate(plan, machine, "ideal").seconds, rel=1e-2)
    assert least * (1 + 1e-9) >= _launch_and_sends(plan, constants)


def test_the_bounds_are_those_worked_by_hand():
    """Four ranks on a switch of 1 GB/s ports: 8 MB in parts of 2 MB; two hops of 0.5 us."""
    machine = sr.load_topology("switch:4,bandwidth=1GB/s,latency=1us")
    seconds = {c: bound(machine, c, 8_000_000, 1) for c in COLLECTIVES}

    assert {
        "all_reduce": 8e-3,
        "reduce_scatter": 6e-3,
        "all_gather": 6e-3,
        "reduce": 8e-3,
        "broadcast": 8e-3,
        "all_to_all": 6e-3,
        "send_receive": 8e-3,
    } == pytest.approx(seconds)
    slow = sr.load_topology("switch:4,bandwidth=1GB/s,latency=1s")
    assert dict.fromkeys(COLLECTIVES, 1.0) == {c: bound(slow, c, 8, 1) for c in COLLECTIVES}
