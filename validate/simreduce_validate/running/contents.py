"""Inputs of a run and the results that they must give: whole numbers small enough that every sum
is exact in the plan's dtypes.

Each contributor has a number of its own for every address, a hash of the two (the 32-bit finaliser
of MurmurHash3, which its author, Austin Appleby, gave to the public). Lost, doubled and misplaced
contributions change a sum at nearly every address; numbers in bfloat16 are few (1 to 32 for 8
ranks), so that there one element of 32 may look right by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from simreduce import dtypes
from simreduce.computing.arrays import Floats
from simreduce.errors import InputError
from simreduce.plan import Kind, Plan
from simreduce.plan.plan import ZEROS

"""Whole numbers, or halves, quarters, ... of them, all exact."""

_EXACT = {
    "float32": 2**24,
    "float16": 2**11,
    "float64": 2**53,
    "bfloat16": 2**8,
    "int32": 2**31 - 1,
    "int64": 2**53,
}
"""By dtype, the number up to which all whole numbers are exact (int64: in the float64 that we
compare in).
"""

_LARGEST = 2**16
"""Larger ones would show nothing more."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The numbers of one plan: `unit` times 1 to `top`."""

    plan: Plan
    unit: int
    top: int

    @staticmethod
    def of(plan: Plan) -> Contents:
        """Raises InputError if a dtype of the plan is too narrow for exact sums."""
        kinds = sorted(
            {dtypes.NAMES[code] for code in {*plan.dtype.tolist(), *plan.contract.dtype.tolist()}}
        )
        narrow = min(kinds, key=_EXACT.__getitem__, default="float32")
        most = max([1, *map(len, plan.contract.sets)])
        unit = math.lcm(*plan.contract.divisor.tolist())
        if not any(kind.startswith("int") for kind in kinds):
            unit //= unit & -unit  # floats are halved without loss
        top = min(_EXACT[narrow] // (most * unit), _LARGEST)
        if top < 1:
            divided = f" divided by {unit}" if unit > 1 else ""
            raise InputError(
                f"{narrow}: sums of {most} ranks{divided} are not exact, so nothing could be "
                f"checked"
            )
        return Contents(plan, unit, top)

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """The narrowest type of ours in which every contribution and sum is exact."""
        most = max([1, *map(len, self.plan.contract.sets)])
        return np.float32 if self.unit * self.top * most <= _EXACT["float32"] else np.float64

    def of_contributor(self, rank: int, lo: int, hi: int) -> Floats:
        """The contribution of `rank` to the addresses [lo, hi)."""
        return _KEPT.get((rank, lo, hi, self.unit, self.top, self.dtype), self._contribution)

    def _contribution(self, rank: int, lo: int, hi: int, *_: object) -> Floats:
        if rank == ZEROS:
            return np.zeros(hi - lo, self.dtype)
        with np.errstate(over="ignore"):
            seed = _finalise(np.array([rank + 1], np.uint32) * np.uint32(0x9E3779B1))
            mixed = _finalise(np.arange(lo, hi, dtype=np.int64).astype(np.uint32) + seed)
        return (mixed % np.uint32(self.top) + np.uint32(1)).astype(self.dtype) * self.unit

    def _total(self, members: frozenset[int], divisor: int, lo: int, hi: int, *_: object) -> Floats:
        total = np.zeros(hi - lo, self.dtype)
        for rank in sorted(members):
            total += self.of_contributor(rank, lo, hi)
        return total / divisor if divisor > 1 else total

    def given(self, op: int) -> Floats:
        """The values of the INPUT `op`."""
        plan = self.plan
        return self.of_contributor(int(plan.arg[op]), int(plan.lo[op]), int(plan.hi[op]))

    def promised(self, op: int) -> Floats:
        """The values that the OUTPUT `op` must have; NaN where nothing is promised."""
        plan, contract = self.plan, self.plan.contract
        lo, hi = int(plan.lo[op]), int(plan.hi[op])
        found = np.full(hi - lo, np.nan, self.dtype)
        rows = np.flatnonzero(
            (contract.device == plan.device[op]) & (contract.lo < hi) & (contract.hi > lo)
            & (contract.dtype == plan.dtype[op])
        )  # fmt: skip
        for row in rows.tolist():
            first, last = int(contract.lo[row]), int(contract.hi[row])
            a, b = max(lo, first), min(hi, last)
            members, divisor = contract.sets[contract.members[row]], int(contract.divisor[row])
            key = (members, divisor, first, last, self.unit, self.top, self.dtype)
            total = _KEPT.get(key, self._total)
            if (a, b) == (lo, hi):
                return total[a - first : b - first]
            found[a - lo : b - lo] = total[a - first : b - first]
        return found


@dataclass(slots=True)
class KeptValues:
    """Values by key, made once while there is `room`, in bytes; `held` is what they take."""

    room: int
    held: int = 0
    values: dict[tuple[Any, ...], Floats] = field(default_factory=dict)

    def get(self, key: tuple[Any, ...], make: Callable[..., Floats]) -> Floats:
        """What `make` makes of a key."""
        if (known := self.values.get(key)) is not None:
            return known
        made = make(*key)
        made.flags.writeable = False
        if made.nbytes > self.room:
            return made
        if self.held + made.nbytes > self.room:
            self.values.clear()
            self.held = 0
        self.held += made.nbytes
        self.values[key] = made
        return made


_KEPT = KeptValues(1 << 30)
"""All ranks and all candidates of a size have the same values."""


def unmade(plan: Plan) -> Iterator[str]:
    """Promises that no OUTPUT of the plan makes, in words."""
    contract = plan.contract
    outputs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for op in np.flatnonzero(plan.kind == Kind.OUTPUT).tolist():
        key = int(plan.device[op]), int(plan.dtype[op])
        outputs.setdefault(key, []).append((int(plan.lo[op]), int(plan.hi[op])))
    merged = {key: list(_merge(sorted(intervals))) for key, intervals in outputs.items()}
    for row in range(len(contract)):
        lo, hi = int(contract.lo[row]), int(contract.hi[row])
        made = merged.get((int(contract.device[row]), int(contract.dtype[row])), [])
        if lo < hi and not any(a <= lo and hi <= b for a, b in made):
            yield f"{plan.devices[contract.device[row]]} [{lo}, {hi}): not all of it is an output"


def difference(where: str, lo: int, got: Floats, wanted: Floats) -> str:
    """The fault of the values `got` at the addresses from `lo` on, or ""."""
    if np.array_equal(got, wanted):
        return ""
    wrong = np.flatnonzero(~((got == wanted) | np.isnan(wanted)))
    loose = np.flatnonzero(np.isnan(wanted))
    if wrong.size:
        i = int(wrong[0])
        return (
            f"{where} [{lo}, {lo + len(got)}): element {lo + i} is {got[i]:g} instead of "
            f"{wanted[i]:g}; "
            f"{wrong.size} of {len(got)} are wrong"
        )
    if loose.size:
        return (
            f"{where} [{lo}, {lo + len(got)}): element {lo + int(loose[0])} is not in the contract"
        )
    return ""


def _merge(intervals: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Sorted intervals, those that touch as one."""
    start = end = None
    for lo, hi in intervals:
        if start is None or end is None or lo > end:
            if start is not None and end is not None:
                yield start, end
            start, end = lo, hi
        else:
            end = max(end, hi)
    if start is not None and end is not None:
        yield start, end


def _finalise(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x85EBCA6B)
    x = x ^ (x >> np.uint32(13))
    x = x * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
