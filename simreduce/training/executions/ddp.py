"""The logging data of PyTorch's DDP: `json.dumps(model._get_ddp_logging_data())`.

Its buckets become all-reduces, one after another, at even distances in the backward pass. Passes
take `avg_forward_compute_time` and `avg_backward_compute_time`, where DDP measured them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simreduce.errors import quote
from simreduce.files.formats import Faults
from simreduce.training.executions.execution import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    FORWARD,
    Execution,
    ExecutionError,
    ExecutionNode,
)

_NS = 1e-9
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
}  # fmt: skip


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
    forward, backward = (
        _whole(data, f"avg_{each}_compute_time", "nanoseconds", faults)
        for each in (FORWARD, BACKWARD)
    )
    cap = _whole(data, "bucket_cap_bytes", "bytes", faults)
    faults.raise_any(ExecutionError)
    assert isinstance(world, int)  # noqa: S101 - else there is a fault
    share, dtype = backward * _NS / len(sizes), _DTYPES.get(str(data.get("dtypes")), "")
    nodes: list[ExecutionNode] = []
    if forward:
        nodes.append(ExecutionNode("forward", COMPUTE, (), "compute", forward * _NS, phase=FORWARD))
    last = tuple(range(len(nodes)))
    for number, size in enumerate(sizes):
        nodes.append(
            ExecutionNode(f"backward {number}", COMPUTE, last, "compute", share, phase=BACKWARD)
        )
        last = (len(nodes) - 1,)
        nodes.append(
            ExecutionNode(
                f"bucket {number}",
                COLLECTIVE,
                last,
                "communication",
                collective="all_reduce",
                nbytes=size,
                dtype=dtype,
                phase=BACKWARD,
            )
        )
    notes = () if backward else ("DDP measured no backward pass: nothing is computed",)
    return Execution(path, {rank: tuple(nodes)}, world, notes, cap)


def _whole(data: Mapping[str, Any], key: str, unit: str, faults: Faults) -> int:
    """A whole number from 0 of the data; 0 if it is not there."""
    value = data.get(key, 0)
    if type(value) is int and value >= 0:
        return value
    faults.add(key, f"must be {unit}, got {quote(value)}")
    return 0
