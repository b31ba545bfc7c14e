"""The calls of tf.distribute's CrossDeviceOps as plans: reduce, batch_reduce and broadcast.

`reduce`, `batch_reduce` and `broadcast` of tf.distribute's CrossDeviceOps, as plans.

Graph mode. The rules of a TensorFlow version (1.12 cross_tower_ops.py; 1.14 and 2.21
cross_device_ops.py) choose between an all-reduce and a reduction on one device. `faithful`
reproduces upstream's defects: up to 1.14, one IndexedSlices takes the whole batch off the
all-reduce path; and cases that upstream's algorithms cannot run (NCCL on a CPU, several values on a
device) are refused instead of reduced on one device.

Checks the arguments of calls, and lists every fault with its pair.

Initial variables, and the labels of results.

The all-reduce paths of CrossDeviceOps, for dense values with one copy on each device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, TypeAlias, get_args

from simreduce.errors import StrategyError, did_you_mean, refuse
from simreduce.plan import Contract, Kind, Plan, PlanBuilder, results_last, side_by_side
from simreduce.planners import strategy
from simreduce.planners.algorithms import ALGORITHMS, Options
from simreduce.planners.layouts import Layout
from simreduce.planners.packing import DEFAULT_GROUP, OVERSHOOT
from simreduce.planners.strategy import NO_LIMIT, UPSTREAM, Range, assign, parse_multi_worker_spec
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.training.cross_device.one_device import (
    Accumulation,
    Distributed,
    PerDevice,
    PerDeviceSlices,
    broadcast_from,
    contract_of,
    cpus,
    dense_inputs,
    dense_promise,
    gather_slices,
    reduce_on,
    slices_promises,
    sub_layout,
    task_of,
    tree_broadcast,
)
from simreduce.workload import Gradient, Workload

Version: TypeAlias = Literal["1.12", "1.14", "2.x"]
"""A TensorFlow version, which fixes the rules."""

VERSIONS: tuple[Version, ...] = ("1.12", "1.14", "2.x")


@dataclass(frozen=True, slots=True)
class ReductionToOneDevice:
    """Everything to `reduce_to_device`, the first destination unless given, and back from there."""

    reduce_to_device: int | None = None
    accumulation: Accumulation = "add_n"


@dataclass(frozen=True, slots=True)
class AllReduceCrossDeviceOps:
    """All-reduce by `nccl` or `hierarchical_copy`.

    One pack is still a concatenation of everything, 0 is none.

    TensorFlow 2's NcclAllReduce and HierarchicalCopyAllReduce are this with the one or the other;
    they have no packing of small gradients.
    """

    all_reduce_alg: str = "nccl"
    num_packs: int = 1
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class MultiWorkerAllReduce:
    """All-reduce over the devices of several workers, by ranges of sizes.

    See `parse_multi_worker_spec`.
    """

    all_reduce_spec: object = strategy.DEFAULT
    num_packs: int = 0
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class CollectiveAllReduce:
    """Runtime collectives over the devices of a value, whose tasks are the workers.

    Up to 1.14, `all_reduce_merge_scope` gradients share a collective; in 2.x, packs of
    `bytes_per_pack` do (0: one pack). `communication` is `auto`, `ring` or `nccl`; `auto` is the
    ring.
    """

    all_reduce_merge_scope: int = 32
    bytes_per_pack: int = 0
    communication: str = "auto"


CrossDeviceOps: TypeAlias = (
    ReductionToOneDevice | AllReduceCrossDeviceOps | MultiWorkerAllReduce | CollectiveAllReduce
)


ALL_REDUCE_ALGORITHMS = ("nccl", "hierarchical_copy")
"""The names that AllReduceCrossDeviceOps takes."""


@dataclass(frozen=True, slots=True)
class ReductionCall:
    """The arguments that all reductions of one call share."""

    method: CrossDeviceOps
    mean: bool
    layout: Layout
    version: Version
    faithful: bool


def refuse_any(checks: Mapping[str, bool]) -> None:
    """StrategyError with all that is true."""
    refuse((words for words, wrong in checks.items() if wrong), StrategyError)


def _uneven(layout: Layout) -> bool:
    """Whether workers differ in their numbers of devices."""
    return len({len(task) for task in layout.tasks}) > 1


def all_reduce_batch(call: ReductionCall, values: Sequence[PerDevice]) -> Plan:
    """The plan of one batch, with results in the order of `values` on every device."""
    match call.method:
        case AllReduceCrossDeviceOps() as method:
            text = method.all_reduce_alg + _packing(method)
            return _compile(call, values[0].devices, values, text, faithful=call.faithful)
        case MultiWorkerAllReduce() as method:
            return _multi_worker(call, method, values)
        case CollectiveAllReduce() as method:
            algorithm = runtime_collective(call, method, values[0])
            packing = f"+merge={method.all_reduce_merge_scope}" if algorithm == "collective" else ""
            if call.version == "2.x":
                packing = f"+bucket={method.bytes_per_pack}"
            return _compile(
                call, sorted(values[0].devices), values, algorithm + packing, faithful=False
            )
    raise TypeError(call.method)


def _compile(
    call: ReductionCall,
    devices: Sequence[int],
    values: Sequence[PerDevice],
    text: str,
    *,
    faithful: bool,
) -> Plan:
    gradients = tuple(Gradient(f"value {i}", v.elements, v.dtype) for i, v in enumerate(values))
    shape = sub_layout(call.layout, devices)
    text += "+mean" * call.mean
    plan = compile_plan(text, Workload("the batch", gradients), shape, faithful=faithful)
    return side_by_side([plan], call.layout.devices)


def _packing(method: AllReduceCrossDeviceOps | MultiWorkerAllReduce, beyond: int = 0) -> str:
    """The packer as text; packs of small gradients take `beyond` members more than asked for."""
    if method.num_packs > 0:
        return f"+packs={method.num_packs}"
    size, group = method.agg_small_grads_max_bytes, method.agg_small_grads_max_group
    return f"+small={size},{group + beyond}" if size > 0 and group > 0 else ""


def _multi_worker(
    call: ReductionCall, method: MultiWorkerAllReduce, values: Sequence[PerDevice]
) -> Plan:
    """`faithful` returns the results range by range instead of in the order of `values`.

    TensorFlow does not share the quirks of tf_cnn_benchmarks' algorithms, so planners are not
    faithful here.
    """
    ranges = parse_multi_worker_spec(method.all_reduce_spec, faithful=call.faithful)
    supported = [name for name in UPSTREAM if name != "collective"]
    order = [i for taken in assign(ranges, [v.elements for v in values]) for i in taken]
    left = len(values) - len(order)
    problems = {
        f"unsupported all_reduce alg: {r.algorithm}{did_you_mean(r.algorithm, supported)}": (
            r.algorithm not in supported
        )
        for r in ranges
    }
    refuse_any(problems | {
        f"all_reduce_spec: no range takes {left} of the {len(values)} values;"
        " end with a limit of -1": left > 0,
        "MultiWorkerAllReduce: needs the same number of devices in every worker":
            _uneven(sub_layout(call.layout, values[0].devices)),
    })  # fmt: skip
    # The library takes devices worker by worker.
    devices = sorted(values[0].devices, key=lambda d: task_of(call.layout, d))
    text = _spec_text(ranges) + _packing(method, OVERSHOOT if call.faithful else 0)
    plan = _compile(call, devices, values, text, faithful=False)
    if not call.faithful:
        return plan
    place = {i: k for k, i in enumerate(order)}
    return results_last(plan, [place[i] for i in result_places(plan)])


def _spec_text(ranges: Sequence[Range]) -> str:
    fields = [f"{r}:{r.limit}" for r in ranges[:-1]]
    return ":".join([*fields, str(ranges[-1]._replace(limit=NO_LIMIT))])


def result_places(plan: Plan) -> list[int]:
    """For every OUTPUT in program order, how many outputs its device has before it."""
    numbers: defaultdict[int, Iterator[int]] = defaultdict(count)
    return [next(numbers[device]) for device in plan.device[plan.kind == Kind.OUTPUT].tolist()]


def runtime_collective(call: ReductionCall, method: CollectiveAllReduce, value: Distributed) -> str:
    """The algorithm of collectives over the devices of `value`; StrategyError if there is none."""
    shape = sub_layout(call.layout, value.devices)
    hosts = cpus(call.layout, value.devices)
    old, method_name = call.version == "1.12", "CollectiveAllReduce"
    refuse_any({
        f"{method_name}: needs the same number of devices in every worker": _uneven(shape),
        f"{method_name}: the devices of a group are all GPUs or all CPUs":
            0 < len(hosts) < len(value.devices),
        f"{method_name}: TensorFlow 1.12 does not all-reduce IndexedSlices":
            old and isinstance(value, PerDeviceSlices),
        f"{method_name}: TensorFlow 1.12 needs a group of 2 devices or more":
            old and len(value.devices) < 2,
    })  # fmt: skip
    return "nccl" if method.communication == "nccl" and not hosts else "collective"


def collective_reduce(
    call: ReductionCall,
    method: CollectiveAllReduce,
    value: Distributed,
    destinations: Sequence[int],
) -> Plan:
    """Reduce one value by an all-reduce, or an all-gather of its rows, to any destinations.

    A destination without a result of its own copies the first of its worker, once all results
    exist: a device that left the collective early would block the others.
    """
    algorithm = runtime_collective(call, method, value)
    if len(value.devices) == 1:
        return broadcast_from(call.layout, value, destinations)
    places = sorted(value.places)
    shape = sub_layout(call.layout, [device for device, _ in places])
    b = PlanBuilder(tuple(dict.fromkeys((*shape.devices, *call.layout.devices))))
    divisor = len(places) if call.mean else 1
    local = replace(value, places=tuple((rank, count) for rank, (_, count) in enumerate(places)))
    if isinstance(local, PerDeviceSlices):
        results = gather_slices(
            b, shape, local, lengths=call.version == "2.x", nccl=algorithm == "nccl"
        )
        collective, promises = "sparse_gather", slices_promises(local, divisor, with_shape=False)
    else:
        (sums,) = ALGORITHMS[algorithm].reduce(b, shape, [dense_inputs(b, local)], Options())
        results = [[value] for value in sums]
        collective, promises = "all_reduce", [dense_promise(local, divisor)]
    if call.mean:
        results = [[b.scale(first, divisor), *others] for first, *others in results]
    everything = [v.op for of_rank in results for v in of_rank]
    rank_of = {device: rank for rank, (device, _) in enumerate(places)}
    targets = [b.devices.index(call.layout.devices[d]) for d in destinations]
    for device, target in zip(destinations, targets, strict=True):
        home = task_of(call.layout, device)
        worker = [d for d in value.devices if task_of(call.layout, d) == home] or value.devices
        for result in results[rank_of.get(device, rank_of[worker[0]])]:
            b.output(b.copy(result, target, after=everything))
    contract = contract_of(collective, promises, targets, local.homes)
    return side_by_side([b.finish(contract)], call.layout.devices)


Destinations: TypeAlias = int | Sequence[int] | None
"""Devices by index in `Layout.devices`; None means those of the value itself."""

REDUCE_OPS = ("sum", "mean")

Pair: TypeAlias = tuple[Distributed, tuple[int, ...]]


def pair_of(value: Distributed, destinations: Destinations) -> Pair:
    """The value with its destinations, each once."""
    if destinations is None:
        return value, value.devices
    if isinstance(destinations, int):
        return value, (destinations,)
    return value, tuple(dict.fromkeys(destinations))


def check_method(
    method: CrossDeviceOps, reduce_op: str, layout: Layout, version: Version
) -> dict[str, bool]:
    """Words on what may be wrong with the arguments that all values share, and whether it is."""
    found = unknown("reduce_op", reduce_op, REDUCE_OPS) | unknown("version", version, VERSIONS)
    match method:
        case ReductionToOneDevice(root, accumulation):
            known = range(len(layout.devices))
            words = f"reduce_to_device {root}: there are {len(known)} devices"
            found[words] = root is not None and root not in known
            found |= unknown("accumulation", accumulation, get_args(Accumulation))
        case AllReduceCrossDeviceOps(algorithm, packs, small):
            found |= unknown("all_reduce_alg", algorithm, ALL_REDUCE_ALGORITHMS)
            found[f"num_packs {packs}: must not be negative"] = packs < 0
            words = "agg_small_grads_max_bytes: TensorFlow 2 has no packing of small gradients"
            found[words] = version == "2.x" and small > 0
        case MultiWorkerAllReduce():
            words = "MultiWorkerAllReduce: TensorFlow 2 has none; take CollectiveAllReduce"
            found[words] = version == "2.x"
        case CollectiveAllReduce(_, size, communication):
            found |= unknown("communication", communication, ("auto", "ring", "nccl"))
            found[f"bytes_per_pack {size}: must not be negative"] = size < 0
    return found


def unknown(what: str, given: object, known: Sequence[str]) -> dict[str, bool]:
    """Words on a value that is not known, and whether it is one."""
    near = did_you_mean(str(given), known)
    return {f"{what} {given!r}{near}: must be one of {', '.join(known)}": given not in known}


def check_pair(layout: Layout, pair: Pair, place: str = "") -> dict[str, bool]:
    """Words on what may be wrong with a value and its destinations, and whether it is."""
    value, destinations = pair
    least, what = (1, "values") if isinstance(value, PerDevice) else (0, "rows")
    known = range(len(layout.devices))
    found = {
        "the value must be on one device or more": not value.places,
        f"a device is listed twice in {value.devices}":
            len(set(value.devices)) < len(value.devices),
        **{f"{count} {what} on device {device}: must be {least} or more": count < least
           for device, count in value.places},
        **{f"device {d}: there are {len(known)} devices": d not in known for d in value.devices},
        "destinations can not be empty": not destinations,
        **{f"destination {d} is no device": d not in known for d in destinations},
    }  # fmt: skip
    return {f"{place}{words}": wrong for words, wrong in found.items()}


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
    pair = pair_of(value, destinations)
    refuse_any(check_method(method, reduce_op, layout, version) | check_pair(layout, pair))
    return _one(ReductionCall(method, reduce_op == "mean", layout, version, faithful), *pair)


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
    pairs = [pair_of(*pair) for pair in value_destination_pairs]
    faults = check_method(method, reduce_op, layout, version)
    faults["value_destination_pairs: at least one is needed"] = not pairs
    for i, pair in enumerate(pairs):
        faults |= check_pair(layout, pair, f"pair {i}: ")
    refuse_any(faults)
    return _batch(ReductionCall(method, reduce_op == "mean", layout, version, faithful), pairs)


def broadcast(value: Distributed, destinations: Destinations, layout: Layout) -> Plan:
    """The plan that copies the value of one device to every destination."""
    pair = pair_of(value, destinations)
    words = f"broadcast: the value is on {len(value.places)} devices; it must be on one"
    refuse_any(check_pair(layout, pair) | {words: len(value.places) > 1})
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
    words = f"reduce: a non-distributed value cannot be summed over {replicas} replicas"
    summed = {words: reduce_op == "sum" and replicas > 1}
    refuse_any(unknown("reduce_op", reduce_op, REDUCE_OPS) | summed)
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
