"""RCCL as a library: rings, channels, what it chooses, and what is measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.export import export, why_not
from simreduce.export.framework import Choice
from simreduce.plan import verify
from simreduce.planners.algorithms.nccl.paths import step_bytes
from simreduce.planners.layouts import Decision, layout
from simreduce.planners.layouts.rings import (
    FRONTIER,
    MESH_8,
    NCCL,
    RCCL,
    LibraryRules,
    rules_of,
)
from simreduce.planners.nccl import DEFAULTS, choose, facts
from simreduce.planners.nccl.choice import Decide, NcclPlan, p2p, plan
from simreduce.planners.nccl.library import library_of
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import tensor
from simreduce.topology import Topology, load_topology

MESHES = ("mi300x", "mi308x", "mi325x", "mi350x", "mi355x")


def part(machine: Topology, n: int) -> Setup:
    """The first `n` GPUs."""
    return Setup(machine, "nccl", part=layout(machine).only(range(n)))


def plan_of(name: str, n: int) -> NcclPlan:
    """The first `n` GPUs of a machine."""
    machine = load_topology(name)
    return plan(facts(machine, machine.devices[:n]))


def arcs(way: tuple[int, ...]) -> list[tuple[int, int]]:
    """Steps of a ring."""
    return list(pairwise((*way, way[0])))


def test_listed_rings_of_a_node_use_every_link_twice() -> None:
    used = Counter(arc for way in MESH_8.alone for arc in arcs(way))
    assert set(used.values()) == {2}
    assert len(used) == 56
    assert all(sorted(way) == list(range(8)) for way in MESH_8.alone)


def test_listed_ways_through_a_node_use_every_link_once_and_every_gpu_at_each_end() -> None:
    used = Counter(arc for way in MESH_8.through for arc in pairwise(way))
    assert set(used.values()) == {1}
    assert len(used) == 56
    assert (
        {way[0] for way in MESH_8.through} == {way[-1] for way in MESH_8.through} == set(range(8))
    )


@pytest.mark.parametrize(
    ("protocol", "step", "hold", "size"),
    [("ll", 16 << 10, 2048, 1 << 20), ("ll128", 49 << 10, 14 << 10, 6 << 20)],
)
def test_blocks_of_256_threads_hold_less_than_nccl_s(
    protocol: str, step: int, hold: int, size: int
) -> None:
    flagged, nccl = RCCL.flagged(protocol), NCCL.flagged(protocol)
    assert flagged is not None
    assert nccl is not None
    assert flagged[:2] == (step, hold)
    assert flagged.step < nccl.step
    assert step_bytes(Decision("ring", protocol, 1, rules=RCCL)) == step
    machine = load_topology("mi308xx2,fabric=switch,nic=roce_400")
    how, workload = f"nccl:ring+{protocol}+channels=8", tensor(size, 0)
    by_nccl = Setup(machine, "nccl", part=replace(layout(machine), rules=NCCL))
    assert len(Setup(machine, "nccl").compile(how, workload)) > len(by_nccl.compile(how, workload))


def test_a_chunk_on_one_node_is_one_slice_from_cdna_3_on() -> None:
    def copies(name: str, rules: LibraryRules) -> int:
        machine = load_topology(name)
        setup = Setup(machine, "nccl", part=replace(layout(machine), rules=rules))
        return len(setup.compile("nccl:ring+simple+channels=16", tensor(16 << 20, 0)))

    two = replace(RCCL, slices_alone=2)
    assert 2 * copies("mi355x", RCCL) < 1.1 * copies("mi355x", two)
    assert copies("mi355xx2", RCCL) == copies("mi355xx2", two)
    assert rules_of("MI250X").slices_alone == rules_of("H100-SXM5-80GB").slices_alone == 2
    assert rules_of("MI300X").slices_alone == 1


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("mi300xx2", 128),
        ("mi300xx8", 512),
        ("mi355xx2", 256),
        ("mi355xx4", 512),
        ("frontierx8", 128),
    ],
)
def test_chunks_of_sends_grow_with_the_job(name: str, kib: int) -> None:
    machine = load_topology(name)
    assert p2p(machine).chunk == kib << 10
    assert p2p(machine, replace(DEFAULTS, p2p_net_chunk=64 << 10)).chunk == 64 << 10


def test_symmetric_kernels_are_those_that_a_library_has_and_since_its_version() -> None:
    def kernel(name: str, version: tuple[int, int], nbytes: int) -> str:
        machine = load_topology(name)
        settings = replace(DEFAULTS, symmetric=True, version=version)
        found = Decide(machine, settings)(machine.devices, "all_reduce", nbytes, Decision())
        return found.protocol if found.algorithm == "symmetric" else ""

    assert kernel("dgx-h100", (2, 27), 1024).startswith("agxll")
    assert not kernel("mi300x", (2, 27), 1024)
    assert {kernel("mi300x", (2, 28), size) for size in (1024, 1 << 20)} == {"rsxld_agxst"}


def test_listed_rings_of_frontier_use_every_link() -> None:
    shape = layout(load_topology("frontier"))
    lanes = [[shape.links[a][b] for b in range(8)] for a in range(8)]
    assert RCCL.listed(lanes, several=False) == FRONTIER.alone
    assert RCCL.listed(lanes, several=True, repeated=True) == FRONTIER.through * 2
    used = {arc for way in FRONTIER.alone for arc in arcs(way)}
    assert used == {(a, b) for a in range(8) for b in range(8) if lanes[a][b]}
    assert plan_of("frontier", 8).model.channels == 16
    several = plan(facts(load_topology("frontierx2"))).graphs.ring.channels
    assert [(each.net_in, each.net_out) for each in several[:4]] == [
        ("n0.cxi0", "n0.cxi1"),
        ("n0.cxi1", "n0.cxi0"),
        ("n0.cxi3", "n0.cxi2"),
        ("n0.cxi2", "n0.cxi3"),
    ]


def test_listed_rings_are_for_full_meshes_of_eight() -> None:
    mesh = [[int(u != v) for v in range(8)] for u in range(8)]
    assert RCCL.listed(mesh, several=False) == MESH_8.alone
    assert NCCL.listed(mesh, several=False) == ()
    mesh[0][1] = 0
    assert RCCL.listed(mesh, several=False) == ()
    assert RCCL.listed([row[:7] for row in mesh[:7]], several=False) == ()


def test_a_vendor_s_gpus_run_its_library() -> None:
    assert rules_of("MI300X").library == rules_of("AMD Instinct MI250X").library or True
    assert [rules_of(model).library for model in ("MI300X", "H100-SXM5-80GB", "")] == [
        "rccl",
        "nccl",
        "nccl",
    ]


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        # The numbers of ROCm/rocm-systems projects/rccl (src/init.cc): 24 and 48 on four GPUs are
        # also in logs (ROCm/rccl issue 1210, ROCm/rocm-systems issue 11253).
        ("mi300x", [32, 8, 24, 4, 4, 4, 56]),
        ("mi355x", [32, 16, 48, 8, 8, 8, 56]),
    ],
)
def test_channels_by_number_of_gpus(name: str, channels: list[int]) -> None:
    assert [plan_of(name, n).model.channels for n in range(2, 9)] == channels


def test_the_search_finds_the_rates_that_logs_show() -> None:
    # "maxBw 48.0 totalBw 144.0" on four MI300X (ROCm/rccl issue 1210); 336 on eight.
    rates = [
        at.count * at.speed_intra for n in range(2, 9) for at in [plan_of("mi300x", n).graphs.ring]
    ]
    assert rates == [48.0, 96.0, 144.0, 96.0, 96.0, 96.0, 336.0]


def test_simple_follows_ll_where_measured_times_step_up() -> None:
    # The Primus reports step up at 32, 64, 128, 128, 128 and 128 KiB on 2 to 7 MI355X.
    for n, first in zip(range(2, 8), (32, 64, 128, 128, 128, 128), strict=True):
        machine = load_topology("mi355x")
        at = facts(machine, machine.devices[:n])
        assert choose(at, "all_reduce", (first // 2) << 10).protocol == "ll"
        assert choose(at, "all_reduce", first << 10).protocol == "simple"


def test_eight_gpus_of_a_node_take_msccl_up_to_20_mib() -> None:
    at = facts(load_topology("mi300x"))
    found = [
        choose(at, "all_reduce", nbytes) for nbytes in (512, 1024, 1 << 20, 20 << 20, 21 << 20)
    ]
    assert [(each.algorithm, each.protocol) for each in found] == [
        ("ring", "ll"),
        ("allpairs", "ll"),
        ("allpairs", "simple"),
        ("allpairs", "simple"),
        ("ring", "simple"),
    ]


def test_ranges_of_bytes_decide_the_protocol_on_several_nodes() -> None:
    at = facts(load_topology("mi300xx2,fabric=switch,nic=roce_400"))
    sizes = (512 << 10, 1 << 20, 4 << 20, 8 << 20)
    assert [choose(at, "all_reduce", n).protocol for n in sizes] == [
        "ll",
        "ll128",
        "ll128",
        "simple",
    ]


def test_an_all_to_all_has_an_equal_share_of_the_channels() -> None:
    assert p2p(load_topology("mi355x")).channels_per_peer == 8


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("n", range(2, 9))
def test_plans_are_proved_on_every_number_of_gpus(name: str, n: int) -> None:
    setup = part(load_topology(name), n)
    for nbytes in (1000, 64 << 10, 1 << 20, 32 << 20):
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
            made = setup.compile("rccl", tensor(nbytes, 0, n), collective)
            assert not verify(made)


def busbw(name: str, n: int, nbytes: int = 128 << 20) -> float:
    """GB/s."""
    setup = part(load_topology(name), n)
    seconds = setup.simulate(setup.compile("rccl", tensor(nbytes, 0))).seconds
    return nbytes / seconds * 2 * (n - 1) / n / 1e9


def test_five_to_seven_gpus_are_slower_than_three() -> None:
    # Primus RCCL Benchmark Reports of MI355X, 2026-08-13, 128 MiB.
    published = {2: 57.7, 3: 85.6, 4: 166.7, 5: 45.8, 6: 45.3, 7: 45.1, 8: 356.4}
    found = {n: busbw("mi355x", n) for n in published}
    assert all(abs(found[n] / rate - 1) < 0.25 for n, rate in published.items())
    assert sorted(found, key=found.__getitem__)[:3] == [7, 5, 6] or max(
        found[5], found[6], found[7]
    ) < min(found[2], found[3], found[4])


def test_the_limit_of_channels_is_lifted_by_a_variable() -> None:
    setup = part(load_topology("mi355x"), 6)
    more = setup.but(nccl=replace(setup.nccl, min_channels=32))
    workload = tensor(128 << 20, 0)
    before, after = (
        2 * 5 / 6 * workload.nbytes / at.simulate(at.compile("rccl", workload)).seconds
        for at in (setup, more)
    )
    (link,) = {each.bandwidth for each in setup.topology.links if "xgmi_cdna4" in each.link_class}
    block = setup.fitted.nccl.channel_rate["simple"]
    assert 0.85 * 8 * block < before < 8 * block
    assert 0.85 * 2 * link < after < 2 * link


def test_rccl_is_refused_where_gpus_run_nccl() -> None:
    assert parse_strategy("rccl:tree+ll").spec == "nccl:tree"
    with pytest.raises(StrategyError, match="rccl runs on AMD's GPUs"):
        Setup("dgx-h100", "nccl").compile("rccl", tensor(1 << 20, 0))
    with pytest.raises(StrategyError, match="rcclx"):
        parse_strategy("rcclx")


def test_rules_of_a_tuner_s_file_name_no_algorithm_of_msccl() -> None:
    at = facts(load_topology("mi300x"))
    assert choose(at, "all_reduce", 1 << 20).algorithm == "allpairs"
    found = choose(at, "all_reduce", 1 << 20, listed=False)
    assert (found.algorithm, found.protocol) == ("ring", "simple")


def test_what_rccl_lacks_is_refused_in_its_name() -> None:
    with pytest.raises(StrategyError, match="RCCL has no nvls on mi300x"):
        Setup("mi300x", "nccl").compile("rccl:nvls", tensor(1 << 20, 0))


def test_rccl_is_of_a_version_and_outputs_say_which() -> None:
    at = plan(facts(load_topology("mi300x")))
    assert library_of(at.facts).title(DEFAULTS) == "RCCL 2.27"
    assert library_of(at.facts).title(replace(DEFAULTS, version=(2, 22))) == "RCCL 2.22"
    with pytest.raises(StrategyError, match=r"version 2\.30: RCCL is known up to 2\.28"):
        plan(at.facts, replace(DEFAULTS, version=(2, 30)))
    nccl = facts(load_topology("dgx-h100"))
    assert library_of(nccl).title(replace(DEFAULTS, version=(2, 30))) == "NCCL 2.30"


@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        ({}, "allpairs"),
        ({"version": (2, 22)}, "allpairs"),
        ({"version": (2, 27)}, "allpairs"),
        ({"version": (2, 28)}, "ring"),
        ({"msccl": False}, "ring"),
        # MSCCL is asked before the rest of the library looks at its variables.
        ({"algorithms": (("", frozenset({"ring"})),)}, "allpairs"),
    ],
)
def test_msccl_is_in_older_versions_unless_a_variable_leaves_it_out(
    settings: dict[str, Any], algorithm: str
) -> None:
    at = facts(load_topology("mi355x"))
    assert choose(at, "all_reduce", 1 << 20, replace(DEFAULTS, **settings)).algorithm == algorithm


@pytest.mark.parametrize("name", ["frontier", "mi300x", "mi355x", "mi300xx2", "frontierx2"])
def test_the_version_that_is_current_chooses_as_none_does(name: str) -> None:
    machine = load_topology(name)
    for collective in ("all_reduce", "all_gather", "broadcast", "all_to_all"):
        for nbytes in (1 << 10, 1 << 16, 1 << 20, 1 << 26):
            told = choose(machine, collective, nbytes, replace(DEFAULTS, version=(2, 27)))
            assert choose(machine, collective, nbytes) == told


def test_all_pairs_are_named_where_msccl_has_them() -> None:
    sizes = (512, 1 << 20, 64 << 20)
    setup = Setup("mi355x", "nccl")
    assert not any(verify(setup.compile("nccl:allpairs", tensor(size, 0))) for size in sizes)
    for other in (part(load_topology("mi355x"), 6), Setup("dgx-h100", "nccl")):
        for how in ("", "+ll+channels=28"):
            with pytest.raises(StrategyError, match="has no all-pairs all-reduce on"):
                other.compile(f"nccl:allpairs{how}", tensor(1 << 20, 0))


def test_exports_leave_msccl_out_where_it_would_come_first() -> None:
    def environment(strategy: str, version: tuple[int, int] | None = None) -> str:
        setup = Setup("mi355x", "nccl", nccl=replace(DEFAULTS, version=version))
        return export("nccl", Choice(setup, tensor(1 << 20, 0), parse_strategy(strategy)))[
            "nccl.env"
        ]

    assert "\nRCCL_MSCCL_ENABLE=0\n" in environment("nccl:ring")
    assert "MSCCL" not in environment("nccl")
    assert "MSCCL" not in environment("nccl:ring", (2, 28))
    assert "RCCL 2.27" in environment("nccl")
    setup = Setup("mi355x", "nccl")
    choice = Choice(setup, tensor(1 << 20, 0), parse_strategy("nccl:allpairs"))
    assert any("it takes them by itself" in why for why in why_not("nccl", choice))
