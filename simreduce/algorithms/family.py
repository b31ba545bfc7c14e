"""What an algorithm family is: collectives over groups of devices, all groups in lockstep.

A family's functions are given a `Values` of shape (groups, n): entry [g, p] is what position p of group g gives. Groups
share no device, and one call plans all of them by array arithmetic, so that a two-level algorithm over 512 machines is
a few calls. Every stream they use has a channel from `knobs.channel` on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from simreduce.plan import PlanBuilder, Values


@dataclass(frozen=True, slots=True)
class Knobs:
    """`channel` is the first stream channel to take; `chunk` the most elements that a pipeline sends as one piece (0: no
    limit); `root` the position that a rooted collective starts from or ends at.
    """

    channel: int = 0
    chunk: int = 0
    root: int = 0


Collective: TypeAlias = Callable[[PlanBuilder, Values, Knobs], Values]
"""From shape (groups, n) to

- all_reduce: (groups, n), the sum over the group, on every position;
- reduce_scatter: (groups, n), part p of the sum on position p, cut as `Values.cut(n)` cuts;
- all_gather: (groups, n), the whole on every position, of which position p gave part p;
- reduce: (groups, 1), the sum on the root;
- broadcast: (groups, n), what the root gave, on every position; the others' entries say only where they are;
- all_to_all: (groups, n, n), on position q what p gave for it, at [g, q, p]; position p gave one value, whose `cut(n)`
  are the parts for each.
"""


@dataclass(frozen=True, slots=True)
class Family:
    """The collectives that one idea gives; None for those it does not.

    `channels` is how many stream channels it takes at most; `pipelined` says whether it heeds `Knobs.chunk`.
    """

    name: str
    summary: str
    all_reduce: Collective | None = None
    reduce_scatter: Collective | None = None
    all_gather: Collective | None = None
    reduce: Collective | None = None
    broadcast: Collective | None = None
    all_to_all: Collective | None = None
    channels: int = 1
    pipelined: bool = False
