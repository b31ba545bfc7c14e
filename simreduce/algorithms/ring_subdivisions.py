"""How TensorFlow's runtime ring (`ring_alg.cc`) divides itself into several rings, and the order of
each.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_BYTES = 4 << 20
"""A chunk above this asks for one more subdivision, where their number is free."""


def subdivision_offsets(
    nbytes: int, devices_per_task: Sequence[int], max_subdivisions: int
) -> list[int]:
    """The offsets that the runtime chooses where none are given. -1, the default everywhere, means
    one ring.
    """
    if max_subdivisions == -1:
        return [0]
    size = sum(devices_per_task)
    average = size // len(devices_per_task)
    limit = (max_subdivisions if max_subdivisions > 0 else 2) * average
    count = 1
    while nbytes // (size * count) > MOST_BYTES and count < limit:
        count += 1
    stride = max(1, average // count)
    return [stride * k if k % 2 == 0 else -stride * k for k in range(count)]


def subdivision_order(tasks: Sequence[Sequence[int]], offset: int) -> list[int]:
    """The ring of one subdivision: every task rotated by |offset|, and reversed first if it is
    negative.
    """
    order: list[int] = []
    for task in tasks:
        for i in range(len(task)):
            at = (i + abs(offset)) % len(task)
            order.append(task[at if offset >= 0 else len(task) - 1 - at])
    return order
