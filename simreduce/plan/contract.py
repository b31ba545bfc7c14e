"""What a plan promises: for each (device, interval), whose contributions are summed and what divides them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.integer]


class Promise(NamedTuple):
    """`device` ends with elements [lo, hi) of `dtype` that hold the sum over `members`, divided by `divisor`."""

    device: int
    lo: int
    hi: int
    dtype: int
    members: frozenset[int]
    divisor: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """Rows of promises. Row i: device[i] ends with elements [lo[i], hi[i]) of dtype[i] that hold the sum over
    the contributors sets[members[i]], divided by divisor[i].

    `home` says on which device a contributor's INPUTs must be; one that it does not name may have each address on one
    device only.
    """

    collective: str
    device: Column
    lo: Column
    hi: Column
    dtype: Column
    members: Column
    divisor: Column
    sets: tuple[frozenset[int], ...]
    home: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.device)

    @staticmethod
    def all_reduce(
        ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]], divisor: int = 1
    ) -> Contract:
        """Every rank ends with the sum over all ranks of every (lo, hi, dtype), divided by `divisor`."""
        lo, hi, dtype = np.array(intervals, dtype=np.int64).reshape(-1, 3).T
        n, k = len(ranks), len(intervals)
        return Contract(
            collective="all_reduce",
            device=np.repeat(np.array(ranks, dtype=np.int32), k),
            lo=np.tile(lo, n),
            hi=np.tile(hi, n),
            dtype=np.tile(dtype.astype(np.int8), n),
            members=np.zeros(n * k, dtype=np.int32),
            divisor=np.full(n * k, divisor, dtype=np.int32),
            sets=(frozenset(ranks),),
            home={rank: rank for rank in ranks},
        )

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
    def broadcast(devices: Sequence[int], intervals: Sequence[tuple[int, int, int]], source: int) -> Contract:
        """Every device ends with every (lo, hi, dtype) as the contributor `source` gave it."""
        only = frozenset([source])
        return Contract.of(
            "broadcast", [Promise(d, *interval, only) for d in devices for interval in intervals]
        )
