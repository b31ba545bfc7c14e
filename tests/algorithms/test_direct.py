"""Everybody sends to everybody at once: `direct` part by part, `one_shot` everything."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.algorithms import FAMILIES
from simreduce.plan import Kind, verify
from tests.algorithms.boxes import (
    RANKS,
    added,
    compiled,
    in_groups,
    seconds,
    sent,
    switch,
    tasks_of,
)
from tests.algorithms.transfers import formulas, transfers

CASES = [
    *(
        ("direct", c)
        for c in ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast", "all_to_all")
    ),
    ("one_shot", "all_reduce"),
]
every = pytest.mark.parametrize(("name", "collective"), CASES)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("collective", ["reduce", "broadcast"])
def test_every_root(collective, n):
    for root in range(n):
        plan = compiled(collective, "direct", tasks_of(n), 9, root=root)
        pairs = [
            (root, i) if collective == "broadcast" else (i, root) for i in range(n) if i != root
        ]

        assert [] == verify(plan)
        assert {(f"n0.gpu{a}", f"n0.gpu{b}", 9): 1 for a, b in pairs} == transfers(plan)


def parts_of(name: str, collective: str, n: int) -> int:
    """Of n parts, what the busiest port carries."""
    if name == "one_shot" or collective in ("reduce", "broadcast"):
        return n * (n - 1)
    return 2 * (n - 1) if collective == "all_reduce" else n - 1


@pytest.mark.parametrize("n", [*RANKS[:-1], pytest.param(64, marks=pytest.mark.slow)])
@every
@settings(max_examples=2)
@given(delay=st.integers(0, 10**7), rate=st.integers(1, 400_000), part=st.integers(1, 10**5))
def test_closed_form(name, collective, n, delay, rate, part):
    """One shot takes `a`, two shots take 2a, and ports are shared."""
    shots = (2 if (name, collective) == ("direct", "all_reduce") else 1) if n > 1 else 0
    time = shots * delay * 1e-9 + parts_of(name, collective, n) * 4 * part / (rate * 1e6)

    assert time == pytest.approx(
        seconds(collective, name, switch(n, delay, rate), n * part), rel=1e-9
    )


@pytest.mark.parametrize("n", [2, 3, 8, 17])
@every
def test_what_every_rank_sends_and_adds(name, collective, n):
    plan = compiled(collective, name, tasks_of(n), 7 * n)
    sends = 7 * parts_of(name, collective, n)
    adds = {
        "all_reduce": 7 * (n - 1) * (n if name == "one_shot" else 1),
        "reduce_scatter": 7 * (n - 1),
    }
    ranks = [f"n0.gpu{i}" for i in range(n)]

    if collective == "reduce":
        assert dict.fromkeys(ranks[1:], (1, 7 * n)) == sent(plan)
        assert {ranks[0]: 7 * n * (n - 1)} == added(plan)
    elif collective == "broadcast":
        assert {ranks[0]: (n - 1, sends)} == sent(plan)
        assert {} == added(plan)
    else:
        assert dict.fromkeys(ranks, sends) == {
            rank: count for rank, (_, count) in sent(plan).items()
        }
        assert (dict.fromkeys(ranks, adds[collective]) if collective in adds else {}) == added(plan)


def test_parts_go_to_their_ranks():
    """All pairs once, and for an all-reduce once more with the sums."""
    pairs = {(f"n0.gpu{a}", f"n0.gpu{b}", 5) for a, b in permutations(range(4), 2)}

    for collective in ("reduce_scatter", "all_gather", "all_to_all"):
        assert dict.fromkeys(pairs, 1) == transfers(compiled(collective, "direct", tasks_of(4), 20))
    assert dict.fromkeys(pairs, 2) == transfers(compiled("all_reduce", "direct", tasks_of(4), 20))


@pytest.mark.parametrize("name", ["direct", "one_shot"])
def test_sums_are_in_rank_order_everywhere(name):
    """So that all ranks get the same bits."""
    plan = compiled("all_reduce", name, tasks_of(3), 3)
    held = formulas(plan)

    assert {"(x0+x1+x2)"} == {held[op] for op in range(len(plan)) if plan.kind[op] == Kind.ADD}


@pytest.mark.parametrize("n", [1, 6, 8])
@every
def test_groups_do_what_one_does_alone(name, collective, n):
    function, parts = getattr(FAMILIES[name], collective), collective == "all_gather"
    (alone,) = in_groups(function, 1, n, 29, parts=parts)

    assert [alone] * 3 == in_groups(function, 3, n, 29, parts=parts)
    assert {-1} == {op[4] for op in alone}


@pytest.mark.slow
def test_a_million_copies():
    """A port of 1,024 ranks each."""
    plan = compiled("all_to_all", "direct", tasks_of(1024), 1 << 20)

    assert 1024 * 1023 == plan.transfers
    assert [] == verify(plan)
