"""The PyTorch profiler's timeline: fields as ParamCommsUtils and Kineto name them."""

from __future__ import annotations

import json

import pytest

from simreduce.training.executions import COLLECTIVE, COMPUTE, SEND, ExecutionError
from simreduce.training.executions.pytorch import ALL_AT_ONCE, PERHAPS_FIRST
from simreduce.training.executions.reading import read_executions
from tests.training.executions.traces import kernel

SUM = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 4,
    "dtype": "BFloat16", "Process Group Ranks": "[0, 1, 2, 3]",
}  # fmt: skip


def _read(tmp_path, events, **more):
    path = tmp_path / "trace.json"
    document = {"distributedInfo": {"rank": 2, "world_size": 4}, "traceEvents": events, **more}
    path.write_text(json.dumps(document))
    return read_executions([str(path)])


def test_what_waits_for_what(tmp_path):
    """A backward pass of two kernels, an all-reduce launched between them, and the optimizer, which
    begins when that has ended.
    """
    events = [
        *kernel("gemm", 7, 100, 50, 10, 1),
        *kernel("ncclDevKernel_AllReduce_Sum", 20, 152, 90, 12, 2, **SUM),
        *kernel("gemm2", 7, 150, 60, 14, 3),
        *kernel("adam", 7, 242, 8, 16, 4),
    ]
    found = _read(tmp_path, events)
    gemm, gemm2, collective, adam = found.nodes[2]

    assert [COMPUTE, COMPUTE, COLLECTIVE, COMPUTE] == [
        node.kind for node in (gemm, gemm2, collective, adam)
    ]
    assert (0,) == collective.after  # what was launched before it
    assert (0,) == gemm2.after
    assert (1, 2) == adam.after  # the stream stood still until the all-reduce had ended
    assert ("all_reduce", 2000, (0, 1, 2, 3)) == (
        collective.collective,
        collective.nbytes,
        collective.group,
    )
    assert pytest.approx(150e-6) == found.recorded


def _step(begin, *elements):
    """Kernels of a backward pass with an all-reduce each, and the marks of a step of 100 us."""
    marks = [
        ("ProfilerStep#0", begin, 100),
        ("autograd::engine::evaluate_function: X", begin + 5, 50),
    ]
    events = [
        {"ph": "X", "cat": "user_annotation", "name": name, "ts": at, "dur": took, "args": {}}
        for name, at, took in marks
    ]
    for i, n in enumerate(elements):
        at, args = begin + 10 + 10 * i, SUM | {"In msg nelems": n}
        events += kernel("gemm", 7, at, 5, at - 4, begin + 2 * i)
        events += kernel(
            "ncclDevKernel_AllReduce", 20, at + 5, 5, at - 3, begin + 2 * i + 1, **args
        )
    return events


def test_a_first_step_of_one_bucket_is_left_out(tmp_path):
    """If later ones divide it, as DDP's do; whether a step alone is a first one, nothing says."""
    found = _read(tmp_path, [*_step(0, 900), *_step(100, 300, 600), *_step(200, 300, 600)])

    assert ALL_AT_ONCE in found.notes
    assert [600, 1200] * 2 == [node.nbytes for node in found.nodes[2] if node.kind == COLLECTIVE]
    assert all(before < i for i, node in enumerate(found.nodes[2]) for before in node.after)

    alike = _read(tmp_path, [*_step(0, 900), *_step(100, 900)])
    assert 2 == sum(node.kind == COLLECTIVE for node in alike.nodes[2])
    assert {ALL_AT_ONCE, PERHAPS_FIRST}.isdisjoint(alike.notes)
    assert PERHAPS_FIRST in _read(tmp_path, _step(0, 900)).notes


def test_other_gaps_are_the_cpus(tmp_path):
    """Nothing ended in them, so they stay."""
    events = [
        *kernel("gemm", 7, 100, 50, 10, 1),
        *kernel("gemm2", 7, 180, 60, 170, 3),
        *kernel("nccl", 20, 240, 9, 12, 2, **SUM),
    ]
    names = [(node.name, node.seconds) for node in _read(tmp_path, events).nodes[2]]

    assert ("CPU", pytest.approx(30e-6)) == names[1]


@pytest.mark.parametrize(
    ("name", "collective", "nbytes"),
    [
        ("all_gather", "all_gather", 2000),  # dist.all_gather; FSDP's is _allgather_base
        ("_allgather_base", "all_gather", 2000),
        ("_reduce_scatter_base", "reduce_scatter", 2000),
        ("barrier", "all_reduce", 4),
    ],
)
def test_names_of_collectives_are_those_of_process_group_nccl(tmp_path, name, collective, nbytes):
    """Which records 0 bytes for a barrier; over NCCL it is an all-reduce."""
    empty = {"In msg nelems": 0, "dtype": "Byte"} if name == "barrier" else {}
    args = SUM | {"Collective name": name} | empty
    (node,) = _read(tmp_path, kernel("ncclDevKernel_X", 20, 0, 5, **args)).nodes[2]

    assert (collective, nbytes) == (node.collective, node.nbytes)


def test_a_send_has_its_peer(tmp_path):
    """As `Dst Rank`."""
    args = {"Collective name": "send", "In msg nelems": 8, "dtype": "Float", "Dst Rank": 3}
    (node,) = _read(tmp_path, kernel("ncclDevKernel_SendRecv", 20, 0, 5, **args)).nodes[2]

    assert (SEND, 3, 32) == (node.kind, node.peer, node.nbytes)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"Collective name": None}, "which collective it was is not known"),
        ({"Collective name": "allredcue"}, "'allredcue': which collective it was is not known"),
        ({"dtype": "Quark"}, "a known dtype, got 1000, 'Quark'"),
        ({"Process Group Ranks": "[0, 1, ..., 63]", "Group size": 3}, "are cut off"),
        ({"Process Group Ranks": "[0, 1]"}, "rank 2 must be once among"),
    ],
)
def test_what_a_kernel_does_not_say(tmp_path, change, fault):
    """Refused with its name and its time."""
    args = {key: value for key, value in (SUM | change).items() if value is not None}
    with pytest.raises(ExecutionError, match=fault):
        _read(tmp_path, kernel("ncclDevKernel_AllReduce", 20, 152, 90, **args))


def test_the_ranks_of_a_large_group_are_those_that_the_job_configures(tmp_path):
    """Kineto cuts lists off after 30 ranks. A group as large as the job is all of it."""
    pairs = {"pg_name": "7", "ranks": [*range(0, 64, 2)]}
    job = {"rank": 2, "world_size": 64, "pg_config": [{"pg_name": "0", "ranks": []}, pairs]}
    cut = "[0, 2, 4, ..., 62]"
    whole = SUM | {"Group size": 64, "Process Group Ranks": "[0, 1, 2, ..., 63]"}
    half = SUM | {"Group size": 32, "Process Group Name": "7", "Process Group Ranks": cut}
    events = [*kernel("nccl1", 20, 0, 5, **whole), *kernel("nccl2", 21, 5, 5, **half)]
    nodes = _read(tmp_path, events, distributedInfo=job).nodes[2]

    assert [(), tuple(range(0, 64, 2))] == [node.group for node in nodes]
    silent = {key: value for key, value in half.items() if not key.startswith("Process")}
    with pytest.raises(ExecutionError, match="which 32 of 64 ranks its group has is not said"):
        _read(tmp_path, kernel("nccl", 20, 0, 5, **silent), distributedInfo=job)


NAN = float("nan")
CALL = kernel("nccl", 20, 0, 5, 0, **SUM)


def test_numbers_that_are_not_finite_where_nobody_reads_them(tmp_path):
    """The profiler writes NaN, Infinity and -Infinity for figures that it did not take."""
    figures = {"est. achieved occupancy %": NAN, "blocks per SM": float("inf"), "x": -float("inf")}
    other = {"ph": "X", "cat": "python_function", "name": "f", "ts": NAN, "dur": 1, "args": {}}
    events = [*kernel("nccl", 20, 0, 5, 0, **SUM, **figures), other]
    assert _read(tmp_path, events, more=NAN).nodes == _read(tmp_path, CALL).nodes


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        (kernel("nccl", 20, NAN, 5, **SUM), "'nccl' begins at nan us and takes 5 us"),
        (kernel("nccl", 20, 0, float("inf"), **SUM), "'nccl' begins at 0 us and takes inf us"),
        (kernel("nccl", NAN, 0, 5, **SUM), "'nccl' has stream nan"),
        (kernel("nccl", 20, 0, 5, 0, NAN, **SUM), "'nccl' has correlation nan"),
        (kernel("nccl", [], 0, 5, **SUM), r"'nccl' has stream \[\]"),
        (kernel("nccl", 20, 0, "5", **SUM), "'nccl' begins at 0 us and takes '5' us"),
        (kernel("nccl", 20, 0, 5, NAN, **SUM), "'cudaLaunchKernel' begins at nan us"),
        (
            [*CALL, {"cat": "cpu_op", "name": "Optimizer.step#SGD", "ts": NAN}],
            "'Optimizer.step#SGD' begins at nan us",
        ),
        (kernel("nccl", 20, 0, 5, **SUM | {"In msg nelems": NAN}), "'In msg nelems'.*, got nan"),
    ],
    ids=["begin", "time", "stream", "correlation", "list", "text", "launch", "mark", "elements"],
)
def test_numbers_that_are_not_finite_where_they_are_read(tmp_path, events, fault):
    with pytest.raises(ExecutionError, match=fault):
        _read(tmp_path, events)


def test_a_timeline_without_nccl_is_refused(tmp_path):
    """Such as one of the CPU alone."""
    with pytest.raises(ExecutionError, match="no kernel of NCCL"):
        _read(tmp_path, kernel("gemm", 7, 0, 1))


def test_ddp_says_its_buckets(tmp_path):
    """As `_get_ddp_logging_data()` has them; the backward pass is spread evenly over them."""
    path = tmp_path / "ddp.json"
    data = {
        "world_size": 2, "rank": 0, "bucket_sizes": "4, 8", "rebuilt_bucket_sizes": "1024, 2048",
        "avg_backward_compute_time": 4_000_000,
    }  # fmt: skip
    path.write_text(json.dumps(data))
    (nodes,) = read_executions([str(path)]).nodes.values()

    assert [1024, 2048] == [node.nbytes for node in nodes if node.kind == COLLECTIVE]
    assert 4e-3 == sum(node.seconds for node in nodes if node.kind == COMPUTE)
    assert [(), (0,), (0,), (2,)] == [node.after for node in nodes]
    with pytest.raises(ExecutionError, match="says itself which ranks take part"):
        read_executions([str(path)], {"0": (0, 1)})
    path.write_text(json.dumps(data | {"world_size": "2", "rebuilt_bucket_sizes": "x"}))
    with pytest.raises(ExecutionError) as caught:
        read_executions([str(path)])
    assert 2 == len(caught.value.problems)
