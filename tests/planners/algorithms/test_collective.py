"""TensorFlow's runtime ring against what its runtime was seen to do (2.21, CPU devices) and its
stated rules.
"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from simreduce.planners.algorithms.tensorflow import field_sizes, rank_order, subdivision_order
from simreduce.planners.layouts import layout
from simreduce.topology import load_topology
from tests.planners.algorithms.transfers import adds, formulas, plan_for, transfers

FIELDS = [
    (4, 10, 4, 16, [10, 0, 0, 0]),
    (4, 64, 4, 32, [32, 32, 0, 0]),
    (4, 60, 4, 16, [16, 16, 16, 12]),
    (4, 100, 4, 32, [32, 32, 32, 4]),
    (4, 1000, 4, 256, [256, 256, 256, 232]),
    (4, 1024, 4, 272, [272, 272, 272, 208]),
    (4, 1024, 8, 144, [144] * 7 + [16]),
    (4, 1000, 3, 336, [336, 336, 328]),
    (2, 1024, 4, 288, [288, 288, 288, 160]),
    (8, 1024, 4, 264, [264, 264, 264, 232]),
    (4, 16, 1, 32, [16]),
    (4, 16384, 8, 2064, [2064] * 7 + [1936]),
    (2, 100, 4, 32, [32, 32, 32, 4]),
    (4, 4096, 16, 272, [272] * 15 + [16]),
    (4, 25559081, 8, 3194896, [3194896] * 7 + [3194809]),
    (4, 138361641, 8, 17295216, [17295216] * 7 + [17295129]),
]


@pytest.mark.parametrize(("width", "elements", "fields", "chunk", "sizes"), FIELDS)
def test_fields_are_aligned_to_64_bytes_with_64_added_when_they_are(
    width, elements, fields, chunk, sizes
):
    assert sizes == field_sizes(elements, fields, width)
    assert chunk == field_sizes(10**12, fields, width)[0] or max(sizes) <= chunk


@given(st.integers(0, 10**6), st.integers(1, 64), st.sampled_from([2, 4, 8]))
def test_fields_hold_every_element_once(elements, fields, width):
    sizes = field_sizes(elements, fields, width)

    assert elements == sum(sizes)
    assert sizes == sorted(sizes, reverse=True)


# (devices per task, offsets, orders)
FULL_16 = [0, -1, 2, -3, 4, -5, 6, -7, 8, -9, 10, -11, 12, -13, 14, -15]
SUBDIVISIONS = [
    ([4], [0], [[0, 1, 2, 3]]),
    ([4], [0, -2], [[0, 1, 2, 3], [1, 0, 3, 2]]),
    ([4], [0, -1, 2], [[0, 1, 2, 3], [2, 1, 0, 3], [2, 3, 0, 1]]),
    ([4], [0, -1, 2, -3], [[0, 1, 2, 3], [2, 1, 0, 3], [2, 3, 0, 1], [0, 3, 2, 1]]),
    (
        [8],
        [0, -2, 4, -6],
        [
            [0, 1, 2, 3, 4, 5, 6, 7],
            [5, 4, 3, 2, 1, 0, 7, 6],
            [4, 5, 6, 7, 0, 1, 2, 3],
            [1, 0, 7, 6, 5, 4, 3, 2],
        ],
    ),
    (
        [8],
        FULL_16,
        [
            [0, 1, 2, 3, 4, 5, 6, 7],
            [6, 5, 4, 3, 2, 1, 0, 7],
            [2, 3, 4, 5, 6, 7, 0, 1],
            [4, 3, 2, 1, 0, 7, 6, 5],
            [4, 5, 6, 7, 0, 1, 2, 3],
            [2, 1, 0, 7, 6, 5, 4, 3],
            [6, 7, 0, 1, 2, 3, 4, 5],
            [0, 7, 6, 5, 4, 3, 2, 1],
        ]
        * 2,
    ),
    ([2], [0, -1], [[0, 1], [0, 1]]),
    ([2], [0, -1, 2, -3], [[0, 1]] * 4),
    ([4], [0, -1, 2, -3], [[0, 1, 2, 3], [2, 1, 0, 3], [2, 3, 0, 1], [0, 3, 2, 1]]),
    (
        [4],
        [0, -1, 2, -3, 4, -5, 6, -7],
        [[0, 1, 2, 3], [2, 1, 0, 3], [2, 3, 0, 1], [0, 3, 2, 1]] * 2,
    ),
    (
        [8, 8],
        [0, -4],
        [list(range(16)), [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12]],
    ),
    (
        [8, 8],
        [0, -1, 2, -3, 4, -5, 6, -7, 8],
        [
            list(range(16)),
            [6, 5, 4, 3, 2, 1, 0, 7, 14, 13, 12, 11, 10, 9, 8, 15],
            [2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9],
            [4, 3, 2, 1, 0, 7, 6, 5, 12, 11, 10, 9, 8, 15, 14, 13],
            [4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11],
            [2, 1, 0, 7, 6, 5, 4, 3, 10, 9, 8, 15, 14, 13, 12, 11],
            [6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13],
            [0, 7, 6, 5, 4, 3, 2, 1, 8, 15, 14, 13, 12, 11, 10, 9],
            list(range(16)),
        ],
    ),
]


@pytest.mark.parametrize(("per_task", "offsets", "orders"), SUBDIVISIONS)
def test_rings_of_the_subdivisions_that_the_runtime_chooses(per_task, offsets, orders):
    first = [sum(per_task[:i]) for i in range(len(per_task))]
    tasks = [list(range(a, a + count)) for a, count in zip(first, per_task, strict=True)]

    assert orders == [subdivision_order(tasks, offset) for offset in offsets]


@pytest.mark.parametrize(
    ("offset", "order"),
    [(-4, [3, 2, 1, 0, 7, 6, 5, 4]), (-2, [5, 4, 3, 2, 1, 0, 7, 6]), (4, [4, 5, 6, 7, 0, 1, 2, 3]),
     (-6, [1, 0, 7, 6, 5, 4, 3, 2])],
)  # fmt: skip
def test_negative_offsets_reverse_first(offset, order):
    assert order == subdivision_order([list(range(8))], offset)


def test_two_tasks_are_reversed_each_for_itself():
    assert subdivision_order([[0, 1, 2, 3], [4, 5, 6, 7]], -2) == [1, 0, 3, 2, 5, 4, 7, 6]


def test_the_default_order_on_a_dgx1_ends_with_a_hop_that_has_no_link():
    shape = layout(load_topology("dgx1v"))
    order = rank_order(shape)[0]

    assert order == [0, 1, 2, 3, 7, 4, 5, 6]
    assert [
        (a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True) if not shape.links[a][b]
    ] == [(6, 0)]


def test_a_configured_order_is_taken():
    shape = layout(load_topology("dgx1v")).with_order([0, 1, 2, 3, 7, 6, 5, 4])

    assert rank_order(shape) == [[0, 1, 2, 3, 7, 6, 5, 4]]


def test_a_sum_starts_at_the_segments_own_rank_and_adds_own_first():
    """Segment c starts at rank c and ends at rank c-1; each device computes own + received."""
    plan = plan_for("collective", "full:3", 48)
    texts = formulas(plan)
    finals = {
        (int(plan.lo[op]) // 32, int(plan.device[op])): texts[op]
        for op in range(len(plan))
        if plan.kind[op] == Kind.ADD and texts[op].count("x") == 3
    }

    # 48 elements in 3 fields: 16 each would be aligned already, so they become 32, 16 and 0.
    assert finals == {(0, 2): "(x2+(x1+x0))", (1, 0): "(x0+(x2+x1))"}
    assert sum(transfers(plan).values()) == 8
    assert sum(adds(plan).values()) == 4
    assert verify(plan) == []


def test_two_shards_run_in_opposite_directions():
    plan = plan_for("collective#2", "full:4", 1000)
    hops = {(int(s[3:]), int(t[3:])) for s, t, _ in plan.copies()}

    assert {(0, 1), (1, 2), (2, 3), (3, 0), (1, 0), (0, 3), (3, 2), (2, 1)} == hops
    assert verify(plan) == []


@pytest.mark.parametrize(
    ("strategy", "topology", "says"),
    [
        ("collective#3", "full:4", "1 or 2"),
        ("collective", "full:1", "2 GPUs or more"),
        ("collective#0", "full:2", "1 or more"),
    ],
)
def test_what_it_does_not_accept(strategy, topology, says):
    with pytest.raises(StrategyError, match=says):
        plan_for(strategy, topology, 100)
