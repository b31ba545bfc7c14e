"""The contract of a plan: what it promises for each (device, interval).

A contract says whose contributions are summed and what divides them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints


class Promise(NamedTuple):
    """`device` ends with elements [lo, hi) of `dtype` that hold the sum over `members`, divided by
    `divisor`.
    """

    device: int
    lo: int
    hi: int
    dtype: int
    members: frozenset[int]
    divisor: int = 1


class Homes(NamedTuple):
    """The device of each contributor, for addresses from `lo` up to the next `Homes`."""

    lo: int
    device: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """Rows of promises. Row i: device[i] ends with elements [lo[i], hi[i]) of dtype[i] that hold
    the sum over the contributors sets[members[i]], divided by divisor[i].

    `homes`, ascending, says on which device a contributor's INPUTs must be. A contributor that it
    does not name at an address may have that address on one device only.
    """

    collective: str
    device: AnyInts
    lo: AnyInts
    hi: AnyInts
    dtype: AnyInts
    members: AnyInts
    divisor: AnyInts
    sets: tuple[frozenset[int], ...]
    homes: tuple[Homes, ...] = ()

    def __len__(self) -> int:
        return len(self.device)

    @staticmethod
    def all_reduce(
        ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]], divisor: int = 1
    ) -> Contract:
        """Every rank ends with the sum over all ranks of every (lo, hi, dtype), divided by
        `divisor`.
        """
        device, rows = _each(ranks, intervals)
        return _sums("all_reduce", ranks, device, rows, divisor)

    @staticmethod
    def reduce(
        ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]], root: int, divisor: int = 1
    ) -> Contract:
        """The device `root` ends with the sum over all ranks of every (lo, hi, dtype)."""
        device, rows = _each([root], intervals)
        return _sums("reduce", ranks, device, rows, divisor)

    @staticmethod
    def reduce_scatter(
        ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]], divisor: int = 1
    ) -> Contract:
        """Rank i of n ends with the sum of part i of every (lo, hi, dtype): from lo + size i/n to
        lo + size (i+1)/n.
        """
        rows = _parts(intervals, len(ranks))
        return _sums("reduce_scatter", ranks, np.tile(ranks, len(intervals)), rows, divisor)

    @staticmethod
    def all_gather(ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]]) -> Contract:
        """Every rank ends with every (lo, hi, dtype).

        Rank i of n gives part i of it as `reduce_scatter` cuts it.
        """
        rows = _parts(intervals, len(ranks))
        return _from_one(
            "all_gather",
            ranks,
            np.repeat(ranks, len(rows)),
            np.tile(rows, (len(ranks), 1)),
            np.tile(np.arange(len(ranks)), len(intervals) * len(ranks)),
        )

    @staticmethod
    def all_to_all(ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]]) -> Contract:
        """Rank j ends with part j of every row.

        Every (lo, hi, dtype) is n equal rows, and rank i gives row i.
        """
        n = len(ranks)
        rows = _parts(
            [(lo, hi, t) for a, b, t in intervals for lo, hi, t in _parts([(a, b, t)], n).tolist()],
            n,
        )
        # Row by row of the table: (interval, giver, taker).
        return _from_one("all_to_all", ranks, np.tile(ranks, n * len(intervals)), rows,
                         np.tile(np.repeat(np.arange(n), n), len(intervals)))  # fmt: skip

    @staticmethod
    def send_receive(ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]]) -> Contract:
        """Rank i gives row i to rank i + 1, and the last rank to the first.

        Every (lo, hi, dtype) is n equal rows.
        """
        rows, n = _parts(intervals, len(ranks)), len(ranks)
        device = np.tile(np.roll(ranks, -1), len(intervals))
        return _from_one("send_receive", ranks, device, rows, np.tile(np.arange(n), len(intervals)))

    @staticmethod
    def of(collective: str, promises: Iterable[Promise]) -> Contract:
        """Any collective, row by row."""
        rows = list(promises)
        sets = tuple(dict.fromkeys(row.members for row in rows))
        position = {members: i for i, members in enumerate(sets)}
        return Contract(
            collective=collective,
            device=np.array([row.device for row in rows], dtype=np.int32),
            lo=np.array([row.lo for row in rows], dtype=np.int64),
            hi=np.array([row.hi for row in rows], dtype=np.int64),
            dtype=np.array([row.dtype for row in rows], dtype=np.int8),
            members=np.array([position[row.members] for row in rows], dtype=np.int32),
            divisor=np.array([row.divisor for row in rows], dtype=np.int32),
            sets=sets,
        )

    @staticmethod
    def broadcast(
        devices: Sequence[int], intervals: Sequence[tuple[int, int, int]], source: int
    ) -> Contract:
        """Every device ends with every (lo, hi, dtype) as the contributor `source` gave it."""
        only = frozenset([source])
        promises = [Promise(d, *interval, only) for d in devices for interval in intervals]
        return replace(Contract.of("broadcast", promises), homes=(Homes(0, {source: source}),))


def _each(
    devices: Sequence[int], intervals: Sequence[tuple[int, int, int]]
) -> tuple[AnyInts, Ints]:
    """Devices, and rows of (lo, hi, dtype): every interval on every device, device by device."""
    table = np.array(intervals, dtype=np.int64).reshape(-1, 3)
    return np.repeat(devices, len(table)), np.tile(table, (len(devices), 1))


def _parts(intervals: Sequence[tuple[int, int, int]], n: int) -> Ints:
    """Rows of (lo, hi, dtype): every interval in n parts of nearly equal size, in order."""
    lo, hi, dtype = np.array(intervals, dtype=np.int64).reshape(-1, 3).T
    # size * i // n, which might be more than 64 bits hold on the way
    each, more = np.divmod((hi - lo)[:, None], n)
    edges = lo[:, None] + each * np.arange(n + 1) + more * np.arange(n + 1) // n
    return np.stack([edges[:, :-1], edges[:, 1:], np.repeat(dtype[:, None], n, 1)], -1).reshape(
        -1, 3
    )


def _sums(
    collective: str, ranks: Sequence[int], device: AnyInts, rows: Ints, divisor: int
) -> Contract:
    """Row i: `device[i]` has the sum of all ranks."""
    everyone = np.zeros(len(rows), dtype=np.int32)
    return _contract(collective, ranks, device, rows, everyone, (frozenset(ranks),), divisor)


def _from_one(
    collective: str, ranks: Sequence[int], device: AnyInts, rows: Ints, giver: AnyInts
) -> Contract:
    """Row i: `device[i]` has what `ranks[giver[i]]` gave."""
    return _contract(
        collective, ranks, device, rows, giver, tuple(frozenset([rank]) for rank in ranks), 1
    )


def _contract(
    collective: str, ranks: Sequence[int], device: AnyInts, rows: Ints, members: AnyInts,
    sets: tuple[frozenset[int], ...], divisor: int,
) -> Contract:  # fmt: skip
    """Every rank's contributions are at home on the rank."""
    return Contract(
        collective=collective,
        device=device.astype(np.int32),
        lo=np.ascontiguousarray(rows[:, 0]),
        hi=np.ascontiguousarray(rows[:, 1]),
        dtype=rows[:, 2].astype(np.int8),
        members=members.astype(np.int32),
        divisor=np.full(len(rows), divisor, dtype=np.int32),
        sets=sets,
        homes=(Homes(0, {rank: rank for rank in ranks}),),
    )
