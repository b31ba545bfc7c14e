"""Many strategies over a range of sizes, on several processes: quick rows first, and the rest only
as far as they may win.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from simreduce.errors import InputError
from simreduce.setup import Setup
from simreduce.strategy import Strategy
from simreduce.tune.bench import (
    ROOTED,
    BenchRow,
    Bounded,
    Machines,
    Setting,
    Stuck,
    machines_of,
    predict_up_to,
)
from simreduce.tune.bounds import TIED, Later, batches
from simreduce.workers import working


class Line(NamedTuple):
    """A row, or why the machine refuses a strategy at one size; `place` counts rows size by size,
    in the order of the strategies within a size.
    """

    place: int
    row: BenchRow | Stuck | Bounded | InputError


Outcome = BenchRow | Stuck | Bounded | InputError | Later


class _Task(NamedTuple):
    """A row, the seconds up to which it is simulated, and whether what takes long is left."""

    strategy: Strategy
    size: int
    limit: float = inf
    quick: bool = False


def bench_all(
    setup: Setup,
    strategies: Sequence[Strategy],
    nbytes: Sequence[int],
    dtype: int = 0,
    *,
    faithful: bool = False,
    root: int = 0,
    fold: bool | None = None,
    workers: int = 1,
    simulate_all: bool = False,
) -> Iterator[Line]:
    """The rows of `bench` as they come. The machine may refuse any of them.

    What takes long comes last, and is simulated only as far as it may be the fastest of its size;
    with `simulate_all`, and for collectives with a root, everything is simulated.
    """
    at = machines_of(setup, dtype, faithful=faithful, root=root, fold=fold)
    # One call of many with a root may take less time than one by itself.
    quick = not simulate_all and strategies[0].collective not in ROOTED
    tasks = [_Task(strategy, size, quick=quick) for size in nbytes for strategy in strategies]
    best = dict.fromkeys(nbytes, inf)
    left: dict[int, Later] = {}

    def take(lines: Iterable[tuple[int, Outcome]], places: Sequence[int]) -> Iterator[Line]:
        for number, row in lines:
            place = places[number]
            if isinstance(row, Later):
                left[place] = row
                continue
            if isinstance(row, BenchRow) and not row.wrong:
                best[tasks[place].size] = min(best[tasks[place].size], row.seconds)
            yield Line(place, row)

    with working(partial(_work, at), min(workers, len(tasks))) as work_on:
        yield from take(work_on(tasks), range(len(tasks)))
        for places in batches(left):
            limits = {size: seconds * TIED for size, seconds in best.items()}
            again = [
                tasks[place]._replace(limit=limits[tasks[place].size], quick=False)
                for place in places
            ]
            yield from take(work_on(again), places)


def _work(at: Machines, task: _Task) -> Outcome:
    row = partial(_predict, limit=task.limit, quick=task.quick)
    try:
        return at.do(row, task.strategy, task.size)
    except InputError as error:
        return error


def _predict(
    at: Setting, strategy: Strategy, size: int, *, limit: float, quick: bool
) -> BenchRow | Stuck | Bounded | Later:
    return predict_up_to(limit, at, strategy, size, quick=quick)
