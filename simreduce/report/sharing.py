"""What a step says of collectives that shard, and of memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from simreduce import units
from simreduce.training import Memory, StepPrediction


def sharing_lines(step: StepPrediction) -> list[str]:
    """How much of the exposed time is due to each collective, and the memory of a device."""
    lines = []
    if step.exposed_by:
        parts = [
            f"{name.replace('_', '-')} {seconds * 1e3:.3f} ms" for name, seconds in step.exposed_by
        ]
        lines.append(f"  exposed by {', '.join(parts)}")
    if step.memory:
        lines += [f"  {line}" for line in _memory(step.memory)]
    return lines


def _memory(memory: Memory) -> list[str]:
    size = units.format_size
    kept = (
        f"parameters {size(memory.parameters)}, gradients {size(memory.gradients)}, "
        f"optimizer {size(memory.optimizer)}"
    )
    more = [
        f"{size(nbytes)} {words}"
        for nbytes, words in (
            (memory.gathered, f"gathered (limit {size(memory.gathered_limit)})"),
            (memory.unreduced, "of gradients to reduce"),
        )
        if nbytes
    ]
    lines = [f"a GPU holds {size(memory.peak)} at most: {kept}"]
    return [*lines, f"  and for a while {' and '.join(more)}"] if more else lines


def sharing_keys(step: StepPrediction) -> dict[str, Any]:
    """The same for programs: exposed microseconds by collective, and bytes. Empty for a step of
    which nothing is known.
    """
    document: dict[str, Any] = {}
    if step.exposed_by:
        document["exposed_by_us"] = {name: seconds * 1e6 for name, seconds in step.exposed_by}
    if step.memory:
        document["memory_bytes"] = asdict(step.memory)
    return document
