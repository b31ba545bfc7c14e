"""What a step says of collectives that shard, and of memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from simreduce import units
from simreduce.formats.documents import (
    BYTES,
    FLAG,
    MICROSECONDS,
    Key,
    Record,
    map_of,
    or_null,
)
from simreduce.training import Memory, StepPrediction
from simreduce.training.memory import Fit


def sharing_lines(step: StepPrediction, fit: Fit | None) -> list[str]:
    """How much of the exposed time is due to each collective, and the memory of a device."""
    lines = []
    if step.exposed_by:
        parts = [
            f"{name.replace('_', '-')} {seconds * 1e3:.3f} ms" for name, seconds in step.exposed_by
        ]
        lines.append(f"  exposed by {', '.join(parts)}")
    if step.memory:
        has = f" of {units.format_size(fit.available)}" if fit and fit.available else ""
        lines += [f"  {line}" for line in _memory(step.memory, has)]
    if fit and fit.fits is False:
        lines.append(f"  this does not fit: it {fit.words}")
    elif step.memory and not has:
        lines.append("  whether that fits is not known: no `memory` of its GPUs is given")
    return lines


def misfit_lines(fits: Iterable[tuple[str, Fit | None]]) -> list[str]:
    """Which methods do not fit, by name, with the numbers."""
    lines = [f"  {name} {fit.words}" for name, fit in fits if fit and fit.fits is False]
    return ["", f"Does not fit ({len(lines)}):", *lines] if lines else []


def _memory(memory: Memory, has: str) -> list[str]:
    size = units.format_size
    kept = (
        f"parameters {size(memory.parameters)}, gradients {size(memory.gradients)}, "
        f"optimizer {size(memory.optimizer)}"
    )
    if memory.activations:
        kept += f", activations {size(memory.activations)}"
    more = [
        f"{size(nbytes)} {words}"
        for nbytes, words in (
            (memory.gathered, f"gathered (limit {size(memory.gathered_limit)})"),
            (memory.unreduced, "of gradients to reduce"),
        )
        if nbytes
    ]
    lines = [f"a GPU holds {size(memory.peak)}{has} at most: {kept}"]
    if more:
        lines.append(f"  and for a while {' and '.join(more)}")
    if not memory.activations:
        lines[-1] += "; activations not counted"
    return lines


SHARING_KEYS = (
    Key(
        "exposed_by_us",
        map_of(MICROSECONDS),
        "The exposed time that is due to each collective.",
        optional=True,
    ),
    Key(
        "memory_bytes",
        Record(
            "memory",
            "What a GPU holds.",
            Key("parameters", BYTES, "Parameters, all the time."),
            Key("gradients", BYTES, "Gradients, all the time."),
            Key("optimizer", BYTES, "The optimizer's states."),
            Key("gathered", BYTES, "Gathered parameters, at most at once."),
            Key("gathered_limit", BYTES, "What these may never exceed."),
            Key("unreduced", BYTES, "Gradients that are not reduced yet, at most at once."),
            Key("peak", BYTES, "The most of all at once."),
            Key("activations", BYTES, "Activations; 0 if nobody said how many."),
        ),
        "What a GPU holds, where that is known.",
        optional=True,
    ),
    Key(
        "gpu_memory_bytes",
        or_null(BYTES),
        "The memory of the smallest GPU; null if it is not known.",
        optional=True,
    ),
    Key("fits", or_null(FLAG), "Whether it fits; null if that is not known.", optional=True),
)


def sharing_keys(step: StepPrediction, fit: Fit | None) -> dict[str, Any]:
    """The same for programs: `SHARING_KEYS`. Empty for a step of which nothing is known."""
    document: dict[str, Any] = {}
    if step.exposed_by:
        document["exposed_by_us"] = {name: seconds * 1e6 for name, seconds in step.exposed_by}
    if step.memory:
        document["memory_bytes"] = asdict(step.memory)
    if fit:
        document["gpu_memory_bytes"] = fit.available or None
        document["fits"] = fit.fits
    return document
