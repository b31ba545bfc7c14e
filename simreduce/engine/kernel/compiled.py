"""The kernel as machine code: the same source, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simreduce.computing.compiling.code import Native, native
from simreduce.engine.kernel.advance import advance

Advance = Callable[[Any, Any, float, float], tuple[bool, float]]

WORTH = 60_000
"""Ops that take about as long interpreted as it takes to compile the kernel."""

SMALL = 64
"""Fewer ops are quicker interpreted although the compiled kernel is there."""

PATIENCE = 2_000_000
"""Crowds to look at, to share resources, that take about as long interpreted as it takes to compile
the kernel.
"""

SLICE = 4_000_000
"""Ops and crowds that machine code works on before Python has a turn: some tenths of a second."""

_seen = [0]


def run(ops: Any, state: Any, now: float, horizon: float, time: Any) -> bool:
    """As `advance`; machine code returns whole numbers only, so that the time goes to `time`."""
    completed, time[0] = advance(ops, state, now, horizon)
    return completed


def pays(ops: int, *, again: bool = False) -> bool:
    """Whether so many ops in flight are worth the compiled kernel, which gives the same bits.

    A kernel that is not compiled yet is worth it once a process has had many ops. Few ops are not
    worth it, unless they are in the tables already (`again`).
    """
    if ops < SMALL and not again:
        return False
    _seen[0] += ops
    return _seen[0] >= WORTH or kernel().is_kept


def kernel() -> Native:
    """`run` as machine code."""
    return native(run, "the kernel", bare=True)
