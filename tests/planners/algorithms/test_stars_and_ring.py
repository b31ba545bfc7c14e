"""copy_to_cpu, copy_to_gpus, reduce_to_one and the textbook ring."""

from __future__ import annotations

from collections import Counter

import pytest

from simreduce.plan import Kind, verify
from tests.planners.algorithms.transfers import adds, formulas, plan_for, transfers


def test_copy_to_gpus_sums_tensor_i_on_gpu_i_mod_n():
    plan = plan_for("copy_to_gpus", "full:2", 5, 6, 7)

    assert Counter({("gpu0", 2, 5): 1, ("gpu1", 2, 6): 1, ("gpu0", 2, 7): 1}) == adds(plan)
    assert Counter(
        {
            ("gpu1", "gpu0", 5): 1,
            ("gpu0", "gpu1", 5): 1,
            ("gpu0", "gpu1", 6): 1,
            ("gpu1", "gpu0", 6): 1,
            ("gpu1", "gpu0", 7): 1,
            ("gpu0", "gpu1", 7): 1,
        }
    ) == transfers(plan)


def test_copy_to_cpu_sums_on_the_first_host():
    plan = plan_for("copy_to_cpu", "dgx1v", 5, 6)

    assert Counter({("cpu0", 8, 5): 1, ("cpu0", 8, 6): 1}) == adds(plan)
    assert plan.transfers == 2 * 16


def test_reduce_to_one_is_a_star_on_the_first_gpu():
    plan = plan_for("reduce_to_one", "full:4", 10)

    assert Counter(
        {(f"gpu{d}", "gpu0", 10): 1 for d in (1, 2, 3)}
        | {("gpu0", f"gpu{d}", 10): 1 for d in (1, 2, 3)}
    ) == (transfers(plan))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_ring_sends_each_chunk_round_almost_twice(n):
    plan = plan_for("ring", f"ring:{n}", 6 * n)

    assert Counter(
        {(f"gpu{d}", f"gpu{(d + 1) % n}", 6): 2 * (n - 1) for d in range(n)}
    ) == transfers(plan)
    assert Counter({(f"gpu{d}", 2, 6): n - 1 for d in range(n)}) == adds(plan)


def test_ring_leaves_chunk_c_summed_at_rank_c_first():
    plan = plan_for("ring", "ring:3", 9)
    texts = formulas(plan)
    finals = {
        (int(plan.device[op]), int(plan.lo[op]) // 3): texts[op]
        for op in range(len(plan))
        if plan.kind[op] == Kind.ADD and texts[op].count("x") == 3
    }

    assert finals == {(0, 0): "((x1+x2)+x0)", (1, 1): "((x2+x0)+x1)", (2, 2): "((x0+x1)+x2)"}


@pytest.mark.parametrize(
    "strategy", ["ring", "copy_to_cpu", "copy_to_gpus", "reduce_to_one", "psgpu"]
)
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("options", ["", "+mean", "+packs=3", "+packs=3+mean"])
def test_every_number_of_gpus_verifies(strategy, n, options):
    plan = plan_for(strategy + options, f"full:{n}", 4, 0, 11)

    assert verify(plan) == []
