"""Checks the arguments of calls, and lists every fault with its pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, get_args

from simreduce.errors import did_you_mean
from simreduce.planners.layouts import Layout
from simreduce.training.cross_device.all_reduce import ALL_REDUCE_ALGORITHMS, ReductionCall
from simreduce.training.cross_device.methods import (
    VERSIONS,
    AllReduceCrossDeviceOps,
    CollectiveAllReduce,
    CrossDeviceOps,
    MultiWorkerAllReduce,
    ReductionToOneDevice,
    Version,
)
from simreduce.training.cross_device.one_device import Accumulation
from simreduce.training.cross_device.value import Distributed, PerDevice, PerDeviceSlices

Destinations: TypeAlias = int | str | Sequence[int | str] | Distributed | None
"""Devices by index in `Layout.devices` or by name, or another value, which means its devices.

None means the devices of the value itself.
"""

REDUCE_OPS = ("sum", "mean")

Pair: TypeAlias = tuple[Distributed, tuple[int, ...]]


def check_call(
    method: CrossDeviceOps,
    reduce_op: str,
    layout: Layout,
    version: Version,
    problems: list[str],
    *,
    faithful: bool,
) -> ReductionCall:
    if reduce_op not in REDUCE_OPS:
        problems.append(unknown("reduce_op", reduce_op, REDUCE_OPS))
    if version not in VERSIONS:
        problems.append(unknown("version", version, VERSIONS))
    match method:
        case ReductionToOneDevice(root, accumulation):
            if root is not None and not 0 <= root < len(layout.devices):
                problems.append(f"reduce_to_device {root}: there are {len(layout.devices)} devices")
            if accumulation not in get_args(Accumulation):
                problems.append(unknown("accumulation", accumulation, get_args(Accumulation)))
        case AllReduceCrossDeviceOps(algorithm, packs, small):
            if algorithm not in ALL_REDUCE_ALGORITHMS:
                problems.append(unknown("all_reduce_alg", algorithm, ALL_REDUCE_ALGORITHMS))
            if packs < 0:
                problems.append(f"num_packs {packs}: must not be negative")
            if version == "2.x" and small > 0:
                problems.append(
                    "agg_small_grads_max_bytes: TensorFlow 2 has no packing of small gradients"
                )
        case MultiWorkerAllReduce() if version == "2.x":
            problems.append("MultiWorkerAllReduce: TensorFlow 2 has none; take CollectiveAllReduce")
        case CollectiveAllReduce(_, size, communication):
            if communication not in ("auto", "ring", "nccl"):
                problems.append(unknown("communication", communication, ("auto", "ring", "nccl")))
            if size < 0:
                problems.append(f"bytes_per_pack {size}: must not be negative")
    return ReductionCall(method, reduce_op == "mean", layout, version, faithful)


def unknown(what: str, given: object, known: Sequence[str]) -> str:
    return f"{what} {given!r}{did_you_mean(str(given), known)}: must be one of {', '.join(known)}"


def check_pair(
    layout: Layout, value: Distributed, destinations: Destinations, place: str, problems: list[str]
) -> Pair:
    """The value with its destinations as indices, each once; faults go to `problems`."""
    if not isinstance(value, PerDevice | PerDeviceSlices):
        problems.append(f"{place}a PerDevice or PerDeviceSlices is expected, not {value!r}")
        return PerDevice((), 0), ()
    if not value.places:
        problems.append(f"{place}the value must be on one device or more")
    if len(set(value.devices)) < len(value.devices):
        problems.append(f"{place}a device is listed twice in {value.devices}")
    least = 1 if isinstance(value, PerDevice) else 0
    problems += [
        f"{place}{count} {'values' if least else 'rows'} on device {device}: "
        f"must be {least} or more"
        for device, count in value.places
        if count < least
    ]
    problems += [
        f"{place}device {d}: there are {len(layout.devices)} devices"
        for d in value.devices
        if not 0 <= d < len(layout.devices)
    ]
    return value, _indices(
        layout, value.devices if destinations is None else destinations, place, problems
    )


def _indices(
    layout: Layout, destinations: Destinations, place: str, problems: list[str]
) -> tuple[int, ...]:
    if isinstance(destinations, PerDevice | PerDeviceSlices):
        destinations = destinations.devices
    if isinstance(destinations, int | str):
        destinations = [destinations]
    if not isinstance(destinations, list | tuple | range):
        problems.append(
            f"{place}destinations {destinations!r}: devices, or a distributed value, are expected"
        )
        return ()
    if not destinations:
        problems.append(f"{place}destinations can not be empty")
    found = []
    for device in destinations:
        if isinstance(device, int) and 0 <= device < len(layout.devices):
            found.append(device)
        elif isinstance(device, str) and device in layout.devices:
            found.append(layout.devices.index(device))
        else:
            near = did_you_mean(device, layout.devices) if isinstance(device, str) else ""
            problems.append(f"{place}destination {device!r} is no device{near}")
    return tuple(dict.fromkeys(found))
