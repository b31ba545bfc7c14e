"""What a plan promises: for each (device, interval), whose contributions are summed and what divides them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """Rows of promises. Row i: device[i] ends with elements [lo[i], hi[i]) of dtype[i] that hold the sum over
    the contributors sets[members[i]], divided by divisor[i].
    """

    collective: str
    device: Column
    lo: Column
    hi: Column
    dtype: Column
    members: Column
    divisor: Column
    sets: tuple[frozenset[int], ...]

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
        )
