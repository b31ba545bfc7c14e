"""Horovod's timeline: a real one, and events as Horovod 0.28.1 writes them."""

from __future__ import annotations

import gzip
import json
from itertools import groupby
from pathlib import Path

import pytest

from simreduce.training.executions import COLLECTIVE, COMPUTE, ExecutionError
from simreduce.training.executions.reading import read_executions
from simreduce.training.recorded import read_recorded

MADE = Path(__file__).parent / "timelines" / "horovod.json.gz"
MODEL = 4 * (512 * (256 + 1) + 512 * (512 + 1) + 256 * (512 + 1))
"""Bytes of the gradients of the recorded model."""


def test_steps_of_a_real_timeline():
    """Two of four, each of all gradients, in buckets that differ: nothing says when the first one
    began, and the job was killed before the file had the end of the last one's all-reduce.
    """
    execution = read_executions([str(MADE)])
    nodes = execution.nodes[0]
    sums = [node for node in nodes if node.kind == COLLECTIVE]
    steps = [sum(node.nbytes for node in some) for _, some in groupby(sums, lambda node: node.step)]

    assert 2 == execution.world
    assert [MODEL] * 2 == steps
    assert {("all_reduce", "float32")} == {(node.collective, node.dtype) for node in sums}
    assert COMPUTE == nodes[0].kind
    left = [note for note in execution.notes if note.startswith("left out: ")]
    assert ["the first step", "1 operation", "7 broadcasts"] == [
        next(word for word in ("the first step", "1 operation", "7 broadcasts") if word in note)
        for note in left
    ]
    assert MODEL == sum(read_recorded(str(MADE)).sizes)


def test_a_file_that_is_cut_off_ends_with_its_last_whole_event(tmp_path):
    """Wherever that is."""
    text = gzip.decompress(MADE.read_bytes()).decode()
    path, calls = tmp_path / "open.json", []
    for end in range(len(text), len(text) * 3 // 4, -61):
        path.write_text(text[:end])
        nodes = read_executions([str(path)]).nodes[0]
        calls.append(sum(node.kind == COLLECTIVE for node in nodes))

    assert sorted(calls, reverse=True) == calls
    assert calls[-1] < calls[0]


def _tensor(number, begin, end, ranks=(0, 1), shape="[7, 7, 3, 64]", **more):
    """A tensor that was ready at `begin` and reduced from 10 us before `end` on."""
    args = {"dtype": "float32", "shape": shape} | more
    return [
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": begin, "pid": number},
        *({"ph": "X", "name": str(rank), "ts": begin, "pid": number, "dur": 0} for rank in ranks),
        {"ph": "E", "ts": begin + 1, "pid": number},
        {"ph": "B", "name": "ALLREDUCE", "ts": end - 10, "pid": number},
        {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": end - 9, "pid": number},
        {"ph": "E", "ts": end - 1, "pid": number},
        {"ph": "E", "ts": end, "pid": number, "args": args},
    ]


def _read(tmp_path, events):
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(events))
    return read_executions([str(path)])


def test_compute_is_the_time_until_gradients_are_taken(tmp_path):
    """Of the second step, which begins when the first one's all-reduces have ended."""
    events = [
        *_tensor(1, 100, 200), *_tensor(2, 120, 210, shape="[10]"),
        *_tensor(1, 300, 400), *_tensor(2, 350, 410, shape="[10]"),
    ]  # fmt: skip
    nodes = _read(tmp_path, events).nodes[0]

    assert [COMPUTE, COLLECTIVE, COMPUTE, COLLECTIVE] == [node.kind for node in nodes]
    assert [(), (0,), (0,), (1, 2)] == [node.after for node in nodes]
    assert [90e-6, 10e-6, 50e-6, 10e-6] == pytest.approx([node.seconds for node in nodes])
    assert [7 * 7 * 3 * 64 * 4, 40] == [node.nbytes for node in nodes if node.kind == COLLECTIVE]


def test_tensors_that_begin_together_are_one_all_reduce(tmp_path):
    """Nothing else begins between them."""
    one, two = _tensor(1, 100, 200, shape="[5]"), _tensor(2, 100, 200, shape="[10]")
    events = [*one, *two]
    ordered = sorted(events, key=lambda event: (event["ts"], event.get("name") != "ALLREDUCE"))
    (node,) = _read(tmp_path, ordered).nodes[0]

    assert (COLLECTIVE, 60) == (node.kind, node.nbytes)


def test_what_a_gather_ends_with_is_of_all_ranks(tmp_path):
    text = json.dumps(_tensor(1, 100, 200, shape="[16, 10]"))
    events = json.loads(text.replace("ALLREDUCE", "ALLGATHER"))
    (node,) = _read(tmp_path, events).nodes[0]

    assert ("all_gather", 320) == (node.collective, node.nbytes)


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        (_tensor(1, 100, 200, ranks=()), "in which no rank says that it has a tensor"),
        ([*_tensor(1, 0, 90), *_tensor(2, 100, 200, ranks=(1,))], "process sets are not modelled"),
        (_tensor(1, 100, 200, dtype="quark"), "must end with a type and a shape, got 'quark'"),
        (_tensor(1, 100, float("nan")), "no such time"),
        (_tensor(1, 100, 200)[:-1], "no all-reduce that ended"),
        (_tensor("a", 100, 200), "no such time"),
    ],
    ids=["ranks", "set", "type", "time", "end", "tensor"],
)
def test_what_a_timeline_does_not_say(tmp_path, events, fault):
    with pytest.raises(ExecutionError, match=fault):
        _read(tmp_path, events)
