"""Replayed runs against closed forms, against the plans alone, and against themselves."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

from simreduce.app.cli import cli
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import Deadlock, InputError
from simreduce.training.executions import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Execution,
    ExecutionNode,
)
from simreduce.training.recorded import replay_execution
from simreduce.workload import Gradient, Workload
from tests.thorough import examples
from tests.training.executions import traces as t

SETUP = Setup("switch:4", BY_STRATEGY)


def _run(nodes, algorithm="ring", setup=SETUP, world=4):
    return replay_execution(Execution("test", nodes, world), setup, algorithm)


def _alone(nbytes, collective="all_reduce", algorithm="ring"):
    """Seconds of the plan by itself."""
    tensor = Workload("alone", (Gradient("tensor", nbytes // 4),))
    return SETUP.simulate(SETUP.compile(algorithm, tensor, collective)).seconds


def _sum(after=(), nbytes=1 << 20, **more):
    return ExecutionNode(
        "sum", COLLECTIVE, after, "nccl", collective="all_reduce", nbytes=nbytes, **more
    )


def _work(seconds, after=()):
    return ExecutionNode("work", COMPUTE, after, "GPU", seconds)


def test_a_collective_takes_as_long_as_its_plan():
    """And runs behind the compute that does not wait for it."""
    row = (_work(1e-3), _sum((0,)), _work(1e-3), _sum((2,)))
    found = _run(dict.fromkeys(range(4), row))
    alone = _alone(1 << 20)

    assert [pytest.approx(alone)] * 2 == [moved.end - moved.met for moved in found.moved]
    assert pytest.approx(2e-3 + alone) == found.seconds
    assert (pytest.approx(alone), pytest.approx(2e-3)) == (found.exposed, found.computed)


@pytest.mark.parametrize("lanes", [("nccl", "nccl"), ("nccl", "other")])
def test_equal_calls_that_take_turns_are_simulated_once(monkeypatch, lanes):
    """Those of several lanes may be beside each other, so each is simulated with the others."""
    setup, simulated = Setup("switch:4", "nccl"), []
    find = Setup.find_seconds
    monkeypatch.setattr(Setup, "find_seconds", lambda *a: simulated.append(a) or find(*a))
    row = tuple(
        _sum(nbytes=nbytes)._replace(lane=lane)
        for nbytes in (1 << 20, 1 << 22, 1 << 20)
        for lane in lanes
    )
    found = _run(dict.fromkeys(range(4), row), "nccl", setup)

    tensors = [Workload("alone", (Gradient("t", nbytes // 4),)) for nbytes in (1 << 20, 1 << 22)]
    small, large = (setup.simulate(setup.compile("nccl", each)).seconds for each in tensors)
    taking_turns = len({*lanes}) == 1
    assert len(simulated) == (2 if taking_turns else 0)
    if taking_turns:
        assert found.seconds == pytest.approx(4 * small + 2 * large)
    else:
        assert found.seconds > 2 * small + large


def test_the_last_rank_keeps_the_others_waiting():
    """A straggler; the ranks that were not recorded keep nobody waiting."""
    late = {rank: (_work(1e-3 * (1 + rank)), _sum((0,))) for rank in range(3)}
    (moved,) = _run(late).moved

    assert (pytest.approx(1e-3), pytest.approx(3e-3)) == (moved.arrived, moved.met)


def test_one_rank_stands_for_all():
    """If all do the same."""
    row = (_work(1e-3), _sum((0,)), _work(2e-3, (1,)))

    assert _run({0: row}).seconds == _run(dict.fromkeys(range(4), row)).seconds


def test_an_all_gather_ends_with_all_that_ranks_give():
    """nccl-tests counts the whole."""
    row = (ExecutionNode("gather", COLLECTIVE, collective="all_gather", nbytes=1 << 18),)
    found = _run(dict.fromkeys(range(4), row))

    assert pytest.approx(_alone(1 << 20, "all_gather")) == found.seconds


def test_two_groups_share_what_they_share():
    """Groups of other ranks do not meet; two groups of one rank share its port."""

    def seconds(*groups):
        nodes = {}
        for group in groups:
            for rank in group:
                lane = f"{group}"
                node = ExecutionNode(
                    "sum", COLLECTIVE, (), lane, None, None, "all_reduce", 1 << 20, group
                )
                nodes[rank] = (*nodes.get(rank, ()), node)
        return _run(nodes).seconds

    assert seconds((0, 1), (2, 3)) == pytest.approx(seconds((0, 1)))
    assert seconds((0, 1), (0, 2)) > 1.8 * seconds((0, 1))


def test_a_ring_of_sends():
    """All send at once, none waits for the one before."""
    nodes = {
        r: (
            ExecutionNode("to", SEND, nbytes=1 << 20, peer=(r + 1) % 4),
            ExecutionNode("from", RECEIVE, nbytes=1 << 20, peer=(r - 1) % 4),
        )
        for r in range(4)
    }
    found = _run(nodes, "nccl")
    one = _run({r: nodes[r][i : i + 1] for i, r in enumerate((0, 1))}, "nccl")

    assert 4 == len(found.moved)
    assert pytest.approx(one.seconds) == found.seconds


def test_ranks_that_wait_for_each_other_for_ever():
    """Rank 0 sums in the group of all first, rank 1 in that of two."""
    pair = _sum(group=(0, 1))
    nodes = {0: (_sum(), pair), 1: (pair, _sum())}
    with pytest.raises(Deadlock, match=r"rank 0 waits in 'sum' for \[1\]"):
        _run(nodes)


def test_ranks_that_disagree():
    """Another size."""
    with pytest.raises(InputError, match="rank 0: all_reduce of 4 bytes, rank 1: all_reduce of 8"):
        _run({0: (_sum(nbytes=4),), 1: (_sum(nbytes=8),)})


def test_a_machine_that_is_too_small():
    """Said at once."""
    with pytest.raises(InputError, match="has 9 ranks, and switch:4 has 4 devices"):
        _run({0: (_sum(),)}, world=9)


@st.composite
def rows(draw):
    """Nodes of ranks that all do the same, in any order of dependencies."""
    nodes = []
    for index in range(draw(st.integers(1, 8))):
        before = st.sets(st.integers(0, index - 1), max_size=3) if index else st.just(set())
        after = tuple(sorted(draw(before)))
        nodes.append(
            _work(draw(st.floats(0, 1e-3)), after)
            if draw(st.booleans())
            else _sum(after, draw(st.integers(1, 1 << 18)) * 4)
        )
    return tuple(nodes)


@given(rows(), st.integers(1, 4))
@settings(max_examples=examples(100))
def test_nothing_runs_before_what_it_waits_for(row, recorded):
    """Nor two at once in a lane; the end is no earlier than the longest chain of compute, and each
    rank does each of its nodes once.
    """
    found = _run(dict.fromkeys(range(recorded), row))
    for rank in range(recorded):
        mine = {id(r.node): r for r in found.ran if r.rank == rank}
        assert len(mine) == len(row) == sum(r.rank == rank for r in found.ran)
        for node in row:
            for before in node.after:
                assert mine[id(row[before])].end <= mine[id(node)].begin
        for lane in ("GPU", "nccl"):
            spans = sorted((r.begin, r.end) for r in mine.values() if r.node.lane == lane)
            assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert found.computed <= sum(n.seconds or 0.0 for n in row) * (1 + 1e-9)
    assert found.computed + found.exposed <= found.seconds * (1 + 1e-9)


def test_the_command(tmp_path):
    """Text, JSON and a timeline of the same run; faults of all options at once."""
    nodes = [
        t.node(1, t.COMPUTE, (), 500, is_cpu_op=False),
        t.node(2, t.COLLECTIVE, (1,), comm_type=0, comm_size=1 << 20, is_cpu_op=False),
    ]
    paths = [t.chakra(tmp_path / f"job.{rank}.et", nodes) for rank in range(4)]
    run = CliRunner()
    text = run.invoke(cli, ["replay", *paths, "--topology", "dgx1v", "-g", "4"])
    found = run.invoke(cli, ["replay", *paths, "--topology", "dgx1v", "-g", "4", "--json"])
    document = json.loads(found.output)
    timeline = tmp_path / "out.json"
    args = ["replay", *paths, "--topology", "dgx1v", "--trace", str(timeline)]
    assert 0 == run.invoke(cli, args).exit_code

    assert 0 == text.exit_code == found.exit_code
    assert "500 us of compute" in text.output
    (row,) = document["collectives"]
    assert (1 << 20, 1, 4) == (row["size_bytes"], row["calls"], row["ranks"])
    assert pytest.approx(500e-6 + row["seconds"]) == document["seconds"]
    slices = [e for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "B"]
    assert 8 == len(slices)

    bad = run.invoke(cli, ["replay", str(tmp_path / "no.et"), "--topology", "dgx1w", "--algo", "x"])
    assert bad.exit_code != 0
    assert 3 == len(bad.exception.problems)
