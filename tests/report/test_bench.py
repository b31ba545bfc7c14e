"""`bench`'s outputs: nccl-tests' table and JSON, and our own document."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

import simreduce
from simreduce import dtypes
from simreduce.errors import Deadlock
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.report.bench import (
    BENCH,
    NCCL_TESTS,
    SizeTimes,
    TimedRun,
    bench_page,
    bench_table,
    folded_lines,
    preview_lines,
)
from simreduce.report.blocks import Attachments
from simreduce.study.ranking import Stuck
from simreduce.study.tune.sizes import BenchRow, algbw, busbw

ROW = BenchRow(
    algorithm="psgpu#8",
    count=8388608,
    dtype=0,
    redop="sum",
    seconds=432.1e-6,
    floor_seconds=400e-6,
    transfers=240,
    wrong=0,
    link="gpu0>gpu1 nvlink2",
    link_share=0.874,
)

rows = st.builds(
    BenchRow,
    algorithm=st.sampled_from(["ring", "psgpu#4+packs=8+mean", "pscpu:32k:xring"]),
    count=st.integers(0, 2**48),
    dtype=st.integers(0, 5),
    redop=st.sampled_from(["sum", "avg"]),
    seconds=st.one_of(st.just(0.0), st.floats(1e-9, 1e9)),
    floor_seconds=st.floats(0, 1e9),
    transfers=st.integers(0, 10**9),
    wrong=st.integers(0, 10**9),
    link=st.sampled_from(["", "gpu0>switch0 cable", "n0.mlx5_0>switch0 ib_edr"]),
    link_share=st.floats(0, 1),
)


def _times(rows, ranks: int = 8) -> SizeTimes:
    """Rows of a machine that is named only."""
    setup = SimpleNamespace(
        machine=SimpleNamespace(name="dgx1v" if ranks == 8 else "switch:2"),
        layout=SimpleNamespace(n=ranks),
        runtime=SimpleNamespace(name="tensorflow"),
        calibration=SimpleNamespace(name="nominal"),
        nccl=SimpleNamespace(text=""),
        disturbed="",
        equal_paths="",
        nominal=lambda *_: "",
        call_of=lambda *_: None,
    )
    return SizeTimes(setup, rows)


def _row(table: str) -> str:
    (line,) = [line for line in table.splitlines() if not line.startswith("#")]
    return line


@given(st.lists(rows, min_size=1, max_size=5), st.integers(1, 64))
def test_the_first_nine_fields_of_a_row_are_those_of_nccl_tests(measured, ranks):
    """What `awk '!/^#/ {print $1, $6, $8}'` reads: size, count, type, redop, root, time, algbw,
    busbw, #wrong.
    """
    lines = [
        line.split()
        for line in bench_table(_times(measured, ranks), ["about"]).splitlines()
        if line[0] != "#"
    ]

    assert len(measured) == len(lines)
    for row, fields in zip(measured, lines, strict=True):
        assert [str(row.nbytes), str(row.count), row.redop, "-1"] == [*fields[0:2], *fields[3:5]]
        assert row.dtype == dtypes.code(fields[2])
        assert str(row.wrong) == fields[8]
        for text, value in zip(
            fields[5:8],
            (
                row.seconds * 1e6,
                algbw(row.nbytes, row.seconds) / 1e9,
                busbw(row.nbytes, row.seconds, ranks) / 1e9,
            ),
            strict=True,
        ):
            assert math.isclose(
                float(text), value, rel_tol=1e-3, abs_tol=0.5 if value > 1000 else 0.006
            )


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [
        (432.1e-6, " 432.10   77.65  135.90"),
        (9.9e-6, "   9.90  3389.3  5931.3"),
        (1344.18e-6, "1344.18   24.96   43.68"),
        (0.0123456, "12345.6    2.72    4.76"),
        (0.123456, " 123456    0.27    0.48"),
        (1.23456, "1234560    0.03    0.05"),
    ],
)
def test_a_cell_has_two_decimals_or_fewer_when_it_is_full(seconds, printed):
    """In nccl-tests' columns and widths: `%12li  %12li  %8s  %6s  %6s  %7s  %6s  %6s  %6g`."""
    row = BenchRow("ring", 8388608, 0, "sum", seconds=seconds, transfers=14)
    line = _row(bench_table(_times([row], 8), []))

    assert line.startswith(
        f"{33554432:12d}  {8388608:12d}  {'float':>8}  {'sum':>6}  {-1:>6}  {printed}  {0:6g}  "
    )


def test_our_columns_stand_to_the_right_of_theirs():
    """Floor, transfers, algorithm, busiest link: the algorithm is the first field that is no
    number.
    """
    fields = _row(bench_table(_times([ROW], 8), [])).split(maxsplit=11)

    assert ["400.00", "240", "psgpu#8, gpu0>gpu1 nvlink2 87%"] == fields[9:]


def test_everything_but_rows_is_a_comment():
    """The header names the columns in their order; the footer is nccl-tests'."""
    lines = bench_table(_times([ROW, ROW], 8), ["about one", "about two"]).splitlines()

    assert ["# about one", "# about two"] == lines[:2]
    assert [
        "size",
        "count",
        "type",
        "redop",
        "root",
        "time",
        "algbw",
        "busbw",
        "#wrong",
        "floor",
        "transfers",
        "algorithm,",
        "busiest",
        "link",
    ] == lines[2].split()[1:]
    assert ["(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)", "(us)"] == lines[3].split()[1:]
    assert ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 135.895"] == lines[-2:]
    assert 2 == sum(not line.startswith("#") for line in lines)


def test_each_title_stands_over_its_column():
    """Right-aligned, so that a reader's eye and a fixed-width reader find it."""
    header, _, line = bench_table(_times([ROW], 8), []).splitlines()[:3]
    ends = [m.end() for m in re.finditer(r"\S+", header)][1:10]

    assert ends[:9] == [m.end() for m in re.finditer(r"\S+", line)][:9]


def test_wrong_elements_fail_the_table():
    """As data checks do in nccl-tests."""
    wrong = BenchRow("ring", 4, 0, "sum", seconds=1e-6, transfers=1, wrong=7)

    assert (
        "# Out of bounds values : 14 FAILED"
        in bench_table(_times([wrong, ROW, wrong], 2), []).splitlines()
    )


def test_what_can_never_finish_has_no_times():
    """In the table a line of its own, in our document a list of its own; the average is of the
    others.
    """
    never = Stuck(Deadlock("2 ops can never finish: op 3"))
    stuck = BenchRow("ring", 8388608, 0, "sum", unfinished=never)
    table = bench_table(_times([stuck, ROW], 8), []).splitlines()
    document = BENCH.write(_times([stuck, ROW], 8))

    assert ["33554432", "8388608", "float", "sum", "-1", *"------"] == table[2].split()[:11]
    assert table[2].endswith("  ring failed: 2 ops can never finish: op 3")
    assert "# Can never finish     : 1 FAILED" in table
    assert bench_table(_times([ROW], 8), []).splitlines()[-1] == table[-1]
    assert ["psgpu#8"] == [row["algorithm"] for row in document["rows"]]
    assert [
        {"size_bytes": 33554432, "algorithm": "ring", "reason": "2 ops can never finish: op 3"}
    ] == document["failed"]
    assert 1 == len(NCCL_TESTS.write(TimedRun(_times([stuck, ROW], 8), [], "", ""))["results"])


def test_the_average_is_over_rows():
    """Of the bus bandwidth, in GB/s."""
    slow = BenchRow("ring", 8388608, 0, "sum", seconds=864.2e-6, transfers=14)
    average = NCCL_TESTS.write(TimedRun(_times([ROW, slow], 8), [], "", ""))[
        "average_bus_bandwidth"
    ]["bandwidth"]

    assert pytest.approx(0.75 * 33554432 / 432.1e-6 * 14 / 8 / 1e9) == average


def test_the_table_averages_one_algorithm_at_a_time():
    """Of several, it names the one with the highest average."""
    slow = BenchRow("psgpu", 8388608, 0, "sum", seconds=864.2e-6, transfers=14)
    alone, both = (
        bench_table(_times(rows, 8), []).splitlines()[-1] for rows in ([ROW], [slow, ROW])
    )

    assert f"# Avg bus bandwidth    : {33554432 / 432.1e-6 * 14 / 8 / 1e9:g}" == alone
    assert f"{alone} ({ROW.algorithm}, the highest of 2 algorithms)" == both


def test_where_every_rank_has_a_part_the_count_is_of_the_part():
    """As nccl-tests has it; the size is that of the whole."""
    row = BenchRow("ring", 8192, 0, "none", seconds=1e-6, transfers=1, collective="all_gather")
    fields = _row(bench_table(_times([row], 8), [])).split()

    assert ["32768", "1024", "float", "none", "-1"] == fields[:5]
    assert pytest.approx(32768e-9 / 1e-6 * 7 / 8, abs=0.01) == float(fields[7])


def test_our_document_has_the_keys_that_others_rely_on():
    """In this order; quantities with their units in their names."""
    document = BENCH.write(_times([ROW], 8))

    assert {
        "command": "bench",
        "version": simreduce.__version__,
        "schema": "bench/1",
        "topology": "dgx1v",
        "equal_paths": "",
        "ranks": 8,
        "runtime": "tensorflow",
        "nccl_settings": "",
        "calibration": "nominal",
        "collective": "all_reduce",
        "gpus_per_thread": 0,
        "iterations": 20,
        "disturbance": "",
        "rows": [
            {
                "size_bytes": 33554432,
                "count": 8388608,
                "type": "float",
                "redop": "sum",
                "algorithm": "psgpu#8",
                "runtime": "tensorflow",
                "time_us": pytest.approx(432.1, rel=1e-4),
                "algbw_gb_per_s": pytest.approx(77.654, rel=1e-4),
                "busbw_gb_per_s": pytest.approx(135.895, rel=1e-4),
                "wrong": 0,
                "low_us": None,
                "high_us": None,
                "floor_us": pytest.approx(400),
                "bottleneck": "gpu0>gpu1 nvlink2",
                "transfers": 240,
                "folded_machines": 1,
                "proved": 1.0,
            }
        ],
        "failed": [],
        "bounded": [],
        "complete": True,
    } == document
    assert [
        "command",
        "version",
        "schema",
        "topology",
        "equal_paths",
        "ranks",
        "runtime",
        "nccl_settings",
        "calibration",
        "collective",
        "disturbance",
        "gpus_per_thread",
        "iterations",
        "rows",
        "failed",
        "bounded",
        "complete",
    ] == list(document)
    assert [
        "size_bytes",
        "count",
        "type",
        "redop",
        "algorithm",
        "runtime",
        "time_us",
        "algbw_gb_per_s",
        "busbw_gb_per_s",
        "wrong",
        "low_us",
        "high_us",
        "floor_us",
        "bottleneck",
        "transfers",
        "folded_machines",
        "proved",
    ] == list(document["rows"][0])


def test_the_document_for_j_has_the_shape_of_nccl_tests():
    """The same results out of place and in place; times in microseconds, bandwidths in GB/s."""
    arguments = ["bench", "switch:2", "-J", "x.json"]
    document = NCCL_TESTS.write(
        TimedRun(_times([ROW], 2), arguments, "2024-05-01T10:00:00", "2024-05-01T10:00:09")
    )
    block = {
        "time": pytest.approx(432.1, rel=1e-4),
        "alg_bw": pytest.approx(77.654, rel=1e-4),
        "bus_bw": pytest.approx(77.654, rel=1e-4),
        "nwrong": 0,
    }

    assert {
        "version": f"simreduce {simreduce.__version__}",
        "start_time": "2024-05-01T10:00:00",
        "args": ["bench", "switch:2", "-J", "x.json"],
        "config": {
            "topology": "switch:2",
            "simulated": True,
            "nthreads": 1,
            "ngpus": 1,
            "iterations": 20,
        },
        "devices": [{"rank": 0}, {"rank": 1}],
        "results": [
            {
                "size": 33554432,
                "count": 8388608,
                "type": "float",
                "redop": "sum",
                "root": -1,
                "algorithm": "psgpu#8",
                "out_of_place": block,
                "in_place": block,
            }
        ],
        "end_time": "2024-05-01T10:00:09",
        "out_of_bounds": {"count": 0, "okay": True},
        "average_bus_bandwidth": {"bandwidth": pytest.approx(77.654, rel=1e-4)},
    } == document


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("float32", "float"),
        ("float16", "half"),
        ("float64", "double"),
        ("bfloat16", "bfloat16"),
        ("int32", "int32"),
        ("int64", "int64"),
    ],
)
def test_types_are_spelled_as_nccl_tests_spells_them(name, printed):
    """In the table and in both documents; `-d` reads them back."""
    row = BenchRow("ring", 8, dtypes.code(name), "sum", seconds=1e-6, transfers=2)

    assert printed == _row(bench_table(_times([row], 2), [])).split()[2]
    assert printed == BENCH.write(_times([row], 2))["rows"][0]["type"]
    assert printed == NCCL_TESTS.write(TimedRun(_times([row], 2), [], "", ""))["results"][0]["type"]
    assert dtypes.code(name) == dtypes.code(printed)


FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "send_receive": lambda _: 1.0,
}
"""Busbw over algbw: nccl-tests, doc/PERFORMANCE.md, and the getBw functions of src/alltoall.cu and
src/sendrecv.cu.
"""


@pytest.mark.parametrize("ranks", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_two_bandwidths_of_nccl_tests(collective, ranks):
    """A plan that takes no time has none."""
    factor = FACTORS[collective](ranks)

    assert algbw(10**9, 0.02) == 50e9
    assert busbw(10**9, 0.02, ranks, collective) == pytest.approx(factor * 50e9, rel=1e-15)
    assert algbw(10**9, 0.0) == busbw(10**9, 0.0, ranks, collective) == 0.0


def test_the_sizes_of_a_chunk_make_no_further_algorithms():
    """One strategy with a chunk size of its own at every size is one algorithm."""
    rows = [
        replace(ROW, strategy="trees", algorithm="trees+chunk=1MiB"),
        replace(ROW, strategy="ring", algorithm="ring", seconds=2 * ROW.seconds),
        replace(ROW, strategy="trees", algorithm="trees+chunk=2MiB"),
    ]
    last = bench_table(_times(rows, 8), []).splitlines()[-1]

    assert last.endswith("(trees, the highest of 2 algorithms)")


@pytest.mark.parametrize("others", [0, 1])
def test_a_lower_bound_is_not_the_best_of_times(others):
    """Without the dispatch of TensorFlow's ops a row says what it takes at least, so that a slower
    one with a time is named; the others are counted. The page and the preview choose alike.
    """
    known = replace(ROW, strategy="nccl", algorithm="nccl", seconds=2 * ROW.seconds)
    bound = replace(ROW, strategy="ring", algorithm="ring", undispatched=True)
    more = [replace(known, strategy="tree", algorithm="tree", seconds=3 * ROW.seconds)] * others
    times = _times([bound, known, *more], 8)
    last = bench_table(times, []).splitlines()[-1]
    first, *rest = (row.get("lower_bound", False) for row in BENCH.write(times)["rows"])

    assert last.endswith(
        " (nccl, the highest that is known; 1 other has a lower bound of its time only, as the "
        "calibration knows no dispatch of TensorFlow's ops)"
    )
    assert (True, [False] * (1 + others)) == (first, rest)
    assert preview_lines(times.rows)[0].endswith("  nccl")
    assert preview_lines([bound])[0].endswith("  ring")
    page = bench_page(BENCH.write(times), Attachments())
    assert page.answer.startswith("At 33.55 MB, nccl is the fastest that is known: 864.2 us, ")
    assert page.answer.endswith("; ring takes 432.1 us at least, a lower bound.")

    slow = _times([replace(bound, seconds=9 * ROW.seconds), known, *more], 8)
    sure = bench_table(slow, []).splitlines()[-1]
    assert sure.endswith(f"(nccl, the highest of {2 + others} algorithms)")


def test_a_row_of_which_a_part_is_proved_says_so():
    (line,) = folded_lines(_times([ROW, replace(ROW, proved=0.25)]))

    assert line.startswith("#wrong of psgpu#8 at 33554432 B is found in 25.00% of the elements")
