"""The inner loops of the proof: plain functions over columns, interpreted or compiled.

They allocate nothing. Interpreted, they are given lists; compiled by numba, arrays. A column in
which all numbers are equal may be given as one number with a step of 0, others with a step of 1:
entry i is column[i * step].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, distinct
from simreduce.computing.loops import sweep, worth_compiling

PRIME = 2**31 - 1
"""Residues are modulo this prime."""

MISSING, DOUBLED, WRONG, MISTYPED, EXTRA = 1, 2, 3, 4, 5
"""Faults that an element of a result may have."""

_INPUT, _CONCAT, _COPY, _ADD, _SCALE, _CAST, _OUTPUT = 0, 2, 3, 4, 5, 6, 7  # plan.Kind
_FREE = -(1 << 63)
_GOLDEN = 0x9E3779B1


def is_malformed(
    kind: Any,
    device: Any,
    lo: Any,
    hi: Any,
    dtype: Any,
    dtype_step: int,
    arg: Any,
    arg_step: int,
    operand_start: Any,
    operands: Any,
    control_start: Any,
    controls: Any,
) -> bool:
    """Whether a single op breaks a rule, other than an INPUT in its contributor.

    `control_start` may be empty when there are no controls.
    """
    waits = len(controls) > 0
    for op in range(len(kind)):
        what = kind[op]
        begin, end = operand_start[op], operand_start[op + 1]
        if waits:
            for i in range(control_start[op], control_start[op + 1]):
                if controls[i] >= op or controls[i] < 0:
                    return True
        if hi[op] < lo[op]:
            return True
        if what == _INPUT:
            if end > begin:
                return True
            continue
        if end == begin or (end > begin + 1 and what not in (_CONCAT, _ADD)):
            return True
        if what == _SCALE and arg[op * arg_step] < 1:
            return True
        place = lo[op]
        for i in range(begin, end):
            used = operands[i]
            if used >= op or used < 0:
                return True
            if (device[used] != device[op]) != (what == _COPY):
                return True
            if what != _CAST and dtype[used * dtype_step] != dtype[op * dtype_step]:
                return True
            if what == _CONCAT:
                if lo[used] != place:
                    return True
                place = hi[used]
            elif lo[used] > lo[op] or hi[used] < hi[op]:
                return True
        if what == _CONCAT and place != hi[op]:
            return True
    return False


def collect(numbers: Any, table: Any, count: int) -> int:
    """Put the numbers, which are not negative, into a hash table of a size that is a power of two
    and that already holds `count` of them. Returns how many it holds, or -1 as soon as half of it
    is full.
    """
    mask = len(table) - 1
    last = _FREE
    for i in range(len(numbers)):
        number = numbers[i]
        if number == last:
            continue
        last = number
        slot = (number * _GOLDEN >> 12) & mask
        while table[slot] != _FREE and table[slot] != number:
            slot = (slot + 1) & mask
        if table[slot] == _FREE:
            table[slot] = number
            count += 1
            if 2 * count > mask:
                return -1
    return count


def look_up(numbers: Any, table: Any, place: Any, found: Any) -> None:
    """found[i] = the place of numbers[i], which is in the hash table."""
    mask = len(table) - 1
    for i in range(len(numbers)):
        number = numbers[i]
        slot = (number * _GOLDEN >> 12) & mask
        while table[slot] != number:
            slot = (slot + 1) & mask
        found[i] = place[slot]


def cover(first: Any, last: Any, change: Any) -> None:
    """change[a] += how many more values hold atom a than hold the atom before it."""
    for op in range(len(first)):
        change[first[op]] += 1
        change[last[op]] -= 1


def run(
    kind: Any,
    first: Any,
    last: Any,
    operand_start: Any,
    operands: Any,
    given: Any,
    inverse: Any,
    begin: int,
    end: int,
    base: Any,
    value: Any,
) -> None:
    """Run the plan on atoms [begin, end): op's atom a, if it has it, becomes value[base[op] + a].

    `given` has the residue of each INPUT, `inverse` that of one divided by each SCALE's divisor, in
    program order.
    """
    used_room, inputs, scales = 0, 0, 0
    for op in range(len(kind)):
        lo = max(begin, first[op])
        hi = min(end, last[op])
        what = kind[op]
        here = used_room - lo
        base[op] = here
        if hi > lo:
            used_room += hi - lo
            start, stop = operand_start[op], operand_start[op + 1]
            if what == _INPUT:
                residue = given[inputs]
                for a in range(lo, hi):
                    value[here + a] = residue
            elif stop == start + 1 and what != _CONCAT:
                there = base[operands[start]]
                for a in range(lo, hi):
                    value[here + a] = value[there + a]
            else:
                for a in range(lo, hi):
                    value[here + a] = 0
                for i in range(start, stop):
                    used = operands[i]
                    there = base[used]
                    low = max(lo, first[used])
                    high = min(hi, last[used])
                    for a in range(low, high):
                        total = value[here + a] + value[there + a]
                        value[here + a] = total - PRIME if total >= PRIME else total
            if what == _SCALE:
                factor = inverse[scales]
                for a in range(lo, hi):
                    value[here + a] = value[here + a] * factor % PRIME
        if what == _INPUT:
            inputs += 1
        elif what == _SCALE:
            scales += 1


def tally(
    device: Any, first: Any, last: Any, outputs: Any, begin: int, end: int, maker: Any, times: Any
) -> None:
    """Note for every device and atom in [begin, end) which op makes its result, and how often there
    is one (3 and more: the same as 2).
    """
    width = end - begin
    for i in range(len(outputs)):
        op = outputs[i]
        row = device[op] * width - begin
        for a in range(max(begin, first[op]), min(end, last[op])):
            if times[row + a] == 0:
                maker[row + a] = op
            if times[row + a] < 2:
                times[row + a] += 1


def judge(
    maker: Any,
    base: Any,
    value: Any,
    dtype: Any,
    dtype_step: int,
    row_device: Any,
    row_first: Any,
    row_last: Any,
    row_dtype: Any,
    wanted: Any,
    begin: int,
    end: int,
    times: Any,
    rule: Any,
) -> int:
    """Compare the results on atoms [begin, end) with the rows of the contract, whose residues are
    `wanted`. Returns how many are bad, and writes the rule that each breaks, row by row and atom by
    atom. Adds 4 to the `times` of what is promised.
    """
    width = end - begin
    bad, cell = 0, 0
    for i in range(len(row_device)):
        row = row_device[i] * width - begin
        for a in range(max(begin, row_first[i]), min(end, row_last[i])):
            found = times[row + a] & 3
            broken = 0
            if found == 0:
                broken = MISSING
            else:
                times[row + a] = found | 4
                op = maker[row + a]
                if found > 1:
                    broken = DOUBLED
                elif value[base[op] + a] != wanted[i]:
                    broken = WRONG
                elif dtype[op * dtype_step] != row_dtype[i]:
                    broken = MISTYPED
            if broken != 0:
                rule[cell] = broken
                bad += 1
            cell += 1
    return bad


def find_extra(
    device: Any,
    first: Any,
    last: Any,
    outputs: Any,
    times: Any,
    begin: int,
    end: int,
    rule: Any,
) -> int:
    """Find results on atoms [begin, end) that are not promised. Returns how many there are, and
    writes their rule, output by output and atom by atom.
    """
    width = end - begin
    bad, cell = 0, 0
    for i in range(len(outputs)):
        op = outputs[i]
        row = device[op] * width - begin
        for a in range(max(begin, first[op]), min(end, last[op])):
            if times[row + a] < 4:
                rule[cell] = EXTRA
                bad += 1
            cell += 1
    return bad


def number_distinct(
    columns: Sequence[AnyInts], others: Sequence[AnyInts] = ()
) -> tuple[Ints, list[AnyInts]]:
    """The distinct numbers of `columns` and `others`, ascending, and by column the places of its
    entries among them. No number is negative.
    """
    every = (*columns, *others)
    if not worth_compiling(look_up, max(map(len, every), default=0)):
        numbers = distinct(np.concatenate(every))
        return numbers, [np.searchsorted(numbers, column) for column in columns]
    table = _hash(every)
    slots = np.flatnonzero(table != _FREE)
    slots = slots[np.argsort(table[slots])]
    place = np.zeros(len(table), dtype=np.int32)
    place[slots] = np.arange(len(slots), dtype=np.int32)
    found: list[AnyInts] = []
    for column in columns:
        places = np.empty(len(column), dtype=np.int32)
        sweep(look_up, (column, table, place), [places], compiled=True)
        found.append(places)
    return table[slots], found


def _hash(columns: Sequence[AnyInts]) -> Ints:
    """The distinct numbers of the columns in a hash table at most half full."""
    size = 1 << 12
    while True:
        table, count = np.full(size, _FREE, dtype=np.int64), 0
        for column in columns:
            if count >= 0:
                count = sweep(collect, (column, table, count), compiled=True)
        if count >= 0:
            return table
        size *= 4
