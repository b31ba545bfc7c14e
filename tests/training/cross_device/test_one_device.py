"""ReductionToOneDevice and broadcast: values, traffic, slices."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from simreduce.training.cross_device import (
    ReductionToOneDevice,
    batch_reduce,
    broadcast,
    reduce,
    reduce_non_distributed,
)
from simreduce.training.cross_device.one_device import PerDevice, PerDeviceSlices, sub_layout
from tests.planners.algorithms.transfers import formulas
from tests.training.cross_device.evaluate import evaluate, machine

STAR = ReductionToOneDevice()
FOUR = PerDevice.on(range(4), 1)
CPU = 4
"""The host of a machine of four GPUs."""


def odd(k, _):
    """1, 3, 5, 7: what the four devices hold."""
    return 2 * k + 1


def test_the_sum_of_1_3_5_7_is_16_everywhere():
    plan = reduce(STAR, "sum", FOUR, range(4), machine())

    assert verify(plan) == []
    assert {f"gpu{d}": [[16]] for d in range(4)} == evaluate(plan, odd)


def test_their_mean_on_one_device_is_4():
    plan = reduce(STAR, "mean", FOUR, 2, machine())

    assert verify(plan) == []
    assert evaluate(plan, odd) == {"gpu2": [[4]]}


@pytest.mark.parametrize("root", [None, 0, 3, CPU])
@pytest.mark.parametrize("destinations", [[0, 1, 2, 3], [1], [CPU], [3, 2], [CPU, 0]])
def test_star_traffic(root, destinations):
    """(sources not on the root) S in, (destinations not on it) S out; the root is the first
    destination.
    """
    plan = reduce(
        ReductionToOneDevice(root), "sum", PerDevice.on([0, 1, 3], 100), destinations, machine()
    )
    at = destinations[0] if root is None else root
    names = plan.devices

    expected = Counter((names[d], names[at], 100) for d in (0, 1, 3) if d != at)
    expected.update((names[at], names[d], 100) for d in destinations if d != at)
    assert expected == Counter(plan.copies())
    assert verify(plan) == []


def test_no_destinations_means_those_of_the_value():
    plan = reduce(STAR, "sum", PerDevice.on([2, 1], 5), None, machine())

    assert set(evaluate(plan, odd)) == {"gpu1", "gpu2"}
    assert [("gpu1", "gpu2", 5), ("gpu2", "gpu1", 5)] == plan.copies()


def test_several_values_on_a_device_are_summed_there_first_and_counted():
    value = PerDevice(((0, 2), (1, 1), (3, 3)), 7)
    plan = reduce(STAR, "mean", value, 1, machine(), version="1.12")
    texts = formulas(plan)
    last = max(op for op in range(len(plan)) if plan.kind[op] == Kind.OUTPUT)

    assert texts[last] == "((x0+x1)+x2+(x3+x4+x5))"
    assert Counter([("gpu0", "gpu1", 7), ("gpu3", "gpu1", 7)]) == Counter(plan.copies())
    assert evaluate(plan, odd) == {"gpu1": [[Fraction(1 + 3 + 5 + 7 + 9 + 11, 6)] * 7]}
    assert verify(plan) == []


@pytest.mark.parametrize("version", ["1.14", "2.x"])
def test_later_versions_have_no_map_outputs(version):
    value = PerDevice(((0, 2), (1, 1)), 7)

    assert verify(reduce(STAR, "sum", value, 1, machine(), version=version)) == []
    with pytest.raises(StrategyError, match="several values on one device"):
        reduce(STAR, "sum", value, 1, machine(), version=version, faithful=True)


def test_pairwise_accumulation_adds_two_at_a_time():
    plan = reduce(ReductionToOneDevice(accumulation="pairwise"), "sum", FOUR, 0, machine())

    assert formulas(plan)[len(plan) - 1] == "(((x0+x1)+x2)+x3)"
    assert verify(plan) == []


def test_one_value_passes_through():
    plan = reduce(STAR, "mean", PerDevice.on([2], 9), [2, 0], machine())

    assert [("gpu2", "gpu0", 9)] == plan.copies()
    assert Kind.ADD not in plan.kind
    assert verify(plan) == []


def test_a_batch_is_reduced_one_by_one_in_order():
    pairs = [
        (PerDevice.on([0, 1], 3), 2),
        (PerDevice.on([2, 3], 4), [0, 3]),
        (PerDevice.on([1], 5), 2),
    ]
    plan = batch_reduce(STAR, "sum", pairs, machine())

    assert verify(plan) == []
    assert evaluate(plan, lambda k, a: 100 * k + a) == {
        "gpu2": [[100, 102, 104], list(range(7, 12))],
        "gpu0": [[100 + 2 * a for a in range(3, 7)]],
        "gpu3": [[100 + 2 * a for a in range(3, 7)]],
    }


def test_slices_are_concatenated_in_device_order():
    """MEAN over 4 devices of {1:1,3:2}, {3:10}, {0:5,1:6}, {4:7}: equal indices stay apart, values
    are divided.
    """
    held = [([1, 3], [1, 2]), ([3], [10]), ([0, 1], [5, 6]), ([4], [7])]
    values = [v for _, part in held for v in part]
    indices = [i for part, _ in held for i in part]
    value = PerDeviceSlices(((0, 2), (1, 1), (2, 2), (3, 1)), 1)
    plan = reduce(STAR, "mean", value, range(4), machine())

    assert verify(plan) == []
    assert {
        f"gpu{d}": [[0.25, 0.5, 2.5, 1.25, 1.5, 1.75], [1, 3, 3, 0, 1, 4]] for d in range(4)
    } == evaluate(plan, lambda _, a: [*values, *indices][a])


def test_bytes_of_slices_through_the_root():
    """All values and indices in, the same total out to every destination.

    The dense_shape of the first device goes from there to every destination, as nothing is done to
    it.
    """
    value = PerDeviceSlices(((0, 3), (1, 0), (2, 5)), row_elements=16, dtype=0, dimensions=2)
    plan = reduce(STAR, "sum", value, [1, 3], machine())
    row = 16 * 4 + 8
    into, out = Counter(), Counter()
    for op in range(len(plan)):
        if plan.kind[op] == Kind.COPY:
            into[plan.devices[plan.device[op]]] += int(plan.nbytes[op])
            out[plan.devices[plan.source[op]]] += int(plan.nbytes[op])

    assert {"gpu1": 8 * row + 16, "gpu3": 8 * row + 16} == into
    assert {"gpu0": 3 * row + 2 * 16, "gpu2": 5 * row, "gpu1": 8 * row} == out
    assert [("gpu0", "gpu1", 2), ("gpu0", "gpu3", 2)] == [
        copy for copy in plan.copies() if copy[2] == 2
    ]
    assert verify(plan) == []


@pytest.mark.parametrize(
    ("reduce_op", "expected"),
    [
        ("sum", [("gpu2", "gpu0", 12), ("gpu2", "gpu0", 3), ("gpu2", "gpu0", 2)]),
        (
            "mean",
            [("gpu2", "gpu1", 12), ("gpu1", "gpu0", 12), ("gpu2", "gpu0", 3), ("gpu2", "gpu0", 2)],
        ),
    ],
)
def test_the_slices_of_one_device_go_straight_to_the_destination(reduce_op, expected):
    """A concatenation of one is that one: only what is divided goes through the root."""
    value = PerDeviceSlices(((2, 3),), 4, dimensions=2)
    plan = reduce(ReductionToOneDevice(1), reduce_op, value, 0, machine())

    assert Counter(expected) == Counter(plan.copies())
    assert {"gpu0": [list(range(12)), list(range(12, 15)), [15, 16]]} == evaluate(
        plan, lambda _, a: a
    )
    assert verify(plan) == []


@pytest.mark.parametrize(
    "value", [PerDevice.on([1], 8), PerDeviceSlices(((1, 3),), 4, dimensions=2)]
)
def test_broadcast_is_one_copy_per_destination(value):
    plan = broadcast(value, [0, 1, 3, CPU], machine())
    tensors = 1 if isinstance(value, PerDevice) else 3

    assert 3 * tensors == plan.transfers
    assert {"gpu1"} == {source for source, _, _ in plan.copies()}
    assert plan.contract.collective == "broadcast"
    assert verify(plan) == []


def test_broadcast_takes_the_value_of_one_device():
    with pytest.raises(StrategyError, match="on 2 devices"):
        broadcast(PerDevice.on([0, 1], 8), [0], machine())


def test_a_non_distributed_value():
    """0 stays 0; a mean is unchanged; a sum over several replicas makes no sense."""
    value = PerDevice.on([0], 8)
    assert len(reduce_non_distributed("sum", value, [0, 1], machine(), replicas=4, zero=True)) == 0

    plan = reduce_non_distributed("mean", value, [0, 1], machine(), replicas=4)
    assert [("gpu0", "gpu1", 8)] == plan.copies()
    assert evaluate(plan, lambda _, a: a) == {"gpu0": [list(range(8))], "gpu1": [list(range(8))]}

    assert reduce_non_distributed("sum", value, 0, machine(), replicas=1).transfers == 0
    with pytest.raises(StrategyError, match="cannot be summed over 4 replicas"):
        reduce_non_distributed("sum", value, [0], machine(), replicas=4)
    with pytest.raises(StrategyError, match="reduce_op"):
        reduce_non_distributed("max", value, [0], machine(), replicas=1)


def test_the_links_of_some_devices_are_those_of_the_machine():
    """Each in its direction: of a graph that was drawn by hand, the way back may have fewer lanes.
    A host has none.
    """
    none = (0, 0, 0, 0)
    whole = replace(machine(), links=((0, 2, 0, 0), (1, 0, 0, 0), none, none))

    assert ((0, 0, 1), (0, 0, 0), (2, 0, 0)) == sub_layout(whole, [1, CPU, 0]).links
