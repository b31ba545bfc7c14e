"""Logs of p2pBandwidthLatencyTest and nccl-tests as values."""

from __future__ import annotations

import re

import pytest

from simreduce.engine import NOMINAL
from simreduce.engine.calibrate.logs import (
    has_rows,
    read_nccl_logs,
    read_nccl_tests,
    read_p2p_test,
)
from simreduce.errors import CalibrationError
from simreduce.report.topo import MATRICES, P2P, ROWS, Copies, p2p_table
from simreduce.study.tune.sizes import peer_to_peer
from simreduce.topology import load_topology
from tests.topology.importers.files import NCCL_TESTS, OLD_NCCL_TESTS, P2P_TEST


def test_matrices_of_a_log():
    off, on, both, latency = read_p2p_test(P2P_TEST, "log")

    assert (off.kind, off.peer_access, off.rows) == (
        "one_way",
        False,
        ((None, 10.5e9), (10.6e9, None)),
    )
    assert (on.peer_access, on.rows[0][1]) == (True, 48.5e9)
    assert (both.kind, both.rows[1][0]) == ("both_ways", 96.8e9)
    assert (latency.kind, latency.rows[1][0]) == ("latency", pytest.approx(1.91e-6))


def test_what_we_predict_can_be_read_like_a_log():
    machine = load_topology("v100-mesh-4")
    predicted = peer_to_peer(machine)
    text = p2p_table(P2P.write(Copies(machine, NOMINAL, predicted)))
    read = read_p2p_test(text, "ours")

    assert [(m.kind, m.peer_access) for m in read] == [
        (kind, on) for kind in ("one_way", "both_ways", "latency") for on in (False, True)
    ]
    assert read[1].rows[0][1] == pytest.approx(predicted.enabled.one_way[0][1], rel=1e-3)


def test_a_table_of_nccl_tests():
    small, large = read_nccl_tests(NCCL_TESTS, "log")

    assert (small.size, small.count, small.dtype, small.redop) == (8, 2, "float", "sum")
    assert (large.time, large.algbw, large.busbw) == (pytest.approx(1234e-6), 108.77e9, 108.77e9)


def test_a_table_from_before_roots():
    (row,) = read_nccl_tests(OLD_NCCL_TESTS, "log")

    assert (row.size, row.time, row.busbw) == (1 << 20, pytest.approx(10185e-6), 21.6e9)


def test_documents_have_units_in_their_keys():
    document = MATRICES.write(("p2pBandwidthLatencyTest", read_p2p_test(P2P_TEST, "log")))
    assert document["matrices"][0]["rows_gb_per_s"] == [[None, 10.5], [10.6, None]]
    assert document["matrices"][3]["rows_us"][0][1] == 1.9
    assert ROWS.write(((1, 8, 20), read_nccl_tests(NCCL_TESTS, "log")))["rows"][0]["time_us"] == 9.1


@pytest.mark.parametrize(
    ("read", "text", "fault"),
    [
        (read_p2p_test, "", "no matrix"),
        (
            read_p2p_test,
            P2P_TEST.replace("48.40", "fast"),
            "line 12: row 1 must be its number and 2 numbers",
        ),
        (read_p2p_test, P2P_TEST.split("   GPU")[0], "no row of GPU numbers"),
        (read_nccl_tests, "", "no line of nccl-tests"),
        (read_nccl_tests, NCCL_TESTS.replace("9.10 ", "0 "), "a time of 0 us"),
        (read_nccl_tests, NCCL_TESTS.replace("float     sum", "1 2"), "not a line of nccl-tests"),
    ],
)
def test_faults(read, text, fault):
    with pytest.raises(CalibrationError, match=fault):
        read(text, "log")


_NVBANDWIDTH = """nvbandwidth Version: v0.8
Device 0: NVIDIA H100 80GB HBM3 (00000000:18:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.21     55.30

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    391.42
 1    391.10       N/A

SUM device_to_device_memcpy_read_ce 782.52

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    392.00
 1    392.10       N/A
"""


def test_copies_between_gpus_of_nvbandwidth():
    """Both directions of a test; those of the host are left out."""
    read, written = read_p2p_test(_NVBANDWIDTH, "log")

    assert (read.kind, read.peer_access, read.reads) == ("one_way", True, True)
    assert read.rows == ((None, 391.42e9), (391.10e9, None))
    assert not written.reads
    assert written.rows == ((None, 392.10e9), (392.00e9, None))  # rows send
    with pytest.raises(CalibrationError, match="line 10: row 1 must be its number and 2 numbers"):
        read_p2p_test(_NVBANDWIDTH.replace("391.10", "much"), "log")


_ROWS = """
     1048576        262144     float     sum      -1     52.3   20.05   35.09      0     51.9   20.20   35.36      0
  1073741824     268435456     float     sum      -1   5180.0  207.29  362.75    N/A   5175.0  207.49  363.10    N/A
"""  # noqa: E501
_BEFORE_ROOTS = (
    _ROWS.replace("      -1 ", " ").replace("      0", "  0e+00").replace("N/A", "1e-06")
)
_CUT = re.sub(r" +(51|5175)\.[90].*", "", _ROWS)


@pytest.mark.parametrize("rows", [_ROWS, _BEFORE_ROOTS, _CUT])
def test_rows_without_their_heading(rows):
    """As people paste them: with and without the column of roots, and out of place alone."""
    assert has_rows(rows)
    assert [(row.size, row.time, row.busbw) for row in read_nccl_tests(rows, "log")] == [
        (1 << 20, pytest.approx(52.3e-6), 35.09e9), (1 << 30, pytest.approx(5180e-6), 362.75e9),
    ]  # fmt: skip
    assert {row.collective for log in read_nccl_logs(rows, "log") for row in log.rows} == {""}


def test_rows_without_their_heading_still_say_what_is_wrong():
    with pytest.raises(CalibrationError, match="line 2: '3' wrong elements"):
        read_nccl_tests(_ROWS.replace("35.09      0", "35.09      3"), "log")


_OSU = """
# OSU MPI-CUDA Allreduce Latency Test v7.3
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)
4                       8.12
67108864            18322.11
"""
_OSU_FULL = """[1,0]<stdout>:# OSU NCCL-CUDA Allgather Latency Test v7.5
[1,0]<stdout>:# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
[1,0]<stdout>:1024                 36.08             29.29             44.85        1000
[1,0]<stdout>:67108864       node1:40:40 [0] NCCL INFO
0: # OSU MPI-ROCM Reduce_scatter Latency Test v5.6.3
0: # Size          Avg Latency(ms)
0: 1048576         0.09133
"""


def test_a_table_of_osu():
    said = []
    [log] = read_nccl_logs(_OSU, "log", said.append)

    assert (log.collective, log.iterations, log.of_one_rank) == ("all_reduce", 1, False)
    assert [(row.size, row.time) for row in log.rows] == [
        (4, pytest.approx(8.12e-6)), (64 << 20, pytest.approx(18322.11e-6)),
    ]  # fmt: skip
    assert said == ["log: is of MPI, whose times NCCL's constants are fitted to"]


def test_tables_of_osu_with_all_columns_and_prefixes():
    """Of an all-gather, OSU prints what one rank gives."""
    said = []
    gather, scatter = read_nccl_logs(_OSU_FULL, "log", said.append)

    assert (gather.collective, gather.of_one_rank) == ("all_gather", True)
    assert [(row.size, row.time) for row in gather.rows] == [(1024, pytest.approx(36.08e-6))]
    assert (scatter.collective, scatter.of_one_rank) == ("reduce_scatter", False)
    assert [row.time for row in scatter.rows] == [pytest.approx(91.33e-6)]
    assert said[0].startswith("log: line 4 is torn and left out: '67108864")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (_OSU.replace("-CUDA", ""), "line 2: is of the memory of hosts; bring what it prints"),
        (_OSU.replace("Allreduce Latency", "Bandwidth"), "line 2: '# OSU MPI-CUDA Bandwidth Test'"),
        (_OSU.replace("Allreduce", "Non-blocking Allreduce"), "no collective that is known"),
        (_OSU.replace("Latency(us)", "(MB/s)"), "line 4: has no column of latencies"),
        (_OSU.replace("8.12", "0.00"), "line 5: a time of 0.00"),
        (_OSU.replace("\n4  ", "\n1.5"), "line 5: .* is torn and left out"),
        (_OSU.partition("4  ")[0], "no line of OSU's tables in it"),
    ],
)
def test_faults_of_tables_of_osu(text, fault):
    with pytest.raises(CalibrationError, match=fault):
        read_nccl_logs(text, "log")
