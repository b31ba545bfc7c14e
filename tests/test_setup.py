"""One value for a machine and how plans run on it."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import networkx as nx
import numpy as np
import pytest

from simreduce.engine import IDEAL, NCCL, NOMINAL, TENSORFLOW, Disturbance
from simreduce.engine.calibrate import load_calibration
from simreduce.engine.runtime import NcclConstants
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import InputError, TopologyError
from simreduce.files.formats.syntax import Faults
from simreduce.plan import Executor
from simreduce.planners.layouts import Decision, layout
from simreduce.planners.nccl import Settings, read_settings
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_collective, compile_plan
from simreduce.study.tune.whatif import library_warning
from simreduce.topology import Topology, fold, load_topology
from simreduce.topology.importers.parts import model_named
from simreduce.topology.importers.topo_m import read_topo_m
from simreduce.workload import Gradient, Workload
from simreduce.workload.loader import load_workload
from tests.simulating import simulate

MACHINE = load_topology("full:4")
MIB = load_workload("bytes:1M")


def test_names_mean_what_they_name():
    setup = Setup("full:4", "ideal", "dgx1p-tf2018")

    assert Setup(MACHINE, IDEAL, load_calibration("dgx1p-tf2018")) == setup
    assert Setup(MACHINE, TENSORFLOW, NOMINAL) == Setup("full:4")


def test_its_plans_and_predictions_are_those_of_its_parts():
    slow = Disturbance(slow={"gpu1": 2.0})
    setup = Setup(MACHINE, IDEAL, disturbance=slow)
    plan = setup.compile("xring#2+packs=2", "bytes:1M")
    result = setup.simulate(plan)

    assert compile_plan("xring#2+packs=2", MIB, layout(MACHINE)).digest == plan.digest
    assert simulate(plan, MACHINE, "ideal", disturbance=slow).to_json() == result.to_json()
    assert setup.record(plan).result.to_json() == result.to_json()


def test_it_compiles_every_collective():
    setup = Setup(MACHINE)
    direct = parse_strategy("direct", "reduce")
    plan = compile_collective("reduce", direct, MIB, setup.layout, root=2)

    assert plan.digest == setup.compile("direct", MIB, "reduce", root=2).digest
    assert plan.digest == setup.compile(direct, MIB, root=2).digest


def test_what_is_changed_is_all_that_changes():
    setup = Setup(MACHINE, IDEAL, part=layout(MACHINE).subset(2))

    assert Setup(MACHINE, TENSORFLOW, part=setup.part) == setup.but(runtime="tensorflow")
    assert setup.layout == setup.but(calibration="dgx1p-tf2018").layout
    assert layout(load_topology("full:3")) == setup.but(machine="full:3").layout


def test_it_goes_to_another_process():
    """A runtime of ours by its name; another one as it is."""
    setup = Setup(MACHINE, IDEAL, part=layout(MACHINE).subset(2))
    other = setup.but(runtime=replace(IDEAL, name="mine", local=True))

    assert pickle.loads(pickle.dumps(setup)) == setup  # noqa: S301 - our own
    assert pickle.loads(pickle.dumps(setup)).runtime is IDEAL  # noqa: S301 - our own
    assert pickle.loads(pickle.dumps(other)) == other  # noqa: S301 - our own


def test_equal_setups_are_one_key():
    setup = Setup("full:4", "ideal", "dgx1p-tf2018", Disturbance(slow={"gpu1": 2.0}))

    assert len({setup, setup.but(), Setup(MACHINE, IDEAL), Setup("full:4", "ideal")}) == 2


def test_a_part_is_kept_replaced_or_cleared():
    setup = Setup(MACHINE, IDEAL, part=layout(MACHINE).subset(2))

    assert setup.but().part == setup.part
    assert setup.but(part=None).layout == layout(MACHINE)
    assert setup.but(part=layout(MACHINE).subset(3)).layout.n == 3
    with pytest.raises(
        TopologyError, match="part: 'gpu2' is no device of full:2; use a part of its"
    ):
        Setup("full:2", part=layout(MACHINE))


def test_it_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Setup(MACHINE).runtime = IDEAL


def test_folded_machines_have_no_topology_of_their_own():
    setup = Setup(fold(load_topology("switch:4")))

    assert (4, 1) == (setup.layout.n, len(setup.layout))
    with pytest.raises(TopologyError, match="switch:4: its equal machines are folded"):
        _ = setup.topology


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"machine": 8}, "expected a Topology or the name of one, got int 8"),
        ({"machine": MIB}, "expected a Topology or the name of one, got Workload <Workload"),
        (
            {"runtime": None},
            "expected a Runtime or one of tensorflow, nccl, ideal, got NoneType None",
        ),
        ({"calibration": 0.5}, "expected a Calibration or the name of one, got float 0.5"),
        ({"disturbance": "slow"}, "expected a Disturbance, got str 'slow'"),
        ({"part": MACHINE}, "expected a Layout, got Topology Topology"),
    ],
)
def test_a_wrong_kind_of_value_is_a_type_error_that_says_what_was_meant(wrong, message):
    with pytest.raises(TypeError, match=message):
        Setup(**{"machine": MACHINE, **wrong})


def test_a_wrong_kind_of_plan_strategy_or_workload_too():
    setup = Setup(MACHINE)
    with pytest.raises(TypeError, match="expected a Plan, as compile makes it, got str 'ring'"):
        setup.simulate("ring")
    with pytest.raises(TypeError, match="expected a strategy's text, got int 3"):
        setup.compile(3, MIB)
    with pytest.raises(TypeError, match="expected a Workload or the name of one, got int 3"):
        setup.compile("ring", 3)


def test_an_unknown_name_is_bad_input():
    with pytest.raises(InputError, match="did you mean 'ideal'"):
        Setup(MACHINE, "idel")


def test_what_nccl_is_told_holds_for_parts_too():
    """A part that was cut out of another setup's layout is decided as this one says."""
    told = Settings(algorithms=(("", frozenset(["tree"])),))
    setup = Setup("dgx-h100")
    part = setup.layout.subset(4)

    for each in (setup.but(nccl=told), setup.but(part=part, nccl=told)):
        assert each.layout.decide is not None
        found = each.layout.decide(each.layout.ranks, "all_reduce", 1 << 26, Decision())
        assert found.algorithm == "tree"
    assert pickle.loads(pickle.dumps(setup.but(part=part))) == setup.but(part=part)  # noqa: S301


@pytest.mark.parametrize(
    ("text", "runtime"),
    [
        ("nccl", NCCL),
        ("nccl:ring+ll128", NCCL),
        ("nccl+ddp", NCCL),
        ("nccl+fusion", NCCL),
        ("ring+ddp=50", NCCL),
        ("multi_ring+fusion=64M", NCCL),
        ("nccl+packs=1", TENSORFLOW),
        ("nccl+bucket=25M", TENSORFLOW),
        ("nccl/xring", TENSORFLOW),
        ("ring", TENSORFLOW),
        ("collective+merge=32", TENSORFLOW),
        ("mirrored_strategy", TENSORFLOW),
        ("nccl:32k:xring", TENSORFLOW),
    ],
)
def test_a_strategy_says_which_runtime_it_has(text, runtime):
    """NCCL's for what NCCL, DDP and Horovod move, TensorFlow's for what it copies or packs."""
    setup = Setup("dgx1vx2", BY_STRATEGY)
    strategy = parse_strategy(text)

    assert runtime == setup.running(strategy).runtime
    assert TENSORFLOW == setup.running(None).runtime
    for given in (IDEAL, TENSORFLOW, NCCL):
        assert given == setup.but(runtime=given).running(strategy).runtime


def test_runtimes_by_strategy_reach_other_processes():
    setup = pickle.loads(pickle.dumps(Setup("full:4", "by_strategy")))  # noqa: S301 - made here

    assert NCCL == setup.running(parse_strategy("ring+ddp")).runtime


def _registered(setup: Setup) -> Setup:
    return setup.but(nccl=replace(setup.nccl, registered=True))


@pytest.mark.parametrize(
    ("machine", "version", "strategy", "nbytes"),
    [
        ("mi300x", (2, 28), "nccl", 1 << 26),
        ("dgx-a100", (2, 22), "nccl", 1 << 26),
        ("dgx-h100", (2, 30), "nccl", 1 << 26),  # NVLS
        ("dgx-a100", (2, 30), "nccl:ring+ll", 1 << 16),
        ("pcie-no-p2p-4", (2, 30), "nccl", 1 << 26),
    ],
)
def test_registered_buffers_change_nothing_and_nothing_is_nominal(
    machine, version, strategy, nbytes
):
    """By RCCL, before 2.23, where switches sum, by LL, and without direct paths in a machine."""
    plain = Setup(machine, "nccl")
    plain = plain.but(nccl=replace(plain.nccl, version=version))
    asked = parse_strategy(strategy)
    calls = plain.calls_of(asked, Workload("one", (Gradient("one", nbytes // 4),)))
    one = plain.compile(strategy, Workload("one", (Gradient("one", nbytes // 4),)))
    registered = _registered(plain)

    assert plain.simulate(one).seconds == registered.simulate(one).seconds
    assert "" == registered.nominal([strategy], calls)
    how = {"algorithm": asked.algorithm, "protocol": asked.nccl.protocol}
    assert plain.interval(nbytes, 1.0, **how) == registered.interval(nbytes, 1.0, **how)


@pytest.mark.parametrize("text", ["true", "1", "false", "0"])
def test_what_applications_do_is_true_or_false(text):
    for name in ("registered", "symmetric"):
        faults = Faults()
        told = {"true": True, "1": 1, "false": False, "0": 0}[text]
        found = {
            getattr(read_settings({name: value}, faults, "nccl"), name) for value in (text, told)
        }
        assert ({text in ("true", "1")}, []) == (found, faults.problems)
        read_settings({name: "yes"}, faults, "nccl")
        assert [f"nccl.{name}: must be true or false, got 'yes'"] == faults.problems


def test_where_nccl_takes_pat_by_itself_its_time_is_nominal_and_has_no_interval():
    """Over machines with one GPU each, from 2.23 on, for small all-gathers."""
    whole = Setup("dgx-h100x16", "nccl")
    ones = whole.but(part=whole.layout.only(range(0, 128, 8)))
    said = "PAT's times are nominal: no published table of it was compared"

    def looked_at(setup: Setup, text: str, nbytes: int) -> tuple[str, bool]:
        strategy = parse_strategy(text, "all_gather")
        calls = setup.calls_of(strategy, Workload("one", (Gradient("one", nbytes // 4),)))
        how = strategy.algorithm
        return setup.nominal([text], calls), setup.interval(
            nbytes, 1.0, "all_gather", algorithm=how
        ) is not None

    older = ones.but(nccl=replace(ones.nccl, version=(2, 22)))
    assert (said, False) == looked_at(ones, "nccl", 1 << 16)
    assert ("", True) == looked_at(ones, "nccl", 1 << 26)
    assert ("", True) == looked_at(ones, "nccl:ring", 1 << 16)
    assert ("", True) == looked_at(older, "nccl", 1 << 16)
    assert ("", True) == looked_at(_registered(ones), "nccl", 1 << 26)
    assert ("", True) == looked_at(whole, "nccl", 1 << 16)
    assert (said, False) == looked_at(ones, "nccl:pat", 1 << 26)


@pytest.mark.parametrize(
    ("machine", "whose"),
    [("dgx-h100", ""), ("hgx-h200", ""), ("hgx-b200", "B300"), ("dgx-a100", "Hopper")],
)
def test_times_of_kernels_say_whose_constants_they_have(machine, whose):
    """Those of B200 were fitted to B300, as the table of B200 takes no part in a fit."""
    said = (
        f"times of oneshot, symmetric are nominal: kernels have {whose}'s constants, as none were "
        "fitted for such GPUs"
    )
    assert said * bool(whose) == Setup(machine).nominal(["oneshot", "symmetric:agxll_r", "nccl"])
    if whose:  # what a table of one's own was fitted to is not borrowed
        kernels = replace(Setup(machine).fitted.nccl.kernels, launch=3e-6)
        own = replace(Setup(machine).fitted, nccl=NcclConstants(kernels=kernels))
        assert "" == Setup(machine, calibration=own).nominal(["oneshot"])


def test_registered_buffers_are_copied_out_of_no_buffer_of_nccl_within_a_machine():
    """Since 2.23. Two A100 gain most: each copies out all that it receives. No error is known."""
    whole = Setup("dgx-a100", "nccl")
    plain = whole.but(part=whole.layout.subset(2))
    one = Workload("one", (Gradient("one", 1 << 26),))

    def seconds(setup: Setup) -> float:
        return setup.simulate(setup.compile("nccl", one, "all_gather")).seconds

    registered = _registered(plain)
    older = plain.but(nccl=replace(plain.nccl, version=(2, 22)))
    assert registered.nccl.text == "registered=1"
    assert seconds(registered) < seconds(plain) / 1.2
    assert seconds(older) == seconds(_registered(older))
    assert plain.interval(1 << 28, 1.0, "all_gather")
    assert registered.interval(1 << 28, 1.0, "all_gather") is None
    said = "buffer registration's times are nominal: no published table of it was compared"
    assert said == registered.nominal(["nccl"])


@pytest.mark.parametrize("setting", [{"p2p_disable": True}, {"p2p_level": "LOC"}])
@pytest.mark.parametrize("runtime", ["by_strategy", "nccl", "tensorflow"])
@pytest.mark.parametrize("machine", ["dgx1v", "dgx1vx2"])
def test_channels_take_the_paths_of_a_machine_without_the_peer_access_that_nccl_gives_up(
    machine, runtime, setting
):
    whole, strategy = load_topology(machine), parse_strategy("nccl")
    told = Setup(whole, runtime, nccl=Settings(**setting)).running(strategy)
    without = Setup(whole.limit_peers("off"), runtime).running(strategy)
    took, takes = (each.simulate(each.compile("nccl", MIB)) for each in (told, without))

    assert took.seconds == takes.seconds
    assert took.links == takes.links
    assert not any("nvlink" in use.name for use in took.links)
    assert took.topology_digest == whole.digest
    assert told.slowest_link == without.slowest_link


def test_without_peer_access_times_have_the_size_of_nccl_s_own_estimate():
    """NCCL takes a DGX-1 for two nodes then, which NICs join: ours goes through hosts."""
    size = 64 << 20
    whole, split = (
        Setup(name, "by_strategy", nccl=Settings(p2p_disable=True))
        for name in ("gce-8xv100", "dgx1v")
    )
    took, later = (
        each.simulate(each.compile("nccl", f"bytes:{size}")).seconds for each in (whole, split)
    )

    assert took == pytest.approx(whole.call(size).seconds, rel=0.1)
    assert 1.0 < later / split.call(size).seconds < 1.5
    assert whole.slowest_link == split.slowest_link == "shm"
    # No published time tells how far off bytes are that NCCL would send elsewhere.
    assert split.interval(size, later) is None
    assert "NCCL joins GPUs of one node by its NICs" in library_warning(split, ["nccl"])
    assert whole.interval(size, took) is not None
    assert not library_warning(whole, ["nccl"])


def test_a_level_of_nvlinks_leaves_them_and_takes_peer_access_over_pcie():
    level = Settings(p2p_level="NVL")
    for machine, same in (("dgx1v", True), ("a100-pcie-8", False)):
        free, told = (Setup(machine, "nccl", nccl=nccl) for nccl in (Settings(), level))
        seconds = [each.find_seconds(each.compile("nccl", "bytes:64M")) for each in (free, told)]
        assert (seconds[0] == seconds[1]) is same
        assert seconds[0] <= seconds[1]


@pytest.mark.parametrize(
    ("version", "gpus", "level", "reach"),
    [
        ("2.32", 8, "", "PXB"),
        ("2.32", 2, "", "SYS"),  # AMD's pairs
        ("2.22", 8, "", "SYS"),  # AMD's hosts before
        ("2.8", 8, "", "SYS"),  # as far as peer = "PHB" goes
        ("2.32", 8, "PHB", "SYS"),
        ("2.32", 8, "NVL", "NV"),
        ("2.32", 8, "LOC", "off"),
    ],
)
def test_nccl_chooses_how_far_gpus_copy_directly(version, gpus, level, reach):
    """ncclTopoCheckP2p of its sources: L40S on root ports of EPYC could copy within a socket."""
    release = (2, int(version.partition(".")[2]))
    part = layout(load_topology("l40s-8")).subset(gpus)
    setup = Setup("l40s-8", "nccl", nccl=Settings(version=release, p2p_level=level), part=part)

    assert setup.constants.nccl.reach == reach
    assert setup.slowest_link == ("pci" if reach == "SYS" else "shm")


def test_a_level_beyond_the_host_bridge_is_faster_than_its_memory():
    """Public reports of A40 pairs: with peer copies they are faster than through the host."""
    part = layout(load_topology("l40s-8")).subset(2)
    took = [
        each.find_seconds(each.compile("nccl", "bytes:64M"))
        for level in ("SYS", "PHB", "LOC")
        for each in [Setup("l40s-8", "nccl", part=part, nccl=Settings(p2p_level=level))]
    ]

    assert took[0] == took[1] < 0.8 * took[2]


def test_the_memory_of_a_numa_node_bounds_what_goes_through_it():
    """Eight PCIe Gen5 GPUs of two NUMA nodes without peer access: four GPUs of one node reached
    24 GB/s, two of each 35 (public table of nccl-tests at 1 GiB).

    A byte on each of four hops is written to the node's memory and read from it, at the part of its
    rate that copies through hosts reach.
    """
    rows = ["\t".join(["", *(f"GPU{i}" for i in range(8)), "CPU Affinity"])]
    for i in range(8):
        cells = ["X" if i == j else "NODE" if i // 4 == j // 4 else "SYS" for j in range(8)]
        rows.append("\t".join([f"GPU{i}", *cells, f"{i // 4}"]))
    machine, notes = read_topo_m("\n".join(rows), "box", model_named("RTX 5090"))
    busbw = {}
    for gpus in ((0, 1, 2, 3), (0, 1, 6, 7)):
        setup = Setup(machine, "nccl", part=layout(machine).only(gpus))
        seconds = setup.find_seconds(setup.compile("nccl", "bytes:256M"))
        busbw[gpus] = 2 * 3 / 4 * (256 << 20) / seconds / 1e9
    efficiency = setup.constants.nccl.efficiency["shm", "simple"]

    assert "the memory of a CPU is taken for 307.2 GB/s, as of Sapphire Rapids" in notes
    assert busbw[0, 1, 2, 3] == pytest.approx(24, rel=0.15)
    assert busbw[0, 1, 6, 7] == pytest.approx(35, rel=0.15)
    assert busbw[0, 1, 2, 3] <= 307.2 * efficiency / (2 * 4)


@pytest.mark.parametrize(
    ("machine", "strategy", "size", "busbw"),
    [
        ("hgx-h800", "nccl", "4G", 217),
        ("hgx-b200", "nccl", "8G", 842),
        pytest.param("dgx-h100x2", "nccl", "8G", 505, marks=pytest.mark.slow),
        ("p3dnx2", "nccl:tree", "1G", 16.4),
        ("p3dnx2", "nccl:ring", "1G", 8.76),
    ],
)
def test_answers_that_published_tables_bear_out(machine, strategy, size, busbw):
    """GB/s of large all-reduces as people published them for such machines, within 3 %."""
    setup = Setup(machine, "nccl")
    seconds = setup.find_seconds(setup.compile(strategy, f"bytes:{size}"))
    ranks = setup.layout.n

    found = 2 * (ranks - 1) / ranks * load_workload(f"bytes:{size}").nbytes / seconds / 1e9
    assert found == pytest.approx(busbw, rel=0.03)


def test_a_bridge_is_ten_times_as_fast_as_its_pairs_are_together():
    """8 A100 PCIe with bridges: 208 GB/s on a pair, about 20 on three (NVIDIA/nccl-tests 178)."""
    rows = ["\t".join(["", *(f"GPU{i}" for i in range(4))])]
    for i in range(4):
        cells = ["X" if i == j else "NV12" if i // 2 == j // 2 else "NODE" for j in range(4)]
        rows.append("\t".join([f"GPU{i}", *cells]))
    machine, _ = read_topo_m("\n".join(rows), "box", model_named("A100-80GB"))
    for gpus, busbw in ((2, 208), (3, 20)):
        setup = Setup(machine, "nccl", part=layout(machine).subset(gpus))
        seconds = setup.find_seconds(setup.compile("nccl", "bytes:1G"))
        found = 2 * (gpus - 1) / gpus * (1 << 30) / seconds / 1e9
        assert found == pytest.approx(busbw, rel=0.1)


@pytest.mark.parametrize("strategy", ["trees", "direct", "multi_ring", "double_tree", "ring"])
def test_the_order_of_links_in_a_file_changes_no_time(strategy):
    """Nor which of its ends a link names first."""
    links = [
        ("gpu0", "gpu1", 5, 2.5), ("gpu0", "gpu2", 10, 2.5), ("gpu2", "gpu3", 12.5, 0),
        ("gpu2", "gpu4", 100, 0), ("gpu0", "c", 10, 0), ("gpu1", "c", 16, 0.5),
        ("gpu2", "c", 16, 0), ("gpu3", "c", 10, 1.5), ("gpu4", "c", 12.5, 1.5),
    ]  # fmt: skip
    took = set()
    for seed in range(4):
        graph = nx.Graph()
        graph.add_nodes_from((f"gpu{i}", {"kind": "gpu"}) for i in range(5))
        graph.add_node("c", kind="cpu")
        for i in np.random.default_rng(seed).permutation(len(links)).tolist():
            a, b, rate, us = links[i]
            ends = (b, a) if seed % 2 else (a, b)
            graph.add_edge(*ends, bandwidth=rate * 1e9, latency=us * 1e-6)
        setup = Setup(Topology.from_networkx(graph), IDEAL)
        took.add(setup.find_seconds(setup.compile(strategy, "bytes:4096")))

    assert len(took) == 1


def test_what_nccl_gives_up_others_keep():
    """TensorFlow's own copies, and kernels that are not NCCL's."""
    for strategy in ("ring", "one_shot"):
        free, told = (
            Setup("dgx-h100", "by_strategy", nccl=nccl)
            for nccl in (Settings(), Settings(p2p_disable=True))
        )
        plans = [each.compile(strategy, MIB) for each in (free, told)]
        assert free.find_seconds(plans[0]) == told.find_seconds(plans[1])


def test_symmetric_kernels_need_peer_access():
    free = Settings(symmetric=True)

    assert Setup("dgx-h100", "nccl", nccl=free).call(1 << 16).algorithm == "symmetric"
    without = Setup("dgx-h100", "nccl", nccl=replace(free, p2p_disable=True))
    assert without.call(1 << 16).algorithm != "symmetric"
    assert without.compile("nccl", "bytes:64K").executor.max() < Executor.KERNEL
