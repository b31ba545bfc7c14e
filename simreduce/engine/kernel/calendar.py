"""A heap of items with a key each, in arrays: the least key first, and the key of any item may
change.

Part of the kernel (see `advance`): interpreted it is given lists, compiled by numba arrays. Only
keys are compared. Items with equal keys therefore go in and come out without moving one another,
however many they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NONE = -1

Array = Any  # a list when interpreted, a numpy array when compiled


class Heap(NamedTuple):
    """`key[i]` and `item[i]` for i < size[0]; `at[item]` is where an item is, or NONE."""

    key: Array
    item: Array
    at: Array
    size: Array


def put(heap: Heap, item: int, key: float) -> None:
    """Give `item` a key, whether or not it has one."""
    keys, items, at = heap.key, heap.item, heap.at
    i = at[item]
    if i == NONE:
        i = heap.size[0]
        heap.size[0] = i + 1
    elif keys[i] < key:
        sink(heap, i, item, key)
        return
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] <= key:
            break
        keys[i] = keys[parent]
        items[i] = items[parent]
        at[items[i]] = i
        i = parent
    keys[i] = key
    items[i] = item
    at[item] = i


def sink(heap: Heap, i: int, item: int, key: float) -> None:
    """Place `item` at `i` or as far below it as its key says."""
    keys, items, at = heap.key, heap.item, heap.at
    size = heap.size[0]
    child = 2 * i + 1
    while child < size:
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[i] = keys[child]
        items[i] = items[child]
        at[items[i]] = i
        i = child
        child = 2 * i + 1
    keys[i] = key
    items[i] = item
    at[item] = i


def remove(heap: Heap, item: int) -> None:
    """Take `item` out, if it is there."""
    i = heap.at[item]
    if i == NONE:
        return
    heap.at[item] = NONE
    last = heap.size[0] - 1
    heap.size[0] = last
    if i < last:
        other, key = heap.item[last], heap.key[last]
        if i > 0 and key < heap.key[(i - 1) >> 1]:
            heap.at[other] = i  # to rise from there
            heap.item[i] = other
            heap.key[i] = key
            put(heap, other, key)
        else:
            sink(heap, i, other, key)


def list_until(heap: Heap, late: float, taken: Array) -> int:
    """Write every item whose key is `late` or less to `taken`; how many they are."""
    keys, size = heap.key, heap.size[0]
    if size == 0 or keys[0] > late:
        return 0
    taken[0] = 0  # places first, in the order of levels
    count, i = 1, 0
    while i < count:
        child = 2 * taken[i] + 1
        i += 1
        if child < size and keys[child] <= late:
            taken[count] = child
            count += 1
        if child + 1 < size and keys[child + 1] <= late:
            taken[count] = child + 1
            count += 1
    for i in range(count):
        taken[i] = heap.item[taken[i]]
    return count


def take_until(heap: Heap, late: float, taken: Array) -> int:
    """Take out every item whose key is `late` or less, write them to `taken`, and return how many
    they are.
    """
    keys, items, at = heap.key, heap.item, heap.at
    size, count = heap.size[0], list_until(heap, late, taken)
    if count == 0:
        return 0
    if 4 * count < size:
        for _ in range(count):  # the least are on top
            size -= 1
            heap.size[0] = size
            if size > 0:
                sink(heap, 0, items[size], keys[size])
        for i in range(count):
            at[taken[i]] = NONE
        return count
    for i in range(count):
        at[taken[i]] = NONE
    kept = 0
    if count < size:
        for i in range(size):
            if keys[i] > late:
                keys[kept] = keys[i]
                items[kept] = items[i]
                at[items[kept]] = kept
                kept += 1
    heap.size[0] = kept
    for i in range((kept >> 1) - 1, -1, -1):
        sink(heap, i, items[i], keys[i])
    return count
