"""Placement of variables: each on the least loaded device, the first one in a tie."""

from __future__ import annotations

from collections.abc import Sequence


def least_loaded(sizes: Sequence[int], devices: Sequence[int]) -> list[int]:
    """The device of each variable, in order of the variables."""
    load = dict.fromkeys(devices, 0)
    placed = []
    for size in sizes:
        device = min(load, key=lambda d: load[d])
        load[device] += size
        placed.append(device)
    return placed
