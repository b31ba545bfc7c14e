"""The slow proof: the oracle of `simreduce.plan.proof`. Keeps every value and runs level by level.

The address space is cut into atoms at every interval end. Every (contributor, atom) gets a residue
modulo the prime 2^31 - 1, a hash of the two that is as good as random, and the plan is run in that
arithmetic, where division (MEAN) is exact. A lost, doubled or misplaced contribution leaves a wrong
residue: the chance that one goes unseen is 2^-31 per atom. The rules for single ops and the words
of an explanation are the product's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import (
    AnyInts,
    Bools,
    Ints,
    distinct,
    invert,
    ranges,
    row_starts,
    splitmix,
)
from simreduce.plan.plan import ZEROS, Contract, Kind, Plan
from simreduce.plan.proof import Problem, explain_sum, find_faults

PRIME = 2**31 - 1
_SEED = np.uint64(0x5EED)
_AT_ONCE = 1 << 18
_EXPLAINED = 20
"""Failing intervals explained in words; the rest are counted."""


def verify(plan: Plan) -> list[Problem]:
    """What `proof.verify` should return for a plan that is not folded."""
    return list(find_faults(plan)) or list(_broken_promises(plan))


@dataclass(frozen=True, slots=True)
class _Atoms:
    """The cuts of the address space, and where each op's atoms stand in it."""

    cuts: Ints
    first: Ints
    last: Ints

    @staticmethod
    def of(plan: Plan) -> _Atoms:
        contract = plan.contract
        cuts = distinct(np.concatenate([plan.lo, plan.hi, contract.lo, contract.hi]))
        return _Atoms(cuts, np.searchsorted(cuts, plan.lo), np.searchsorted(cuts, plan.hi))


def _residue(contributor: AnyInts, atom: Ints) -> Ints:
    """What each contributor gives for the atom at the same place: 1 to PRIME - 1, and 0 for
    ZEROS.
    """
    nothing = np.uint64(0)
    mixed = splitmix(nothing, contributor.astype(np.uint64) + _SEED)
    mixed = splitmix(nothing, mixed + atom.astype(np.uint64))
    return np.where(contributor == ZEROS, 0, (mixed % np.uint64(PRIME - 1)).astype(np.int64) + 1)


def _residues(plan: Plan, atoms: _Atoms) -> tuple[Ints, Ints]:
    """The residues of every op's atoms, as one flat array, and where each op's begin in it."""
    steps = list(_levels(plan.operand_start, plan.operands))
    # Ops by depth: what is computed in one step is one stretch of the array, and so is what it
    # reads, below.
    order = np.concatenate([np.zeros(0, dtype=np.int64), *steps])
    ops = np.cumsum([0, *map(len, steps)])
    width = atoms.last - atoms.first
    ends = row_starts(width[order])
    offset = np.empty(len(plan), dtype=np.int64)
    offset[order] = ends[:-1]

    value = np.zeros(ends[-1], dtype=np.int64)
    inputs = np.flatnonzero(plan.kind == Kind.INPUT)
    count = width[inputs]
    value[ranges(offset[inputs], count)] = _residue(
        np.repeat(plan.arg[inputs], count), ranges(atoms.first[inputs], count)
    )
    scaled = np.flatnonzero(plan.kind == Kind.SCALE)
    factor = np.ones(len(value) if len(scaled) else 0, dtype=np.int64)
    factor[ranges(offset[scaled], width[scaled])] = np.repeat(
        _inverse(plan.arg[scaled]), width[scaled]
    )

    for some in _at_once(ends[ops]):
        readers = order[ops[some.start] : ops[some.stop]]
        target, source, read = _reads(plan, atoms, offset, readers)
        stretches = (
            ends[ops[some.start : some.stop + 1]],
            read[ops[some.start : some.stop + 1] - ops[some.start]],
        )
        for (start, stop), (begin, end) in zip(
            *(pairwise(s.tolist()) for s in stretches), strict=True
        ):
            np.add.at(value, target[begin:end], value[source[begin:end]])
            value[start:stop] %= PRIME
            if len(scaled):
                value[start:stop] *= factor[start:stop]
                value[start:stop] %= PRIME
    return value, offset


def _reads(plan: Plan, atoms: _Atoms, offset: Ints, readers: Ints) -> tuple[Ints, Ints, Ints]:
    """Of every atom that these ops read, op by op: where it goes, where it is; and where each op's
    reads end.
    """
    reads = plan.operand_count[readers]
    user = np.repeat(readers, reads)
    used = plan.operands[ranges(plan.operand_start[readers], reads)]
    lo = np.maximum(atoms.first[user], atoms.first[used])
    count = np.maximum(np.minimum(atoms.last[user], atoms.last[used]) - lo, 0)
    target = ranges(offset[user] + lo - atoms.first[user], count)
    source = ranges(offset[used] + lo - atoms.first[used], count)
    return target, source, row_starts(count)[row_starts(reads)]


def _levels(start: AnyInts, predecessors: AnyInts) -> Iterator[Ints]:
    """Ops by depth: each array holds the ops whose predecessors are all in earlier arrays,
    ascending. Ops on a cycle never come.
    """
    left = np.diff(start)
    successor_start, successors = invert(start, predecessors, len(left))
    level = np.flatnonzero(left == 0)
    while len(level):
        yield level
        count = successor_start[level + 1] - successor_start[level]
        reached = successors[ranges(successor_start[level], count)]
        np.subtract.at(left, reached, 1)
        level = distinct(reached[left[reached] == 0])


def _at_once(ends: Ints) -> Iterator[slice]:
    """All rows in order, given where each ends, in stretches of about `_AT_ONCE` in all: so that
    arrays stay small.
    """
    marks = np.searchsorted(ends, np.arange(0, ends[-1] + _AT_ONCE, _AT_ONCE)).clip(
        0, len(ends) - 1
    )
    for begin, end in pairwise(distinct(np.append(marks, len(ends) - 1)).tolist()):
        yield slice(begin, end)


def _inverse(divisors: AnyInts) -> Ints:
    return np.array([pow(int(d), -1, PRIME) for d in divisors], dtype=np.int64)


def _sums(contract: Contract, members: AnyInts, atom: Ints) -> Ints:
    """The residue of the sum over the set `members` of each atom."""
    width = int(atom.max(initial=0)) + 1
    pairs, place = np.unique(members.astype(np.int64) * width + atom, return_inverse=True)
    row, atom = np.divmod(pairs, width)
    size = np.array([len(s) for s in contract.sets], dtype=np.int64)
    flat = np.array([member for s in contract.sets for member in sorted(s)], dtype=np.int64)
    start, count = row_starts(size)[row], size[row]
    total = np.zeros(len(pairs), dtype=np.int64)
    for some in _at_once(row_starts(count)):
        index = np.repeat(np.arange(some.stop - some.start), count[some])
        given = _residue(flat[ranges(start[some], count[some])], atom[some][index])
        np.add.at(total[some], index, given)
    return total[place] % PRIME


def _broken_promises(plan: Plan) -> Iterator[Problem]:
    """Results that are missing, doubled, not promised, of a wrong dtype, or hold the wrong sum."""
    contract, atoms = plan.contract, _Atoms.of(plan)
    value, offset = _residues(plan, atoms)
    width = len(atoms.cuts)

    first = np.searchsorted(atoms.cuts, contract.lo)
    count = np.searchsorted(atoms.cuts, contract.hi) - first
    row = np.repeat(np.arange(len(contract)), count)
    atom = ranges(first, count)
    promised = contract.device[row].astype(np.int64) * width + atom
    wanted = _sums(contract, contract.members[row], atom)
    expected = wanted * _inverse(contract.divisor)[row] % PRIME

    outputs = np.flatnonzero(plan.kind == Kind.OUTPUT)
    count = atoms.last[outputs] - atoms.first[outputs]
    maker = np.repeat(outputs, count)
    made_atom = ranges(atoms.first[outputs], count)
    made = plan.device[maker].astype(np.int64) * width + made_atom
    order = np.argsort(made, kind="stable")
    made, maker = made[order], maker[order]
    got = value[ranges(offset[outputs], count)][order]

    left = np.searchsorted(made, promised, side="left")
    found = np.searchsorted(made, promised, side="right") - left
    at = np.minimum(left, max(len(made) - 1, 0))
    missing, doubled = found == 0, found > 1
    wrong, mistyped = np.zeros_like(missing), np.zeros_like(missing)
    if len(made):
        wrong = (found == 1) & (got[at] != expected)
        mistyped = (found == 1) & ~wrong & (plan.dtype[maker[at]] != contract.dtype[row])

    def gather(rule: str, bad: Bools, explain: bool = False) -> Iterator[Problem]:
        for n, (start, stop) in enumerate(_runs(promised, bad)):
            device, a, b = plan.devices[promised[start] // width], atom[start], atom[stop - 1] + 1
            text = f"{device} [{atoms.cuts[a]}, {atoms.cuts[b]})"
            if explain and n < _EXPLAINED:
                goal = contract.sets[contract.members[row[start]]]
                text += ": " + explain_sum(plan, int(maker[at[start]]), int(atoms.cuts[a]), goal,
                                        int(contract.divisor[row[start]]))  # fmt: skip
            yield Problem(rule, text, int(atoms.cuts[b] - atoms.cuts[a]))

    yield from gather("no result", missing)
    yield from gather("more than one result", doubled)
    yield from gather("wrong sum", wrong, explain=True)
    yield from gather("wrong dtype", mistyped)
    claimed = np.zeros(len(made), dtype=np.bool_)
    claimed[at[found > 0]] = True  # the first of equal ones
    extra = ~claimed[np.searchsorted(made, made)]
    width_of = np.diff(atoms.cuts)[made[extra] % width]
    for op in np.unique(maker[extra]):
        text = f"{plan.describe(int(op))} in {dtypes.NAMES[plan.dtype[op]]} is not in the contract"
        yield Problem("not promised", text, int(width_of[maker[extra] == op].sum()))


def _runs(key: Ints, bad: Bools) -> Iterator[tuple[int, int]]:
    """[start, stop) of each run of bad entries whose keys are consecutive."""
    ids = np.flatnonzero(bad)
    if not ids.size:
        return
    breaks = np.flatnonzero((np.diff(ids) != 1) | (np.diff(key[ids]) != 1)) + 1
    for run in np.split(ids, breaks):
        yield int(run[0]), int(run[-1]) + 1
