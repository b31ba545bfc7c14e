"""extract_ranges and pack_small_tensors against examples of tf_cnn_benchmarks' allreduce.py."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.planners.packing import SmallTensors, extract_ranges
from simreduce.workload.loader import load_workload
from tests.planners.packing.lists import gradients, of_dtypes, packs, sizes

RANGES = [
    ([], 10, [], []),
    ([1, 3, 4, 6, 7, 8, 9], 32, [(3, 4), (6, 9)], [1]),
    ([1, 2, 3, 4, 6, 7, 8, 9], 32, [(1, 4), (6, 9)], []),
    ([1, 3, 4, 6, 7, 9], 32, [(3, 4), (6, 7)], [1, 9]),
    ([1, 3, 6, 9], 32, [], [1, 3, 6, 9]),
    (range(12), 10, [(0, 11)], []),
    (range(13), 10, [(0, 11)], [12]),
    (range(14), 10, [(0, 11), (12, 13)], []),
    (range(40), 10, [(0, 11), (12, 23), (24, 35), (36, 39)], []),
    (range(5), 0, [(0, 1), (2, 3)], [4]),
    (range(5), 1, [(0, 2), (3, 4)], []),
    (range(5), 2, [(0, 3)], [4]),
    (range(40), 32, [(0, 33), (34, 39)], []),
]


@pytest.mark.parametrize(("indices", "limit", "runs", "singles"), RANGES)
def test_extract_ranges(indices, limit, runs, singles):
    assert (runs, singles) == extract_ranges(list(indices), limit)


def test_the_limit_of_extract_ranges_is_32_unless_given():
    assert extract_ranges(range(40), 32) == extract_ranges(range(40))


PACKED = [
    ([4, 4, 9, 9], 12, 10, [4, 4, 9, 9], []),
    ([4, 4, 9, 9], 16, 10, [8, 9, 9], [[0, 1]]),
    ([4, 4, 9, 9], 256, 10, [26], [[0, 1, 2, 3]]),
    ([8, 9, 12, 125], 40, 10, [17, 12, 125], [[0, 1]]),
    ([125, 6, 5], 40, 10, [11, 125], [[1, 2]]),
    ([125, 6, 5, 7, 100], 40, 10, [18, 125, 100], [[1, 2, 3]]),
    ([1] * 14, 40, 10, [12, 2], [list(range(12)), [12, 13]]),
    ([1] * 14 + [100, 2, 2], 40, 3, [5, 5, 4, 4, 100],
     [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13], [15, 16]]),
    ([100, 2, 100, 2, 100], 40, 3, [100, 2, 100, 2, 100], []),
    ([10, 11, 10, 10], 40, 10, [20, 10, 11], [[2, 3]]),
]  # fmt: skip


@pytest.mark.parametrize(("elements", "max_bytes", "max_group", "new_sizes", "members"), PACKED)
def test_pack_small_tensors(elements, max_bytes, max_group, new_sizes, members):
    listed = gradients(*elements)
    arrangement = SmallTensors(max_bytes, max_group).arrange(listed, faithful=True)

    assert new_sizes == sizes(arrangement, listed)
    assert members == packs(arrangement)


MODELS = [
    ("resnet50", 4096, 10, 112, 49, 2),
    ("resnet50", 65536, 10, 93, 46, 9),
    ("resnet50", 2**20, 16, 40, 21, 18),
    ("vgg16", 2**20, 16, 25, 1, 8),
    ("inception3", 2**20, 16, 49, 10, 18),
]


@pytest.mark.parametrize(("model", "max_bytes", "max_group", "tensors", "count", "largest"), MODELS)
def test_real_models(model, max_bytes, max_group, tensors, count, largest):
    arrangement = SmallTensors(max_bytes, max_group).arrange(
        load_workload(model).gradients, faithful=True
    )
    found = packs(arrangement)

    assert (tensors, count, largest) == (len(arrangement.groups), len(found), max(map(len, found)))


def test_the_pack_of_vgg16():
    listed = load_workload("vgg16").gradients
    arrangement = SmallTensors(2**20, 16).arrange(listed, faithful=True)

    assert sizes(arrangement, listed)[0] == 260_160


@pytest.mark.parametrize(
    ("count", "group", "members"),
    [
        (14, 10, [list(range(10)), [10, 11, 12, 13]]),
        (11, 10, [list(range(10))]),
        (10, 10, [list(range(10))]),
        (5, 3, [[0, 1, 2], [3, 4]]),
        (5, 2, [[0, 1], [2, 3]]),
        (5, 1, []),
    ],
)
def test_by_default_a_pack_holds_no_more_than_asked_for(count, group, members):
    assert members == packs(SmallTensors(40, group).arrange(gradients(*[1] * count)))


def test_only_float32_is_small():
    listed = of_dtypes(
        (1, "float16"),
        (1, "float16"),
        (1, "float32"),
        (1, "float64"),
        (1, "float32"),
        (0, "float32"),
    )

    assert SmallTensors(1024, 10).arrange(listed).groups == ((4, 5), (0,), (1,), (2,), (3,))


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=300), st.integers(1, 200), st.integers(1, 12)
)
def test_packs_are_neighbours_and_as_long_as_possible(elements, max_bytes, group):
    listed = gradients(*elements)
    arrangement = SmallTensors(max_bytes, group).arrange(listed)
    found = packs(arrangement)

    assert all(len(pack) <= group for pack in found)
    assert all(pack == list(range(pack[0], pack[-1] + 1)) for pack in found)
    assert all(listed[i].nbytes <= max_bytes for pack in found for i in pack)
    alone = [i for (i, *rest) in arrangement.groups if not rest]
    assert alone == sorted(alone)
    full = {pack[-1] for pack in found if len(pack) == group}
    if group > 1:  # two small neighbours are apart only where a pack is full
        ends = {pack[-1] for pack in found} | set(alone)
        small = [g.nbytes <= max_bytes for g in listed]
        assert all(i in full for i in ends if i + 1 < len(small) and small[i] and small[i + 1])
