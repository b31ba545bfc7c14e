"""Plans for CPU devices of one process: all that an executor does is an op."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from simreduce_validate.running.explicit_ops import make_ops_explicit

import simreduce as sr
from simreduce.plan import Contract, Kind, PlanBuilder
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.tune.sizes import tensor
from simreduce.testing import strategies
from simreduce.topology import load_topology

FIGURES = strategies.FigureRanges(st.none(), st.none(), st.sampled_from([1, 3, 16]))


def kinds(plan):
    return [Kind(kind).name for kind in plan.kind.tolist()]


@given(plan=strategies.plans(["gpu0", "gpu1", "gpu2"], FIGURES, 30))
def test_nothing_is_left_unsaid(plan):
    """Every op reads all of its operands, copies wait for these only, no value goes to one device
    twice, and nothing waits elsewhere.
    """
    explicit = make_ops_explicit(plan)
    sent = set()

    assert {NO_STREAM} >= set(explicit.stream.tolist())
    for op, kind in enumerate(explicit.kind.tolist()):
        waits = explicit.controls[
            explicit.control_start[op] : explicit.control_start[op + 1]
        ].tolist()
        read = explicit.operands_of(op)
        assert all(explicit.device[wait] == explicit.device[op] for wait in waits)
        if kind not in (Kind.SLICE, Kind.CONCAT):
            assert all(
                (explicit.lo[v], explicit.hi[v]) == (explicit.lo[op], explicit.hi[op]) for v in read
            )
        if kind == Kind.CONCAT:
            assert explicit.arg[op] == 0
        if kind == Kind.COPY:
            assert not waits
            assert (read[0], explicit.device[op]) not in sent
            sent.add((read[0], explicit.device[op]))


@given(plan=strategies.plans(["gpu0", "gpu1", "gpu2"], FIGURES, 30))
def test_sums_and_transfers_stay_what_they_are(plan):
    """Besides messages, which are COPYs of nothing."""
    explicit = make_ops_explicit(plan)

    for kind in (Kind.INPUT, Kind.ADD, Kind.SCALE, Kind.CAST):
        assert (
            plan.nbytes[plan.kind == kind].tolist()
            == explicit.nbytes[explicit.kind == kind].tolist()
        )
    moved = [
        [size for size in p.nbytes[p.kind == Kind.COPY].tolist() if size] for p in (plan, explicit)
    ]
    assert moved[0] == moved[1]


@pytest.mark.parametrize(
    "text", ["ring", "halving_doubling", "torus_2d", "xring#2", "pscpu+packs=2", "chain+chunk=64"]
)
@pytest.mark.parametrize("count", [64, 37])
def test_strategies_keep_their_promise(text, count):
    layout = sr.layout(load_topology("switch:4"))

    assert [] == sr.verify(make_ops_explicit(compile_plan(text, tensor(4 * count, 0), layout)))


def test_a_view_is_cut_once_and_a_wait_is_beside_the_source():
    b = PlanBuilder(["gpu0", "gpu1"])
    x, y = b.input(0, 0, 8), b.input(1, 0, 8)
    first = b.copy(x, 1, 0, 4)
    total = b.add([b.slice(y, 0, 4), first])
    b.output(total)
    late = b.copy(x, 1, 4, 8, after=[total.op])
    b.output(late)
    explicit = make_ops_explicit(b.finish(Contract.of("none", ())))

    at = kinds(explicit)
    hold = explicit.operands_of(max(op for op, kind in enumerate(at) if kind == "COPY"))[0]
    waited = explicit.controls[
        explicit.control_start[hold] : explicit.control_start[hold + 1]
    ].tolist()
    assert "SLICE" == at[hold]
    assert [0] == [int(explicit.nbytes[op]) for op in waited]
    assert {0} == set(explicit.device[waited].tolist())
    assert 2 == np.count_nonzero((explicit.kind == Kind.COPY) & (explicit.nbytes > 0))


def test_pieces_are_kept_one_by_one_and_joined_where_they_are_read():
    b = PlanBuilder(["gpu0", "gpu1"])
    halves = [b.input(0, 0, 4), b.input(0, 4, 8, contributor=1)]
    whole = b.concat(halves, in_place=True)
    b.output(whole)
    b.output(b.copy(whole, 1))
    b.output(b.scale(whole, 2))
    explicit = make_ops_explicit(b.finish(Contract.of("none", ())))

    assert [
        "INPUT",
        "INPUT",
        "OUTPUT",
        "OUTPUT",
        "CONCAT",
        "COPY",
        "OUTPUT",
        "SCALE",
        "OUTPUT",
    ] == kinds(explicit)
