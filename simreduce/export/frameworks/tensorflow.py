"""TensorFlow: a call of tf.distribute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simreduce.errors import StrategyError
from simreduce.export.framework import Choice, Framework, not_gradients
from simreduce.planners.layouts import Layout
from simreduce.planners.packing import (
    BytesPerPack,
    ConcatAndSplit,
    GradientRepacking,
    NoPacking,
    SmallTensors,
)
from simreduce.planners.packing.packers import OVERSHOOT
from simreduce.planners.strategy import Strategy
from simreduce.planners.strategy.text import tensorflow_choice

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
    found, setup = typed(choice.resolved, choice.setup.layout), choice.setup
    if found is None:
        return None
    try:
        theirs = setup.compile(as_typed(choice.strategy), choice.workload, faithful=True)
    except StrategyError:
        return None
    own = setup.compile(choice.strategy, choice.workload)
    return found if theirs.digest == own.digest else None


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
)
