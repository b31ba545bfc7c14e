"""The tf_cnn_benchmarks flags and the TensorFlow call that run a strategy, where there are any."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simreduce.planners.layouts import Layout
from simreduce.planners.packing import (
    BytesPerPack,
    ConcatAndSplit,
    GradientRepacking,
    NoPacking,
    Packer,
    ScopedAllocator,
    SmallTensors,
)
from simreduce.planners.packing.small_tensors import OVERSHOOT
from simreduce.planners.strategy import Strategy, resolve
from simreduce.planners.strategy.text import UPSTREAM

_IMPLEMENTATION = {"collective": "RING", "nccl": "NCCL"}
_NETWORK_TOPOLOGY = {"hierarchical_copy": "dgx1", "hierarchical_copy_gcp_v100": "gcp_v100"}


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """Text to type; None where that system cannot run the strategy."""

    tf_cnn_benchmarks: str | None
    tensorflow: str | None


def as_typed(strategy: Strategy) -> Strategy:
    """Return the strategy that the settings spell.

    Upstream packs two more small tensors than typed, so the group is smaller than meant.
    """
    packer = strategy.packer
    if isinstance(packer, SmallTensors) and packer.max_group > OVERSHOOT:
        return replace(
            strategy, packer=SmallTensors(packer.max_bytes, packer.max_group - OVERSHOOT)
        )
    return strategy


def settings(strategy: Strategy, layout: Layout, *, faithful: bool = False) -> StrategySettings:
    """Return settings for one process per machine, as both systems are run.

    They are for the plan that `faithful` gives, or for the plan without it.
    """
    strategy = resolve(strategy, layout)
    if strategy.mean:  # tf_cnn_benchmarks only sums
        return StrategySettings(None, _call(strategy, layout))
    return StrategySettings(_flags(strategy, layout, faithful=faithful), _call(strategy, layout))


def _flags(strategy: Strategy, layout: Layout, *, faithful: bool) -> str | None:
    chosen = _mode(strategy, one_task=len(layout.tasks) == 1)
    if chosen is None:
        return None
    mode, algorithm = chosen
    by_spec = algorithm.startswith("--all_reduce_spec")
    packing = _packing_flags(strategy.packer, mode, by_spec=by_spec, faithful=faithful)
    if packing is None:
        return None
    order = [f"--gpu_indices={','.join(map(str, layout.order))}"] if layout.order else []
    gpus = f"--num_gpus={len(layout.tasks[0])}"
    return " ".join([gpus, *order, f"--variable_update={mode}", algorithm, *packing])


def _mode(strategy: Strategy, *, one_task: bool) -> tuple[str, str] | None:
    """The `--variable_update` to use, and the flags that choose the algorithm there."""
    algorithms = [r.algorithm for r in strategy.ranges]
    if all(a in UPSTREAM for a in algorithms):
        spec = f"--all_reduce_spec={strategy.spec}"
        if "collective" in algorithms:
            return ("collective_all_reduce", spec) if len(algorithms) == 1 else None
        if any("/" in a for a in algorithms) if one_task else algorithms == ["nccl"]:
            # Upstream cannot tell the tasks of one process apart, and refuses nccl over several.
            return None
        # `replicated` takes one range only; several need the mode that takes any number.
        return "replicated" if one_task and len(algorithms) == 1 else "distributed_all_reduce", spec
    if not one_task or len(algorithms) > 1:
        return None
    if algorithms[0] in _NETWORK_TOPOLOGY:
        return (
            "replicated",
            f"--hierarchical_copy=True --network_topology={_NETWORK_TOPOLOGY[algorithms[0]]}",
        )
    if algorithms[0] in ("copy_to_cpu", "copy_to_gpus"):
        device = "cpu" if algorithms[0] == "copy_to_cpu" else "gpu"
        return "replicated", f"--local_parameter_device={device}"
    return None


def _packing_flags(packer: Packer, mode: str, *, by_spec: bool, faithful: bool) -> list[str] | None:
    """The flags of a packer; None where the mode takes no notice of them."""
    match packer:
        case NoPacking():
            return []
        case ConcatAndSplit(packs) if mode == "replicated":
            return [f"--gradient_repacking={packs}"]
        case GradientRepacking(packs, fp16) if mode == "replicated":
            # --compact_gradient_transfer is on by default and acts under --use_fp16.
            return ["--use_fp16"] * fp16 + [f"--gradient_repacking={packs}"] * bool(packs)
        case SmallTensors(max_bytes, max_group) if by_spec and mode != "collective_all_reduce":
            group = (
                max_group if faithful else max_group - OVERSHOOT
            )  # upstream's packs take that many more
            flags = [
                f"--agg_small_grads_max_bytes={max_bytes}",
                f"--agg_small_grads_max_group={group}",
            ]
            return flags if group > 0 else None
        case ScopedAllocator(scope) if mode == "collective_all_reduce":
            return [f"--allreduce_merge_scope={scope}"]
    return None


def _call(strategy: Strategy, layout: Layout) -> str | None:
    part, packer = strategy.ranges[0], strategy.packer
    if len(strategy.ranges) > 1:
        return None
    if (
        part.algorithm in _IMPLEMENTATION
        and part.shards == 1
        and isinstance(packer, BytesPerPack)
        and not packer.fp16
    ):
        experimental = "tf.distribute.experimental"
        how = f"{experimental}.CommunicationImplementation.{_IMPLEMENTATION[part.algorithm]}"
        size = f"bytes_per_pack={packer.size}"
        options = f"{experimental}.CommunicationOptions({size}, implementation={how})"
        strategy_call = (
            f"tf.distribute.MultiWorkerMirroredStrategy(communication_options={options})"
        )
        return f"{strategy_call}  # packs act inside tf.function only"
    if len(layout.tasks) > 1:
        return None
    ops = None
    match packer:
        case NoPacking() if part.algorithm == "nccl":
            ops = "NcclAllReduce(num_packs=0)"
        case ConcatAndSplit(packs) | GradientRepacking(packs, False) if part.algorithm == "nccl":
            ops = f"NcclAllReduce(num_packs={packs})"
        case NoPacking() if part.algorithm == "reduce_to_one":
            ops = "ReductionToOneDevice()"
        case NoPacking() if part.algorithm == "copy_to_cpu":
            ops = 'ReductionToOneDevice(reduce_to_device="/device:CPU:0")'
        case NoPacking() if part.algorithm == "hierarchical_copy":
            ops = "HierarchicalCopyAllReduce(num_packs=0)"
        case ConcatAndSplit(packs) | GradientRepacking(packs, False) if (
            part.algorithm == "hierarchical_copy"
        ):
            ops = f"HierarchicalCopyAllReduce(num_packs={packs})"
    return ops and f"tf.distribute.MirroredStrategy(cross_device_ops=tf.distribute.{ops})"
