"""BlueConnect (Cho et al. 2019): reduce-scatter level by level, from inside the tasks outwards, and
all-gather back.

The levels p1, p2, ... are the ranks of a task, then the prime factors of the number of tasks, the
least first, so that neighbouring tasks come before distant ones: 6 tasks of 8 are 8, 2, 3. At level
i a rank has 1/(p1 ... p(i-1)) of the tensor left and sends 2(pi-1)/pi of that, in steps of one
message: sum 2(pi-1)(ai + S/(p1 ... pi Bi)), whatever is faster inside than outside. One task has
one level: the ring. Tasks of unequal size make no grid and are refused.
"""

from __future__ import annotations

from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms import levels
from simreduce.planners.algorithms.families import planner
from simreduce.planners.algorithms.family import Knobs
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.layouts import Layout


def blueconnect(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """An all-reduce on the grid of tasks and the ranks in them."""
    inside, *others = sorted({len(task) for task in layout.tasks})
    if others:
        raise StrategyError(
            f"blueconnect needs as many GPUs in every task, and here they have {inside} to "
            f"{others[-1]}; "
            "a two-level algorithm (inner/outer) takes any"
        )
    axes = (*levels.prime_factors(len(layout.tasks))[::-1], inside)

    def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
        return levels.all_reduce(b, values, axes, knobs.channel)

    return planner("all_reduce", all_reduce)(b, layout, tensors, options)
