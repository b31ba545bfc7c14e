"""The torus of two and of three dimensions: rings along the rows, then along the columns on what is
left, and back.

All-reduce of S on n = p x q: [2(p-1) + 2(q-1)]a + 2(n-1)/n S/B, and one more term of 2(r-1)a in
three dimensions, with every step one message on a rank's single port (Mikami et al. 2018).
Reduce-scatter and all-gather are a half each.

n of any size has the factors with the least sum, the rows the longest: 12 is 3 rows of 4
neighbours. A prime n is one row: the ring. A family does not see in which tasks its ranks are, so a
row is a task only where the factors happen to be the tasks' size; `blueconnect` goes by the tasks.
"""

from __future__ import annotations

from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms import levels
from simreduce.planners.algorithms.family import Family, Knobs


def torus(dimensions: int) -> Family:
    """The torus of `dimensions` dimensions.

    A reduce-scatter starts along the columns instead (`levels` says why).
    """

    def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
        return levels.all_reduce(b, values, _axes(values), knobs.channel)

    def reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
        return levels.reduce_scatter(b, values, _axes(values), knobs.channel)

    def all_gather(b: PlanBuilder, parts: Values, knobs: Knobs) -> Values:
        return levels.all_gather(b, parts, _axes(parts), knobs.channel)

    def _axes(values: Values) -> tuple[int, ...]:
        return levels.near_equal(values.shape[1], dimensions)

    return Family(
        f"torus_{dimensions}d",
        f"rings along the {dimensions} axes of a torus",
        all_reduce=all_reduce,
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        channels=levels.channels(dimensions),
    )
