"""Rings through more machines than a search is made for, continued from rings of a few machines.

A ring that visits one machine after another crosses each by some path. Where all machines are
equal, machine j of many is crossed as machine j mod c of the c that were searched. So the links of
every machine and of its NICs carry what they carry there. What lies between the machines may carry
more, which is not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from simreduce.planners.synthesis.rings import Ring
from simreduce.planners.synthesis.tours import MOST_EXACT


def sample_size(each: int) -> int:
    """The number of machines of `each` ranks to search.

    It is large enough that rings visit one machine after another.
    """
    return max(3, MOST_EXACT // each + 1)


def continue_ring(ring: Ring, tasks: Sequence[Sequence[int]], few: int) -> Ring | None:
    """The ring over the ranks of the first `few` of `tasks`, which are equal, taken through all of
    them. None if it visits a machine twice.
    """
    home = {rank: (task, at) for task in range(few) for at, rank in enumerate(tasks[task])}
    start = next(i for i, rank in enumerate(ring) if home[rank][0] != home[ring[i - 1]][0])
    visits = [
        (task, [home[rank][1] for rank in ranks])
        for task, ranks in groupby((*ring[start:], *ring[:start]), key=lambda rank: home[rank][0])
    ]
    paths = dict(visits)
    if len(visits) > few:
        return None
    order = [task for task, _ in visits]
    forwards = (order[1] - order[0]) % few == 1
    machines = range(len(tasks)) if forwards else range(len(tasks) - 1, -1, -1)
    through = [tasks[machine][at] for machine in machines for at in paths[machine % few]]
    zero = through.index(0)
    return (*through[zero:], *through[:zero])
