"""Every collective of every algorithm on one group of ranks is proved, for every root."""

from __future__ import annotations

import pytest

from simreduce.plan import verify
from tests.algorithms.boxes import RANKS, SIZES, compiled, tasks_of

ROUNDS = ("all_reduce", "reduce_scatter", "all_gather")
TREES = ("all_reduce", "reduce", "broadcast")
COLLECTIVES = {
    "bidirectional_ring": ROUNDS,
    "binary_tree": TREES,
    "binary_tree+chunk=28": TREES,
    "binomial_tree": TREES,
    "bruck": ("all_gather", "all_to_all"),
    "chain": TREES,
    "chain+chunk=28": TREES,
    "direct": (*ROUNDS, "reduce", "broadcast", "all_to_all"),
    "double_tree": TREES,
    "double_tree+chunk=28": TREES,
    "halving_doubling": ROUNDS,
    "one_shot": ("all_reduce",),
    "pairwise": ("all_to_all",),
    "recursive_doubling": ("all_reduce",),
    "scatter_all_gather": ("broadcast",),
    "torus_2d": ROUNDS,
    "torus_3d": ROUNDS,
}
CASES = [(name, collective) for name, every in COLLECTIVES.items() for collective in every]
ROOTED = [case for case in CASES if case[1] in ("reduce", "broadcast")]


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize(("name", "collective"), CASES)
def test_it_verifies(name, collective, n):
    for sizes in [*SIZES, (n - 1,), (n,)]:
        assert [] == verify(compiled(collective, name, tasks_of(n), *sizes))


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize(("name", "collective"), ROOTED)
def test_every_rank_can_be_the_root(name, collective, n):
    for root in range(n):
        assert [] == verify(compiled(collective, name, tasks_of(n), 50, 3, root=root))
