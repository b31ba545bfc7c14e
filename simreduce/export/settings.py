"""The tf_cnn_benchmarks flags and the TensorFlow call that run a strategy, where there are any."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.layouts import Layout
from simreduce.packing import ConcatAndSplit
from simreduce.strategy import Strategy
from simreduce.strategy.spec import UPSTREAM


@dataclass(frozen=True, slots=True)
class Settings:
    """Text to type; None where that system cannot run the strategy."""

    tf_cnn_benchmarks: str | None
    tensorflow: str | None


def settings(strategy: Strategy, layout: Layout) -> Settings:
    """Settings for one process per machine, as both systems are run."""
    packs = strategy.packer.packs if isinstance(strategy.packer, ConcatAndSplit) else 0
    if strategy.mean:  # tf_cnn_benchmarks only sums
        return Settings(None, _call(strategy, layout, packs))
    return Settings(_flags(strategy, layout, packs), _call(strategy, layout, packs))


def _flags(strategy: Strategy, layout: Layout, packs: int) -> str | None:
    algorithm, one_task = strategy.ranges[0].algorithm, len(layout.tasks) == 1
    gpus = len(layout.tasks[0])
    if all(r.algorithm in UPSTREAM for r in strategy.ranges):
        # `replicated` takes one range only; several need the mode that takes any number.
        mode = "replicated" if one_task and len(strategy.ranges) == 1 else "distributed_all_reduce"
        if mode != "replicated" and packs:
            return None  # gradient_repacking belongs to `replicated`
        chosen = f"--variable_update={mode} --all_reduce_spec={strategy.spec}"
    elif not one_task or len(strategy.ranges) > 1:
        return None
    elif algorithm == "hierarchical_copy":
        chosen = "--variable_update=replicated --hierarchical_copy=True --network_topology=dgx1"
    elif algorithm in ("copy_to_cpu", "copy_to_gpus"):
        device = "cpu" if algorithm == "copy_to_cpu" else "gpu"
        chosen = f"--variable_update=replicated --local_parameter_device={device}"
    else:
        return None
    repacking = f" --gradient_repacking={packs}" if packs else ""
    return f"--num_gpus={gpus} {chosen}{repacking}"


def _call(strategy: Strategy, layout: Layout, packs: int) -> str | None:
    if len(layout.tasks) > 1 or len(strategy.ranges) > 1:
        return None
    part = strategy.ranges[0]
    if part.algorithm == "hierarchical_copy":
        ops = f"tf.distribute.HierarchicalCopyAllReduce(num_packs={packs})"
    elif part.algorithm == "reduce_to_one" and not packs:
        ops = "tf.distribute.ReductionToOneDevice()"
    elif part.algorithm == "copy_to_cpu" and not packs:
        ops = 'tf.distribute.ReductionToOneDevice(reduce_to_device="/device:CPU:0")'
    else:
        return None
    return f"tf.distribute.MirroredStrategy(cross_device_ops={ops})"
