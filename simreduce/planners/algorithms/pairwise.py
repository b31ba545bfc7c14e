"""The pairwise all-to-all (Thakur, Rabenseifner and Gropp 2005): in step s rank p sends rank p + s
its part.

(n-1)(a + M/(nB)). Any n; the ranks of a step form rings, where MPICH pairs p with p XOR s if n is a
power of two, which takes as long.
"""

from __future__ import annotations

import numpy as np

from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.family import Knobs


def all_to_all(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Step by step, one send after another from every rank."""
    n = values.shape[1]
    parts, giver = values.cut(n), np.arange(n)
    stream = b.streams(values.device, knobs.channel)
    steps = [parts[:, giver, giver]]
    for step in range(1, n):
        taker = (giver + step) % n
        steps.append(b.copies(parts[:, giver, taker], values.device[:, taker], stream=stream))
    by_step = Values.stack(steps, axis=1)  # group, step, giver
    taker = giver[:, None]
    return by_step[:, (taker - giver) % n, giver]
