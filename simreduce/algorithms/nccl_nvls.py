"""NVLS: NVSwitches sum and multicast (NVLink SHARP).

Every rank is the head of an equal part. The switch sums what all ranks hold of it and gives the sum
to the head, which sends it back to be multicast to all. A port carries the tensor once and a part
of it besides, each way: t = a + S (1 + 1/n)/B, so the bus bandwidth is 2B (n-1)/(n+1).

Pieces follow one another: 16 KiB to 128 KiB on every channel for every head, less for small
tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce import dtypes
from simreduce.errors import StrategyError
from simreduce.layouts import Decision, Layout
from simreduce.plan import PlanBuilder, Values

_CHUNK = 1 << 17
_SMALLER = ((64, 1 << 16), (8, 1 << 15), (2, 1 << 14))
"""Bytes of a chunk of tensors that are less than so many loops of the largest chunks."""

_MOST = 64
"""Pieces at most; from there on they add less than 2 % to the time."""


def switches(layout: Layout, ranks: Sequence[int]) -> list[int]:
    """The devices that are switches which sum and link all `ranks`."""
    names = [each.name for each in layout.reducers if {*ranks} <= {*each.ranks}]
    if not names or layout.machines > 1:
        raise StrategyError("needs a switch that sums and links all GPUs (NVSwitch with SHARP)")
    return [layout.devices.index(name) for name in names]


def all_reduce(
    b: PlanBuilder, given: Values, switches: Sequence[int], how: Decision, after: Sequence[int]
) -> Values:
    """The sum on every rank; several switches take equal shares."""
    n, shares, made = len(given), given.cut(len(switches)), []
    count = _pieces(given, n * how.channels)
    for i, switch in enumerate(switches):
        own = shares[:, i].cut(count)  # by rank and piece
        there = np.full(own.shape, switch)
        rose = b.copies(own, there, stream=b.streams(own.device, 0), after=after)
        total = b.adds([rose[rank, ...] for rank in range(n)])
        part = total.cut(n).swapaxes(0, 1)  # by head and piece
        stream = b.streams(own.device, 1)
        held = b.copies(part, own.device, stream=stream)
        back = b.copies(held, there, stream=b.streams(own.device, 2))
        whole = b.joins(back.swapaxes(0, 1))
        stream = b.streams(own.device, 3)
        made.append(b.copies(whole[None], own.device, stream=stream))
    return b.joins(Values.concatenate(made, axis=1))


def _pieces(given: Values, heads: int) -> int:
    nbytes = int(given.elements.max(initial=0)) * dtypes.SIZES[given.dtype]
    chunk = _CHUNK
    for loops, smaller in _SMALLER:
        chunk = smaller if nbytes < loops * heads * _CHUNK else chunk
    return max(min(nbytes // (heads * chunk), _MOST), 1)
