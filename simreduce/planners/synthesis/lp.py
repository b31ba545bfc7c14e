"""Linear programmes, solved by HiGHS (Huangfu and Hall 2018) through scipy, which is loaded only
here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.errors import InternalError


def maximise(goal: Floats, table: Any, limit: Floats) -> tuple[float, Floats, Floats]:
    """Find max goal.x over x >= 0 with table x <= limit: the value, x at a vertex, and the price of
    every row. `table` is an array or one of scipy's sparse arrays.

    Equal inputs give equal answers: the solver is single-threaded and is given no clock.
    """
    from scipy.optimize import linprog  # noqa: PLC0415 - takes a second to load

    found = linprog(-goal, A_ub=table, b_ub=limit, method="highs-ds")
    if found.x is None:
        raise InternalError(f"a packing could not be solved: {found.message}")
    return float(-found.fun), np.asarray(found.x), -np.asarray(found.ineqlin.marginals)
