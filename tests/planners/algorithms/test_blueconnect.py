"""BlueConnect: rings level by level."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import StrategyError
from simreduce.plan import verify
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.topology import route
from tests.planners.algorithms.boxes import (
    added,
    compiled,
    seconds,
    sent,
    tasks_of,
    two_rates,
)
from tests.planners.algorithms.transfers import transfers
from tests.thorough import examples

SHAPES = [
    (tasks, each) for tasks in (1, 2, 3, 4, 6, 8) for each in range(1, 9) if tasks * each <= 32
]
LEVELS = {2: (2,), 3: (3,), 4: (2, 2), 6: (2, 3), 7: (7,), 12: (2, 2, 3)}


@pytest.mark.parametrize(("tasks", "each"), [*SHAPES, (1, 64), (64, 1), (8, 8)])
def test_it_verifies(tasks, each):
    n = tasks * each
    sizes = (0, 1, 5, 1000, 64, n - 1, n)

    assert [] == verify(compiled("all_reduce", "blueconnect", tasks_of(*[each] * tasks), *sizes))


@pytest.mark.parametrize("elements", [0, 1, 5, 6])
@pytest.mark.parametrize(("tasks", "each"), [(1, 1), (2, 3), (8, 8)])
def test_it_verifies_where_there_is_next_to_nothing_to_move(tasks, each, elements):
    assert [] == verify(compiled("all_reduce", "blueconnect", tasks_of(*[each] * tasks), elements))


@pytest.mark.parametrize("each", [1, 2, 3, 8])
@pytest.mark.parametrize("tasks", LEVELS)
@settings(max_examples=examples(20, usual=2))
@given(
    inside=st.tuples(st.floats(0, 1e-3), st.floats(1e6, 1e12)),
    across=st.tuples(st.floats(0, 1e-3), st.floats(1e6, 1e12)),
    part=st.integers(1, 10**5),
)
def test_closed_form(tasks, each, inside, across, part):
    """sum 2(pi-1)ai + sum 2(pi-1)/pi/(p1..p(i-1)) S/Bi, where all levels but the first cross."""
    size, rest, expected = 4 * tasks * each * part, 1, 0.0
    for level, p in enumerate((each, *LEVELS[tasks])):
        a, b = across if level else inside
        expected += 2 * (p - 1) * (a + size / (rest * p * b))
        rest *= p

    machine = two_rates(tasks, each, inside, across)
    assert expected == pytest.approx(
        seconds("all_reduce", "blueconnect", machine, size // 4), rel=1e-9
    )


def test_ranks_that_share_a_nic_share_its_rate():
    """4 boxes of 8: an eighth of S crosses from every GPU, so that the NIC carries what one ring of
    boxes would carry.
    """
    size, (ai, bi), be = 4 * 32 * 1000, (1e-6, 200e9), 12e9
    machine = two_rates(4, 8, (ai, bi), (5e-6, be), nics=False)
    ae = route(machine, "n0.gpu0", "n1.gpu0").latency
    inside = 2 * 7 * (ai + size / 8 / bi)
    across = 2 * (1 + 1) * ae + 2 * 3 / 4 * size / be

    assert inside + across == pytest.approx(
        seconds("all_reduce", "blueconnect", machine, size // 4), rel=1e-9
    )


@pytest.mark.parametrize(
    ("tasks", "each", "steps"), [(2, 3, 2 + 1), (6, 4, 3 + 1 + 2), (1, 5, 4), (5, 1, 4)]
)
def test_every_rank_sends_and_adds_the_least_there_is(tasks, each, steps):
    n, part = tasks * each, 7
    plan = compiled("all_reduce", "blueconnect", tasks_of(*[each] * tasks), n * part)

    assert dict.fromkeys(plan.devices, (2 * steps, 2 * (n - 1) * part)) == sent(plan)
    assert dict.fromkeys(plan.devices, (n - 1) * part) == added(plan)


def test_neighbouring_boxes_come_before_distant_ones():
    """4 tasks of 2: halves inside, their halves to the neighbour, their halves two tasks on."""
    hops = Counter(
        {
            (s[:2], t[:2], count): k // 2
            for (s, t, count), k in transfers(
                compiled("all_reduce", "blueconnect", tasks_of(2, 2, 2, 2), 80)
            ).items()
        }
    )

    assert {(f"n{t}", f"n{t}", 40) for t in range(4)} | {
        (f"n{t}", f"n{t ^ 1}", 20) for t in range(4)
    } | {(f"n{t}", f"n{t ^ 2}", 10) for t in range(4)} == set(hops)


def test_one_task_is_a_ring():
    ring = compiled("all_reduce", "ring", tasks_of(5), 103)

    assert transfers(ring) == transfers(compiled("all_reduce", "blueconnect", tasks_of(5), 103))


def test_tasks_of_unequal_size_are_refused():
    shape = tasks_of(4, 3, 4)

    with pytest.raises(
        StrategyError, match=r"blueconnect needs as many GPUs in every task, .* 3 to 4"
    ):
        compiled("all_reduce", "blueconnect", shape, 10)
    assert () == ALGORITHMS["blueconnect"].choices(shape)


@pytest.mark.parametrize(("shape", "worth"), [(tasks_of(4), False), (tasks_of(4, 4), True)])
def test_it_is_worth_trying_where_there_is_something_to_cross(shape, worth):
    assert worth == bool(ALGORITHMS["blueconnect"].choices(shape))
