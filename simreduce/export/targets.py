"""The systems that settings are exported to: their files, and why one has no setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simreduce.errors import StrategyError, did_you_mean
from simreduce.export import frameworks, msccl, nccl, placement, pytorch, tensorflow
from simreduce.export.choice import Choice
from simreduce.export.serving import FLASHINFER, PYTORCH, TENSORRT_LLM, VLLM, Server
from simreduce.planners.strategy import Strategy, parse_strategy


@dataclass(frozen=True, slots=True)
class Target:
    """A system that takes settings.

    It has its name in sentences, the reasons why it has no setting for a choice, the strategies
    near to one that it may have settings for, and its files. Where nobody names a strategy, it gets
    the fastest of those that are `tried`; without any, what `tune` finds. `default` is what it runs
    unless it is told, of those. `switches` says by strategy what has small tensors go by it.
    """

    title: str
    refusals: Callable[[Choice], list[str]]
    nearest: Callable[[Choice], list[str]]
    files: Callable[[Choice], Mapping[str, str]]
    tried: tuple[str, ...] = ()
    default: Callable[[Choice], str] | None = None
    switches: Mapping[str, str] = field(default_factory=dict)


def _serving(server: Server) -> Target:
    switches = {name: kernel.switch for name, kernel in server.kernels.items()}
    return Target(
        server.title, server.refusals, server.nearest, server.files, tuple(switches),
        server.default, switches,
    )  # fmt: skip


TARGETS: Mapping[str, Target] = {
    "nccl": Target("NCCL", nccl.refusals, nccl.nearest, nccl.files),
    "pytorch": Target(
        "PyTorch", pytorch.refusals, pytorch.nearest, pytorch.files, switches=PYTORCH
    ),
    "horovod": Target(
        "Horovod", frameworks.horovod_refusals, frameworks.horovod_nearest, frameworks.horovod
    ),
    "deepspeed": Target(
        "DeepSpeed",
        frameworks.deepspeed_refusals,
        frameworks.deepspeed_nearest,
        frameworks.deepspeed,
    ),
    "jax": Target("JAX", frameworks.jax_refusals, frameworks.jax_nearest, frameworks.jax),
    "tensorflow": Target(
        "TensorFlow",
        tensorflow.refusals_of("tensorflow"),
        tensorflow.nearest,
        tensorflow.files_of("tensorflow"),
    ),
    "tf_cnn_benchmarks": Target(
        "tf_cnn_benchmarks",
        tensorflow.refusals_of("tf_cnn_benchmarks"),
        tensorflow.nearest,
        tensorflow.files_of("tf_cnn_benchmarks"),
    ),
    "vllm": _serving(VLLM),
    "tensorrt_llm": _serving(TENSORRT_LLM),
    "flashinfer": _serving(FLASHINFER),
    "msccl": Target("MSCCL", msccl.refusals, msccl.nearest, msccl.files),
    "mscclpp": Target("MSCCL++", msccl.refusals, msccl.nearest, msccl.plus_plus_files),
}


def _launcher(title: str, files: Callable[[Choice], Mapping[str, str]]) -> Target:
    def refusals(choice: Choice) -> list[str]:
        return [] if choice.hosts else [f"{title} needs nodes with names, and the machine has none"]

    return Target(title, refusals, lambda _: [], files)


LAUNCHERS: Mapping[str, Target] = {
    "mpi": _launcher("Open MPI", placement.mpi),
    "slurm": _launcher("Slurm", placement.slurm),
    "kubernetes": _launcher("Kubernetes", placement.kubernetes),
    "torchrun": _launcher("torchrun", placement.torchrun),
}
"""What starts ranks: it takes an order of nodes, whatever strategy runs on them."""


def find_target(name: str) -> Target:
    """The target of this name; StrategyError names the nearest."""
    known = {**TARGETS, **LAUNCHERS}
    if name not in known:
        near = did_you_mean(name, known) or f"; one of {', '.join(known)}"
        raise StrategyError(f"unknown target {name!r}{near}")
    return known[name]


def why_not(name: str, choice: Choice) -> tuple[str, ...]:
    """Why a target has no setting for a choice; empty if it has."""
    return tuple(find_target(name).refusals(choice))


def export(name: str, choice: Choice) -> Mapping[str, str]:
    """The files for a target, by name.

    Raises `StrategyError` if it has no setting for the choice, with the reasons and the nearest
    strategy that it has one for.
    """
    target = find_target(name)
    if problems := target.refusals(choice):
        text = choice.strategy.text
        reasons = [f"{text}: no setting of {target.title} gives this: {each}" for each in problems]
        near = nearest(name, choice)
        raise StrategyError(
            [*reasons, *[f"{text}: the nearest setting is that of {near}"] * bool(near)]
        )
    return target.files(choice)


def nearest(name: str, choice: Choice) -> str:
    """The nearest strategy that a target has a setting for, "" if none is known."""
    target = find_target(name)
    for text in target.nearest(choice):
        try:
            other = replace(choice, strategy=parse_strategy(text))
            if not target.refusals(other):
                return text
        except StrategyError:
            continue
    return ""


@dataclass(frozen=True, slots=True)
class Exported:
    """The settings of a system for a choice.

    `files` are by name. Without a setting, `reasons` say why, and `nearest` is the nearest strategy
    that the system has one for, "" if none is known. The files may be of another strategy
    `instead`.
    """

    name: str
    title: str
    files: Mapping[str, str]
    reasons: tuple[str, ...] = ()
    nearest: str = ""
    instead: str = ""


PASTED = ("pytorch", "nccl", "horovod", "deepspeed", "jax", "tensorflow", "tf_cnn_benchmarks")
"""Targets whose files are short enough to read and paste."""


def export_choice(choice: Choice, others: Sequence[Strategy] = ()) -> tuple[Exported, ...]:
    """Return the settings of each of `PASTED` for a choice.

    A target without a setting for the choice gets its setting for the first of `others` that it can
    express. Targets with the choice itself come first, targets without any setting last.
    """
    found = []
    for name in PASTED:
        target, reasons = TARGETS[name], why_not(name, choice)
        choices = (replace(choice, strategy=each) for each in others) if reasons else ()
        if other := next((each for each in choices if not why_not(name, each)), None):
            files = target.files(other)
            found.append(Exported(name, target.title, files, instead=other.strategy.text))
            continue
        near = nearest(name, choice) if reasons else ""
        files = {} if reasons else target.files(choice)
        found.append(Exported(name, target.title, files, reasons, near))
    return tuple(sorted(found, key=lambda each: (bool(each.reasons), bool(each.instead))))
