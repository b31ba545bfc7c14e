"""Who waits for whom: the rows of a plan's operands, controls and streams turned round, by
counting.

Compiled where that pays (see `compiled`), so it uses only what numba understands.
"""

from __future__ import annotations

from simreduce.engine.kernel.tables import Array

NONE = -1


def follow(
    operand_start: Array, operands: Array, control_start: Array, controls: Array, stream: Array,
    last: Array, seen: Array, waits: Array, start: Array, successors: Array,
) -> int:  # fmt: skip
    """Fill `waits` with how many ops each one waits for, and `successors`, in rows that begin at
    `start`, with those that wait for it, ascending; returns how many they are. An op waits for its
    operands, its controls and the op before it on its stream, each counted once.

    `start` has a place more than there are ops. `last`, an entry per stream, is room for its latest
    op, and `seen`, an entry per op, for the latest that was found to wait for it; `control_start`
    and `stream` are empty if no op has any.
    """
    for filling in (False, True):
        for op in range(len(seen)):
            seen[op] = NONE
        for op in range(len(last)):
            last[op] = NONE
        for op in range(len(seen)):
            reads = operand_start[op + 1] - operand_start[op]
            obeys = control_start[op + 1] - control_start[op] if len(control_start) > 0 else 0
            on = stream[op] if len(stream) > 0 else NONE
            for i in range(reads + obeys + (on != NONE)):
                if i < reads:
                    used = operands[operand_start[op] + i]
                elif i < reads + obeys:
                    used = controls[control_start[op] + i - reads]
                else:
                    used = last[on]
                if used == NONE or seen[used] == op:
                    continue
                seen[used] = op
                if filling:
                    successors[start[used]] = op
                    waits[op] += 1
                start[used] += 1
            if on != NONE:
                last[on] = op
        # Counts become where rows begin; filling moves that to where they end, which is where the
        # next begin.
        total = 0
        for op in range(len(start)):
            count = start[op]
            start[op] = total
            total = count if filling else total + count
    return total
