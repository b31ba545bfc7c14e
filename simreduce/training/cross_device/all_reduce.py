"""The all-reduce paths of CrossDeviceOps, for dense values with one copy on each device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, TypeAlias

from simreduce.errors import StrategyError, did_you_mean
from simreduce.plan import Kind, Plan, PlanBuilder, results_last, side_by_side
from simreduce.planners.algorithms import ALGORITHMS, Options
from simreduce.planners.layouts import Layout
from simreduce.planners.packing.tensorflow import DEFAULT_GROUP, OVERSHOOT
from simreduce.planners.strategy import Range, compile_plan, parse_multi_worker_spec, text
from simreduce.planners.strategy.text import NO_LIMIT, UPSTREAM, assign
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
    slices_promises,
    sub_layout,
    task_of,
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

    all_reduce_spec: object = text.DEFAULT
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


def refuse(checks: Mapping[str, bool]) -> None:
    """StrategyError with all that is true."""
    if problems := [words for words, wrong in checks.items() if wrong]:
        raise StrategyError(problems)


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
    refuse(problems | {
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
    refuse({
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
