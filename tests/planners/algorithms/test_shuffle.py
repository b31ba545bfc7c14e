"""psgpu and pscpu against the worked examples of tf_cnn_benchmarks' build_shuffle_all_reduce."""

from __future__ import annotations

from collections import Counter

import pytest

from simreduce.errors import StrategyError
from simreduce.plan import verify
from simreduce.planners.algorithms.tensorflow import gather_groups, ragged_split
from tests.planners.algorithms.transfers import adds, plan_for, transfers


@pytest.mark.parametrize(
    ("elements", "pieces", "sizes"),
    [(10, 4, [2, 2, 2, 4]), (10, 3, [3, 3, 4]), (8, 4, [2, 2, 2, 2]), (3, 4, [0, 0, 0, 3]),
     (7, 8, [0, 0, 0, 0, 0, 0, 0, 7]), (1, 1, [1])],
)  # fmt: skip
def test_the_last_shard_takes_the_remainder(elements, pieces, sizes):
    assert sizes == ragged_split(elements, pieces)


@pytest.mark.parametrize(
    ("n", "size", "groups"),
    [
        (4, 1, [[0], [1], [2], [3]]),
        (4, 2, [[0, 2], [1, 3]]),
        (4, 4, [[0, 1, 2, 3]]),
        (5, 2, [[0, 3], [1, 4], [2, 0]]),
        (3, 2, [[0, 2], [1, 0]]),
        (5, 4, [[0, 2, 4, 1], [1, 3, 0, 2]]),
        (8, 3, [[0, 3, 6], [1, 4, 7], [2, 5, 0]]),
        (8, 4, [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (1, 1, [[0]]),
    ],
)
def test_groups_interleave(n, size, groups):
    assert groups == gather_groups(range(n), size)


def test_shards_go_to_their_gather_device_and_sums_come_back():
    """Two sources, n = 10, one group of three gather devices: 3, 3 and 4 elements each way (minus
    its own).
    """
    plan = plan_for("psgpu#3", "full:3", 10)
    shard = {0: 3, 1: 3, 2: 4}
    expected = Counter()
    for gather, size in shard.items():
        for other in {0, 1, 2} - {gather}:
            expected[f"gpu{other}", f"gpu{gather}", size] += 1
            expected[f"gpu{gather}", f"gpu{other}", size] += 1

    assert expected == transfers(plan)
    assert Counter({("gpu0", 3, 3): 1, ("gpu1", 3, 3): 1, ("gpu2", 3, 4): 1}) == adds(plan)
    assert verify(plan) == []


def test_tensors_take_turns_with_the_groups():
    """psgpu#4 on 8 GPUs: [0,2,4,6], [1,3,5,7], [0,2,4,6], ..."""
    plan = plan_for("psgpu#4", "full:8", 8, 8, 8)

    assert Counter({(f"gpu{d}", 8, 2): 2 if d % 2 == 0 else 1 for d in range(8)}) == adds(plan)


def test_pscpu_uses_the_cpu_of_one_task_after_another():
    plan = plan_for("pscpu", "dgx1vx2", 16, 16)

    assert Counter({("n0.cpu0", 16, 16): 1, ("n1.cpu0", 16, 16): 1}) == adds(plan)
    assert verify(plan) == []


def test_psgpu_takes_gpu_0_of_every_task_first():
    plan = plan_for("psgpu", "dgx1vx2", 1, 1, 1, 1)

    assert [device for device, _, _ in adds(plan)] == ["n0.gpu0", "n1.gpu0", "n0.gpu1", "n1.gpu1"]


@pytest.mark.parametrize("strategy", ["psgpu#9", "psgpu#0", "pscpu#2"])
def test_more_shards_than_devices_are_refused(strategy):
    with pytest.raises(
        StrategyError, match=r"the shards must be from 1 to the gather devices|1 or more"
    ):
        plan_for(strategy, "full:8", 64)
