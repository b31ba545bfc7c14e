"""`reduce`, `batch_reduce` and `broadcast` of tf.distribute's CrossDeviceOps, as plans.

Graph mode. The rules of a TensorFlow version (1.12 cross_tower_ops.py; 1.14 and 2.21
cross_device_ops.py) choose between an all-reduce and a reduction on one device. `faithful`
reproduces upstream's defects: up to 1.14, one IndexedSlices takes the whole batch off the
all-reduce path; and cases that upstream's algorithms cannot run (NCCL on a CPU, several values on a
device) are refused instead of reduced on one device.

Checks the arguments of calls, and lists every fault with its pair.

Initial variables, and the labels of results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, get_args

from simreduce.errors import StrategyError, did_you_mean
from simreduce.plan import Contract, Plan, PlanBuilder, results_last, side_by_side
from simreduce.planners.layouts import Layout
from simreduce.training.cross_device.all_reduce import (
    ALL_REDUCE_ALGORITHMS,
    VERSIONS,
    AllReduceCrossDeviceOps,
    CollectiveAllReduce,
    CrossDeviceOps,
    MultiWorkerAllReduce,
    ReductionCall,
    ReductionToOneDevice,
    Version,
    all_reduce_batch,
    collective_reduce,
    result_places,
    runtime_collective,
)
from simreduce.training.cross_device.one_device import (
    Accumulation,
    Distributed,
    PerDevice,
    PerDeviceSlices,
    broadcast_from,
    cpus,
    reduce_on,
    tree_broadcast,
)
from simreduce.workload import Workload

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
    problems += unknown("reduce_op", reduce_op, REDUCE_OPS)
    problems += unknown("version", version, VERSIONS)
    match method:
        case ReductionToOneDevice(root, accumulation):
            if root is not None and not 0 <= root < len(layout.devices):
                problems.append(f"reduce_to_device {root}: there are {len(layout.devices)} devices")
            problems += unknown("accumulation", accumulation, get_args(Accumulation))
        case AllReduceCrossDeviceOps(algorithm, packs, small):
            problems += unknown("all_reduce_alg", algorithm, ALL_REDUCE_ALGORITHMS)
            if packs < 0:
                problems.append(f"num_packs {packs}: must not be negative")
            if version == "2.x" and small > 0:
                problems.append(
                    "agg_small_grads_max_bytes: TensorFlow 2 has no packing of small gradients"
                )
        case MultiWorkerAllReduce() if version == "2.x":
            problems.append("MultiWorkerAllReduce: TensorFlow 2 has none; take CollectiveAllReduce")
        case CollectiveAllReduce(_, size, communication):
            problems += unknown("communication", communication, ("auto", "ring", "nccl"))
            if size < 0:
                problems.append(f"bytes_per_pack {size}: must not be negative")
    return ReductionCall(method, reduce_op == "mean", layout, version, faithful)


def unknown(what: str, given: object, known: Sequence[str]) -> list[str]:
    """The fault of a value that is not known; nothing for one that is."""
    near = did_you_mean(str(given), known)
    words = f"{what} {given!r}{near}: must be one of {', '.join(known)}"
    return [] if given in known else [words]


def check_pair(
    layout: Layout, value: Distributed, destinations: Destinations, place: str, problems: list[str]
) -> Pair:
    """The value with its destinations as indices, each once; faults go to `problems`."""
    if not isinstance(value, PerDevice | PerDeviceSlices):
        problems.append(f"{place}a PerDevice or PerDeviceSlices is expected, not {value!r}")
        return PerDevice((), 0), ()
    checks = {
        "the value must be on one device or more": not value.places,
        f"a device is listed twice in {value.devices}":
            len(set(value.devices)) < len(value.devices),
    }  # fmt: skip
    problems += [f"{place}{words}" for words, wrong in checks.items() if wrong]
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


def _raise_any(problems: Sequence[str]) -> None:
    if problems:
        raise StrategyError(problems)


def reduce(
    method: CrossDeviceOps,
    reduce_op: str,
    value: Distributed,
    destinations: Destinations,
    layout: Layout,
    *,
    version: Version = "1.14",
    faithful: bool = False,
) -> Plan:
    """The plan that ends with the sum or mean of `value` on every destination."""
    problems: list[str] = []
    call = check_call(method, reduce_op, layout, version, problems, faithful=faithful)
    pair = check_pair(layout, value, destinations, "", problems)
    _raise_any(problems)
    return _one(call, *pair)


def batch_reduce(
    method: CrossDeviceOps,
    reduce_op: str,
    value_destination_pairs: Sequence[tuple[Distributed, Destinations]],
    layout: Layout,
    *,
    version: Version = "1.14",
    faithful: bool = False,
) -> Plan:
    """The plan that ends with the sum or mean of every value on its destinations.

    On every device the results come in the order of the pairs; of slices first the values, then the
    indices and the dense_shape.
    """
    problems: list[str] = []
    call = check_call(method, reduce_op, layout, version, problems, faithful=faithful)
    pairs: list[Pair] = []
    if not isinstance(value_destination_pairs, list | tuple) or not value_destination_pairs:
        problems.append(
            "value_destination_pairs: a list or tuple of (value, destinations) is expected,"
            " not empty"
        )
    else:
        for i, pair in enumerate(value_destination_pairs):
            if isinstance(pair, tuple) and len(pair) == 2:
                pairs.append(check_pair(layout, *pair, f"pair {i}: ", problems))
            else:
                problems.append(
                    f"pair {i}: a tuple (value, destinations) is expected, not {pair!r}"
                )
    _raise_any(problems)
    return _batch(call, pairs)


def broadcast(value: Distributed, destinations: Destinations, layout: Layout) -> Plan:
    """The plan that copies the value of one device to every destination."""
    problems: list[str] = []
    pair = check_pair(layout, value, destinations, "", problems)
    if isinstance(value, PerDevice | PerDeviceSlices) and len(value.places) > 1:
        problems.append(
            f"broadcast: the value is on {len(value.places)} devices; it must be on one"
        )
    _raise_any(problems)
    return broadcast_from(layout, *pair)


def reduce_non_distributed(
    reduce_op: str,
    value: PerDevice,
    destinations: Destinations,
    layout: Layout,
    *,
    replicas: int,
    zero: bool = False,
) -> Plan:
    """The plan for a tensor that is equal on all `replicas`, with `value` on one device.

    Nothing moves for a tensor of zeros (`zero`). A mean is a broadcast of the tensor. A sum over
    several replicas is a StrategyError.
    """
    if zero:
        return PlanBuilder(layout.devices).finish(Contract.of("reduce", []))
    if reduce_op == "sum" and replicas > 1:
        raise StrategyError(
            f"reduce: a non-distributed value cannot be summed over {replicas} replicas"
        )
    _raise_any(unknown("reduce_op", reduce_op, REDUCE_OPS))
    return broadcast(value, destinations, layout)


def _one(call: ReductionCall, value: Distributed, destinations: tuple[int, ...]) -> Plan:
    """The plan of one `reduce`."""
    same = set(value.devices) == set(destinations)
    to_cpu = call.version == "2.x" and cpus(call.layout, destinations)
    method = call.method
    if call.version == "2.x" and same and len(value.places) == 1 and _plain(value):
        return broadcast_from(call.layout, value, destinations)  # an identity
    if isinstance(method, CollectiveAllReduce):
        _refuse_several(value)
        return collective_reduce(call, method, value, destinations)
    if isinstance(method, ReductionToOneDevice):
        return _star(call, value, destinations)
    if isinstance(value, PerDeviceSlices):
        # From 1.14 on, slices take the all-reduce path to its end, where the value is its own
        # destination.
        ordered = value.devices if same and not to_cpu and call.version != "1.12" else destinations
        return _star(call, value, ordered)
    if same and not to_cpu and _runs(call, value):
        return all_reduce_batch(call, [value])
    return _star(call, value, destinations)


def _batch(call: ReductionCall, pairs: Sequence[Pair]) -> Plan:
    """The plan of one `batch_reduce`."""
    values = [value for value, _ in pairs]
    dense = [i for i, value in enumerate(values) if isinstance(value, PerDevice)]
    devices = set(values[0].devices)
    same = all(set(value.devices) == devices == set(to) for value, to in pairs)
    method = call.method
    single = call.version == "2.x" and len(devices) == 1
    joint = same and not single and bool(dense) and not isinstance(method, ReductionToOneDevice)
    if isinstance(method, CollectiveAllReduce):
        for value in values:
            _refuse_several(value)
            runtime_collective(call, method, value)
        joint = joint and len(devices) > 1
    elif joint and call.faithful and call.version != "2.x" and len(dense) < len(values):
        joint = False
    batch = [value for value in values if isinstance(value, PerDevice)]
    if not joint or not all(_runs(call, value) for value in batch):
        return side_by_side([_one(call, *pair) for pair in pairs], call.layout.devices)
    others = [i for i in range(len(values)) if i not in set(dense)]
    plans = [all_reduce_batch(call, batch), *(_one(call, *pairs[i]) for i in others)]
    if not others:
        return plans[0]
    items = [dense[k] for k in result_places(plans[0])]
    items += [i for i, plan in zip(others, plans[1:], strict=True) for _ in result_places(plan)]
    return results_last(side_by_side(plans, call.layout.devices), items)


def _star(call: ReductionCall, value: Distributed, destinations: tuple[int, ...]) -> Plan:
    method = (
        call.method if isinstance(call.method, ReductionToOneDevice) else ReductionToOneDevice()
    )
    root = destinations[0] if method.reduce_to_device is None else method.reduce_to_device
    if call.faithful and call.version != "1.12":
        _refuse_several(value)
    return reduce_on(
        call.layout, value, destinations, root, mean=call.mean, accumulation=method.accumulation
    )


def _plain(value: Distributed) -> bool:
    return isinstance(value, PerDeviceSlices) or value.replicas == len(value.places)


def _refuse_several(value: Distributed) -> None:
    if not _plain(value):
        raise StrategyError(
            "several values on one device:"
            " only TensorFlow 1.12's reduction to one device takes them"
        )


def _runs(call: ReductionCall, value: PerDevice) -> bool:
    """Whether the method's all-reduce can run on the devices of `value`.

    If not, and `faithful`, StrategyError.
    """
    hosts = cpus(call.layout, value.devices)
    by_nccl = (
        isinstance(call.method, AllReduceCrossDeviceOps) and call.method.all_reduce_alg == "nccl"
    )
    if call.faithful:
        _refuse_several(value)
        if hosts and by_nccl:
            raise StrategyError(f"nccl: {call.layout.devices[hosts[0]]} is no GPU")
    return _plain(value) and not (hosts and by_nccl)


def broadcast_variables(workload: Workload, layout: Layout, source: int = 0) -> Plan:
    """Broadcast every variable from rank `source` by the runtime's tree.

    collective_all_reduce does so at its start.
    """
    b = PlanBuilder(layout.devices)
    intervals, lo = [], 0
    for variable in workload.gradients:
        interval = lo, lo + variable.elements, variable.dtype
        held = tree_broadcast(b, b.input(source, *interval), layout.tasks, source)
        for rank in range(layout.n):
            b.output(held[rank])
        intervals.append(interval)
        lo = interval[1]
    return b.finish(Contract.broadcast(range(layout.n), intervals, source))


def result_labels(devices: Sequence[str], *, faithful: bool = False) -> list[str]:
    """The devices that MultiWorkerAllReduce names for its results, for values on `devices`.

    TensorFlow 1.12 (`faithful`) sorts the names as text, gpu:10 before gpu:2: labels are wrong, and
    values right, as they are all equal.
    """
    return sorted(devices) if faithful else list(devices)
