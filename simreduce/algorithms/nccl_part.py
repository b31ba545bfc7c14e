"""The part of a collective that is carried by the channels of one way round the GPUs.

It is no collective by itself, and its plan proves nothing. Where ways are alike, one of them takes
as long as all together, if resources carry what they would carry then (`engine.alike`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from simreduce.algorithms.nccl_lanes import Lane, lanes
from simreduce.layouts import Decision
from simreduce.plan import Value, Values

T = TypeVar("T")


def lanes_of(how: Decision, ways: Sequence[T], of: int) -> list[tuple[T, Lane]]:
    """The lanes of every way; of a part, those whose number modulo `of` is its way's."""
    made = lanes(ways, how.channels)
    return made if how.way < 0 else made[how.way :: of]


def fill(found: Values, given: Sequence[Value], how: Decision) -> Values:
    """The result of every rank; of a part, as if it were the whole tensor, and what a rank has
    where it gets none.
    """
    if how.way < 0:
        return found
    whole = Values.of(given)
    op = whole.op.copy()
    op[np.isin(whole.device, found.device)] = found.op
    return whole.with_ops(op)
