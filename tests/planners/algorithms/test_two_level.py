"""Any two families as `inner/outer`, proven and timed on boxes with one rate inside and another
across.
"""

from __future__ import annotations

from math import ceil, log2

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import StrategyError
from simreduce.plan import Kind, Plan, verify
from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES, FAMILIES, TWO_LEVEL
from simreduce.planners.algorithms.families import fits
from simreduce.planners.layouts import Layout, layout
from simreduce.planners.strategy import parse_strategy
from tests.covering import covering
from tests.planners.algorithms.boxes import added, compiled, seconds, sent, tasks_of, two_rates
from tests.planners.algorithms.transfers import transfers
from tests.thorough import examples

PAIRS = ALGORITHMS.pairs()
INNER = sorted({pair.partition("/")[0] for pair in PAIRS})
OUTER = sorted({pair.partition("/")[2] for pair in PAIRS})
UNEQUAL = ((1, 2), (5, 2, 3), (8, 1, 7, 3), (4, 4, 1))


def prove(pair: str, shape: Layout) -> None:
    """Whole and in chunks of 8 elements."""
    for text in (pair, f"{pair}+chunk=32"):
        assert [] == verify(compiled("all_reduce", text, shape, 0, 1, 61, shape.n))


@pytest.mark.parametrize(
    ("inner", "outer", "sizes"), covering(INNER, OUTER, [(4, 4), (3, 3, 3), (5, 2, 3)])
)
def test_every_pair_verifies(inner, outer, sizes):
    prove(f"{inner}/{outer}", tasks_of(*sizes))


@pytest.mark.parametrize(("inner", "each", "tasks"), covering(INNER, range(1, 9), [2, 3, 4]))
def test_every_family_verifies_inside_tasks_of_any_number_of_ranks(inner, each, tasks):
    prove(f"{inner}/ring", tasks_of(*[each] * tasks))


@pytest.mark.parametrize(("outer", "tasks", "each"), covering(OUTER, [2, 3, 4], range(1, 9)))
def test_every_family_verifies_across_any_number_of_tasks(outer, tasks, each):
    prove(f"ring/{outer}", tasks_of(*[each] * tasks))


@pytest.mark.parametrize("sizes", UNEQUAL)
@pytest.mark.parametrize("inner", INNER)
def test_every_inner_family_takes_unequal_tasks(inner, sizes):
    prove(f"{inner}/ring", tasks_of(*sizes))


def test_the_order_of_gpus_in_a_task_is_heeded():
    shape = tasks_of(4, 4).with_order([2, 0, 3, 1])
    plan = compiled("all_reduce", "ring/ring", shape, 80)

    assert [] == verify(plan)
    inside = {(int(s[6:]), int(t[6:])) for s, t, _ in transfers(plan) if s[:2] == t[:2]}
    assert {(2, 0), (0, 3), (3, 1), (1, 2)} == inside


rates = st.tuples(st.floats(0, 1e-3), st.floats(1e6, 1e12))


def ring(n: int, a: float, s: float, b: float) -> float:
    return 2 * (n - 1) * (a + s / (n * b))


def halving_doubling(n: int, a: float, s: float, b: float) -> float:
    return 2 * log2(n) * a + 2 * (n - 1) / n * s / b


FORMS = {"ring": ring, "halving_doubling": halving_doubling, "bidirectional_ring": ring}


@pytest.mark.parametrize(("tasks", "each"), [(2, 4), (4, 2), (4, 8), (2, 1)])
@pytest.mark.parametrize("outer", FORMS)
@pytest.mark.parametrize("inner", FORMS)
@settings(max_examples=examples(30, usual=3))
@given(inside=rates, across=rates, part=st.integers(1, 10**4))
def test_every_rank_crosses_with_its_part(inner, outer, tasks, each, inside, across, part):
    """T_inner(S) + T_outer(S/p), all groups at once."""
    size = 4 * 4 * tasks * each * part
    expected = FORMS[inner](each, inside[0], size, inside[1])
    expected += FORMS[outer](tasks, across[0], size / each, across[1])

    machine = two_rates(tasks, each, inside, across)
    assert expected == pytest.approx(
        seconds("all_reduce", f"{inner}/{outer}", machine, size // 4), rel=1e-9
    )


@pytest.mark.parametrize(("tasks", "each"), [(2, 2), (3, 5), (4, 8)])
@settings(max_examples=examples(50, usual=5))
@given(inside=rates, across=rates, part=st.integers(1, 10**4))
def test_leaders(tasks, each, inside, across, part):
    """A binomial tree has no parts: ceil(log2 p)(a + S/B) to the first rank, a ring of leaders with
    S, and as long back.
    """
    size = 4 * tasks * part
    tree = ceil(log2(each)) * (inside[0] + size / inside[1])

    machine = two_rates(tasks, each, inside, across)
    assert 2 * tree + ring(tasks, across[0], size, across[1]) == pytest.approx(
        seconds("all_reduce", "binomial_tree/ring", machine, size // 4), rel=1e-9
    )


@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
@pytest.mark.parametrize("bandwidth", [5e9, 40e9])
def test_leaders_in_chunks_take_as_long_as_the_slowest_phase(chunks, bandwidth):
    """With p = 2 every phase is one line that a chunk after another goes through: t1 + t2 + t3 +
    (k-1) max(t1, t2, t3).
    """
    (ai, bi), (ae, be) = inside, across = (1e-6, 20e9), (3e-6, bandwidth)
    tasks, chunk = 4, 4 * 4 * 10_000
    machine = two_rates(tasks, 2, inside, across)
    phases = [ai + chunk / bi, ring(tasks, ae, chunk, be), ai + chunk / bi]

    assert sum(phases) + (chunks - 1) * max(phases) == pytest.approx(
        seconds("all_reduce", f"binomial_tree/ring+chunk={chunk}", machine, chunks * chunk // 4),
        rel=1e-9,
    )


@pytest.mark.parametrize("pair", ["ring/ring", "chain/double_tree", "halving_doubling/ring"])
def test_chunks_overlap_the_phases(pair):
    """Never below the floor of the NICs, and well below the sum of the phases."""
    tasks, each, size, be = 4, 4, 64 << 20, 10e9
    machine = two_rates(tasks, each, (0.0, 20e9), (0.0, be))
    whole, cut = (seconds("all_reduce", pair + o, machine, size // 4) for o in ("", "+chunk=1MiB"))
    crossing = (1 / each if pair != "chain/double_tree" else 1) * size / be

    assert 2 * (tasks - 1) / tasks * crossing <= cut * (1 + 1e-9) < 0.75 * whole


@pytest.mark.parametrize(("tasks", "each"), [(2, 4), (3, 3), (4, 1)])
def test_with_parts_every_rank_sends_and_adds_the_least_there_is(tasks, each):
    n = tasks * each
    plan = compiled("all_reduce", "ring/ring", tasks_of(*[each] * tasks), n * 10)

    assert dict.fromkeys(plan.devices, 2 * (n - 1) * 10) == {
        d: moved for d, (_, moved) in sent(plan).items()
    }
    assert dict.fromkeys(plan.devices, (n - 1) * 10) == added(plan)


def test_unequal_tasks_cross_by_their_first_ranks():
    plan = compiled("all_reduce", "ring/ring", tasks_of(3, 2, 4), 30)
    across = {(s, t): count for s, t, count in transfers(plan) if s[:2] != t[:2]}

    assert {"n0.gpu0", "n1.gpu0", "n2.gpu0"} == {d for pair in across for d in pair}
    assert {10} == set(across.values())


def channels(plan: Plan, tasks: Layout) -> tuple[set[int], set[int]]:
    """Those of copies inside tasks and across."""
    task_of = {rank: t for t, task in enumerate(tasks.tasks) for rank in task}
    inside, across = set(), set()
    for op in range(len(plan)):
        if plan.kind[op] == Kind.COPY and plan.stream[op] >= 0:
            source = int(plan.device[plan.operands_of(op)[0]])
            near = task_of[source] == task_of[int(plan.device[op])]
            (inside if near else across).add(int(plan.stream[op]) // len(plan.devices))
    return inside, across


@pytest.mark.parametrize("pair", PAIRS)
def test_the_phases_have_channels_of_their_own(pair):
    inner, outer = (FAMILIES[name] for name in pair.split("/"))
    first, last = inner.channels, inner.channels + outer.channels
    for sizes in ((4, 4, 4), (3, 5)):
        shape = tasks_of(*sizes)
        inside, across = channels(compiled("all_reduce", pair, shape, 64), shape)
        assert across <= set(range(first, last))
        assert inside <= {*range(first), *range(last, last + inner.channels)}


@pytest.mark.parametrize("pair", ["ring/halving_doubling", "direct/ring"])
def test_a_hundred_boxes_are_planned_at_once(pair):
    plan = compiled("all_reduce", pair, tasks_of(*[8] * 128), 1 << 20)
    across = {"halving_doubling": 2 * 7, "ring": 2 * 127}[pair.partition("/")[2]]

    assert 1024 * (2 * 7 + across) == plan.transfers


def test_one_task_has_nothing_to_cross():
    with pytest.raises(
        StrategyError, match="one task, so there is nothing to cross; try ring alone"
    ):
        compiled("all_reduce", "ring/direct", tasks_of(4), 10)
    assert () == ALGORITHMS["ring/direct"].choices(tasks_of(4))
    assert (1,) == ALGORITHMS["ring/direct"].choices(tasks_of(2, 3))


def test_pairs_are_found_but_not_listed():
    assert "ring/direct" in ALGORITHMS
    assert "ring/direct" not in list(ALGORITHMS)
    assert ("ring/direct", True) == (
        ALGORITHMS["ring/direct"].name,
        ALGORITHMS["ring/direct"].pipelined,
    )
    assert "ring/direct" not in COLLECTIVES["reduce_scatter"]
    with pytest.raises(KeyError):
        ALGORITHMS["ring/bruck"]
    with pytest.raises(KeyError):
        ALGORITHMS["no such"]


def test_names_of_their_own_win():
    assert ("", "1 only, with several tasks") == (
        ALGORITHMS["ring/ring"].shards,
        ALGORITHMS["nccl/xring"].shards,
    )
    assert not set(PAIRS) & set(ALGORITHMS)


def test_what_is_worth_trying_exists():
    assert set(TWO_LEVEL) <= set(PAIRS)


def test_only_families_that_sum_fit():
    assert not fits(FAMILIES["ring"], FAMILIES["bruck"])
    assert not fits(FAMILIES["bruck"], FAMILIES["ring"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "ring/halving_dubling",
            r"invalid alg ring/halving_dubling \(did you mean 'ring/halving_doubling'\?\)",
        ),
        ("rinng/direct", r"\(did you mean 'ring/direct'\?\)"),
        ("nccl/xrinq", r"\(did you mean 'nccl/xring'\?\)"),
        (
            "qqqqqq",
            (
                r"; known: nccl, .*ring, .*; any two families make inner/outer, as in "
                r"ring/halving_doubling"
            ),
        ),
    ],
)
def test_unknown_names_get_the_nearest(text, says):
    with pytest.raises(StrategyError, match=says):
        parse_strategy(text)


def test_ranges_of_sizes_take_pairs():
    strategy = parse_strategy("ring/direct:32k:ring/ring+chunk=1MiB")

    assert [("ring/direct", 32768), ("ring/ring", -1)] == [
        (r.algorithm, r.limit) for r in strategy.ranges
    ]
    assert [] == verify(
        compiled("all_reduce", strategy.text, layout(two_rates(2, 2, (0, 1e9), (0, 1e9))), 10)
    )


def test_other_collectives_have_no_pairs():
    with pytest.raises(StrategyError, match=r"ring/ring \(did you mean 'ring'"):
        parse_strategy("ring/ring", "all_gather")
