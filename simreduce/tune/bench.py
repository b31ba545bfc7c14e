"""The same algorithm over a range of sizes, one tensor each, as nccl-tests does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from simreduce import dtypes, units
from simreduce.engine import CALM, Calibration, Disturbance, Runtime, check_routes, simulate
from simreduce.errors import Deadlock, InputError, NotFoldable, PlanTooLarge, StrategyError
from simreduce.layouts import Layout
from simreduce.plan import verify, wrong_elements
from simreduce.strategy import SUMMING, Strategy, compile_collective
from simreduce.topology import Folded, Topology
from simreduce.tune.chunks import with_best_chunk
from simreduce.tune.folding import folded, proved_on_few, unfolded
from simreduce.tune.rank import first_words
from simreduce.workload import MOST_BYTES, Gradient, Workload

T = TypeVar("T")

MOST_SIZES = 10_000
"""Rows of the longest table."""

DIVIDED = ("reduce_scatter", "all_gather", "all_to_all")
"""Collectives in which every rank has a part of the tensor; as in nccl-tests, the ranks' parts are
of one size.
"""

ROOTED = ("reduce", "broadcast")
"""Collectives with a root."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One size of one algorithm. `redop` is `sum`, `avg` or, where nothing is added, `none`. `root`
    is -1 for collectives without one. `count` is that of the whole tensor.
    """

    algorithm: str
    count: int
    dtype: int
    redop: str
    collective: str = field(default="all_reduce", kw_only=True)
    root: int = field(default=-1, kw_only=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor: of what the rank with the most has before or after."""
        return self.count * dtypes.SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Stuck(Tried):
    """What can never finish, and why, in one line."""

    reason: str


@dataclass(frozen=True, slots=True)
class BenchRow(Tried):
    """What it takes; seconds. Where `boxes` is above 1, one of so many equal machines was simulated
    for all, and `wrong` is what was found on `proved_on` of them.
    """

    seconds: float
    floor_seconds: float
    transfers: int
    wrong: int
    link: str
    link_share: float
    boxes: int = 1
    proved_on: int = 1


def sizes(minimum: int, maximum: int, step: int, factor: float) -> list[int]:
    """nccl-tests' sizes in bytes: times `factor` if it is above 1, else plus `step`."""
    problems = []
    if minimum < 1 or maximum < minimum:
        problems.append(
            f"the sizes go from -b {minimum} to -e {maximum}: needs 1 <= minbytes <= maxbytes"
        )
    if maximum > MOST_BYTES:
        problems.append(f"-e {maximum}: more than 1 PiB")
    if factor and not 1 <= factor < math.inf:
        problems.append(f"-f {factor}: the factor must be above 1 (or give -i, a step)")
    elif factor <= 1 and step < 1:
        problems.append(
            f"-i {step}: the step must be at least 1 byte (or give -f, a factor above 1)"
        )
    if problems:
        raise InputError(problems)
    found = [minimum]
    while (
        following := max(int(found[-1] * factor), found[-1] + 1) if factor > 1 else found[-1] + step
    ) <= maximum:
        if len(found) == MOST_SIZES:
            raise InputError(
                f"more than {MOST_SIZES} sizes; raise the step (-i) or the factor (-f)"
            )
        found.append(following)
    return found


def tensor(nbytes: int, dtype: int, parts: int = 1) -> Workload:
    """One tensor of at most `nbytes` that `parts` divides."""
    count = nbytes // dtypes.SIZES[dtype] // parts * parts
    return Workload(units.counted(count, "element"), (Gradient("tensor", count, dtype),))


def bench(
    topology: Topology | Folded,
    layout: Layout,
    strategies: Sequence[Strategy],
    nbytes: Sequence[int],
    dtype: int,
    runtime: Runtime,
    calibration: Calibration,
    disturbance: Disturbance = CALM,
    *,
    faithful: bool = False,
    root: int = 0,
) -> Iterator[BenchRow | Stuck]:
    """Rows size by size, in the order of `strategies` within a size. Strategies that cannot be are
    an InputError before the first size is simulated, or if they can be there, after the first at
    which some cannot. Sizes are rounded down to whole elements, and to equal parts where every rank
    has one. A pipeline that is told no size of its chunks gets the one that is best if nothing
    disturbs. Equal machines are folded where a plan is too large to hold; sizes are then rounded
    down to equal parts too, and a pipeline is sent in chunks only if told. Those that are folded
    because they are many are not where that does not serve the strategy.
    """
    if isinstance(topology, Folded) and disturbance != CALM:
        # Loaded whole instead, they would not fit.
        raise InputError(
            f"{topology.name}: {disturbance.text}: its equal machines are folded, and nothing may disturb one of them; "
            "leave out --fold, or take fewer machines"
        )
    at = _Machines(
        _Setting(topology, layout, dtype, runtime, calibration, faithful, root, disturbance)
    )
    faults: list[tuple[str, InputError]] = []
    for asked in (
        strategies if len(strategies) > 1 else ()
    ):  # one by itself is refused as soon anyway
        try:
            at.do(_check, asked, nbytes[0])
        except InputError as error:
            faults.append((asked.text, error))
    _refuse(faults)
    for size in nbytes:
        for asked in strategies:
            try:
                row = at.do(_row, asked, size)
            except InputError as error:
                faults.append((asked.text, error))
            else:
                yield row
        _refuse(faults)


def _refuse(faults: Sequence[tuple[str, InputError]]) -> None:
    """Raise what strategies were refused for, if any was: all of it, by strategy."""
    if len(faults) == 1:
        raise faults[0][1]
    if faults:
        raise StrategyError(
            [
                f"{text}: {p.removeprefix(f'{text}: ')}"
                for text, error in faults
                for p in error.problems
            ]
        )


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all rows have in common."""

    topology: Topology | Folded
    layout: Layout
    dtype: int
    runtime: Runtime
    calibration: Calibration
    faithful: bool
    root: int
    disturbance: Disturbance


class _Machines:
    """The machines of a setting: one by one, or one for all, whichever a plan can have."""

    def __init__(self, setting: _Setting) -> None:
        self.setting = setting
        self._whole: _Setting | None = None

    def do(self, what: Callable[[_Setting, Strategy, int], T], asked: Strategy, size: int) -> T:
        """`what` on these machines."""
        setting = self.setting
        try:
            return what(setting, asked, size)
        except PlanTooLarge as why:
            one, its_layout = folded(setting.topology, setting.layout, why)
            try:
                return what(replace(setting, topology=one, layout=its_layout), asked, size)
            except NotFoldable as either:
                raise PlanTooLarge([*why.problems, *either.problems]) from None
        except NotFoldable as why:
            if self._whole is None:
                every, its_layout = unfolded(setting.topology, setting.layout, why)
                self._whole = replace(setting, topology=every, layout=its_layout)
            return what(self._whole, asked, size)


def _workload(at: _Setting, asked: Strategy, size: int) -> Workload:
    layout = at.layout
    divided = asked.collective in DIVIDED or layout.boxes > 1
    workload = tensor(size, at.dtype, layout.n if divided else 1)
    if layout.boxes > 1 and not workload.elements:
        raise StrategyError(
            f"{asked.text}: {size} bytes are less than an element for each of {layout.n} ranks"
        )
    return workload


def _check(at: _Setting, asked: Strategy, size: int) -> None:
    """InputError if there is no such plan on these machines, or no way for what it sends; nothing
    is simulated.
    """
    workload = _workload(at, asked, size)
    check_routes(
        compile_collective(
            asked.collective, asked, workload, at.layout, root=at.root, faithful=at.faithful
        ),
        at.topology,
    )


def _row(at: _Setting, asked: Strategy, size: int) -> BenchRow | Stuck:
    collective, layout = asked.collective, at.layout
    workload, strategy = _workload(at, asked, size), asked
    if isinstance(at.topology, Topology):
        strategy = with_best_chunk(
            asked, workload, at.topology, layout, at.runtime, at.calibration, root=at.root
        )
    plan = compile_collective(
        collective, strategy, workload, layout, root=at.root, faithful=at.faithful
    )
    redop = ("avg" if strategy.mean else "sum") if collective in SUMMING else "none"
    root = at.root if collective in ROOTED else -1
    try:
        result = simulate(plan, at.topology, at.runtime, at.calibration, disturbance=at.disturbance)
    except Deadlock as error:
        return Stuck(
            strategy.text, workload.elements, at.dtype, redop, first_words(error), collective=collective, root=root
        )  # fmt: skip
    proved_on, wrong = 1, 0
    if layout.boxes > 1:
        proved_on, wrong = proved_on_few(strategy, workload, layout)
    else:
        wrong = wrong_elements(verify(plan))
    return BenchRow(
        algorithm=strategy.text,
        count=workload.elements,
        dtype=at.dtype,
        redop=redop,
        seconds=result.seconds,
        floor_seconds=result.floors.seconds,
        transfers=result.transfers,
        wrong=wrong,
        link=result.bottleneck,
        link_share=result.links[0].share if result.links else 0.0,
        collective=collective,
        root=root,
        boxes=layout.boxes,
        proved_on=proved_on,
    )
