"""Timelines of jobs on CPUs: real ones, and events as PyTorch 2.13 writes them over gloo."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
import simpy

from simreduce.training.executions import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    Execution,
    ExecutionError,
)
from simreduce.training.executions.gloo import SCATTERED
from simreduce.training.executions.pytorch import ALL_AT_ONCE
from simreduce.training.executions.reading import read_executions
from simreduce.training.executor import run_nodes
from simreduce.training.recorded import read_recorded

MADE = Path(__file__).parent / "timelines"
UNITS = [4 * (512 * n + m) for n, m in ((256, 512), (512, 512), (256, 256))]
"""Bytes of the three linear layers of the recorded model."""


def _read(name):
    return read_executions([str(MADE / name)])


def test_buckets_of_ddp_are_those_after_its_first_step():
    """The last two layers fill a bucket of 1 MiB; the first step had one of everything."""
    execution = _read("gloo_ddp.json.gz")
    sums = [node for node in execution.nodes[0] if node.collective == "all_reduce"]
    steps = [[node.nbytes for node in some] for _, some in groupby(sums, lambda node: node.step)]

    assert 4 == execution.world
    assert ALL_AT_ONCE in execution.notes
    assert [[UNITS[2] + UNITS[1], UNITS[0]]] * 2 == steps
    assert {("float32", BACKWARD, ())} == {(node.dtype, node.phase, node.group) for node in sums}


@pytest.mark.parametrize("name", ["gloo_fsdp1.json.gz", "gloo_fsdp2.json.gz"])
def test_what_fsdp_gathers_and_scatters(name):
    """Each layer is gathered for both passes and its gradients are scattered, in three steps. Gloo
    carries out an all-reduce in place of that.
    """
    execution = _read(name)
    calls = Counter(
        (node.collective, node.nbytes) for node in execution.nodes[0] if node.kind == COLLECTIVE
    )
    gathers = {("all_gather", size // 2): 6 for size in UNITS}

    assert gathers | {("reduce_scatter", size): 3 for size in UNITS} == calls
    assert SCATTERED in execution.notes
    assert ALL_AT_ONCE not in execution.notes


@pytest.mark.parametrize(
    ("name", "most"),
    [("gloo_ddp.json.gz", 1.25), ("gloo_fsdp1.json.gz", 1.0), ("gloo_fsdp2.json.gz", 1.0)],
)
def test_a_run_is_as_long_as_recorded(name, most):
    """If each collective takes as long as it took. Gloo moves two of DDP's at once, a replay one
    after the other.
    """
    execution = _read(name)
    env = simpy.Environment()
    alone = Execution(name, execution.nodes, 1)
    ran = run_nodes(alone, env, lambda node, _group: env.timeout(node.seconds))

    assert 0.88 * execution.recorded < max(each.end for each in ran) < most * execution.recorded


def test_a_step_of_ddp_has_passes_and_an_update():
    found = read_recorded(str(MADE / "gloo_ddp.json.gz"))

    assert (UNITS[2] + UNITS[1], UNITS[0]) == found.sizes
    assert min(found.forward, found.backward, found.update) > 0.0
    assert found.ready[0] < found.ready[1] <= found.backward


MAIN, GLOO = 1, 2


def _event(name, begin, took, thread=MAIN, dims=None, types=None, given=None, category="cpu_op"):
    args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": given}
    return {
        "ph": "X", "cat": category, "name": name, "ts": begin, "dur": took, "tid": thread,
        "args": {key: value for key, value in args.items() if value is not None},
    }  # fmt: skip


def _gloo(name, begin, took, dims, dtype="float"):
    types = [dtype] * len(dims)
    return _event(f"gloo:{name}", begin, took, GLOO, dims, types, category="user_annotation")


def _read_events(tmp_path, events, ranks=4, **job):
    path = tmp_path / "trace.json"
    info = {"backend": "gloo", "rank": 0, "world_size": ranks, **job}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    return read_executions([str(path)])


LIST = ["TensorList", "", "", "", "Scalar", "Scalar"]


@pytest.mark.parametrize(
    ("name", "dims", "given", "events", "found"),
    [
        ("allreduce_", [[[10, 10]], []], None, [("all_reduce", [[10, 10]])], ("all_reduce", 400)),
        (
            "allreduce_coalesced_", [[[240], [241]], []], None,
            [("all_reduce", [[240], [241]])], ("all_reduce", 1924),
        ),
        (
            "broadcast_", [[[130]], []], ["", "", "2", "0", "False", "-1"],
            [("broadcast", [[130]])], ("broadcast", 520, 2),
        ),
        (
            "reduce_", [[[140]], []], ["", "", "", "1", "0", "False", "-1"],
            [("reduce", [[140]])], ("reduce", 560, 1),
        ),
        ("allgather_", [[], [[150]]], None, [("all_gather", [[150]])], ("all_gather", 600)),
        ("_allgather_base_", [[640], [160]], None, [("all_gather", [[160]])], ("all_gather", 640)),
        (
            "reduce_scatter_", [[[170]], []], None,
            [("all_reduce", [[170]])] * 4, ("reduce_scatter", 2720),
        ),
        (
            "_reduce_scatter_base_", [[180], [720]], None,
            [("all_reduce", [[720]])], ("reduce_scatter", 2880),
        ),
        (
            "alltoall_", [[[190]] * 4, [[190]] * 4], None,
            [("all_to_all", [[190]] * 4)], ("all_to_all", 3040),
        ),
        ("alltoall_base_", [[800], [800]], None, [("all_to_all", [[800]])], ("all_to_all", 3200)),
        ("barrier", [[1], [], []], None, [("barrier", None)], ("all_reduce", 4)),
    ],
)  # fmt: skip
def test_what_operators_issue(tmp_path, name, dims, given, events, found):
    """Dimensions, roots and events as 4 ranks of PyTorch 2.13 recorded them."""
    rows = [_event(f"c10d::{name}", 100, 5, MAIN, dims, LIST, given)]
    for number, (event, sizes) in enumerate(events):
        rows.append(_gloo(event, 103 + number, 20, sizes or []))
        if sizes is None:
            rows[-1]["args"] = {}
    nodes = _read_events(tmp_path, [_event("aten::mm", 50, 50), *rows]).nodes[0]
    (node,) = [node for node in nodes if node.kind == COLLECTIVE]

    assert found == (node.collective, node.nbytes, node.root)[: len(found)]
    assert pytest.approx((19 + len(events)) * 1e-6) == node.seconds


def _one_sum(gap, end, after=()):
    """Compute, an all-reduce that is issued at 100 us and ends at `end`, a gap, and compute."""
    return [
        _event("aten::mm", 0, 100),
        _event("c10d::allreduce_", 100, 2, MAIN, [[[1000]], []], LIST),
        _gloo("all_reduce", 102, end - 102, [[1000]]),
        _event("aten::add", 102 + gap, 50),
        *after,
    ]


@pytest.mark.parametrize(
    ("end", "waits", "pause"),
    [(195, True, 7), (230, True, 0), (120, False, 100), (300, False, 100)],
    ids=["in its second half", "soon after", "in its first half", "long after"],
)
def test_a_gap_that_ends_about_when_a_collective_does_waited_for_it(tmp_path, end, waits, pause):
    """Else it is the CPU's and stays as long as it was."""
    nodes = _read_events(tmp_path, _one_sum(100, end)).nodes[0]
    assert COLLECTIVE == nodes[1].kind
    *_, last = nodes
    computed = sum(node.seconds for node in nodes if node.kind == COMPUTE)

    assert waits == (1 in last.after)
    assert pytest.approx((100 + 2 + pause + 50) * 1e-6) == computed


def test_the_optimizer_waits_for_all(tmp_path):
    """Whatever gaps there are."""
    step = _event("Optimizer.step#SGD.step", 152, 20, category="user_annotation")
    work = _event("aten::_foreach_add_", 153, 10)
    *_, last = _read_events(tmp_path, _one_sum(0, 400, [step, work])).nodes[0]
    assert 1 in last.after


SMALL = _one_sum(0, 130)


@pytest.mark.parametrize(
    ("events", "job", "fault"),
    [
        (
            [_event("c10d::allreduce_", 0, 2), _gloo("all_reduce", 1, 5, [])], {},
            "have no sizes; profile with record_shapes=True",
        ),
        (
            [*SMALL, _event("c10d::gather_", 200, 2, MAIN, [[], [[4]]])], {},
            "c10d::gather_ at 200 us: no such collective is modelled over gloo",
        ),
        (
            [*SMALL, _event("c10d::allreduce_", 200, 2, MAIN, [[[4]]])], {},
            "c10d::allreduce_ at 200 us: no event of gloo carries it out",
        ),
        (
            [SMALL[1], _gloo("all_reduce", 101, 5, [[1000]], "c10::Quark")], {},
            "type 'c10::Quark' is not known",
        ),
        (
            [_event("c10d::broadcast_", 0, 2, MAIN, [[[4]]]), _gloo("broadcast", 1, 5, [[4]])], {},
            "c10d::broadcast_ at 0 us: does not say its root",
        ),
        (SMALL, {"world_size": 0}, "must say world_size"),
        (
            SMALL,
            {"pg_config": [{"ranks": [0, 1, 2, 3]}, {"pg_name": "1", "ranks": [0, 2]}]},
            "2 process groups: which of them a collective over gloo had is not recorded",
        ),
        ([SMALL[2]], {}, "no operator .* issues what gloo carries out"),
    ],
    ids=["sizes", "gather", "cut off", "type", "root", "world", "groups", "operator"],
)  # fmt: skip
def test_what_a_timeline_does_not_say(tmp_path, events, job, fault):
    with pytest.raises(ExecutionError, match=fault):
        _read_events(tmp_path, events, **job)


def test_one_group_of_some_ranks(tmp_path):
    pairs = [{"pg_name": "0", "ranks": []}, {"pg_name": "1", "ranks": [0, 2]}]
    nodes = _read_events(tmp_path, SMALL, pg_config=pairs).nodes[0]
    assert [(0, 2)] == [node.group for node in nodes if node.kind == COLLECTIVE]
