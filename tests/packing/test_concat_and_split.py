"""tf_cnn_benchmarks' gradient_repacking and TensorFlow's `ConcatAndSplitPacker`."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import StrategyError
from simreduce.layouts import layout
from simreduce.packing import PACKERS, ConcatAndSplit, NoPacking
from simreduce.plan import Contract, Kind, PlanBuilder, Value, verify
from simreduce.strategy import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload, load_workload


def _gradients(b: PlanBuilder, sizes: list[int], dtype: int = 0) -> list[Value]:
    bounds = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return [b.input(0, lo, hi, dtype) for lo, hi in pairwise(bounds)]


def _packed(packs: int, sizes: list[int]) -> list[int]:
    b = PlanBuilder(("gpu0",))
    return [value.hi - value.lo for value in ConcatAndSplit(packs).pack(b, _gradients(b, sizes))]


@pytest.mark.parametrize(
    ("total", "packs", "expected"),
    [
        (10, 3, [3, 3, 4]),
        (10, 4, [2, 2, 2, 4]),
        (8, 8, [1] * 8),
        (3, 8, [0] * 7 + [3]),
        (100, 8, [12] * 7 + [16]),
        (25_559_081, 8, [3_194_885] * 7 + [3_194_886]),
        (138_361_641, 8, [17_295_205] * 7 + [17_295_206]),
        (7, 1, [7]),
    ],
)
def test_the_last_pack_takes_the_remainder(total, packs, expected):
    """Sizes that `ConcatAndSplitPacker` of TensorFlow 1.12 gives for one vector of so many elements."""
    assert expected == _packed(packs, [total])
    assert expected == _packed(packs, [total // 3, 0, total - total // 3])


@pytest.mark.parametrize(("model", "last"), [("resnet50", 3_194_886), ("vgg16", 17_295_206)])
def test_a_model_in_eight_packs(model, last):
    """All its gradients in one vector, cut in eight."""
    assert [last - 1] * 7 + [last] == _packed(8, [g.elements for g in load_workload(model).gradients])


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 20))
def test_packs_cover_all_gradients_end_to_end(sizes, packs):
    """In order, without gap or overlap; all of them equally large but the last."""
    b = PlanBuilder(("gpu0",))
    values = ConcatAndSplit(packs).pack(b, _gradients(b, sizes))

    assert [0, *(value.hi for value in values)] == [*(value.lo for value in values), sum(sizes)]
    if sum(sizes):
        assert packs == len(values)
        assert {sum(sizes) // packs} >= {value.hi - value.lo for value in values[:-1]}


@pytest.mark.parametrize("packer", [NoPacking(), *map(ConcatAndSplit, (1, 2, 3, 40))])
@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6), dtype=st.integers(0, 5))
def test_what_is_packed_unpacks_to_what_it_was(packer, sizes, dtype):
    """The same intervals and dtypes, each holding its own gradient: shown by the proof of the round trip."""
    b = PlanBuilder(("gpu0",))
    gradients = _gradients(b, sizes, dtype)
    for value in packer.unpack(b, packer.pack(b, gradients), gradients):
        b.output(value)
    plan = b.finish(Contract.all_reduce([0], [(g.lo, g.hi, dtype) for g in gradients]))
    ends = [op for op in range(len(plan)) if plan.kind[op] == Kind.OUTPUT]

    assert [] == verify(plan)
    assert [(g.lo, g.hi, dtype) for g in gradients] == [
        (plan.lo[op], plan.hi[op], plan.dtype[op]) for op in ends
    ]


def test_packing_is_one_join_and_one_cut_on_each_device():
    """As in the graph of TensorFlow: CONCAT and SLICEs before, CONCAT and SLICEs after."""
    b = PlanBuilder(("gpu0",))
    gradients = _gradients(b, [5, 6, 7])
    packer = ConcatAndSplit(2)
    packer.unpack(b, packer.pack(b, gradients), gradients)
    plan = b.finish(Contract.all_reduce([0], []))

    assert Counter({Kind.INPUT: 3, Kind.CONCAT: 2, Kind.SLICE: 5}) == Counter(plan.kind.tolist())
    assert [3, 2] == [len(plan.operands_of(op)) for op in range(len(plan)) if plan.kind[op] == Kind.CONCAT]


def test_no_pack_is_reduced_before_every_gradient_of_its_device_is_there():
    """All that moves descends from the CONCAT of everything."""
    gradients = tuple(Gradient(f"g{i}", 10) for i in range(5))
    plan = compile_plan("ring+packs=2", Workload("test", gradients), layout(load_topology("full:2")))
    moved = [op for op in range(len(plan)) if plan.kind[op] == Kind.COPY]

    def inputs(op: int) -> set[int]:
        return {op} if plan.kind[op] == Kind.INPUT else set().union(*map(inputs, plan.operands_of(op)))

    assert moved
    assert all(len(inputs(op)) >= 5 for op in moved)


@pytest.mark.parametrize("dtypes", [(0, 1), (0, 0, 4)])
def test_mixed_dtypes_are_refused(dtypes):
    """They cannot be concatenated; without packing they can be reduced."""
    gradients = tuple(Gradient(f"g{i}", 10, dtype) for i, dtype in enumerate(dtypes))
    workload, shape = Workload("test", gradients), layout(load_topology("full:2"))

    with pytest.raises(StrategyError, match="needs one dtype for all of them"):
        compile_plan("ring+packs=2", workload, shape)
    assert [] == verify(compile_plan("ring", workload, shape))


def test_ranges_that_part_the_dtypes_may_be_packed():
    """Only gradients that are packed together must be alike."""
    gradients = (Gradient("small", 10, 1), Gradient("large", 20, 0))
    plan = compile_plan("ring:10:ring+packs=2", Workload("test", gradients), layout(load_topology("full:2")))

    assert [] == verify(plan)


def test_no_packing_leaves_gradients_alone():
    """No op is made."""
    b = PlanBuilder(("gpu0",))
    gradients = _gradients(b, [5, 6])
    packer = NoPacking()

    assert gradients == packer.pack(b, gradients)
    assert gradients == packer.unpack(b, gradients, gradients)
    assert 2 == len(b)


def test_packers_are_found_by_the_key_that_users_type():
    """`+packs=8`."""
    assert ["packs"] == list(PACKERS)
    assert ConcatAndSplit(8) == PACKERS["packs"]("8")
