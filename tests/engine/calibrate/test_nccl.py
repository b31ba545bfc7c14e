"""NCCL's constants: their table in a calibration, and logs of nccl-tests."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, strategies as st

from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.calibrate import (
    GENERATIONS,
    load_calibration,
    nccl_constants,
    nccl_names,
    shipped,
    to_toml,
    with_values,
)
from simreduce.engine.calibrate.logs import read_launch, read_nccl_logs
from simreduce.engine.runtime import NcclConstants
from simreduce.engine.setup import Setup
from simreduce.errors import CalibrationError
from simreduce.study.tune.sizes import tensor

LOG = """mpirun: warning 1 2 3 4 5 6 7 8
[1,0]<stdout>:# Collective test starting: all_gather_perf
[1,0]<stdout>:#  Rank  0 Group  0 Pid  100 on  node0 device  0 [0x07] NVIDIA A100
[1,1]<stdout>:#  Rank  1 Group  0 Pid  101 on  node1 device  0 [0x07] NVIDIA A100
[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw #wrong
[1,0]<stdout>:        1024           128     float    none      -1    20.10    0.05    0.03      0
0:     1048576        131072     float    none      -1    81.50   12.87    6.43      0
"""


def read_nccl_log(text, name):
    """The first log of a file."""
    return read_nccl_logs(text, name)[0]


def test_the_table_is_written_and_read(tmp_path):
    values = {"nccl.launch": 9e-6, "nccl.latency.net.ll": 4.5e-6, "nccl.channel_rate.ll": 6e9}
    base = NcclConstants(measured={"reduce": (2, 8)}, unaligned_peer=1.5e9)
    nccl = with_values(base, values)
    before = Calibration("mine", "x", nccl=nccl, errors={"nccl.efficiency.shm.ll": 0.1})
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(before), "utf-8")

    assert before == load_calibration(str(path))


def test_nccl_alone_has_a_limit_of_sends_whose_parts_are_not_aligned():
    limits = {name: load_calibration(name).nccl.unaligned_peer for name in GENERATIONS.values()}

    assert {limit for name, limit in limits.items() if name.startswith("nccl")} == {1.6e9}
    assert {limit for name, limit in limits.items() if name.startswith("rccl")} == {inf}


def test_parts_that_are_not_aligned_cost_amd_s_gpus_nothing_more():
    setup = Setup("mi355x", "nccl")
    seconds = [
        setup.simulate(setup.compile("rccl", tensor(nbytes, 0, 8), "all_to_all")).seconds
        for nbytes in ((64 << 20) - 32, 64 << 20)
    ]

    assert seconds[0] == pytest.approx(seconds[1], rel=0.01)


def test_what_a_table_leaves_out_keeps_its_default(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[nccl.latency.net]\nll = "9 us"\n', "utf-8")

    found, usual = nccl_names(load_calibration(str(path)).nccl), nccl_names()
    assert found.pop("nccl.latency.net.ll") == pytest.approx(9e-6)
    usual.pop("nccl.latency.net.ll")
    assert found == usual


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('latency.nett.ll = "9 us"', "nccl.latency.nett: unknown key"),
        ("measured.reduces = [8]", "nccl.measured.reduces: unknown key"),
        ("efficiency.net.ll = 7", "nccl.efficiency.net.ll: must be a number"),
    ],
)
def test_faults_of_the_table(tmp_path, text, fault):
    path = tmp_path / "mine.toml"
    path.write_text(f"[nccl]\n{text}\n", "utf-8")

    with pytest.raises(CalibrationError, match=fault):
        load_calibration(str(path))


@pytest.mark.parametrize("name", GENERATIONS.values())
def test_every_generation_is_shipped_with_sources(name):
    found = load_calibration(name)

    assert name in shipped()
    assert found.provenance["source"]


def test_a_generation_is_the_last_that_has_begun():
    assert nccl_constants(75) == load_calibration("nccl-volta").nccl
    assert nccl_constants(103) == load_calibration("nccl-blackwell").nccl
    assert nccl_constants(35) == load_calibration("nccl-pascal").nccl


def test_one_process_issues_a_call_while_the_gpus_do_the_one_before():
    nccl = replace(NOMINAL.nccl, launch=5e-6, launch_each=2e-6)

    assert nccl.per_call(15e-6, 8) == pytest.approx(21e-6)
    assert nccl.per_call(30e-6, 8) == 30e-6
    assert nccl.per_call(15e-6, 0) == 15e-6
    pairs = 8 * 8 * nccl.launch_pair
    assert nccl.per_call(15e-6, 8, together=True) == pytest.approx(21e-6 + pairs)
    posting = replace(nccl, post=1e-6)
    assert posting.per_call(15e-6, 8, 16) == pytest.approx(5e-6 + 8 * 18e-6)
    assert posting.per_call(15e-6, 0, 16) == pytest.approx(21e-6)


def test_a_log_amid_noise():
    log = read_nccl_log(LOG, "log")

    assert (log.collective, log.ranks, log.hosts, log.processes) == ("all_gather", 2, 2, 2)
    assert [(row.size, row.time) for row in log.rows] == [
        (1024, pytest.approx(20.1e-6)),
        (1 << 20, pytest.approx(81.5e-6)),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("20.10", "nan"), ("20.10", "-20.10"), ("20.10", "0.00"), ("0.05    0.03      0", "0.05"),
        ("0.03      0", "0.03      7"), ("-1    20.10    0.05    0.03      0", ""),
    ],
)  # fmt: skip
def test_damaged_rows_of_a_log_are_refused_all_at_once_with_their_lines(old, new):
    damaged = LOG.replace(old, new).replace("81.50", "inf")

    with pytest.raises(CalibrationError) as refused:
        read_nccl_log(damaged, "log")
    assert [fault.split(": ")[1] for fault in refused.value.problems] == ["line 6", "line 7"]


def test_a_log_as_json():
    block = {"time": 20.5, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0}
    result = {"size": 64, "count": 16, "type": "float", "redop": "sum", "out_of_place": block}
    document = {
        "args": ["./build/all_reduce_perf", "-g", "2"],
        "devices": [{"rank": i, "pid": 7, "hostname": "a"} for i in range(2)],
        "results": [result],
    }
    log = read_nccl_log(json.dumps(document), "log")

    assert (log.collective, log.ranks, log.hosts, log.processes) == ("all_reduce", 2, 1, 1)
    assert log.rows[0].time == pytest.approx(20.5e-6)


WRONG = json.dumps({
    "results": [{
        "size": 64, "count": 16, "type": "float",
        "out_of_place": {"time": 20.5, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 3},
    }]
})  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("nothing", "no line of nccl-tests"),
        ("{", "line 1"),
        ('{"results": [{}]}', "results.0.: is"),
        (WRONG, "results.0.: 3 wrong elements"),
    ],
)
def test_faults_of_logs(text, fault):
    with pytest.raises(CalibrationError, match=fault):
        read_nccl_log(text, "log")


COUNTS = st.integers(1, 64)


@given(COUNTS, COUNTS, st.integers(1, 10**6), st.sampled_from(["", "agg iters: 1 "]))
def test_a_log_says_its_threads_their_gpus_and_the_iterations(nthreads, ngpus, iterations, more):
    head = (
        f"# nThread {nthreads} nGpus {ngpus} minBytes 8 maxBytes 134217728 step: 2(factor)"
        f" warmup iters: 5 iters: {iterations} {more}validation: 1 graph: 0\n"
    )
    block = {"time": 20.5, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0}
    document = {
        "config": {"nthreads": nthreads, "ngpus": ngpus, "iterations": iterations},
        "devices": [{"rank": 0, "pid": 7, "hostname": "a"}],
        "results": [{"size": 64, "count": 16, "type": "float", "out_of_place": block}],
    }
    text = read_nccl_log(head + LOG, "log")
    written = read_nccl_log(json.dumps(document), "log")

    assert read_launch(head) == (nthreads, ngpus, iterations)
    assert text.gpus_of_a_thread == written.gpus_of_a_thread == (ngpus if ngpus > 1 else 0)
    assert text.iterations == written.iterations == iterations
    assert written.ranks == nthreads * ngpus


def test_a_log_without_its_header_tells_the_gpus_of_a_process_by_its_devices():
    one = LOG.replace("Pid  101 on  node1", "Pid  100 on  node0")

    assert read_nccl_log(one, "log").gpus_of_a_thread == 2
    assert read_nccl_log(LOG, "log").gpus_of_a_thread == 0
    assert read_nccl_log(LOG, "log").iterations == 0


@pytest.mark.parametrize("config", [{"ngpus": "8"}, {"iterations": -1}, {"nthreads": True}])
def test_a_log_whose_counts_are_none_is_refused(config):
    block = {"time": 20.5, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0}
    results = [{"size": 64, "count": 16, "type": "float", "out_of_place": block}]

    with pytest.raises(CalibrationError, match="must be counts"):
        read_nccl_log(json.dumps({"results": results, "config": config}), "log")


_CHECKED = """# Collective test starting: {}_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
#       size         count      type   redop    root     time   algbw   busbw #wrong
        {} {} float {} -1 31.0 2.11 3.70 {} 30.5 2.15 3.76 {}
"""


def test_what_is_not_checked_is_not_wrong():
    """-c 0 prints N/A for both places."""
    log = read_nccl_log(_CHECKED.format("all_reduce", 64, 16, "sum", "N/A", "N/A"), "log")

    assert [row.time for row in log.rows] == [pytest.approx(31e-6)]


def test_every_row_has_the_collective_of_its_program():
    both = _CHECKED.format("all_reduce", 64, 16, "sum", 0, 0)
    both += "# Collective test concluded: all_reduce_perf\n"
    both += _CHECKED.format("all_gather", 64, 2, "none", 0, 0)
    first, second = read_nccl_logs(both, "log")

    assert [row.collective for log in (first, second) for row in log.rows] == [
        "all_reduce", "all_gather",
    ]  # fmt: skip
    assert (first.collective, second.collective) == ("all_reduce", "all_gather")


def test_programs_without_a_name_here_are_not_taken_for_the_one_before():
    both = _CHECKED.format("alltoall", 64, 16, "none", 0, 0)
    both += _CHECKED.format("gather", 64, 16, "none", 0, 0)

    assert [log.collective for log in read_nccl_logs(both, "log")] == ["all_to_all", ""]


@pytest.mark.parametrize(
    "stamp",
    [
        "2026-11-30T10:01:02.123Z ",
        "2026-11-30 10:01:02,123 ",
        "2026-11-30 10:01:02,123 - INFO - ",
        "(RayWorker pid=77, ip=10.0.0.1) ",
        "> ",
        "Nov 30 10:01:02 node1 ",
        "Mon Nov 30 10:01:02 2026<stdout>:",
        "2026-11-30T10:01:02.123456789Z stdout F ",
        "nccl-1  | ",
        "\x1b[36mnccl-1  |\x1b[0m ",
        "[pod/nccl-launcher-abc12/nccl] ",
        "[default0]:",
        "[prterun-node1-77@1,0]<stdout>: ",
    ],
)
def test_time_stamps_before_lines_are_left_out(stamp):
    text = _CHECKED.format("all_reduce", 64, 16, "sum", 0, 0)
    stamped = "".join(f"{stamp}{line}\n" for line in text.splitlines())

    assert read_nccl_log(stamped, "log").rows == read_nccl_log(text, "log").rows


@pytest.mark.parametrize(
    "torn",
    ["  128  32  float  sum\n", "      12node1:40:40 [0] NCCL INFO AllReduce: 128 Bytes\n"],
)
def test_cut_lines_are_named(torn):
    said = []
    text = _CHECKED.format("all_reduce", 64, 16, "sum", 0, 0) + torn
    [log] = read_nccl_logs(text, "log", said.append)

    assert [row.size for row in log.rows] == [64]
    assert [words.partition(" is ")[0] for words in said] == ["log: line 5"]


def test_a_line_that_another_process_wrote_into_is_left_out_and_told():
    said = []
    torn = "  128  32  float  sum  -1  31.0  2node1:40:40 [0] NCCL INFO AllReduce\n"
    text = _CHECKED.format("all_reduce", 64, 16, "sum", 0, 0) + torn
    [log] = read_nccl_logs(text, "log", said.append)

    assert [row.size for row in log.rows] == [64]
    assert len(said) == 1
    assert said[0].startswith("log: line 5 is torn and left out: '128  32")


def test_a_row_that_ends_after_its_count_is_left_out_and_told():
    said = []
    text = _CHECKED.format("all_reduce", 64, 16, "sum", 0, 0) + "[1,0]<stdout>:   128   3\n"
    [log] = read_nccl_logs(text, "log", said.append)

    assert [row.size for row in log.rows] == [64]
    assert [words.partition(":   ")[0] for words in said] == [
        "log: line 5 is torn and left out: '[1,0]<stdout>"
    ]
