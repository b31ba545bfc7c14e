"""The logging data of PyTorch's DDP: `json.dumps(model._get_ddp_logging_data())`.

Its buckets become all-reduces, one after another, at even distances in the backward pass, whose
time is `avg_backward_compute_time` where DDP measured it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simreduce.errors import quote
from simreduce.files.formats import Faults
from simreduce.training.executions.execution import (
    COLLECTIVE,
    COMPUTE,
    Execution,
    ExecutionError,
    Node,
)

_NS = 1e-9


def read(path: str, data: Mapping[str, Any]) -> Execution:
    """Return one step of one rank, which represents all ranks."""
    faults = Faults(path)
    key = "rebuilt_bucket_sizes" if data.get("rebuilt_bucket_sizes") else "bucket_sizes"
    text = data.get(key)
    parts = [part.strip() for part in text.split(",")] if isinstance(text, str) else []
    sizes = [int(part) for part in parts if part.isdecimal() and len(part) < 16]
    if not sizes or len(sizes) != len(parts) or min(sizes) == 0:
        faults.add(key, f"must be bytes such as '1048576, 26214400', got {quote(text)}")
    world, rank = data.get("world_size"), data.get("rank", 0)
    if type(world) is not int or not 2 <= world <= 1 << 20:
        faults.add("world_size", f"must be a whole number from 2, got {quote(world)}")
    elif type(rank) is not int or not 0 <= rank < world:
        faults.add("rank", f"must be a whole number below {world}, got {quote(rank)}")
    backward = data.get("avg_backward_compute_time", 0)
    if type(backward) is not int or backward < 0:
        faults.add("avg_backward_compute_time", f"must be nanoseconds, got {quote(backward)}")
    faults.raise_any(ExecutionError)
    assert isinstance(world, int)  # noqa: S101 - else there is a fault
    nodes: list[Node] = []
    for number, size in enumerate(sizes):
        before = (len(nodes) - 2,) if nodes else ()
        share = backward * _NS / len(sizes)
        nodes.append(Node(f"backward {number}", COMPUTE, before, "compute", share))
        nodes.append(
            Node(
                f"bucket {number}",
                COLLECTIVE,
                (len(nodes) - 1,),
                "communication",
                collective="all_reduce",
                nbytes=size,
            )
        )
    notes = () if backward else ("DDP measured no backward pass: nothing is computed",)
    return Execution(path, {rank: tuple(nodes)}, world, notes)
