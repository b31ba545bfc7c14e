"""Proof that a plan keeps its contract.

The address space is cut into atoms at every interval end. Every contributor gets a residue modulo
the prime 2^31 - 1, a hash that is as good as random, and the plan is run in that arithmetic, where
division (MEAN) is exact. Values keep their addresses, so an atom never mixes with another. A lost,
doubled or foreign contribution leaves a wrong residue: the chance that such a mistake goes unseen
is 2^-31. `residues` has the loops, which say only what is wrong; the words are found afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simreduce import dtypes
from simreduce.computing import breadth_first
from simreduce.computing.arrays import AnyInts, Ints, distinct, ranges, row_starts, splitmix
from simreduce.computing.loops import sweep, worth_compiling
from simreduce.computing.workers import charge
from simreduce.errors import PlanError, quote
from simreduce.plan.plan import ZEROS, Contract, Homes, Kind, Plan
from simreduce.plan.residues import (
    DOUBLED,
    EXTRA,
    MISSING,
    MISTYPED,
    PRIME,
    WRONG,
    cover,
    find_extra,
    is_malformed,
    judge,
    number_distinct,
    run,
    tally,
)

_SEED = np.uint64(0x5EED)
_CELLS = 1 << 23
"""Residues that are held at once, at least."""
_MOST, _PART = 1 << 32, 1 << 29
"""With more residues than the first the proof would take over half a minute; so many are enough for
`verify_part`.
"""
_EXPLAINED = 20
"""Failing intervals explained in words; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule the plan breaks. `elements` are the result elements that are not as promised (0 if
    structural).
    """

    rule: str
    message: str
    elements: int = 0

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def verify(plan: Plan) -> list[Problem]:
    """Every rule the plan breaks, malformed ops first; empty means that it does what its contract
    says.

    Raises PlanError for a folded plan: its strategy is proved on few machines, each by itself.
    """
    _check_unfolded(plan)
    return _faults_of_ops(plan) or list(_broken_promises(plan, _Atoms.of(plan)))


def verify_part(plan: Plan) -> tuple[list[Problem], float]:
    """Return what `verify` returns, and the share of the address space that was looked at.

    The share is 1, unless the proof would take long: then it looks at some stretches, evenly
    spread. What happens to an address depends on no other, so for these the proof is as good as
    `verify`.
    """
    _check_unfolded(plan)
    problems = _faults_of_ops(plan)
    if problems:
        return problems, 1.0
    atoms = _Atoms.of(plan)
    every = atoms.every(len(plan.devices))
    return list(_broken_promises(plan, atoms, every)), atoms.share(len(plan.devices), every)


def _faults_of_ops(plan: Plan) -> list[Problem]:
    charge(len(plan))
    return list(find_faults(plan)) if _is_malformed(plan) else []


def _check_unfolded(plan: Plan) -> None:
    if plan.machines > 1:
        raise PlanError(
            f"the plan is that of one of {plan.machines} equal machines; prove what the "
            "strategy compiles to for a few of them"
        )


def wrong_elements(problems: list[Problem]) -> int:
    """nccl-tests' `#wrong`: result elements not as promised; a malformed plan counts at least one
    per fault.
    """
    if not isinstance(problems, list) or not all(isinstance(p, Problem) for p in problems):
        raise TypeError(f"expected the list that verify returns, got {quote(problems)}")
    return sum(max(p.elements, 1) for p in problems)


def find_faults(plan: Plan) -> Iterator[Problem]:
    """Faults in single ops: order, number of operands, devices, intervals and dtypes."""
    n, kind = len(plan), plan.kind
    count = plan.operand_count
    user = np.repeat(np.arange(n), count)  # the op that reads each operand
    used = plan.operands.astype(np.int64)
    waiter = np.repeat(np.arange(n), np.diff(plan.control_start))

    def fault(rule: str, bad: AnyInts, text: str) -> Iterator[Problem]:
        for op in np.unique(bad)[:_EXPLAINED]:
            yield Problem(rule, f"{plan.describe(int(op))} {text}")

    if (bad := user[(used >= user) | (used < 0)]).size or (
        bad := waiter[(plan.controls >= waiter) | (plan.controls < 0)]
    ).size:
        yield from fault("order", bad, "waits for an op that does not come before it")
        return
    least = np.array([0, 1, 1, 1, 1, 1, 1, 1])[kind]
    many = len(used)  # one value may be an operand more than once
    most = np.array([0, 1, many, 1, many, 1, 1, 1])[kind]
    yield from fault(
        "operands",
        np.flatnonzero((count < least) | (count > most)),
        "has a wrong number of operands",
    )
    nobody = np.flatnonzero((kind == Kind.INPUT) & (plan.arg < ZEROS))
    yield from fault("contributor", nobody, "has a contributor that is no rank")
    yield from fault("contributor", _strays(plan), "has a contribution that is not there")
    away = plan.device[user] != plan.device[used]
    is_copy = kind[user] == Kind.COPY
    yield from fault("device", user[away & ~is_copy], "reads a value that is on another device")
    yield from fault("device", user[~away & is_copy], "copies to the device where the value is")
    yield from fault(
        "dtype",
        user[(plan.dtype[user] != plan.dtype[used]) & (kind[user] != Kind.CAST)],
        "reads a value of another dtype",
    )
    yield from fault(
        "divisor", np.flatnonzero((kind == Kind.SCALE) & (plan.arg < 1)), "divides by less than 1"
    )
    yield from fault("interval", np.flatnonzero(plan.hi < plan.lo), "has a reversed interval")
    joins = kind[user] == Kind.CONCAT
    outside = (plan.lo[used] > plan.lo[user]) | (plan.hi[used] < plan.hi[user])
    yield from fault("interval", user[outside & ~joins], "reads outside the value it is given")
    yield from fault("interval", _gaps(plan), "joins values that are not adjacent")


def _strays(plan: Plan) -> Ints:
    """INPUTs on another device than their contributor's, or of an address that it has on another
    device already.
    """
    ids = np.flatnonzero((plan.kind == Kind.INPUT) & (plan.arg > ZEROS) & (plan.hi > plan.lo))
    strays, homeless = _homes(plan, ids)
    upto: dict[tuple[int, int], int] = {}  # by contributor and device, where what it has there ends
    devices: dict[int, list[int]] = {}  # by contributor
    for op in homeless[np.lexsort((plan.lo[homeless], plan.arg[homeless]))].tolist():
        rank, device, lo = int(plan.arg[op]), int(plan.device[op]), int(plan.lo[op])
        if any(upto[rank, other] > lo for other in devices.get(rank, ()) if other != device):
            strays.append(op)
        if (rank, device) not in upto:
            devices.setdefault(rank, []).append(device)
        upto[rank, device] = max(upto.get((rank, device), 0), int(plan.hi[op]))
    return np.array(strays, dtype=np.int64)


def _homes(plan: Plan, ids: Ints) -> tuple[list[int], Ints]:
    """Of the INPUTs `ids`: those with an address whose home is another device, and those with an
    address that has no home.
    """
    homes = (Homes(0, {}), *plan.contract.homes)
    starts = np.array([lo for lo, _ in homes], dtype=np.int64)
    first = np.searchsorted(starts, plan.lo[ids], side="right") - 1
    count = np.searchsorted(starts, plan.hi[ids], side="left") - first
    op, at = np.repeat(ids, count), ranges(first, count)
    pairs = zip(at.tolist(), plan.arg[op].tolist(), strict=True)
    home = np.array([homes[i].device.get(rank, -1) for i, rank in pairs], dtype=np.int64)
    return distinct(op[(home >= 0) & (home != plan.device[op])]).tolist(), distinct(op[home < 0])


def _gaps(plan: Plan) -> Ints:
    """CONCATs whose operands do not tile their interval in order."""
    ids = np.flatnonzero((plan.kind == Kind.CONCAT) & (plan.operand_count > 0))
    first = plan.operand_start[ids]
    last = plan.operand_start[ids + 1] - 1
    bad = [
        ids[
            (plan.lo[plan.operands[first]] != plan.lo[ids])
            | (plan.hi[plan.operands[last]] != plan.hi[ids])
        ]
    ]
    inner = ranges(first + 1, last - first)
    owner = np.repeat(ids, last - first)
    bad.append(owner[plan.lo[plan.operands[inner]] != plan.hi[plan.operands[inner - 1]]])
    return np.concatenate(bad)


def _is_malformed(plan: Plan) -> bool:
    """Whether any single op breaks a rule, found in one sweep that says no more."""
    waits = plan.control_start if len(plan.controls) else np.zeros(0, dtype=np.int32)
    columns = (plan.kind, plan.device, plan.lo, plan.hi, *_step(plan.dtype), *_step(plan.arg))
    operands = plan.operand_start, plan.operands, waits, plan.controls
    if sweep(
        is_malformed, (*columns, *operands), compiled=worth_compiling(is_malformed, len(plan))
    ):
        return True
    inputs = plan.kind == Kind.INPUT
    return bool((plan.arg[inputs] < ZEROS).any()) or bool(len(_strays(plan)))


_EMPTY: Ints = np.zeros(0, dtype=np.int64)


def _step(column: AnyInts) -> tuple[AnyInts, int]:
    """A column as `residues` takes it: one number with a step of 0 if all are a view of it."""
    return (column[:1], 0) if column.strides == (0,) else (column, 1)


@dataclass(frozen=True, slots=True)
class _Atoms:
    """The cuts of the address space, and the place of each op's atoms among them."""

    cuts: Ints
    first: AnyInts
    last: AnyInts

    @staticmethod
    def of(plan: Plan) -> _Atoms:
        ends = plan.lo, plan.hi, plan.contract.lo, plan.contract.hi
        cuts, (first, last) = number_distinct(ends[:2], ends[2:])
        return _Atoms(cuts, first, last)

    def every(self, devices: int) -> int:
        """1, or k if only every k-th stretch of atoms is to be looked at."""
        cells = sum(many for _, _, many in self.blocks(devices))
        return -(-cells // _PART) if cells > _MOST else 1

    def share(self, devices: int, every: int) -> float:
        """The share of the address space in every `every`-th stretch of atoms."""
        if every == 1:
            return 1.0
        size = [int(self.cuts[end] - self.cuts[begin]) for begin, end, _ in self.blocks(devices)]
        return sum(size[::every]) / sum(size)

    def blocks(self, devices: int) -> Iterator[tuple[int, int, int]]:
        """Stretches of atoms, whose values and results take bounded memory; and how many values of
        an atom the ops have there.
        """
        change = np.zeros(len(self.cuts) + 1, dtype=np.int64)
        compiled = worth_compiling(cover, len(self.first))
        sweep(cover, (self.first, self.last), [change], compiled=compiled)
        ends = row_starts(np.cumsum(change)[: max(len(self.cuts) - 1, 0)])
        most, begin = max(_CELLS, len(self.first)), 0
        while begin < len(ends) - 1:
            end = int(np.searchsorted(ends, ends[begin] + most, side="right")) - 1
            end = max(min(end, begin + most // max(devices, 1)), begin + 1)
            yield begin, end, int(ends[end] - ends[begin])
            begin = end


def _residues_of(contributors: AnyInts) -> Ints:
    """The residue that each contributor gives: 1 to PRIME - 1, and 0 for ZEROS."""
    mixed = splitmix(_SEED, contributors.astype(np.uint64) + np.uint64(1))
    return np.where(contributors == ZEROS, 0, (mixed % np.uint64(PRIME - 1)).astype(np.int64) + 1)


def _inverse(divisors: AnyInts) -> Ints:
    values, place = np.unique(divisors, return_inverse=True)
    return np.array([pow(int(d), -1, PRIME) for d in values], dtype=np.int64)[place]


def _wanted(contract: Contract) -> Ints:
    """The residue that each row of the contract promises."""
    size = np.array([len(members) for members in contract.sets], dtype=np.int64)
    flat = np.array([rank for members in contract.sets for rank in members], dtype=np.int64)
    total = np.concatenate([[0], np.cumsum(_residues_of(flat) if len(flat) else flat)])
    sums = np.diff(total[row_starts(size)]) % PRIME
    return sums[contract.members] * _inverse(contract.divisor) % PRIME


class _Bad(NamedTuple):
    """Elements of results that are not as promised: which rule each breaks, its row in the contract
    (or the op that makes it, if it is not promised), its atom, and the op that makes it.
    """

    rule: Ints
    owner: Ints
    atom: Ints
    maker: Ints


class _Cells(NamedTuple):
    """Atoms of several owners in one array: where each owner's begin, its first atom, and the rule
    that each atom breaks, 0 for none.
    """

    start: Ints
    first: Ints
    rule: npt.NDArray[np.int8]

    @classmethod
    def of(cls, first: AnyInts, last: AnyInts, begin: int, end: int) -> _Cells:
        """The atoms from `first` to before `last` of every owner that lie in [begin, end)."""
        lowest = np.maximum(first, begin).astype(np.int64)
        start = row_starts(np.maximum(np.minimum(last, end) - lowest, 0))
        return cls(start, lowest, np.zeros(start[-1], dtype=np.int8))

    def bad(self) -> tuple[Ints, Ints, Ints]:
        """The owner, the atom and the rule of every atom that breaks one."""
        cell = np.flatnonzero(self.rule)
        owner = np.searchsorted(self.start, cell, side="right") - 1
        atom = self.first[owner] + cell - self.start[owner]
        return owner, atom, self.rule[cell].astype(np.int64)


def _bad_results(plan: Plan, atoms: _Atoms, every: int) -> _Bad:
    """The plan run in residues, and its results compared with the contract, row by row; of
    stretches of atoms only every `every`-th.
    """
    contract, n = plan.contract, len(plan)
    is_input, is_scale = plan.kind == Kind.INPUT, plan.kind == Kind.SCALE
    given, inverse = _residues_of(plan.arg[is_input]), _inverse(plan.arg[is_scale])
    columns = plan.kind, atoms.first, atoms.last, plan.operand_start, plan.operands, given, inverse
    rows = (
        contract.device,
        np.searchsorted(atoms.cuts, contract.lo),
        np.searchsorted(atoms.cuts, contract.hi),
        contract.dtype,
        _wanted(contract),
    )
    outputs = np.flatnonzero(plan.kind == Kind.OUTPUT)
    made = plan.device, atoms.first, atoms.last, outputs
    base = np.zeros(n, dtype=np.int32)
    found = []
    for begin, end, cells in islice(atoms.blocks(len(plan.devices)), 0, None, every):
        value = np.zeros(cells, dtype=np.int32)
        compiled = worth_compiling(run, n + cells)
        sweep(run, (*columns, begin, end), (base, value), compiled=compiled)
        places = len(plan.devices) * (end - begin)
        maker, times = np.full(places, -1, dtype=np.int32), np.zeros(places, dtype=np.int8)
        sweep(tally, (*made, begin, end), (maker, times), compiled=compiled)
        promised = _Cells.of(rows[1], rows[2], begin, end)
        some = maker, base, value, *_step(plan.dtype), *rows, begin, end
        if sweep(judge, some, (times, promised.rule), compiled=compiled):
            row, atom, rule = promised.bad()
            place = contract.device[row].astype(np.int64) * (end - begin) + atom - begin
            found.append((rule, row, atom, maker[place]))
        others = _Cells.of(atoms.first[outputs], atoms.last[outputs], begin, end)
        if sweep(find_extra, (*made, times, begin, end), [others.rule], compiled=compiled):
            output, atom, rule = others.bad()
            found.append((rule, outputs[output], atom, outputs[output]))
    if not found:
        return _Bad(*[_EMPTY] * 4)
    bad_results = _Bad(*(np.concatenate(part) for part in zip(*found, strict=True)))
    order = np.lexsort((bad_results.atom, bad_results.owner))
    return _Bad(*(column[order] for column in bad_results))


def _broken_promises(plan: Plan, atoms: _Atoms, every: int = 1) -> Iterator[Problem]:
    """Results that are missing, doubled, not promised, of a wrong dtype, or hold the wrong sum."""
    contract = plan.contract
    bad = _bad_results(plan, atoms, every)
    if not len(bad.rule):
        return
    cuts, width = atoms.cuts, len(atoms.cuts)

    def describe(rule: str, which: int) -> Iterator[Problem]:
        some = np.flatnonzero(bad.rule == which)
        row, atom = bad.owner[some], bad.atom[some]
        key = contract.device[row].astype(np.int64) * width + atom
        for n, (start, stop) in enumerate(_runs(row, key)):
            a, b = int(cuts[atom[start]]), int(cuts[atom[stop - 1] + 1])
            text = f"{plan.devices[contract.device[row[start]]]} [{a}, {b})"
            if which == WRONG and n < _EXPLAINED:
                goal = contract.sets[contract.members[row[start]]]
                divisor = int(contract.divisor[row[start]])
                text += f": {explain_sum(plan, int(bad.maker[some[start]]), a, goal, divisor)}"
            yield Problem(rule, text, b - a)

    yield from describe("no result", MISSING)
    yield from describe("more than one result", DOUBLED)
    yield from describe("wrong sum", WRONG)
    yield from describe("wrong dtype", MISTYPED)
    extra = bad.rule == EXTRA
    size = np.diff(cuts)[bad.atom[extra]]
    for op in np.unique(bad.owner[extra]):
        text = f"{plan.describe(int(op))} in {dtypes.NAMES[plan.dtype[op]]} is not in the contract"
        yield Problem("not promised", text, int(size[bad.owner[extra] == op].sum()))


def _runs(row: Ints, key: Ints) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of each run of entries that lie side by side on one device.

    By device and atom their keys are consecutive, and so are their rows.
    """
    if not len(key):
        return
    breaks = np.flatnonzero((np.diff(key) != 1) | (np.diff(row) > 1)) + 1
    for run_of in np.split(np.arange(len(key)), breaks):
        yield int(run_of[0]), int(run_of[-1]) + 1


def explain_sum(plan: Plan, output: int, address: int, goal: frozenset[int], divisor: int) -> str:
    """Say what the element at `address` of this result holds, against what it should hold."""

    def operands(op: int) -> list[int]:
        return [v for v in plan.operands_of(op) if plan.lo[v] <= address < plan.hi[v]]

    seen = breadth_first(output, operands)
    terms: dict[int, Counter[int]] = {}
    divided: dict[int, int] = {}
    for op in sorted(seen):
        read = [v for v in plan.operands_of(op) if v in seen]
        terms[op] = sum((terms[v] for v in read), Counter())
        divided[op] = max([divided[v] for v in read], default=1)
        if plan.kind[op] == Kind.INPUT and plan.arg[op] != ZEROS:
            terms[op] = Counter([int(plan.arg[op])])
        elif plan.kind[op] == Kind.SCALE:
            divided[op] *= int(plan.arg[op])
    held = terms[output]
    parts = [f"rank {r} is missing" for r in sorted(goal - held.keys())]
    parts += [
        f"rank {r} is counted {k} times" for r, k in sorted(held.items()) if k > 1 and r in goal
    ]
    parts += [f"rank {r} does not belong" for r in sorted(held.keys() - goal)]
    if divided[output] != divisor:
        parts.append(f"divided by {divided[output]} instead of {divisor}")
    return ", ".join(parts) or "the sum mixes parts that were divided differently"
