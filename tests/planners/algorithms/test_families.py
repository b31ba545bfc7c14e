"""Every collective of every family: proved for every root, timed on a switch, planned in groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.plan import Contract, Kind, PlanBuilder, verify
from simreduce.planners.algorithms import FAMILIES
from simreduce.planners.algorithms.planner import Knobs
from tests.planners.algorithms.boxes import (
    RANKS,
    added,
    compiled,
    in_groups,
    seconds,
    sent,
    switch,
    tasks_of,
)
from tests.thorough import corners, examples

ROUNDS = ("all_reduce", "reduce_scatter", "all_gather")
TREES = ("all_reduce", "reduce", "broadcast")
COLLECTIVES = {
    "bidirectional_ring": ROUNDS,
    "binary_tree": TREES,
    "binomial_tree": TREES,
    "bruck": ("all_gather", "all_to_all"),
    "chain": TREES,
    "direct": (*ROUNDS, "reduce", "broadcast", "all_to_all"),
    "double_tree": TREES,
    "halving_doubling": ROUNDS,
    "one_shot": ("all_reduce",),
    "pairwise": ("all_to_all",),
    "recursive_doubling": ("all_reduce",),
    "ring": ROUNDS,
    "scatter_all_gather": ("broadcast",),
    "torus_2d": ROUNDS,
    "torus_3d": ROUNDS,
}
CASES = [(name, collective) for name, every in COLLECTIVES.items() for collective in every]
PIPELINED = [
    (f"{name}+chunk=28", collective) for name, collective in CASES if FAMILIES[name].pipelined
]
ROOTED = [case for case in CASES + PIPELINED if case[1] in ("reduce", "broadcast")]
every = pytest.mark.parametrize(("name", "collective"), CASES)


@pytest.mark.parametrize("n", corners(RANKS, 8))
@pytest.mark.parametrize(("name", "collective"), CASES + PIPELINED)
def test_it_verifies(name, collective, n):
    """Tensors of every kind of size in one plan, each of which moves alone."""
    sizes = (0, 1, 5, 1000, 64, n - 1, n)

    assert [] == verify(compiled(collective, name, tasks_of(n), *sizes))


@pytest.mark.parametrize("elements", [0, 1, 6, 7])
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize(("name", "collective"), CASES + PIPELINED)
def test_it_verifies_where_there_is_next_to_nothing_to_move(name, collective, n, elements):
    assert [] == verify(compiled(collective, name, tasks_of(n), elements))


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize(("name", "collective"), ROOTED)
def test_every_rank_can_be_the_root(name, collective, n):
    for root in range(n):
        assert [] == verify(compiled(collective, name, tasks_of(n), 50, 3, root=root))


@every
def test_one_rank_has_its_result_already(name, collective):
    plan = compiled(collective, name, tasks_of(1), 10)

    assert [Kind.INPUT, Kind.OUTPUT] == plan.kind.tolist()


@pytest.mark.parametrize(("n", "root"), [(1, 0), (2, 1), (5, 2), (6, 0), (8, 0)])
@every
def test_groups_do_what_one_does_alone(name, collective, n, root):
    def planned(b, values, _):
        return getattr(FAMILIES[name], collective)(b, values, Knobs(chunk=4, root=root))

    parts = collective == "all_gather"
    (alone,) = in_groups(planned, 1, n, 29, parts=parts)

    assert [alone] * 3 == in_groups(planned, 3, n, 29, parts=parts)


@pytest.mark.parametrize("n", [1, 5, 6, 8])
@every
def test_streams_are_those_that_the_family_declares(name, collective, n):
    """They begin at the channel that is given."""

    def channels(first):
        b = PlanBuilder([f"gpu{i}" for i in range(n)])
        given = b.inputs(np.arange(n), 0, 40).reshape(1, n)
        collect = given.cut(n)[:, range(n), range(n)] if collective == "all_gather" else given
        getattr(FAMILIES[name], collective)(b, collect, Knobs(channel=first, chunk=4))
        plan = b.finish(Contract.of("nothing", []))
        return {int(stream) // n for stream in plan.stream if stream >= 0}

    assert channels(0) <= set(range(FAMILIES[name].channels))
    assert {c + 5 for c in channels(0)} == channels(5)


POWERS = (1, 2, 4, 8, 16, 32, 64)
OTHERS = tuple(n for n in RANKS if n & (n - 1))
TORI = {
    "torus_2d": {
        4: (2, 2), 6: (2, 3), 7: (1, 7), 12: (3, 4), 32: (4, 8), 64: (8, 8), 1024: (32, 32)
    },
    "torus_3d": {
        8: (2, 2, 2), 12: (2, 2, 3), 5: (1, 1, 5), 24: (2, 3, 4), 10: (1, 2, 5), 64: (4, 4, 4),
        1024: (8, 8, 16),
    },
}  # fmt: skip


class Form(NamedTuple):
    """The time of collectives on a switch: `time` gives how many latencies and how many times the
    tensor over a port's bandwidth, from the ranks, the passes (an all-reduce is a reduce-scatter
    and an all-gather, or a reduce and a broadcast) and the chunks.
    """

    name: str
    collectives: tuple[str, ...]
    ranks: Sequence[int]
    time: Callable[[int, int, int], tuple[float, float]]
    divisor: Callable[[int], int] = lambda n: n
    """What divides the elements of the tensor."""
    chunked: bool = False
    examples: int = 3
    sends: tuple[int, ...] = ()
    """Of these numbers of ranks every one sends what its port carries,"""
    messages: int | None = 1
    """in so many messages a latency (None: no fixed number)."""


def ceil_log2(n):
    return (n - 1).bit_length()


def floor_log2(n):
    return n.bit_length() - 1


def one_by_one(n, passes, _):
    """To one rank after another, a part each."""
    return passes * (n - 1), passes * (n - 1) / n


def at_once(n, passes, _):
    """To all ranks at once, a part each."""
    return passes * (n > 1), passes * (n - 1) / n


def whole_at_once(n, *_):
    return n > 1, n - 1


def bits_of_distances(n, *_):
    """In the step of bit k every part goes whose distance from giver to taker has it: half of them
    for a power of two, fewer for others.
    """
    return ceil_log2(n), sum(distance.bit_count() for distance in range(n)) / n


def folded_and_doubled(n, *_):
    """Surplus ranks are folded in and out, in two more steps."""
    steps = floor_log2(n) + (2 if n & (n - 1) else 0)
    return steps, steps


def in_a_full_tree(n, _, chunks):
    """Each of two children has half of its parent's port."""
    steps = floor_log2(n) - 1 + chunks
    return steps, 2 * steps / chunks


def torus(name):
    return lambda n, passes, _: (
        passes * sum(axis - 1 for axis in TORI[name][n]),
        passes * (n - 1) / n,
    )


FORMS = (
    Form(
        "bidirectional_ring", ROUNDS, (2, 3, 5, 8, 16), one_by_one, lambda n: 2 * n,
        sends=(2, 3, 6, 8), messages=2,
    ),
    Form("binary_tree", TREES[1:], (3, 7, 15), in_a_full_tree, chunked=True, examples=8),
    Form(
        "binomial_tree", TREES, (*range(1, 18), 24, 31, 33, 64),
        lambda n, passes, _: (passes * ceil_log2(n),) * 2, lambda _: 1,
    ),
    Form(
        "bruck", ("all_gather",), RANKS, lambda n, *_: (ceil_log2(n), (n - 1) / n),
        sends=RANKS, messages=None,
    ),
    Form("bruck", ("all_to_all",), RANKS, bits_of_distances, sends=RANKS, messages=None),
    Form(
        "chain", TREES[1:], (2, 3, 5, 8, 16),
        lambda n, _, chunks: (n - 2 + chunks, (n - 2 + chunks) / chunks),
        chunked=True, examples=10,
    ),
    Form(
        "chain", TREES[:1], (2, 3, 8), lambda n, *_: (2 * (n - 1),) * 2, lambda _: 1, examples=10
    ),
    Form(
        "direct", (*ROUNDS, "all_to_all"), RANKS, at_once,
        examples=2, sends=(2, 3, 8, 17), messages=None,
    ),
    Form("direct", ("reduce", "broadcast"), RANKS, whole_at_once, examples=2),
    Form(
        "halving_doubling", ROUNDS, POWERS,
        lambda n, passes, _: (passes * floor_log2(n), passes * (n - 1) / n), sends=(2, 4, 8, 64),
    ),
    Form(
        "halving_doubling", ROUNDS[:1], OTHERS,
        lambda n, *_: (2 * floor_log2(n) + 2, 4 - 2 ** (1 - floor_log2(n))),
        lambda n: 1 << floor_log2(n),
    ),
    Form(
        "one_shot", ("all_reduce",), RANKS, whole_at_once,
        examples=2, sends=(2, 3, 8, 17), messages=None,
    ),
    Form("pairwise", ("all_to_all",), RANKS, one_by_one, sends=(2, 3, 8, 17)),
    Form(
        "recursive_doubling", ("all_reduce",), RANKS, folded_and_doubled, lambda _: 1,
        sends=(2, 4, 8, 64),
    ),
    Form("ring", ROUNDS, (2, 3, 5, 8, 16), one_by_one, sends=(2, 3, 6, 8)),
    Form(
        "scatter_all_gather", ("broadcast",), (*range(1, 18), 24, 31, 33, 64),
        lambda n, *_: (ceil_log2(n) + n - 1, 2 * (n - 1) / n),
    ),
    *(
        Form(name, ROUNDS, tuple(axes)[:-1], torus(name), sends=tuple(axes)[:-1])
        for name, axes in TORI.items()
    ),
)  # fmt: skip


def passes_of(collective):
    return 2 if collective == "all_reduce" else 1


def too_many_copies(form, n):
    return n == 64 and form.name in ("direct", "one_shot")


@pytest.mark.parametrize(
    ("form", "collective", "ranks"),
    [
        pytest.param(
            form, collective, ranks, id=f"{form.name}-{collective}-{min(ranks)}-{max(ranks)}",
            marks=[pytest.mark.slow] * dear,
        )
        for form in FORMS for collective in form.collectives for dear in (False, True)
        if (ranks := [n for n in form.ranks if too_many_copies(form, n) == dear])
    ],
)  # fmt: skip
def test_closed_form(form, collective, ranks):
    """On a switch of any latency and rate, with every number of ranks."""

    @settings(max_examples=examples(form.examples))
    @given(
        latency=st.integers(0, 10**7),
        rate=st.integers(1, 400_000),
        each=st.integers(int(form.chunked), 10**6),
        chunks=st.integers(1, 20) if form.chunked else st.just(1),
    )
    def check(latency, rate, each, chunks):
        strategy = f"{form.name}+chunk={4 * each}" if form.chunked else form.name
        expected, found = {}, {}
        for n in ranks:
            elements = each * (chunks if form.chunked else form.divisor(n))
            latencies, tensors = form.time(n, passes_of(collective), chunks)
            expected[n] = latencies * latency * 1e-9 + tensors * 4 * elements / (rate * 1e6)
            found[n] = seconds(collective, strategy, switch(n, latency, rate), elements)

        assert expected == pytest.approx(found, rel=1e-9)

    check()


@pytest.mark.parametrize(
    ("form", "collective", "n"),
    [
        pytest.param(form, collective, n, id=f"{form.name}-{collective}-{n}")
        for form in FORMS for collective in form.collectives for n in form.sends
    ],
)  # fmt: skip
def test_every_rank_sends_what_its_port_carries(form, collective, n):
    """And adds what arrives in the first pass."""
    elements = 7 * form.divisor(n)
    plan = compiled(collective, form.name, tasks_of(n), elements)
    latencies, tensors = form.time(n, passes_of(collective), 1)
    _, summed = form.time(n, 1, 1)
    sums = collective in ("all_reduce", "reduce_scatter")
    ranks = plan.devices if n > 1 else ()
    found = sent(plan)

    assert dict.fromkeys(ranks, round(tensors * elements)) == {
        rank: count for rank, (_, count) in found.items()
    }
    assert dict.fromkeys(ranks if sums else (), round(summed * elements)) == added(plan)
    if form.messages is not None:
        assert {form.messages * latencies} == {messages for messages, _ in found.values()}


@pytest.mark.parametrize("name", ["halving_doubling", "recursive_doubling", "torus_2d", "torus_3d"])
def test_a_thousand_ranks_are_few_ops(name):
    form = next(form for form in FORMS if form.name == name)
    latencies, _ = form.time(1024, 2, 1)

    assert 1024 * latencies == compiled("all_reduce", name, tasks_of(1024), 1 << 20).transfers
