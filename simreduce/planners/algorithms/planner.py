"""The arguments and the results of every planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from simreduce.plan import PlanBuilder, Value
from simreduce.planners.layouts import OPEN, Decision, Layout

Tensors: TypeAlias = Sequence[Sequence[Value]]
"""`tensors[i][r]` is the value of tensor i (after packing) on rank r; rank r is device r of the
builder.
"""

Results: TypeAlias = Sequence[Sequence[Value]]
"""`results[i][r]` is the value on rank r that holds the sum of tensor i; of other collectives, the
values that hold the results of tensor i in any order.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """`shards` is the k of `#k`; `faithful` asks for upstream's quirks instead of what a user
    intends. `chunk` is the most bytes that a pipeline sends as one piece (0: no limit), `root` the
    rank of a rooted collective. `nccl` is what the strategy says of how NCCL does it.
    """

    shards: int = 1
    faithful: bool = False
    chunk: int = 0
    root: int = 0
    nccl: Decision = OPEN


Planner: TypeAlias = Callable[[PlanBuilder, Layout, Tensors, Options], Results]
