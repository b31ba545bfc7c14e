"""TensorFlow's call and the flags of tf_cnn_benchmarks, as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simreduce.errors import StrategyError
from simreduce.export.choice import Choice, not_gradients
from simreduce.export.settings import as_typed, settings
from simreduce.export.writers import arguments
from simreduce.planners.layouts import Layout

_CALL, _FLAGS = "simreduce_strategy.py", "tf_cnn_benchmarks.args"


def refusals_of(system: str) -> Callable[[Choice], list[str]]:
    """Why a system has no setting for a choice."""

    def refusals(choice: Choice) -> list[str]:
        found = not_gradients(choice, "TensorFlow")
        if not found and _text(system, choice) is None:
            what = {"tensorflow": "tf.distribute's calls do", "tf_cnn_benchmarks": "its flags do"}
            found.append(f"nothing that {what[system]} packs or reduces like this")
        return found

    return refusals


def nearest(choice: Choice) -> list[str]:
    """Strategies that TensorFlow has settings for, the nearest first."""
    own, packing = choice.resolved.spec, f"+{choice.resolved.packing}"
    like = "nccl" if own.startswith("nccl") else "collective" if "ring" in own else own
    likes = (own, like, f"{like}+bucket=25M", "nccl", "collective", "hierarchical_copy", "xring")
    return list(dict.fromkeys((f"{like}{packing}", *likes)))


def files_of(system: str) -> Callable[[Choice], Mapping[str, str]]:
    """The file for a system."""

    def files(choice: Choice) -> dict[str, str]:
        text = _text(system, choice) or ""
        if system == "tf_cnn_benchmarks":
            return {_FLAGS: arguments([word] for word in text.split())}
        call, _, note = text.partition("  # ")
        lines = [f'"""{choice.title}."""', "", "import tensorflow as tf", ""]
        return {_CALL: "\n".join([*lines, *[f"# {note}"] * bool(note),
                                           f"strategy = {call}", ""])}  # fmt: skip

    return files


def mode_files(layout: Layout, mode: str, device: str) -> dict[str, str]:
    """The flags of a mode of tf_cnn_benchmarks whose variables are on servers."""
    flags = [
        f"--num_gpus={len(layout.tasks[0])}",
        f"--variable_update={mode}",
        f"--local_parameter_device={device}",
    ]
    return {_FLAGS: arguments([flag] for flag in flags)}


def _text(system: str, choice: Choice) -> str | None:
    """Return the text to type; None unless upstream makes the same plan of it."""
    strategy, setup = as_typed(choice.strategy), choice.setup
    found: str | None = getattr(settings(choice.strategy, setup.layout), system)
    if found is None:
        return None
    try:
        theirs = setup.compile(strategy, choice.workload, faithful=True)
    except StrategyError:
        return None
    own = setup.compile(choice.strategy, choice.workload)
    return found if theirs.digest == own.digest else None
