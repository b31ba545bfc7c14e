"""xring against the worked examples of tf_cnn_benchmarks' build_ring_all_reduce."""

from __future__ import annotations

from collections import Counter

import pytest

from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from simreduce.planners.algorithms.tensorflow import padded_split, ring_orders
from tests.planners.algorithms.transfers import adds, formulas, plan_for, transfers

SPLITS = [
    (10, 4, 3, 2),
    (10, 8, 2, 6),
    (8, 4, 2, 0),
    (3, 4, 1, 1),
    (5, 4, 2, 3),
    (9, 8, 2, 7),
    (1, 4, 1, 3),
    (17, 8, 3, 7),
    (100, 8, 13, 4),
    (12, 5, 3, 3),
    (6, 4, 2, 2),
    (7, 4, 2, 1),
    (11, 6, 2, 1),
]


@pytest.mark.parametrize(("elements", "pieces", "piece", "pad"), SPLITS)
def test_pieces_are_equal_and_the_last_is_padded(elements, pieces, piece, pad):
    assert (piece, pad) == padded_split(elements, pieces)


@pytest.mark.parametrize(
    ("tasks", "shards", "orders"),
    [
        ([[0, 1, 2, 3]], 2, [[0, 1, 2, 3], [2, 3, 0, 1]]),
        ([[0, 1, 2, 3]], 3, [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]]),
        ([[0, 1, 2, 3]], 4, [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]]),
        ([[0, 1], [2, 3]], 2, [[0, 1, 2, 3], [1, 0, 3, 2]]),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 2, [[0, 1, 2, 3, 4, 5, 6, 7], [2, 3, 0, 1, 6, 7, 4, 5]]),
        ([[0, 1, 3, 2], [4, 5, 7, 6]], 1, [[0, 1, 3, 2, 4, 5, 7, 6]]),
    ],
)
def test_sub_chunk_rings_rotate_inside_each_task(tasks, shards, orders):
    assert orders == ring_orders(tasks, shards)


def test_the_tick_table_of_four_devices_and_ten_elements():
    """12 adds, 24 transfers of 3 elements; segment g is ((x[g+1]+x[g+2])+x[g+3])+x[g]."""
    plan = plan_for("xring", "ring:4", 10)
    texts = formulas(plan)
    # (receiving rank, segment) of each add, by tick: rank r handles segment (r - 2 - t) mod 4.
    expected = {
        (r, g): "(" * (t + 1)
        + f"x{(g + 1) % 4}"
        + "".join(f"+x{(g + 2 + k) % 4})" for k in range(t + 1))
        for t in range(3)
        for r in range(4)
        for g in [(r - 2 - t) % 4]
    }
    found = {
        (int(plan.device[op]), int(plan.lo[op]) // 3): texts[op]
        for op in range(len(plan))
        if plan.kind[op] == Kind.ADD
    }

    assert expected == found
    assert Counter({(f"gpu{d}", f"gpu{(d + 1) % 4}", 3): 6 for d in range(4)}) == transfers(plan)
    assert Counter({(f"gpu{d}", 2, 3): 3 for d in range(4)}) == adds(plan)
    assert verify(plan) == []


def test_two_sub_chunks_send_pieces_of_two():
    """With C = 2: pieces of 2, 24 adds, 48 transfers, each device sends 24 elements."""
    plan = plan_for("xring#2", "ring:4", 10)

    assert Counter({(f"gpu{d}", f"gpu{(d + 1) % 4}", 2): 12 for d in range(4)}) == transfers(plan)
    assert sum(adds(plan).values()) == 24
    assert verify(plan) == []


def test_final_sums_of_three_devices():
    """n = 7 in pieces of 3: r0 holds (x1+x2)+x0, r1 (x2+x0)+x1, r2 (x0+x1)+x2."""
    plan = plan_for("xring", "ring:3", 7)
    texts = formulas(plan)
    finals = {
        int(plan.device[op]): texts[op]
        for op in range(len(plan))
        if plan.kind[op] == Kind.ADD and texts[op].count("x") == 3
    }

    assert finals == {0: "((x1+x2)+x0)", 1: "((x2+x0)+x1)", 2: "((x0+x1)+x2)"}


def test_several_tasks_cross_where_their_rings_join():
    plan = plan_for("xring#2", "dgx1vx2", 1600)
    crossings = {(s, t) for s, t, _ in plan.copies() if s.split(".")[0] != t.split(".")[0]}

    assert {
        ("n0.gpu7", "n1.gpu0"),
        ("n1.gpu7", "n0.gpu0"),
        ("n0.gpu3", "n1.gpu4"),
        ("n1.gpu3", "n0.gpu4"),
    } == crossings
    assert verify(plan) == []


@pytest.mark.parametrize(
    ("strategy", "topology", "says"),
    [
        ("xring#9", "full:8", "from 1 to the GPUs per task, 8 here"),
        ("xring#0", "full:8", "1 or more"),
        ("xring", "full:1", "2 GPUs or more"),
    ],
)
def test_what_it_does_not_accept(strategy, topology, says):
    with pytest.raises(StrategyError, match=says):
        plan_for(strategy, topology, 16)
