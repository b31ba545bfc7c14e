"""NCCL's log: lines as they are published in bug reports (PyTorch's and RCCL's), and made ones."""

from __future__ import annotations

import pytest

from simreduce.training.executions import ExecutionError
from simreduce.training.executions.reading import read_executions

REAL = """\
h015:2073494:2073958 [2] NCCL INFO ncclCommInitRank comm 0x55956223bb90 rank 2 nranks 16 cudaDev 2 \
nvmlDev 2 busId 89000 commId 0x1b4bbdb6a7db4cfd - Init COMPLETE
h015:2073494:2073958 [2] NCCL INFO AllReduce: opCount 1e7 sendbuff 0x145d0be7e400 recvbuff \
0x145d0be7e400 count 18816 datatype 7 op 0 root 0 comm 0x55956223bb90 [nranks=16] stream \
0x55956223a9a0
"""
RCCL = """\
x1000:906353:906353 [2] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f9196a00200 recvbuff \
0x7f9196a00200 count 1 datatype 7 op 0 root 0 comm 0xfe08fa0 [nranks=256] stream 0xfb70f80 task 0 \
globalrank 170
"""


def _read(tmp_path, text):
    path = tmp_path / "nccl.log"
    path.write_text(text)
    return read_executions([str(path)])


def _call(rank, name, count, comm="0xa", n=4, root=0, stream="0x5"):
    return (
        f"h:{rank}:{rank} [{rank}] NCCL INFO {name}: opCount 0 sendbuff 0x1 recvbuff 0x2 count "
        f"{count} datatype 9 op 0 root {root} comm {comm} [nranks={n}] stream {stream}\n"
    )


def _init(rank, comm, of_comm, n, number):
    return (
        f"h:{rank}:{rank} [{rank}] NCCL INFO ncclCommInitRank comm {comm} rank {of_comm} "
        f"nranks {n} cudaDev {rank} commId {number} - Init COMPLETE\n"
    )


def test_a_line_of_a_real_log(tmp_path):
    """One rank of 16: 18,816 floats."""
    found = _read(tmp_path, REAL)
    (node,) = found.nodes[2]

    assert (16, [2]) == (found.world, list(found.nodes))
    assert ("all_reduce", 4 * 18816, ()) == (node.collective, node.nbytes, node.group)


@pytest.mark.parametrize("before", ["[1,2]<stdout>:", "[2026-11-30 10:01:02] ", "[rank2]: "])
def test_brackets_before_lines_are_no_json(tmp_path, before):
    prefixed = "".join(f"{before}{line}\n" for line in REAL.splitlines())

    assert _read(tmp_path, prefixed) == _read(tmp_path, REAL)


def test_rccl_says_the_rank(tmp_path):
    """At the end of its line."""
    assert [170] == list(_read(tmp_path, RCCL).nodes)


def test_sizes_are_what_one_rank_gives(tmp_path):
    """NCCL counts what a rank gets of a reduce-scatter, and what it gives to all others; bf16."""
    names = "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"
    (nodes,) = _read(tmp_path, "".join(_call(0, name, 100) for name in names)).nodes.values()

    assert [200, 200, 800, 200, 200] == [node.nbytes for node in nodes]
    assert [(), (0,), (1,), (2,), (3,)] == [node.after for node in nodes]


@pytest.mark.parametrize("op", [4, 5, 1530494976, (1 << 31) - 1])
def test_a_reduction_may_have_an_operation_of_the_program(tmp_path, op):
    """FSDP divides gradients by one. NCCL mixes its number with the communicator's address, so it
    may be any; what reduces nothing has none.
    """
    made = {
        name: _call(0, name, 100).replace("op 0", f"op {op}")
        for name in ("AllReduce", "ReduceScatter", "Reduce", "AllGather", "Broadcast", "AlltoAll")
    }
    (nodes,) = _read(tmp_path, "".join([*made.values()][:3])).nodes.values()

    assert ["all_reduce", "reduce_scatter", "reduce"] == [node.collective for node in nodes]
    for name in ("AllGather", "Broadcast", "AlltoAll"):
        with pytest.raises(ExecutionError, match=f"{name} with op '{op}'"):
            _read(tmp_path, made[name])
    with pytest.raises(ExecutionError, match="which is no operation of NCCL"):
        _read(tmp_path, _call(0, "AllReduce", 100).replace("op 0", f"op {1 << 31}"))


def test_a_group_is_found_by_the_lines_of_its_members(tmp_path):
    """Two communicators of two ranks among four: rank 1 of the second is rank 3 of all."""
    inits = [_init(r, "0xa", r, 4, "0x1") for r in range(4)]
    inits += [_init(r, "0xb", r // 2, 2, f"0x{2 + r % 2}") for r in range(4)]
    calls = [_call(r, "AllReduce", 8, "0xb", 2) for r in range(4)]
    found = _read(tmp_path, "".join([*inits, *calls, _call(0, "AllReduce", 8)]))

    assert [(0, 2), (1, 3), (0, 2), (1, 3)] == [found.nodes[r][0].group for r in range(4)]


def test_a_split_communicator_is_found_by_its_color(tmp_path):
    """ncclCommSplit says parent and color, and no commId: tensor parallel pairs of four ranks."""
    inits = [_init(r, f"0xa{r}", r, 4, "0x1") for r in range(4)]
    inits += [
        f"h:{r}:{r} [{r}] NCCL INFO ncclCommSplit comm 0xb{r} rank {r % 2} nranks 2 cudaDev {r} "
        f"nvmlDev {r} busId 1000 parent 0xa{r} splitCount 1 color {r // 2} key {r}- Init COMPLETE\n"
        for r in range(4)
    ]
    calls = [_call(r, "AllReduce", 8, f"0xb{r}", 2) for r in range(4)]
    found = _read(tmp_path, "".join([*inits, *calls, _call(0, "AllReduce", 8, "0xa0")]))

    assert [(0, 1), (0, 1), (2, 3), (2, 3)] == [found.nodes[r][0].group for r in range(4)]


def test_communicators_that_the_log_does_not_tell_apart_are_refused(tmp_path):
    """Two pairs whose lines have no commId, as before NCCL 2.18: no group is made up of both."""
    inits = [_init(r, f"0xa{r}", r, 4, "0x1") for r in range(4)]
    inits += [_init(r, f"0xb{r}", r % 2, 2, "0x2").replace("commId 0x2 ", "") for r in range(4)]
    calls = [_call(r, "AllReduce", 8, f"0xb{r}", 2) for r in range(4)]
    with pytest.raises(ExecutionError, match="of 2 ranks whose lines") as caught:
        _read(tmp_path, "".join([*inits, *calls, _call(0, "AllReduce", 8, "0xa0")]))
    assert 4 == len(caught.value.problems)


def test_a_communicators_calls_keep_their_order_on_several_streams(tmp_path):
    """NCCL launches them in turn whatever the stream; another communicator's run beside them."""
    calls = [("0xa", "0x5"), ("0xa", "0x6"), ("0xb", "0x7"), ("0xa", "0x5"), ("0xb", "0x6")]
    text = "".join(_call(0, "AllReduce", 8, comm, stream=stream) for comm, stream in calls)
    (nodes,) = _read(tmp_path, text).nodes.values()

    assert [(), (0,), (), (0, 1), (1, 2)] == [node.after for node in nodes]


def test_sends_and_receives_of_a_group_run_at_once(tmp_path):
    """After what came before, and before what comes then."""
    calls = [("AllReduce", 0), ("Send", 1), ("Recv", 3), ("AllReduce", 0)]
    (nodes,) = _read(tmp_path, "".join(_call(0, n, 8, root=r) for n, r in calls)).nodes.values()

    assert [(), (0,), (0,), (1, 2)] == [node.after for node in nodes]
    assert [1, 3] == [node.peer for node in nodes[1:3]]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("h:1:1 [0] NCCL INFO Bootstrap : Using eth0\n", "has no collectives"),
        (_call(0, "AllReduce", 8, "0xb", 2) + _call(0, "AllReduce", 8), "of 2 ranks whose lines"),
        (_call(0, "Frobnicate", 8), "Frobnicate is no collective"),
        (_call(0, "AllReduce", 8).replace("datatype 9", "datatype 99"), "datatype 99"),
    ],
)
def test_what_cannot_be_replayed_is_said(tmp_path, text, fault):
    """With the file in front."""
    with pytest.raises(ExecutionError, match=fault) as caught:
        _read(tmp_path, text)
    assert all("nccl.log: " in problem for problem in caught.value.problems)
