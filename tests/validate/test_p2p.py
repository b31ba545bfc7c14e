"""Published matrices of p2pBandwidthLatencyTest, predicted without calibration."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest
from simreduce_validate import p2p
from simreduce_validate.machines import MACHINES, NETWORKS

from simreduce.topology import load_topology

PUBLISHED = list(dict.fromkeys(matrix.case.machine for matrix in p2p.load_matrices()))


@pytest.mark.parametrize("machine", PUBLISHED)
def test_bandwidths_agree_within_10_percent_and_a_tenth_within_20(machine):
    """All matrices of a machine together, one way and both ways, with peer access and without, but
    for the exceptions.
    """
    row = p2p.compare_bandwidths(machine, without_exempt=True)

    assert len(row.cells) >= 8
    assert row.median <= 0.10
    assert row.high <= 0.20
    assert row.is_close


def test_which_matrices_fail_alone():
    """Every matrix passes by itself, but for those that are named and what the exceptions leave
    out.
    """
    excepted = {each.case for each in p2p.EXCEPTIONS}
    failing = {
        row.case for row in p2p.compare_cases() if row.case.kind != p2p.LATENCY and not row.is_close
    }

    assert failing - excepted == set(p2p.ALONE)
    assert excepted <= failing


def test_what_is_published_is_all_there():
    assert len(p2p.load_matrices()) == 46
    assert sum(len(p2p.compare([matrix]).cells) for matrix in p2p.load_matrices()) == 1284
    assert all(matrix.source.startswith("github.com/") for matrix in p2p.load_matrices())
    assert PUBLISHED == [
        "dgx1-p100",
        "abci-v-4xV100-16g-nv2mesh",
        "abci-a-8xA100-40g-nvswitch",
        "4xP100-PCIe-16g",
        "4xA100-SXM4-nv4mesh",
        "2xRTX2080Ti-pcie3-nop2p",
    ]


@pytest.mark.parametrize("each", p2p.EXCEPTIONS, ids=lambda each: each.case.machine)
def test_an_exception_is_one(each):
    """Every pair of it is off by more than is accepted of the median pair, and it says why."""
    matrices = [matrix for matrix in p2p.load_matrices() if matrix.case == each.case]
    every, counted = (p2p.compare(matrices, without_exempt=x).cells for x in (False, True))
    left_out = (Counter(every) - Counter(counted)).elements()
    off = p2p.MatrixComparison(each.case, list(left_out)).errors

    assert min(off) > p2p.MEDIAN
    assert p2p.quantile(off, 0.9) > p2p.HIGH
    assert len(each.reason) > 40


def test_the_exceptions_are_few():
    assert len(p2p.EXCEPTIONS) == 3


def test_the_report_shows_every_matrix_machine_and_exception():
    report = p2p.report()

    assert all(report.count(machine) >= 5 for machine in PUBLISHED)
    assert all(each.reason in report for each in p2p.EXCEPTIONS)
    assert sum(line.endswith(" *") for line in report.splitlines()) == len(p2p.EXCEPTIONS)
    assert sum(line.endswith(" +") for line in report.splitlines()) == len(p2p.ALONE)
    assert [line.split()[0] for line in report.splitlines() if line.endswith("%  i")] == list(
        p2p.INFERRED
    )
    assert "dgx1-p100 dgx1p one_way on 112 18.41 18.30" in " ".join(report.split())


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_that_measurements_name_is_shipped(machine):
    """With the network that they were made on, where there was one."""
    topology = load_topology(MACHINES[machine])
    assert topology.devices
    if machine in NETWORKS:
        pair = load_topology(f"{MACHINES[machine]}x2,nic={NETWORKS[machine]}")
        assert len(pair.devices) == 2 * len(topology.devices)


@pytest.mark.parametrize(
    ("machine", "peer_access"), [("dgx1-p100", True), ("4xA100-SXM4-nv4mesh", False)]
)
def test_staged_copies_of_the_exceptions_gain_nothing_from_going_both_ways(machine, peer_access):
    """The reason for which they are exceptions; elsewhere both ways together carry a third more at
    least.
    """

    def middle(kind: str, machine: str, peer_access: bool) -> float:
        peers = p2p.predict(machine).peers
        return statistics.median(
            rate
            for matrix in p2p.load_matrices()
            if matrix.case == p2p.MatrixCase(machine, kind, peer_access)
            for i, row in enumerate(matrix.rows)
            for j, rate in enumerate(row)
            if rate is not None and not (peer_access and peers[i][j])
        )

    def gain(machine: str, peer_access: bool) -> float:
        return middle("both_ways", machine, peer_access) / middle("one_way", machine, peer_access)

    assert 0.95 < gain(machine, peer_access) < 1.1
    assert gain("dgx1-p100", False) > 1.3
    assert gain("abci-v-4xV100-16g-nv2mesh", False) > 1.3


def test_latencies_of_writes_over_nvlink_agree():
    """Reads stand apart; the sample of 2017 on the DGX-1 with P100 counts launches."""
    cases = {row.case: row.median for row in p2p.compare_cases() if row.case.kind == "latency"}
    peers = {case: median for case, median in cases.items() if case.peer_access}
    reads = {case.machine for case in peers if case.reads}

    assert {"4xA100-SXM4-nv4mesh", "4xP100-PCIe-16g"} == reads
    for machine in ("4xA100-SXM4-nv4mesh", "abci-a-8xA100-40g-nvswitch"):
        assert peers[p2p.MatrixCase(machine, "latency", peer_access=True)] < 0.2
