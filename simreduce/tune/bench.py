"""The same algorithm over a range of sizes, one tensor each, as nccl-tests does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from simreduce import dtypes, units
from simreduce.engine import AtLeast, Result, Timeline, check_routes
from simreduce.errors import (
    Deadlock,
    InputError,
    NotFoldable,
    PlanTooLarge,
    StrategyError,
    first_words,
)
from simreduce.plan import Kind, Plan, verify_part, wrong_elements
from simreduce.published import ITERATIONS
from simreduce.setup import Setup
from simreduce.strategy import SUMMING, Strategy, proved_on_few
from simreduce.strategy.automatic import AUTOMATIC
from simreduce.topology import Folded, Topology
from simreduce.tune.bounds import HUGE, Later, Run, simulate_quick, simulate_up_to
from simreduce.tune.folding import folded, folded_alike, unfolded
from simreduce.workload import Gradient, Workload

T = TypeVar("T")

DIVIDED = ("reduce_scatter", "all_gather", "all_to_all")
"""Collectives in which every rank has a part of the tensor, all of one size as in nccl-tests."""

ROOTED = ("reduce", "broadcast")
"""Collectives with a root."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One size of one algorithm: `count` elements of the whole tensor.

    `strategy` is the text that was given; `algorithm` may add a chunk size to it. `redop` is
    `sum`, `avg` or, where nothing is added, `none`. `root` is -1 for collectives without one.
    """

    algorithm: str
    count: int
    dtype: int
    redop: str
    strategy: str = field(default="", kw_only=True)
    collective: str = field(default="all_reduce", kw_only=True)
    root: int = field(default=-1, kw_only=True)
    runtime: str = field(default="tensorflow", kw_only=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor: the most that a rank has before or after."""
        return self.count * dtypes.SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Stuck(Entry):
    """A plan that can never finish, and why, in one line."""

    reason: str


@dataclass(frozen=True, slots=True)
class Bounded(Entry):
    """A size of a strategy that was not simulated to its end, as another one is faster: it takes
    at least `seconds`, for `reason`.
    """

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class BenchRow(Entry):
    """The prediction for one size, in seconds. Where `machines` is above 1, one of that many equal
    machines was simulated for all, and `wrong` was found on `proved_on` of them. `interval` has the
    time with 80 %; None where nothing is known of errors. `proved` is the share of
    the elements among which `wrong` was looked for.
    """

    seconds: float
    floor_seconds: float
    transfers: int
    wrong: int
    link: str
    link_share: float
    machines: int = 1
    proved_on: int = 1
    interval: tuple[float, float] | None = None
    proved: float = 1.0


def tensor(nbytes: int, dtype: int, parts: int = 1) -> Workload:
    """One tensor of at most `nbytes` that `parts` divides."""
    count = nbytes // dtypes.SIZES[dtype] // parts * parts
    return Workload(units.plural(count, "element"), (Gradient("tensor", count, dtype),))


def bench(
    setup: Setup,
    strategies: Sequence[Strategy],
    nbytes: Sequence[int],
    dtype: int = 0,
    *,
    faithful: bool = False,
    root: int = 0,
    fold: bool | None = None,
) -> Iterator[BenchRow | Stuck]:
    """Rows size by size, in the order of `strategies` within a size.

    InputError names every strategy that is refused: before the first size is simulated, or after
    the first size at which one is. Sizes are rounded down to whole elements, and to equal parts
    where every rank has one. Pipelined strategies without a chunk size get the best one for an
    undisturbed run. Many equal GPUs are folded where that gives the same bits. Equal machines are
    folded where a plan takes long or is too large to hold; sizes are then rounded down to equal
    parts too, and only strategies with a chunk size are pipelined. Machines that are folded because
    they are many are unfolded for strategies that cannot be folded. With `fold` False, nothing is
    folded.
    """
    at = machines_of(setup, dtype, faithful=faithful, root=root, fold=fold)
    if len(strategies) > 1:  # one by itself is refused as soon anyway
        _refuse(
            [each for each in (at.refusal(strategy, nbytes[0]) for strategy in strategies) if each]
        )
    for size in nbytes:
        faults: list[tuple[str, InputError]] = []
        for strategy in strategies:
            try:
                row = at.do(predict_row, strategy, size)
            except InputError as error:
                faults.append((strategy.text, error))
            else:
                yield row
        _refuse(faults)


def machines_of(
    setup: Setup, dtype: int, *, faithful: bool, root: int, fold: bool | None, eager: bool = False
) -> Machines:
    """The machines of `setup` for rows of a table. InputError if they cannot be as asked for. With
    `eager`, equal machines are folded wherever they reduce the same pieces, long or not: times may
    then differ in the last bits.
    """
    if isinstance(setup.machine, Folded) and not setup.disturbance.calm:
        # Loaded whole instead, they would not fit.
        raise InputError(
            f"{setup.machine.name}: {setup.disturbance.text}: its equal machines are folded, and "
            "nothing may disturb one of them; leave out --fold, or take fewer machines"
        )
    if fold is False and isinstance(setup.machine, Folded):
        setup = unfolded(setup, NotFoldable(f"{setup.machine.name}: too large to hold unfolded"))
    setting = Setting(setup, dtype, faithful, root)
    return Machines(setting, fold=fold is not False, eager=eager)


def _refuse(faults: Sequence[tuple[str, InputError]]) -> None:
    """Raise one error with every reason for which strategies were refused, if there is any."""
    problems = [_prefix(text, problem) for text, error in faults for problem in error.problems]
    if len(faults) == 1:
        raise type(faults[0][1])(problems)
    if faults:
        raise StrategyError(problems)


def _prefix(text: str, problem: str) -> str:
    """The problem after the name of its strategy, which may have a chunk size already."""
    return problem if problem.startswith((f"{text}: ", f"{text}+")) else f"{text}: {problem}"


@dataclass(frozen=True, slots=True)
class Setting:
    """All that the rows of a table have in common; and whether a row's plan takes long, though
    whatever can be folded is.
    """

    setup: Setup
    dtype: int
    faithful: bool
    root: int
    long: bool = False

    def compile(self, strategy: Strategy, workload: Workload) -> Plan:
        """The plan on these machines."""
        return self.setup.compile(strategy, workload, root=self.root, faithful=self.faithful)


class Machines:
    """The machines of a setting: all of them, or one for all, whichever a plan allows."""

    def __init__(self, setting: Setting, *, fold: bool, eager: bool = False) -> None:
        self.setting, self.fold, self.eager = setting, fold, eager
        self._whole: Setting | None = None
        self._one: Setting | None = None
        one = folded_alike(setting.setup) if fold and not setting.faithful else None
        self._alike = one and replace(setting, setup=one)

    def do(self, what: Callable[[Setting, Strategy, int], T], strategy: Strategy, size: int) -> T:
        """Call `what` with these machines."""
        setting = self.setting
        if self._alike and self._folds(strategy, size):
            with suppress(NotFoldable):
                return what(self._alike, strategy, size)
        if self.eager and self._eager and self._folds_eagerly(strategy, size):
            with suppress(NotFoldable, PlanTooLarge):
                return what(self._eager, strategy, size)
        if self._takes_long(strategy, size):
            with suppress(NotFoldable, PlanTooLarge):
                return what(self._one_for(PlanTooLarge("it takes long")), strategy, size)
            setting = replace(setting, long=True)
        try:
            return what(setting, strategy, size)
        except PlanTooLarge as why:
            if not self.fold:
                raise
            try:
                return what(self._one_for(why), strategy, size)
            except NotFoldable as either:
                raise PlanTooLarge([*why.problems, *either.problems]) from None
        except NotFoldable as why:
            self._check_unfolded(strategy, size)
            if self._whole is None:
                self._whole = replace(setting, setup=unfolded(setting.setup, why))
            return what(self._whole, strategy, size)

    def _check_unfolded(self, strategy: Strategy, size: int) -> None:
        """PlanTooLarge if all machines would be loaded for a plan that does not fit."""
        at = self.setting
        at.setup.check_size(strategy, _workload(at, strategy, size), faithful=at.faithful)

    def _one_for(self, why: PlanTooLarge) -> Setting:
        """One machine for all; raises `why` if they cannot be folded."""
        if self._one is None:
            self._one = replace(self.setting, setup=folded(self.setting.setup, why))
        return self._one

    def _takes_long(self, strategy: Strategy, size: int) -> bool:
        """Whether the plan of all machines would take long, and that of one says the same."""
        at = self.setting
        if not self.fold or at.faithful or not at.setup.disturbance.calm:
            return False
        if not isinstance(at.setup.machine, Topology) or not _cuts_alike(strategy):
            return False
        return at.setup.takes_long(strategy, _workload(at, strategy, size))

    @cached_property
    def _eager(self) -> Setting | None:
        """One of several equal machines for all; None if they cannot be folded."""
        at = self.setting
        several = isinstance(at.setup.machine, Topology) and len(at.setup.layout.tasks) > 1
        if not (several and self.fold and at.setup.disturbance.calm) or at.faithful:
            return None
        with suppress(PlanTooLarge):
            return self._one_for(PlanTooLarge("it can be folded"))
        return None

    def _folds_eagerly(self, strategy: Strategy, size: int) -> bool:
        """Whether one of the machines reduces the same pieces as all of them."""
        elements = size // dtypes.SIZES[self.setting.dtype]
        return not elements % self.setting.setup.layout.n and _cuts_alike(strategy)

    def _folds(self, strategy: Strategy, size: int) -> bool:
        """Whether the folded machines reduce all elements, and in the same pieces."""
        elements = size // dtypes.SIZES[self.setting.dtype]
        if elements % self.setting.setup.layout.n or not _cuts_alike(strategy):
            return False
        # Links of NCCL's runtime carry more than the bytes, so that sums round differently.
        return not self.setting.setup.running(strategy).runtime.kernels

    def refusal(self, strategy: Strategy, size: int) -> tuple[str, InputError] | None:
        """Why there is no such plan, or no way for what it sends; nothing is simulated."""
        try:
            self.do(_check, strategy, size)
        except InputError as error:
            return strategy.text, error
        return None


def _cuts_alike(strategy: Strategy) -> bool:
    """Whether folded machines reduce in the same pieces."""
    return strategy.spec not in AUTOMATIC and (bool(strategy.chunk) or not strategy.pipelined)


def _workload(at: Setting, strategy: Strategy, size: int) -> Workload:
    layout = at.setup.layout
    divided = strategy.collective in DIVIDED or layout.machines > 1
    workload = tensor(size, at.dtype, layout.n if divided else 1)
    if layout.machines > 1 and not workload.elements:
        raise StrategyError(
            f"{strategy.text}: {size} bytes are less than an element for each of {layout.n} ranks"
        )
    return workload


def _check(at: Setting, strategy: Strategy, size: int) -> None:
    """InputError if there is no such plan on these machines, or no way for what it sends."""
    check_routes(at.compile(strategy, _workload(at, strategy, size)), at.setup.machine)


def seconds_per_call(plan: Plan, times: Result | Timeline, iterations: int = ITERATIONS) -> float:
    """Seconds of one of so many equal calls in a row, as nccl-tests takes them.

    In a broadcast or reduce of NCCL a GPU goes on to the next call as soon as its own part is done,
    and the GPUs before it have filled its buffer by then. So a call takes its launch and the
    longest time that any GPU is busy with it: from its first send, or the arrival of its first
    piece, to its last. Rings of different orders do not overlap so: a GPU that is first on one
    ring and last on another is busy for all of the call. The last call takes its whole time, unless
    `iterations` is 0: the root's own clock, which does not wait for it.
    """
    whole = float(times.finish.max(initial=0.0))
    copies = np.flatnonzero(plan.kind == Kind.COPY)
    start, finish = times.start[copies], times.finish[copies]
    if plan.contract.collective not in ROOTED or not plan.executor.any() or not len(copies):
        return whole
    first, last = np.full(len(plan.devices), np.inf), np.zeros(len(plan.devices))
    for device, begun in ((plan.source[copies], start), (plan.device[copies], finish)):
        np.minimum.at(first, device, begun)
        np.maximum.at(last, device, finish)
    busy = np.where(np.isfinite(first), last - first, 0.0)
    each = float(start.min() + busy.max())
    return each + (max(whole - each, 0.0) / iterations if iterations else 0.0)


def posts(plan: Plan) -> int:
    """Sends and receives that each GPU posts in a call, itself among its peers."""
    ranks = len(np.unique(plan.contract.device)) * plan.machines
    return {"all_to_all": 2 * ranks, "send_receive": 2}.get(plan.contract.collective, 0)


def predict_row(at: Setting, strategy: Strategy, size: int) -> BenchRow | Stuck:
    """The row of one size."""
    row = predict_up_to(math.inf, at, strategy, size)
    assert isinstance(row, BenchRow | Stuck)  # noqa: S101 - without a limit there is no other
    return row


def predict_up_to(
    limit: float, at: Setting, strategy: Strategy, size: int, *, quick: bool = False
) -> BenchRow | Stuck | Bounded | Later:
    """The row of one size, if its time is at most `limit` seconds. `Later` for what takes long, if
    `quick` is asked for.
    """
    setup, workload = at.setup.running(strategy), _workload(at, strategy, size)
    collective = strategy.collective
    redop = ("avg" if strategy.mean else "sum") if collective in SUMMING else "none"
    root = at.root if collective in ROOTED else -1
    entry: dict[str, Any] = {
        "count": workload.elements, "dtype": at.dtype, "redop": redop, "strategy": strategy.text,
        "collective": collective, "root": root, "runtime": setup.runtime.name,
    }  # fmt: skip
    if quick and at.long:
        return HUGE
    asked = setup, strategy, workload
    run: Run | AtLeast | Later
    try:
        if quick and isinstance(setup.machine, Topology):
            run = simulate_quick(*asked, root=at.root, faithful=at.faithful)
        else:
            run = simulate_up_to(limit, *asked, root=at.root, faithful=at.faithful)
    except Deadlock as error:
        return Stuck(strategy.text, reason=first_words(error), **entry)
    if isinstance(run, Later):
        return run
    if isinstance(run, AtLeast):
        return Bounded(strategy.text, seconds=run.seconds, reason=run.reason, **entry)
    best, plan, result = run
    seconds = seconds_per_call(plan, result.timeline)
    proved_on, wrong, proved = 1, 0, 1.0
    layout = at.setup.layout
    if layout.machines > 1:
        proved_on, wrong = proved_on_few(best, workload, layout)
    else:
        problems, proved = verify_part(plan)
        wrong = wrong_elements(problems)
    return BenchRow(
        best.text,
        seconds=seconds,
        floor_seconds=min(result.floors.seconds, seconds),
        transfers=plan.transfers,
        wrong=wrong,
        link=result.links[0].name if result.links else "",
        link_share=result.links[0].share if result.links else 0.0,
        machines=layout.machines,
        proved_on=proved_on,
        interval=setup.interval(size, seconds, collective) if plan.executor.any() else None,
        proved=proved,
        **entry,
    )
