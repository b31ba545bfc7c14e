"""Distributed values of CrossDeviceOps: the devices of one value's copies, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from simreduce import dtypes
from simreduce.planners.layouts import Layout

INDEX = dtypes.code("int64")
"""The dtype of the indices of IndexedSlices."""


@dataclass(frozen=True, slots=True)
class PerDevice:
    """A dense tensor of `elements` on every device of `places`.

    `places` has (device, how many values of it are there) in order.

    A device is an index into `Layout.devices`, hosts included. Several values on a device
    (TensorFlow 1.12's map outputs) are summed there first. Contributor k of a plan is the k-th
    value.
    """

    places: tuple[tuple[int, int], ...]
    elements: int
    dtype: int = 0

    @staticmethod
    def on(devices: Sequence[int], elements: int, dtype: int = 0) -> PerDevice:
        """One value on each of `devices`."""
        return PerDevice(tuple((device, 1) for device in devices), elements, dtype)

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices, in order."""
        return tuple(device for device, _ in self.places)

    @property
    def replicas(self) -> int:
        """How many values all devices have together."""
        return sum(count for _, count in self.places)

    @property
    def homes(self) -> dict[int, int]:
        """The device of every contributor."""
        return dict(enumerate(device for device, count in self.places for _ in range(count)))


@dataclass(frozen=True, slots=True)
class PerDeviceSlices:
    """IndexedSlices on every device of `places`.

    `places` has (device, rows) in order; a row has `row_elements` elements.

    `dimensions` is the length of the dense_shape tensor, 0 for slices without one.
    """

    places: tuple[tuple[int, int], ...]
    row_elements: int
    dtype: int = 0
    dimensions: int = 0

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices, in order."""
        return tuple(device for device, _ in self.places)

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
    tasks: dict[int, list[int]] = {}
    for rank, device in enumerate(devices):
        tasks.setdefault(task_of(layout, device), []).append(rank)

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
