"""Reduction on one device, and broadcast.

TensorFlow 1.14 cross_device_ops.py: `_simple_reduce`, `simple_broadcast`.

All values travel to one device, are summed and divided there, and the result goes to every
destination: a star. IndexedSlices are concatenated instead; equal indices are neither merged nor
summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, count
from typing import Literal, TypeAlias

from simreduce.plan import Contract, Homes, Plan, PlanBuilder, Promise, Value
from simreduce.planners.layouts import Layout
from simreduce.training.cross_device.value import INDEX, Distributed, PerDevice, PerDeviceSlices

Accumulation: TypeAlias = Literal["add_n", "pairwise"]
"""`add_n`: one n-ary sum. `pairwise`: ((x0 + x1) + x2) + ..., a sum of two at a time."""


def reduce_on(
    layout: Layout,
    value: Distributed,
    destinations: Sequence[int],
    root: int,
    *,
    mean: bool,
    accumulation: Accumulation = "add_n",
) -> Plan:
    """Reduce `value` on the device `root`; copy the result to every destination."""
    b = PlanBuilder(layout.devices)
    if isinstance(value, PerDeviceSlices):
        values, indices, shape = slices_inputs(b, value)
        joined = _concatenate(b, values, root)
        if mean:
            joined = b.scale(b.copy(joined, root), len(value.places))
        results = [joined, _concatenate(b, indices, root), *shape]
        promises = slices_promises(value, len(value.places) if mean else 1)
        return hand_out(b, "sparse_gather", results, promises, destinations, value.homes)
    owned = dense_inputs(b, value)
    if mean or len(owned) > 1:  # a lone summand stays where it is
        owned = [b.copy(own, root) for own in owned]
    total = _add(b, owned, accumulation)
    if mean:
        total = b.scale(total, value.replicas)
    whole = dense_promise(value, value.replicas if mean else 1)
    collective = "all_reduce" if set(destinations) == set(value.devices) else "reduce"
    return hand_out(b, collective, [total], [whole], destinations, value.homes)


def broadcast_from(layout: Layout, value: Distributed, destinations: Sequence[int]) -> Plan:
    """Copy one device's value to every other destination."""
    b = PlanBuilder(layout.devices)
    if isinstance(value, PerDeviceSlices):
        results = [v for inputs in slices_inputs(b, value) for v in inputs]
        return hand_out(
            b, "broadcast", results, slices_promises(value, 1), destinations, value.homes
        )
    inputs, whole = dense_inputs(b, value), dense_promise(value)
    return hand_out(b, "broadcast", inputs, [whole], destinations, value.homes)


def hand_out(
    b: PlanBuilder,
    collective: str,
    results: Sequence[Value],
    promises: Sequence[Promise],
    destinations: Sequence[int],
    homes: Mapping[int, int],
) -> Plan:
    """Finish a plan with a copy of all `results` on every destination."""
    for device in destinations:
        for value in results:
            b.output(b.copy(value, device))
    return b.finish(contract_of(collective, promises, destinations, homes))


def contract_of(
    collective: str,
    promises: Sequence[Promise],
    destinations: Sequence[int],
    homes: Mapping[int, int],
) -> Contract:
    """Return the contract of all `promises` on every destination, whatever device they name.

    `homes` has each contributor's device.
    """
    rows = [each._replace(device=device) for device in destinations for each in promises]
    return replace(Contract.of(collective, rows), homes=(Homes(0, homes),))


def dense_promise(value: PerDevice, divisor: int = 1) -> Promise:
    """The sum of all values of a dense tensor."""
    return Promise(0, 0, value.elements, value.dtype, frozenset(range(value.replicas)), divisor)


def dense_inputs(b: PlanBuilder, value: PerDevice) -> list[Value]:
    """One value per device; several on one device are summed there first."""
    number, owned = count(), []
    for device, values in value.places:
        mine = [
            b.input(device, 0, value.elements, value.dtype, contributor=next(number))
            for _ in range(values)
        ]
        owned.append(_add(b, mine, "add_n"))
    return owned


def _add(b: PlanBuilder, values: Sequence[Value], accumulation: Accumulation) -> Value:
    """The sum of values on one device; of one value, itself."""
    if accumulation == "add_n":
        return b.add(values) if len(values) > 1 else values[0]
    total = values[0]
    for value in values[1:]:
        total = b.add([total, value])
    return total


def _concatenate(b: PlanBuilder, values: Sequence[Value], root: int) -> Value:
    """The concatenation on `root`; a lone value stays where it is."""
    return values[0] if len(values) == 1 else b.concat([b.copy(value, root) for value in values])


def _row_bounds(value: PerDeviceSlices) -> list[tuple[int, int]]:
    ends = list(accumulate(value.rows))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def slices_inputs(
    b: PlanBuilder, value: PerDeviceSlices
) -> tuple[list[Value], list[Value], list[Value]]:
    """(values, indices) of every device, and the dense_shape of the first if there is one.

    In the address space: the rows of all devices, then their indices, then the dense_shape.
    """
    rows, size = sum(value.rows), value.row_elements
    end = rows * size
    values, indices = [], []
    for k, (device, (lo, hi)) in enumerate(zip(value.devices, _row_bounds(value), strict=True)):
        values.append(b.input(device, lo * size, hi * size, value.dtype, contributor=k))
        indices.append(b.input(device, end + lo, end + hi, INDEX, contributor=k))
    shape = (end + rows, end + rows + value.dimensions)
    first = value.devices[0]
    return (
        values,
        indices,
        [b.input(first, *shape, INDEX, contributor=0)] if value.dimensions else [],
    )


def slices_promises(
    value: PerDeviceSlices, divisor: int, *, with_shape: bool = True
) -> list[Promise]:
    """Every device's rows and indices, as its own; only the rows are divided."""
    rows, size = sum(value.rows), value.row_elements
    end = rows * size
    promises = []
    for k, (lo, hi) in enumerate(_row_bounds(value)):
        own = frozenset([k])
        promises.append(Promise(0, lo * size, hi * size, value.dtype, own, divisor))
        promises.append(Promise(0, end + lo, end + hi, INDEX, own))
    if value.dimensions and with_shape:
        shape = end + rows, end + rows + value.dimensions
        promises.append(Promise(0, *shape, INDEX, frozenset([0])))
    return promises
