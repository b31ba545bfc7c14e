"""TensorFlow: a call of tf.distribute, and the flags of tf_cnn_benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from simreduce.computing.workers import as_piece
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.export.framework import Choice, Framework, not_gradients
from simreduce.export.writers import arguments
from simreduce.planners.layouts import Layout
from simreduce.planners.packing import (
    OVERSHOOT,
    BytesPerPack,
    ConcatAndSplit,
    GradientRepacking,
    ScopedAllocator,
    SmallTensors,
)
from simreduce.planners.packing.arrangement import NoPacking, Packer
from simreduce.planners.strategy import UPSTREAM, Strategy, tensorflow_choice
from simreduce.workload import Workload

Typed = Callable[[Strategy, Layout], str | None]
"""The text that runs a resolved strategy; None if there is none."""

_IMPLEMENTATION = {"collective": "RING", "nccl": "NCCL"}
_PACKED = {"nccl": "NcclAllReduce", "hierarchical_copy": "HierarchicalCopyAllReduce"}
"""What packs gradients, and reduces them on one machine."""
_PLAIN = {
    "reduce_to_one": "ReductionToOneDevice()",
    "copy_to_cpu": 'ReductionToOneDevice(reduce_to_device="/device:CPU:0")',
}
"""What reduces them one by one."""


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


def text_of(typed: Typed, choice: Choice) -> str | None:
    """The text to type for a choice; None unless upstream makes the same plan of it."""
    found = typed(choice.resolved, choice.setup.layout)
    same = found is not None and _is_upstreams(choice.setup, choice.strategy, choice.workload)
    return found if same else None


@as_piece
@lru_cache(maxsize=1024)
def _is_upstreams(setup: Setup, strategy: Strategy, workload: Workload) -> bool:
    """Whether upstream makes the same plan of the settings that spell a strategy."""
    try:
        theirs = setup.compile(as_typed(strategy), workload, faithful=True)
    except StrategyError:
        return False
    return theirs.digest == setup.compile(strategy, workload).digest


def refusals_of(typed: Typed, words: str) -> Callable[[Choice], list[str]]:
    """Why there is no text for a choice; `words` name what packs and reduces."""

    def refusals(choice: Choice) -> list[str]:
        found = not_gradients(choice, "TensorFlow")
        if found or text_of(typed, choice) is not None:
            return found
        return [f"nothing that {words} packs or reduces like this"]

    return refusals


def nearest(choice: Choice) -> list[str]:
    """Strategies that TensorFlow has settings for, the nearest first."""
    own, packing = choice.resolved.spec, f"+{choice.resolved.packing}"
    like = "nccl" if own.startswith("nccl") else "collective" if "ring" in own else own
    likes = (own, like, f"{like}+bucket=25M", "nccl", "collective", "hierarchical_copy", "xring")
    return list(dict.fromkeys((f"{like}{packing}", *likes)))


def _files(choice: Choice) -> dict[str, str]:
    call, _, note = (text_of(call_of, choice) or "").partition("  # ")
    lines = [f'"""{choice.title}."""', "", "import tensorflow as tf", ""]
    lines += [*[f"# {note}"] * bool(note), f"strategy = {call}", ""]
    return {"simreduce_strategy.py": "\n".join(lines)}


def call_of(strategy: Strategy, layout: Layout) -> str | None:
    """The call that runs a resolved strategy, with one process per machine; None if none does."""
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
    match packer:
        case NoPacking():
            packs = 0
        case ConcatAndSplit(packs) | GradientRepacking(packs, False):
            pass
        case _:
            return None
    ops = _PLAIN.get(part.algorithm) if isinstance(packer, NoPacking) else None
    if part.algorithm in _PACKED:
        ops = f"{_PACKED[part.algorithm]}(num_packs={packs})"
    return ops and f"tf.distribute.MirroredStrategy(cross_device_ops=tf.distribute.{ops})"


TENSORFLOW = Framework(
    "tensorflow",
    "TensorFlow",
    _files,
    refusals_of(call_of, "tf.distribute's calls do"),
    nearest,
    default=lambda choice: tensorflow_choice(choice.setup.layout).get("mirrored_strategy", ""),
    published=2016,
    has_typed=True,
    by_plans=True,
    asked=("TensorFlow 2.21.0, 2026-12-01",),
)


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
    # Of what replicates variables; without a flag, they are on servers (parameter_server).
    default=lambda _: "copy_to_gpus",
    default_words="variable_update=replicated with its own all-reduce",
    published=2017,
    has_typed=True,
    by_plans=True,
    modes=True,
    asked=("tf_cnn_benchmarks 8fb790792, 2026-12-01",),
)
