"""Round the circle of ranks in steps of 1, 2, 4, ..."""

from __future__ import annotations

from tests.planners.algorithms.boxes import compiled, tasks_of
from tests.planners.algorithms.transfers import transfers


def test_an_all_gather_of_five():
    """Parts 0-1 and the wrapped 4, 0: one interval or two; then the last step brings one part to
    each.
    """
    received = {}
    for (giver, taker, count), times in transfers(
        compiled("all_gather", "bruck", tasks_of(5), 5)
    ).items():
        received.setdefault((int(giver[-1]) - int(taker[-1])) % 5, []).append(
            (int(taker[-1]), count, times)
        )

    assert {
        1: [(t, 1, 1) for t in range(5)],
        2: [(0, 2, 1), (1, 2, 1), (2, 1, 2), (3, 2, 1), (4, 2, 1)],
        4: [(t, 1, 1) for t in range(5)],
    } == {step: sorted(found) for step, found in received.items()}


def test_an_all_to_all_of_four_goes_far_first():
    plan = compiled("all_to_all", "bruck", tasks_of(4), 4)
    distances = [(int(b[-1]) - int(a[-1])) % 4 for a, b, _ in plan.copies()]

    assert distances == sorted(distances, reverse=True)
    assert {1, 2} == set(distances)


def test_a_thousand_ranks_are_few_ops():
    """Two copies a step at most, and fewer than one and a half on average."""
    assert (
        1024 * 10 <= compiled("all_gather", "bruck", tasks_of(1024), 1 << 20).transfers <= 1024 * 15
    )
