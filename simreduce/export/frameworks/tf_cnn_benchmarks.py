"""tf_cnn_benchmarks: its flags."""

from __future__ import annotations

from simreduce.export.framework import Framework
from simreduce.export.frameworks.tensorflow import nearest, refusals_of, text_of
from simreduce.export.writers import arguments
from simreduce.planners.layouts import Layout
from simreduce.planners.packing import (
    ConcatAndSplit,
    GradientRepacking,
    NoPacking,
    Packer,
    ScopedAllocator,
    SmallTensors,
)
from simreduce.planners.packing.packers import OVERSHOOT
from simreduce.planners.strategy import Strategy
from simreduce.planners.strategy.text import UPSTREAM

_FILE = "tf_cnn_benchmarks.args"
_REPLICATED = {
    "hierarchical_copy": "--hierarchical_copy=True --network_topology=dgx1",
    "hierarchical_copy_gcp_v100": "--hierarchical_copy=True --network_topology=gcp_v100",
    "copy_to_cpu": "--local_parameter_device=cpu",
    "copy_to_gpus": "--local_parameter_device=gpu",
}
"""The flags of algorithms that `--variable_update=replicated` has by no spec, on one machine."""


def mode_files(layout: Layout, mode: str, device: str) -> dict[str, str]:
    """The flags of a mode whose variables are on servers."""
    flags = [
        f"--num_gpus={len(layout.tasks[0])}",
        f"--variable_update={mode}",
        f"--local_parameter_device={device}",
    ]
    return {_FILE: arguments([flag] for flag in flags)}


def flags_of(strategy: Strategy, layout: Layout, *, faithful: bool = False) -> str | None:
    """The flags that run a resolved strategy, for the plan that `faithful` gives or for the plan
    without it; None if none do.
    """
    if strategy.mean:  # it only sums
        return None
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
    flags = _REPLICATED.get(algorithms[0]) if one_task and len(algorithms) == 1 else None
    return ("replicated", flags) if flags else None


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


TF_CNN_BENCHMARKS = Framework(
    "tf_cnn_benchmarks",
    "tf_cnn_benchmarks",
    lambda choice: {_FILE: arguments([word] for word in (text_of(flags_of, choice) or "").split())},
    refusals_of(flags_of, "its flags do"),
    nearest,
    default=lambda _: "copy_to_gpus",  # --variable_update=replicated and no other flag
    published=2017,
    has_typed=True,
    by_plans=True,
    modes=True,
)
