"""The model of time, against worked examples and published tuning tables."""

from __future__ import annotations

import pytest

from simreduce.planners.nccl import Settings, choose, plan
from simreduce.topology import load_topology
from tests.thorough import THOROUGH

WORKED = {
    # machine, algorithm: latency and bandwidth of LL, LL128, Simple
    ("dgx1v", "ring"): ((15.0, 22.29), (40.6, 63.09), (56.0, 68.57)),
    ("v100-mesh-4", "ring"): ((10.2, 26.0), (25.4, 73.6), (28.8, 80.0)),
    ("dgx-a100", "ring"): ((15.0, 50.1), (40.6, 126.2), (56.0, 137.1)),
    ("dgx-h100", "ring"): (None, None, (56.0, 205.7)),
    ("dgx-h100", "nvls"): (None, None, (25.0, 272.0)),
    ("dgx-a100x2", "ring"): (None, None, (204.4, 102.4)),
    ("dgx-h100x4", "nvlstree"): (None, None, (25 + 41.8 * 2, 364 * 32 / 62)),
    ("dgx-h100x32", "nvlstree"): (None, None, (25 + 41.8 * 5, 364 * 256 / 510)),
}
PROTOCOLS = ("ll", "ll128", "simple")


@pytest.mark.parametrize(("machine", "algorithm"), WORKED)
def test_latency_and_bandwidth_of_worked_examples(machine, algorithm):
    """Of an all-reduce, in the current version, within 1 %."""
    model = plan(load_topology(machine)).model
    for protocol, known in zip(PROTOCOLS, WORKED[machine, algorithm], strict=True):
        if known is not None:
            entry = ("all_reduce", algorithm, protocol)

            assert (model.latency[entry], model.bandwidth[entry]) == pytest.approx(known, rel=0.01)


MIB = 1 << 20
PICKS = [
    ("v100-mesh-4", 1024, "ring", "ll", 10.2),
    ("v100-mesh-4", 64 << 10, "ring", "ll", 12.7),
    ("v100-mesh-4", MIB, "ring", "ll128", 39.6),
    ("v100-mesh-4", 4 * MIB, "ring", "simple", 81.2),
    ("v100-mesh-4", 8 * MIB, "ring", "simple", 133.7),
    ("v100-mesh-4", 32 * MIB, "ring", "simple", 448.2),
    ("dgx1v", 256 * MIB, "ring", "simple", 3971),
    ("dgx-a100", 384, "ring", "ll", 15.0),
    ("dgx-a100", 3 * MIB // 2, "ring", "ll", 46.4),
    ("dgx-a100", 12 * MIB, "ring", "ll128", 140.3),
    ("dgx-a100", 25_200_000, "ring", "simple", 239.5),
    ("dgx-a100", 100_700_000, "ring", "simple", 790.0),
    ("dgx-a100", 402_700_000, "ring", "simple", 2992),
    ("dgx-h100", 256, "ring", "ll", 15.0),
    ("dgx-h100", MIB, "ring", "ll", 28.0),
    ("dgx-h100", 16 * MIB, "nvls", "simple", 86.7),
    ("dgx-h100", 256 * MIB, "nvls", "simple", 1012),
    ("dgx-h100", 1 << 30, "nvls", "simple", 3973),
    ("dgx-h100", 8 << 30, "nvls", "simple", 31606),
]


@pytest.mark.parametrize(("machine", "nbytes", "algorithm", "protocol", "microseconds"), PICKS)
def test_what_is_chosen_and_its_estimate(machine, nbytes, algorithm, protocol, microseconds):
    """The pick and the planner's time of the worked examples, within 1 %."""
    found = choose(load_topology(machine), "all_reduce", nbytes)

    assert (algorithm, protocol) == (found.algorithm, found.protocol)
    assert found.seconds * 1e6 == pytest.approx(microseconds, rel=0.01)


@pytest.mark.parametrize(
    ("nbytes", "microseconds"), [(64 * MIB, 864), (1 << 30, 10772), (4 << 30, 42229)]
)
def test_two_nodes_with_a_ring(nbytes, microseconds):
    """Two DGX A100, NCCL_ALGO=Ring."""
    ring = Settings(algorithms=(("", frozenset(["ring"])),))
    found = choose(load_topology("dgx-a100x2"), "all_reduce", nbytes, ring)

    assert found.seconds * 1e6 == pytest.approx(microseconds, rel=0.01)


ISSUE_1519 = {
    ("all_gather", "ring"): (23.3, 44.6, 70.0),
    ("reduce_scatter", "ring"): (23.3, 44.6, 70.0),
    ("all_reduce", "tree"): (25.2, 48.5, 448.0),
    ("all_reduce", "ring"): (43.4, 79.4, None),
}
"""Latencies of two nodes with 8 H100 on Intel hosts, NVIDIA/nccl issue 1519 (2.19 or 2.20)."""


@pytest.mark.parametrize(("collective", "algorithm"), ISSUE_1519)
def test_latencies_of_a_published_tuning_table(collective, algorithm):
    """To the digit that the log has."""
    model = plan(load_topology("dgx-h100x2"), Settings(version=(2, 19))).model
    for protocol, known in zip(PROTOCOLS, ISSUE_1519[collective, algorithm], strict=True):
        if known is not None:
            assert known == round(model.latency[collective, algorithm, protocol], 1)


def test_a_plain_tree_is_slower():
    """Tree/Simple of 8 H800 in NVIDIA/nccl issue 1154: 68.8 GB/s."""
    model = plan(load_topology("hgx-h800x2"), Settings(version=(2, 19))).model

    assert round(model.bandwidth["all_reduce", "tree", "simple"], 1) == 68.8


def test_rates_before_2_18_are_capped():
    """Ampere's bus at 235 GB/s."""
    model = plan(load_topology("dgx-a100"), Settings(version=(2, 12))).model

    assert model.bandwidth["all_gather", "ring", "simple"] == pytest.approx(235 * 8 / 7)


@pytest.mark.parametrize("minor", range(5, 31) if THOROUGH else (5, 12, 17, 19, 27, 30))
def test_every_version_has_a_model(minor):
    """No rate is negative, and Simple of a ring is there for every collective."""
    settings = Settings(version=(2, minor))
    for machine in ("dgx1v", "dgx-a100x2", "dgx-h100x2", "gh200x4", "pcie-no-p2p-4"):
        at = plan(load_topology(machine), settings)

        assert min(at.model.bandwidth.values()) >= 0
        assert min(at.model.latency.values()) >= 0
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
            assert at.model.bandwidth[collective, "ring", "simple"] > 0
            times = [choose(at.facts, collective, 1 << s, settings).seconds for s in range(6, 33)]
            assert times == sorted(times)


def test_ll128_needs_near_nics():
    """Not across a host bridge, as on a box whose NICs hang on the CPUs."""
    near, far = (plan(load_topology(name)).model for name in ("dgx-h100x2", "h100-mesh-4x2"))

    assert near.bandwidth["all_reduce", "ring", "ll128"] > 0
    assert far.bandwidth["all_reduce", "ring", "ll128"] == 0


def test_pat_is_for_one_gpu_of_each_node():
    """Since 2.23, for all_gather and reduce_scatter."""
    machine = load_topology("gh200x8")

    assert choose(machine, "all_gather", 1024).algorithm in ("pat", "ring")
    assert ("all_gather", "pat", "simple") in plan(machine).model.bandwidth
    assert ("all_gather", "pat", "simple") not in plan(
        machine, Settings(version=(2, 22))
    ).model.bandwidth
