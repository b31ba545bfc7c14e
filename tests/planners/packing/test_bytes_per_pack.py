"""bytes_per_pack: group_by_size of TensorFlow 2, over the reversed list."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.planners.packing import BytesPerPack, group_by_size
from simreduce.workload.loader import load_workload
from tests.planners.packing.lists import gradients

GROUPED = [
    ([10, 10, 10, 10], 80, [[10, 10, 10], [10]]),
    ([10, 10, 10, 10], 79, [[10, 10], [10, 10]]),
    ([10, 10, 10, 10], 0, [[10, 10, 10, 10]]),
    ([1, 2, 3, 100, 1, 1], 16, [[1, 2, 3], [100], [1, 1]]),
    ([5], 4, [[5]]),
    ([4, 4, 4, 4, 4], 16, [[4, 4], [4, 4], [4]]),
    ([4, 4, 4, 4, 4], 15, [[4], [4], [4], [4], [4]]),
]


@pytest.mark.parametrize(("elements", "bytes_per_pack", "expected"), GROUPED)
def test_group_by_size_of_float32(elements, bytes_per_pack, expected):
    found = group_by_size([4 * n for n in elements], bytes_per_pack)

    assert expected == [[elements[i] for i in pack] for pack in found]


MODELS = [
    ("resnet50", "25M", [14, 12, 39, 96], [30_265_252, 27_291_648, 27_330_560, 17_348_864]),
    ("resnet50", "50M", [26, 135], [57_556_900, 44_679_424]),
    (
        "vgg16",
        "25M",
        [4, 2, 6, 10, 10],
        [83_529_636, 411_058_176, 28_317_696, 28_319_744, 2_221_312],
    ),
]


@pytest.mark.parametrize(("model", "size", "members", "nbytes"), MODELS)
def test_real_models_from_the_last_gradient(model, size, members, nbytes):
    listed = load_workload(model).gradients
    groups = BytesPerPack.parse(size).arrange(listed).groups

    assert members == [len(group) for group in groups]
    assert nbytes == [sum(listed[i].nbytes for i in group) for group in groups]
    assert list(reversed(range(len(listed)))) == [i for group in groups for i in group]


def test_resnet50_in_1_mib():
    assert len(BytesPerPack.parse("1M").arrange(load_workload("resnet50").gradients).groups) == 34


def test_zero_is_one_pack():
    assert BytesPerPack(0).arrange(gradients(1, 2, 3)).groups == ((2, 1, 0),)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=200), st.integers(1, 300))
def test_a_pack_overshoots_by_less_than_its_last_gradient(sizes, most):
    packs = group_by_size(sizes, most)

    assert list(range(len(sizes))) == [i for pack in packs for i in pack]
    assert all(sum(sizes[i] for i in pack[:-1]) <= most for pack in packs)
    assert all(sum(sizes[i] for i in pack) > most for pack in packs[:-1])
