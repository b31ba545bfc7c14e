"""Chakra's traces, written with protobuf's own encoder from the published field numbers."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path

import pytest

from simreduce.errors import InputError
from simreduce.training.executions import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Execution,
    ExecutionError,
    ExecutionNode,
    write as write_chakra,
)
from simreduce.training.executions.reading import read_executions
from tests.training.executions import traces as t

MADE = Path(__file__).parent / "chakra"


def test_bytes_on_the_wire(tmp_path):
    """A file as ASTRA-sim's generator writes it, byte by byte: one all-reduce of 1 MiB."""
    head = bytes([7, 0x0A, 5]) + b"0.0.4"
    size = bytes([0x52, 17, 0x0A, 9]) + b"comm_size" + bytes([0x48, 0x80, 0x80, 0x40])
    kind = bytes([0x52, 13, 0x0A, 9]) + b"comm_type" + bytes([0x48, 0])
    body = bytes([0x08, 1, 0x12, 3]) + b"sum" + bytes([0x18, 7]) + kind + size
    size_at = body.index(b"comm_size") - 3
    body = body[:size_at] + bytes([15]) + body[size_at + 1 :]
    (tmp_path / "one.5.et").write_bytes(head + bytes([len(body)]) + body)
    found = read_executions([str(tmp_path / "one.5.et")])
    (node,) = found.nodes[5]

    assert ("sum", COLLECTIVE, "all_reduce", 1 << 20) == (
        node.name,
        node.kind,
        node.collective,
        node.nbytes,
    )


def test_kinds_and_dependencies(tmp_path):
    """Ids need not be in order; durations are microseconds."""
    nodes = [
        t.node(7, t.COMPUTE, (), 250, is_cpu_op=False),
        t.node(3, t.COLLECTIVE, (7,), comm_type=t.ALL_GATHER, comm_size=64, is_cpu_op=False),
        t.node(9, t.SEND, (3, 7), comm_dst=1, comm_size=8, comm_tag=2),
        t.node(4, t.RECEIVE, (3,), comm_src=1, comm_size=8),
    ]
    found = read_executions([t.chakra(tmp_path / "x.0.et", nodes)])
    row = found.nodes[0]

    assert [COMPUTE, COLLECTIVE, SEND, RECEIVE] == [node.kind for node in row]
    assert [(), (0,), (0, 1), (1,)] == [node.after for node in row]
    assert (250e-6, 64, 2, 2) == (row[0].seconds, row[1].nbytes, row[2].tag, found.world)


def test_files_of_several_ranks_and_groups(tmp_path):
    """Compressed, too. Names of process groups are looked up."""
    nodes = [t.node(1, t.COLLECTIVE, comm_type=0, comm_size=4, pg_name="dp")]
    paths = [t.chakra(tmp_path / f"x.{rank}.et", nodes) for rank in range(2)]
    packed = tmp_path / "y.1.et.gz"
    packed.write_bytes(gzip.compress(Path(paths[1]).read_bytes()))
    found = read_executions([paths[0], str(packed)], {"dp": (0, 1, 5)})

    assert [0, 1] == list(found.nodes)
    assert {(0, 1, 5)} == {row[0].group for row in found.nodes.values()}
    assert 6 == found.world


def test_groups_beside_a_trace_are_found(tmp_path):
    """Where `simreduce step --chakra` wrote them; others come first."""
    nodes = [t.node(1, t.COLLECTIVE, comm_type=0, comm_size=4, pg_name="0")]
    path = t.chakra(tmp_path / "step.1.et", nodes)
    beside = tmp_path / "groups.json"
    beside.write_text('{"0": [1, 3]}')

    assert (1, 3) == read_executions([path]).nodes[1][0].group
    assert (1, 2) == read_executions([path], {"0": (1, 2)}).nodes[1][0].group
    beside.write_text('{"0": [1, 1]}')
    with pytest.raises(InputError, match=r"groups.json: 0: must be a list of ranks, each once"):
        read_executions([path])


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        ([t.node(1, t.COLLECTIVE, comm_type=4, comm_size=4)], "SCATTER"),
        ([t.node(1, t.COLLECTIVE, comm_type=0)], "comm_size must be bytes"),
        ([t.node(1, t.SEND, comm_size=4)], "needs the rank of its peer"),
        ([t.node(1, t.COMPUTE), t.node(1, t.COMPUTE)], "another node has this id"),
        ([], "has no nodes"),
    ],
)
def test_faults_of_nodes(tmp_path, nodes, fault):
    """With file and node."""
    with pytest.raises(ExecutionError, match=fault):
        read_executions([t.chakra(tmp_path / "x.0.et", nodes)])


def test_one_file_of_a_job_says_that_its_collectives_have_no_partners(tmp_path):
    """Its groups' ranks are not in the trace; with them, nothing is said."""
    nodes = [t.node(1, t.COLLECTIVE, comm_type=t.ALL_REDUCE, comm_size=64, pg_name="0")]
    path = t.chakra(tmp_path / "job.0.et", nodes)

    assert any("a job of one rank" in note for note in read_executions([path]).notes)
    assert not read_executions([path], {"0": (0, 1)}).notes


def _written(execution, folder):
    """Traces of an execution in a folder, and what is read of them."""
    files = write_chakra(execution, "job")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    groups = {name: tuple(ranks) for name, ranks in json.loads(files["groups.json"]).items()}
    return files, read_executions([str(folder / n) for n in files if n.endswith(".et")], groups)


def test_what_is_written_is_read(tmp_path):
    """Every kind of node, with its size, group, root, peer and tag; microseconds of compute."""
    one = [
        ExecutionNode("forward", COMPUTE, (), "compute", 300e-6),
        ExecutionNode("a", COLLECTIVE, (0,), "dp", None, None, "all_reduce", 1 << 33, (0, 2)),
        ExecutionNode("b", COLLECTIVE, (0, 1), "tp", None, None, "all_gather", 6, (0, 1, 2)),
        ExecutionNode("c", COLLECTIVE, (1,), "dp", None, None, "reduce_scatter", 7, (0, 2)),
        ExecutionNode("d", COLLECTIVE, (), "x", None, None, "broadcast", 8, (), 1),
        ExecutionNode("out", SEND, (3,), "to 1", nbytes=512, peer=1, tag=130),
    ]
    two = [
        ExecutionNode("in", RECEIVE, (), "from 0", nbytes=512, peer=0, tag=130),
        ExecutionNode("z" * 300, COMPUTE, (0,), "compute", 0.0),
    ]
    files, found = _written(Execution("mine", {0: tuple(one), 1: tuple(two)}, 3), tmp_path)

    assert {"job.0.et", "job.1.et", "groups.json"} == files.keys()
    assert {"0": [0, 2], "1": [0, 1, 2]} == json.loads(files["groups.json"])
    assert 3 == found.world
    for rank, row in ((0, one), (1, two)):
        for old, new in zip(row, found.nodes[rank], strict=True):
            same = ("name", "kind", "after", "collective", "nbytes", "root", "peer", "tag")
            assert [getattr(old, each) for each in same] == [getattr(new, each) for each in same]
            assert (old.seconds or 0.0) == pytest.approx(new.seconds or 0.0, abs=1e-12)
    assert [(0, 2), (0, 1, 2), (0, 2), (0, 1, 2)] == [n.group for n in found.nodes[0][1:5]]


def test_a_collective_that_chakra_lacks_is_not_written():
    """With its name."""
    node = ExecutionNode("keys", COLLECTIVE, (), "cp", None, None, "send_receive", 8, (0, 1))
    with pytest.raises(InputError, match="keys: Chakra has no send_receive"):
        write_chakra(Execution("mine", {0: (node,)}, 2), "job")


def test_other_versions_are_read_and_said(tmp_path):
    """The format has been the same in all that were published."""
    path = t.chakra(tmp_path / "x.0.et", [t.node(1, t.COMPUTE, micros=3)], version="7.1")
    found = read_executions([path])
    assert "version '7.1' of Chakra's format is not known, and read as 0.0.4" in found.notes
    known = t.chakra(tmp_path / "y.0.et", [t.node(1, t.COMPUTE, micros=3)], "1.0.0")
    assert read_executions([known]).nodes == found.nodes
    assert not read_executions([known]).notes


def test_what_mlcommons_generator_writes_is_read():
    """`chakra_generator --num_npus 2` of mlcommons/chakra 1.0.0 (21585d8), its ALL_REDUCE."""
    found = read_executions([str(MADE / f"generated.{rank}.et") for rank in range(2)])
    assert not found.notes
    for nodes in found.nodes.values():
        [node] = nodes
        assert (node.name, node.collective, node.nbytes) == ("ALL_REDUCE", "all_reduce", 65536)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_what_mlcommons_converter_makes_of_a_host_alone_has_nothing_to_replay(how):
    """`chakra_converter` 1.0.0 on PyTorch 2.13's execution trace of a step over gloo, without a
    GPU: no version, no collective, no duration.
    """
    path = str(MADE / f"host_{how}.0.et.gz")
    with pytest.raises(ExecutionError, match=r"has no collective and no times.*chakra_trace_link"):
        read_executions([path])


def test_ranks_that_do_nothing_are_read_beside_others(tmp_path):
    """And so is compute without times where it is counted in operations."""
    busy = t.chakra(tmp_path / "i.0.et", [t.node(1, t.COMPUTE, micros=30)])
    idle = t.chakra(tmp_path / "i.1.et", [t.node(1, t.COMPUTE)])
    assert {0, 1} == read_executions([busy, idle]).nodes.keys()
    counted = t.chakra(tmp_path / "x.0.et", [t.node(1, t.COMPUTE, num_ops=1000)])
    assert read_executions([counted]).notes


def test_no_cut_or_damaged_file_gets_through(tmp_path):
    """Every cut, and random bytes in every place: an answer or an ExecutionError."""
    nodes = [t.node(i, t.COLLECTIVE, comm_type=0, comm_size=i) for i in range(1, 4)]
    whole = Path(t.chakra(tmp_path / "x.0.et", nodes)).read_bytes()
    path = tmp_path / "z.0.et"
    answers = 0
    for place in range(len(whole)):
        for content in (whole[:place], whole[:place] + b"\xff" + whole[place + 1 :]):
            path.write_bytes(content)
            with suppress(ExecutionError):
                answers += bool(read_executions([str(path)]).nodes)
    assert 0 < answers < 2 * len(whole)
