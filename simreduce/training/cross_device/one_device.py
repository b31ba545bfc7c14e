"""Reduction on one device, all-gathers of slices, and broadcasts of tf.distribute.

TensorFlow 1.14 cross_device_ops.py: `_simple_reduce`, `simple_broadcast`.

All values travel to one device, are summed and divided there, and the result goes to every
destination: a star. IndexedSlices are concatenated instead; equal indices are neither merged nor
summed.

TensorFlow 1.14 gathers the values, then the indices; every device must have the same number of
rows. TensorFlow 2 gathers the numbers of rows first; if they differ, it pads everything to the
largest, gathers, cuts and concatenates (cross_device_utils.py, `all_gather` and
`all_reduce_indexed_slices`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, pairwise
from typing import Literal, TypeAlias

from simreduce import dtypes
from simreduce.computing import grouped
from simreduce.errors import StrategyError
from simreduce.plan import Contract, Executor, Homes, Plan, PlanBuilder, Promise, Value
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.algorithms.nccl.paths import launch, rings
from simreduce.planners.algorithms.tensorflow import rank_order
from simreduce.planners.layouts import Layout

INDEX = dtypes.code("int64")
"""The dtype of the indices of IndexedSlices."""


@dataclass(frozen=True, slots=True)
class _OnDevices:
    """A value on every device of `places`, which has (device, how much of it is there) in order.

    A device is an index into `Layout.devices`, hosts included.
    """

    places: tuple[tuple[int, int], ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices, in order."""
        return tuple(device for device, _ in self.places)


@dataclass(frozen=True, slots=True)
class PerDevice(_OnDevices):
    """A dense tensor of `elements` on every device of `places`.

    `places` has (device, how many values of it are there) in order.

    Several values on a device (TensorFlow 1.12's map outputs) are summed there first. Contributor k
    of a plan is the k-th value.
    """

    elements: int
    dtype: int = 0

    @staticmethod
    def on(devices: Sequence[int], elements: int, dtype: int = 0) -> PerDevice:
        """One value on each of `devices`."""
        return PerDevice(tuple((device, 1) for device in devices), elements, dtype)

    @property
    def replicas(self) -> int:
        """How many values all devices have together."""
        return sum(count for _, count in self.places)

    @property
    def homes(self) -> dict[int, int]:
        """The device of every contributor."""
        return dict(enumerate(device for device, count in self.places for _ in range(count)))


@dataclass(frozen=True, slots=True)
class PerDeviceSlices(_OnDevices):
    """IndexedSlices on every device of `places`.

    `places` has (device, rows) in order; a row has `row_elements` elements.

    `dimensions` is the length of the dense_shape tensor, 0 for slices without one.
    """

    row_elements: int
    dtype: int = 0
    dimensions: int = 0

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of every device."""
        return tuple(rows for _, rows in self.places)

    @property
    def homes(self) -> dict[int, int]:
        """The device of every contributor."""
        return dict(enumerate(self.devices))


Distributed: TypeAlias = PerDevice | PerDeviceSlices


def cpus(layout: Layout, devices: Sequence[int]) -> list[int]:
    """Those of `devices` that are CPUs."""
    return [d for d in devices if layout.devices[d] in layout.hosts]


def task_of(layout: Layout, device: int) -> int:
    """The task that `device`, a rank or a host, belongs to."""
    if device < layout.n:
        return next(t for t, task in enumerate(layout.tasks) if device in task)
    return layout.hosts.index(layout.devices[device])


def sub_layout(layout: Layout, devices: Sequence[int]) -> Layout:
    """The layout whose ranks are `devices`, in this order; they may include hosts."""
    if tuple(devices) == tuple(range(layout.n)):
        return layout
    tasks = grouped((task_of(layout, device), rank) for rank, device in enumerate(devices))

    def lanes(a: int, b: int) -> int:
        return layout.links[a][b] if max(a, b) < layout.n else 0

    return replace(
        layout,
        ranks=tuple(layout.devices[d] for d in devices),
        tasks=tuple(tuple(task) for task in tasks.values()),
        hosts=tuple(layout.hosts[t] for t in tasks),
        links=tuple(tuple(lanes(a, b) for b in devices) for a in devices),
        order=(),
    )


def tree_targets(rank: int, size: int, source: int) -> list[int]:
    """The ranks that `rank` sends to, in order, in the tree over `size` ranks from `source`."""
    targets = []
    if source and rank == source:
        # The source sends to ranks 0 and 1 besides its children.
        targets += [0] if size == 2 or source == 1 else [0, 1]
    first = 2 * (rank + 1) if source else 2 * rank + 1
    return targets + [r for r in (first, first + 1) if r < size and r != source]


def tree_broadcast(
    b: PlanBuilder, value: Value, tasks: Sequence[Sequence[int]], source: int
) -> dict[int, Value]:
    """`value`, which is on the device `source`, on every device of the tasks; by device.

    A device ends its sends of one level before it begins the next level.

    It is the runtime's (`hierarchical_tree_broadcaster.cc`): how initial variables reach every
    device. Several tasks: first a binary tree over one device per task, then one inside every task,
    from that device. Every edge carries the whole tensor.
    """
    home = next(t for t, task in enumerate(tasks) if source in task)
    heads = [source if t == home else task[0] for t, task in enumerate(tasks)]
    held, sent = {source: value}, dict[int, list[int]]()
    if len(tasks) > 1:
        _tree(b, heads, home, held, sent)
    before = dict(sent)
    for task, head in zip(tasks, heads, strict=True):
        _tree(b, task, task.index(head), held, sent, after=before.get(head, ()))
    return held


def _tree(
    b: PlanBuilder,
    ranks: Sequence[int],
    source: int,
    held: dict[int, Value],
    sent: dict[int, list[int]],
    after: Sequence[int] = (),
) -> None:
    """Extend `held` and `sent` (ids of every device's sends) by one tree; the source waits for the
    ops `after`.
    """
    reached = [source]
    for rank in reached:
        device, waits = ranks[rank], after if rank == source else ()
        targets = tree_targets(rank, len(ranks), source)
        for target in targets:
            held[ranks[target]] = b.copy(held[device], ranks[target], after=waits)
        sent[device] = [held[ranks[target]].op for target in targets]
        reached += targets


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
        promises = slices_promises(value, 1)
    else:
        results, promises = dense_inputs(b, value), [dense_promise(value)]
    return hand_out(b, "broadcast", results, promises, destinations, value.homes)


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
    contributors = grouped((device, k) for k, device in value.homes.items())
    extent = 0, value.elements, value.dtype
    return [
        _add(b, [b.input(device, *extent, contributor=k) for k in mine], "add_n")
        for device, mine in contributors.items()
    ]


def _add(b: PlanBuilder, values: Sequence[Value], accumulation: Accumulation) -> Value:
    """The sum of values on one device; of one value, itself."""
    if accumulation == "add_n":
        return b.add(values) if len(values) > 1 else values[0]
    return reduce(lambda total, value: b.add([total, value]), values)


def _concatenate(b: PlanBuilder, values: Sequence[Value], root: int) -> Value:
    """The concatenation on `root`; a lone value stays where it is."""
    return values[0] if len(values) == 1 else b.concat([b.copy(value, root) for value in values])


_Extent: TypeAlias = tuple[int, int, int]


def _extents(value: PerDeviceSlices) -> tuple[list[_Extent], list[_Extent], list[_Extent]]:
    """Where the rows and the indices of every device are, and the dense_shape if there is one.

    In the address space: the rows of all devices, then their indices, then the dense_shape.
    """
    rows, size = sum(value.rows), value.row_elements
    end, bounds = rows * size, list(pairwise(accumulate(value.rows, initial=0)))
    shape = (end + rows, end + rows + value.dimensions, INDEX)
    return (
        [(lo * size, hi * size, value.dtype) for lo, hi in bounds],
        [(end + lo, end + hi, INDEX) for lo, hi in bounds],
        [shape] if value.dimensions else [],
    )


def slices_inputs(
    b: PlanBuilder, value: PerDeviceSlices
) -> tuple[list[Value], list[Value], list[Value]]:
    """(values, indices) of every device, and the dense_shape of the first if there is one."""

    def inputs(k: int, *extents: _Extent) -> list[Value]:
        return [b.input(value.devices[k], *extent, contributor=k) for extent in extents]

    values, indices, shape = _extents(value)
    pairs = [inputs(k, *pair) for k, pair in enumerate(zip(values, indices, strict=True))]
    return [own for own, _ in pairs], [own for _, own in pairs], inputs(0, *shape)


def slices_promises(
    value: PerDeviceSlices, divisor: int, *, with_shape: bool = True
) -> list[Promise]:
    """Every device's rows and indices, as its own; only the rows are divided."""
    values, indices, shape = _extents(value)
    promises = [
        Promise(0, *extent, frozenset([k]), by)
        for k, pair in enumerate(zip(values, indices, strict=True))
        for extent, by in zip(pair, (divisor, 1), strict=True)
    ]
    return promises + [Promise(0, *extent, frozenset([0])) for extent in shape if with_shape]


_INT32 = dtypes.code("int32")


def gather_slices(
    b: PlanBuilder, layout: Layout, value: PerDeviceSlices, *, lengths: bool, nccl: bool
) -> list[list[Value]]:
    """[all rows, all indices] on every rank of `layout`.

    The ranks of `layout` are the devices of `value` in order.

    `lengths`: gather the numbers of rows first, and pad where they differ, as TensorFlow 2 does.
    """
    n, rows = layout.n, value.rows
    values, indices, _ = slices_inputs(b, value)
    if len(set(rows)) > 1 and not lengths:
        raise StrategyError(
            f"the devices have {', '.join(map(str, rows))} rows: TensorFlow 1.14 gathers"
            " IndexedSlices only where all have the same number; version 2.x pads them"
        )
    if lengths and n > 1:
        top = indices[-1].hi + value.dimensions
        known = _all_gather(
            b, layout, [b.input(r, top + r, top + r + 1, _INT32) for r in range(n)], nccl=nccl
        )
        waits = [[v.op for v in of_rank] for of_rank in known]
        values = [b.hold(v, wait) for v, wait in zip(values, waits, strict=True)]
        indices = [b.hold(v, wait) for v, wait in zip(indices, waits, strict=True)]
    all_values = _gather_padded(b, layout, values, max(rows) * value.row_elements, nccl=nccl)
    if nccl and n > 1:
        # NCCL's collectives must be launched in one order on every GPU.
        indices = [b.hold(v, [all_values[r].op]) for r, v in enumerate(indices)]
    all_indices = _gather_padded(b, layout, indices, max(rows), nccl=nccl)
    return [list(pair) for pair in zip(all_values, all_indices, strict=True)]


def _gather_padded(
    b: PlanBuilder, layout: Layout, values: Sequence[Value], size: int, *, nccl: bool
) -> list[Value]:
    """The concatenation of all `values` on every rank; they move padded to `size` elements."""
    if len({v.hi - v.lo for v in values}) == 1:
        return [
            b.concat(of_rank, in_place=True)
            for of_rank in _all_gather(b, layout, values, nccl=nccl)
        ]
    whole = [
        b.concat([v, b.zeros(v.device, v.hi, v.lo + size, v.dtype)]) if v.hi - v.lo < size else v
        for v in values
    ]

    def cut(padded: Value, like: Value) -> Value:
        return b.slice(padded, like.lo, like.hi) if padded.hi > like.hi else padded

    return [
        b.concat([*map(cut, of_rank, values)])
        for of_rank in _all_gather(b, layout, whole, nccl=nccl)
    ]


def _all_gather(
    b: PlanBuilder, layout: Layout, values: Sequence[Value], *, nccl: bool
) -> list[list[Value]]:
    """By rank, the values of all ranks, after n-1 steps round the ring."""
    n = layout.n
    if not nccl:
        return _round(b, values, [rank for task in rank_order(layout) for rank in task])
    orders = rings(layout, range(n))
    with launch(b, Executor.NCCL, values, 0) as op:
        shares = [
            _round(b, [_share(v, channel, len(orders)) for v in values], order, channel, (op,))
            for channel, order in enumerate(orders)
        ]

        def whole(rank: int, owner: int) -> Value:
            pieces = [share[rank][owner] for share in shares]
            return values[rank] if rank == owner else b.concat(pieces, in_place=True)

        return [[whole(rank, owner) for owner in range(n)] for rank in range(n)]


def _round(
    b: PlanBuilder,
    values: Sequence[Value],
    order: Sequence[int],
    channel: int | None = None,
    launch: Sequence[int] = (),
) -> list[list[Value]]:
    """One ring; with a channel, every rank sends its pieces in order, after `launch`."""
    n = len(order)
    held: list[dict[int, Value]] = [{rank: value} for rank, value in enumerate(values)]
    for step in range(n - 1):
        for at, rank in enumerate(order):
            owner, target = order[(at - step) % n], order[(at + 1) % n]
            piece = held[rank][owner]
            stream = NO_STREAM if channel is None else b.stream(rank, channel)
            after = () if step else launch
            held[target][owner] = b.copy(
                piece, target, piece.lo, piece.hi, stream=stream, after=after
            )
    return [[by_owner[owner] for owner in range(n)] for by_owner in held]


def _share(value: Value, channel: int, channels: int) -> Value:
    size = value.hi - value.lo
    lo, hi = (value.lo + size * c // channels for c in (channel, channel + 1))
    return value._replace(lo=lo, hi=hi)
