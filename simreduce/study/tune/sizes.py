"""The same algorithms over a range of sizes, one tensor each, as nccl-tests does.

Also the matrices of CUDA's p2pBandwidthLatencyTest, predicted: copies between two GPUs at a time,
nothing else running. Bandwidths belong to one large copy from the row's GPU to the column's
(`one_way`), and to one copy each way at once, both together (`both_ways`); the latency is the time
of a few bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np

from simreduce import dtypes, units
from simreduce.computing import grouped, once
from simreduce.engine import IDEAL, NOMINAL, AtLeast, Calibration, Result, Timeline, Use
from simreduce.engine.runtime import NcclConstants
from simreduce.engine.setup import Setup
from simreduce.errors import (
    InputError,
    NotFoldable,
    PlanTooLarge,
    StrategyError,
    TopologyError,
    UnevenParts,
)
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import ITERATIONS
from simreduce.plan import Contract, Kind, Plan, PlanBuilder, verify_part, wrong_elements
from simreduce.planners.layouts import Layout
from simreduce.planners.nccl.constants import CURRENT, Version
from simreduce.planners.strategy import AUTOMATIC, SUMMING, Strategy
from simreduce.planners.strategy.compiler import proved_on_few
from simreduce.study.ranking import (
    TIED,
    Limit,
    PlanRow,
    Postponed,
    Question,
    Refused,
    Stuck,
    by_reason,
    study,
)
from simreduce.study.tune.simulate import (
    HUGE,
    PredictedPlan,
    folded,
    folded_alike,
    interval_of,
    simulate_up_to,
    simulate_within,
    try_folded,
    unfolded,
)
from simreduce.topology import Folded, Topology, route
from simreduce.topology.elements import OFF
from simreduce.workload import MOST_BYTES, Gradient, Workload

T = TypeVar("T")

DIVIDED = ("reduce_scatter", "all_gather", "all_to_all")
"""Collectives in which every rank has a part of the tensor, all of one size as in nccl-tests."""

ROOTED = ("reduce", "broadcast")
"""Collectives with a root."""

_ONE_BY_ONE = (2, 8)
"""The version from which a process launches the kernels of its GPUs one by one, unless
NCCL_LAUNCH_MODE says otherwise: 2.4.2 takes 16 us on 4 V100, 2.8.3 takes 13.
"""

MOST_SIZES = 10_000
"""Rows of the longest table."""


PATIENCE = 60.0
"""Seconds of a core that a plan may take by default where another size could be folded."""

_PER_OP = 3e-6
"""Seconds of a core for an op to be made, proved and simulated: a DGX-1V's ring, 100 of them."""


@dataclass(frozen=True, slots=True)
class BenchRow(PlanRow):
    """One size of one algorithm: `count` elements of the whole tensor, and the seconds they take.

    `strategy` is the text that was given; `algorithm` may add a chunk size to it. `redop` is
    `sum`, `avg` or, where nothing is added, `none`. `root` is -1 for collectives without one.

    A row with `unfinished`, of infinite `seconds`, has no figures but what that says: at least so
    many seconds, as another strategy is faster, why the plan can never finish, or why the machine
    refuses the strategy.

    Where `machines` is above 1, one of that many equal machines was simulated for all, and `wrong`
    was found on `proved_on` of them. `interval` has the time with 80 %; None where nothing is known
    of errors. `proved` is the share of the elements among which `wrong` was looked for.
    """

    algorithm: str
    count: int
    dtype: int
    redop: str
    machines: int = 1
    proved_on: int = 1
    interval: tuple[float, float] | None = None
    proved: float = 1.0
    strategy: str = field(default="", kw_only=True)
    collective: str = field(default="all_reduce", kw_only=True)
    root: int = field(default=-1, kw_only=True)
    unfinished: AtLeast | Stuck | Refused | None = field(default=None, kw_only=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor: the most that a rank has before or after."""
        return self.count * dtypes.SIZES[self.dtype]


def sizes(minimum: int, maximum: int, step: int, factor: float) -> list[int]:
    """nccl-tests' sizes in bytes: times `factor` if it is above 1, else plus `step`."""
    faults = Faults()
    faults.check(
        1 <= minimum <= maximum,
        "",
        f"the sizes go from -b {minimum} to -e {maximum}: needs 1 <= minbytes <= maxbytes",
    )
    name = "-b" if maximum == minimum else "-e"
    faults.check(maximum <= MOST_BYTES, f"{name} {maximum}", "more than 1 PiB")
    if factor and not 1 <= factor < math.inf:
        faults.add(f"-f {factor}", "the factor must be above 1 (or give -i, a step)")
    elif factor <= 1 and step < 1:
        faults.add(f"-i {step}", "the step must be at least 1 byte (or give -f, a factor above 1)")
    faults.raise_any()
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


def algbw(nbytes: int, seconds: float) -> float:
    """Bytes of one rank's array per second; 0 for a plan that takes no time."""
    return nbytes / seconds if seconds else 0.0


def busbw(nbytes: int, seconds: float, ranks: int, collective: str = "all_reduce") -> float:
    """Algbw, times what makes it comparable with what one link carries.

    The factors are those of nccl-tests (doc/PERFORMANCE.md, and src/sendrecv.cu): 2(n-1)/n for an
    all-reduce, (n-1)/n where every rank keeps or has a part, 1 for a broadcast, a reduce and a
    send-receive.
    """
    return algbw(nbytes, seconds) * busbw_factor(collective, ranks)


def busbw_factor(collective: str, ranks: int) -> float:
    """Busbw over algbw."""
    if collective in ("broadcast", "reduce", "send_receive"):
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def parts_of(collective: str, ranks: int) -> int:
    """Into how many equal parts a collective cuts its tensor."""
    return ranks if collective in DIVIDED else 1


def tensor(nbytes: int, dtype: int, parts: int = 1) -> Workload:
    """One tensor of at most `nbytes` that `parts` divides."""
    count = nbytes // dtypes.SIZES[dtype] // parts * parts
    return Workload(units.plural(count, "element"), (Gradient("tensor", count, dtype),))


@dataclass(frozen=True, slots=True)
class BenchCalls:
    """Calls of NCCL in a row, as nccl-tests times them: `iterations` of them.

    One thread drives `gpus` GPUs of a machine (0: a process for each GPU), and `together` launches
    their kernels as one group. No `iterations`: the time is the root's own.
    """

    gpus: int = 0
    iterations: int = ITERATIONS
    together: bool = False

    @classmethod
    def by_threads(
        cls,
        nthreads: int | None,
        shape: Layout,
        iterations: int = ITERATIONS,
        version: Version = CURRENT,
    ) -> Self:
        """Calls of so many threads on each machine; None: a process for each GPU.

        InputError unless they can share the GPUs of each machine equally.
        """
        counts = sorted({len(task) for task in shape.tasks}) if nthreads is not None else []
        if nthreads is None or not counts:
            return cls(0, iterations)
        if nthreads < 1 or len(counts) > 1 or counts[0] % nthreads:
            raise InputError(
                f"{nthreads}: threads must share the {' or '.join(map(str, counts))} GPUs of a"
                " machine equally"
            )
        each = counts[0] // nthreads
        return cls(each if each > 1 else 0, iterations, each > 1 and version < _ONE_BY_ONE)

    def seconds(self, plan: Plan, times: Result | Timeline, nccl: NcclConstants) -> float:
        """The seconds of one of the calls, if NCCL carries the plan out; else of the plan."""
        seconds = seconds_per_call(plan, times, self.iterations)
        if not plan.executor.any():
            return seconds
        return nccl.per_call(seconds, self.gpus, sends_of(plan), together=self.together)


BY_DEFAULT = BenchCalls()
"""A process for each GPU, and as many calls as nccl-tests times by default."""


@dataclass(frozen=True, slots=True)
class BenchCell(Question):
    """One tensor of at most `nbytes`. Its plan takes `long`, though whatever can be folded is."""

    nbytes: int = 0
    long: bool = False
    calls: BenchCalls = BY_DEFAULT


class Machines:
    """The machines of a table: all of them, or one for all, whichever a plan allows."""

    def __init__(
        self,
        setup: Setup,
        dtype: int,
        *,
        faithful: bool,
        root: int,
        fold: bool | None,
        eager: bool = False,
        calls: BenchCalls = BY_DEFAULT,
    ) -> None:
        """InputError if they cannot be as asked for.

        With `eager`, equal machines are folded wherever they reduce the same pieces, long or not:
        times may then differ in the last bits, and nothing is refused for taking long.
        """
        calm = setup.disturbance.calm
        if isinstance(setup.machine, Folded) and not calm:
            # Loaded whole instead, they would not fit.
            raise InputError(
                f"{setup.machine.name}: {setup.disturbance.text}: its equal machines are folded, "
                "and nothing may disturb one of them; leave out --fold, or take fewer machines"
            )
        if fold is False and isinstance(setup.machine, Folded):
            setup = unfolded(
                setup, NotFoldable(f"{setup.machine.name}: too large to hold unfolded")
            )
        self.setup, self.dtype, self.faithful, self.root = setup, dtype, faithful, root
        self.calls = calls
        self.patience = math.inf if eager or fold is False else PATIENCE
        self.fold, whole = fold is not False, isinstance(setup.machine, Topology)
        self.foldable = self.fold and whole and calm and not faithful
        self.eager = eager and self.foldable and len(setup.layout.tasks) > 1
        self._alike = folded_alike(setup) if self.foldable else None
        self._whole: Setup | None = None

    def ask(self, strategy: Strategy, nbytes: int, setup: Setup | None = None) -> BenchCell:
        """A cell of the table, on the machines of `setup` if one is given."""
        setup = (setup or self.setup).running(strategy)
        workload = tensor(nbytes, self.dtype, parts_of(strategy.collective, setup.layout.n))
        return BenchCell(
            strategy, workload, setup, root=self.root, faithful=self.faithful, nbytes=nbytes,
            calls=self.calls,
        )  # fmt: skip

    def do(self, answer: Callable[[BenchCell], T], strategy: Strategy, nbytes: int) -> T:
        """Call `answer` with a cell on these machines."""
        cell = self.ask(strategy, nbytes)
        # What TensorFlow chooses depends on the machines that there are.
        same = strategy.spec not in AUTOMATIC
        # Links of NCCL's runtime carry more than the bytes, so that sums round differently.
        if self._alike and same and not cell.setup.runtime.kernels:
            with suppress(NotFoldable):
                return answer(self.ask(strategy, nbytes, self._alike))
        eager = self.eager and same
        may = self.foldable and same and not eager
        ops = cell.setup.many_ops(strategy, cell.workload) if may else 0
        if (eager or ops) and self._one is not None:
            try:
                return answer(self.ask(strategy, nbytes, self._one))
            except NotFoldable as why:
                if ops:
                    self._check_whole(cell, why)
            except PlanTooLarge:
                pass
        try:
            return answer(replace(cell, long=ops > 0))
        except PlanTooLarge as why:
            if not self.fold:
                raise
            one = self._one or folded(self.setup, why)
            try:
                return answer(self.ask(strategy, nbytes, one))
            except NotFoldable as either:
                raise PlanTooLarge([*why.problems, *either.problems]) from None
        except NotFoldable as why:
            self._check_whole(cell, why)
            self._whole = self._whole or unfolded(self.setup, why)
            return answer(self.ask(strategy, nbytes, self._whole))

    def _check_whole(self, cell: BenchCell, why: NotFoldable) -> None:
        """PlanTooLarge if all machines do not fit into memory; StrategyError if they would take
        longer than `patience`, and only the size keeps them from being folded.
        """
        try:
            cell.setup.check_size(cell.strategy, cell.workload, faithful=self.faithful)
        except PlanTooLarge as either:
            raise PlanTooLarge([*why.problems, *either.problems]) from None
        if isinstance(why, UnevenParts):
            ops = cell.setup.many_ops(cell.strategy, cell.workload)
            if ops * _PER_OP > self.patience:
                words = f"all machines would take about {ops * _PER_OP / 60:.0f} minutes"
                raise StrategyError(
                    [*why.problems, f"{words}, for {ops:,} ops; --no-fold simulates them"]
                )

    @cached_property
    def _one(self) -> Setup | None:
        """One of the equal machines for all; None if they cannot be folded."""
        return try_folded(self.setup)


def bench(
    setup: Setup,
    strategies: Sequence[Strategy],
    nbytes: Sequence[int],
    dtype: int = 0,
    *,
    faithful: bool = False,
    root: int = 0,
    fold: bool | None = None,
    calls: BenchCalls = BY_DEFAULT,
) -> Iterator[BenchRow]:
    """Rows size by size, in the order of `strategies` within a size.

    The machine may refuse a strategy: its rows say why. InputError names all if it refuses all, at
    every size. Sizes are rounded down to whole elements, and to equal parts where every rank has
    one. Pipelined strategies without a chunk size get the best one for an undisturbed run. Many
    equal GPUs are folded where that gives the same bits, but for the last digits of times that hang
    on ties. Equal machines are folded where a plan takes long or is too large to hold, or where
    they are folded already, and only where that gives the same time to 1e-9: all machines are
    simulated where parts are ragged, where a chunk size must be searched for, and for strategies
    that do not do the same on each.
    StrategyError if that would take over `PATIENCE`, while equal parts could be folded. With `fold`
    False, nothing is folded, however long it takes. `calls` says how NCCL's calls are issued.
    """
    refused, answered = dict[str, InputError](), False
    for _, row in bench_all(
        setup, strategies, nbytes, dtype, faithful=faithful, root=root, fold=fold,
        simulate_all=True, calls=calls,
    ):  # fmt: skip
        if isinstance(row.unfinished, Refused):
            refused.setdefault(row.strategy, row.unfinished.error)
        else:
            answered = True
        yield row
    if refused and not answered:
        # A problem may begin with the strategy and its chunk size.
        problems = by_reason(
            (text, each if each.startswith((f"{text}: ", f"{text}+")) else f"{text}: {each}")
            for text, one in refused.items()
            for each in one.problems
        )
        kinds = [type(error) for error in refused.values()]
        raise (kinds[0] if len(kinds) == 1 else StrategyError)(problems)


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
    calls: BenchCalls = BY_DEFAULT,
) -> Iterator[tuple[int, BenchRow]]:
    """The rows of `bench` as they come, each with its place.

    They come size by size, in the order of the strategies within a size. The machine may refuse all
    of them.

    What takes long comes last, and is simulated only as far as it may be the fastest of its size;
    with `simulate_all`, and for collectives with a root, everything is simulated.
    """
    at = Machines(setup, dtype, faithful=faithful, root=root, fold=fold, calls=calls)
    asked = [(strategy, size) for size in nbytes for strategy in strategies]

    def limits(outcomes: Mapping[int, object]) -> Callable[[int], float]:
        took = grouped(
            ((asked[place][1], by_nccl), row.seconds)
            for place, row in outcomes.items()
            if isinstance(row, BenchRow) and not row.wrong
            # A lower bound is no reason to leave out what has a time.
            for by_nccl in ((False,) if row.undispatched else (False, True))
        )

        def limit_of(place: int) -> float:
            strategy, size = asked[place]
            return min(took.get((size, strategy.reduced_by_nccl), [math.inf])) * TIED

        return limit_of

    # One call of many with a root may take less time than one by itself.
    all_of_them = simulate_all or strategies[0].collective in ROOTED
    for place, row in study(
        asked, partial(_simulate, at), workers=workers, limits=None if all_of_them else limits
    ):
        if isinstance(row, BenchRow):
            yield place, row
        else:
            question = at.ask(*asked[place])
            yield place, _make_row(question, question.strategy, unfinished=row)


def _simulate(
    at: Machines, asked: tuple[Strategy, int], limit: Limit
) -> BenchRow | AtLeast | Postponed:
    def simulate(question: BenchCell) -> BenchRow | AtLeast | Postponed:
        if question.long and limit is None:
            return HUGE
        run = simulate_within(question, limit)
        return _row(question, run) if isinstance(run, PredictedPlan) else run

    return at.do(simulate, *asked)


def simulate_row(question: BenchCell) -> BenchRow:
    """The row of a question, however long it takes; Deadlock if its plan never finishes."""
    run = simulate_up_to(question, math.inf)
    assert isinstance(run, PredictedPlan)  # noqa: S101 - without a limit there is no other
    return _row(question, run)


def _make_row(question: BenchCell, run: Strategy, **found: Any) -> BenchRow:
    """The row of a question by the strategy that was `run`, with what was found."""
    strategy, (one,) = question.strategy, question.workload.gradients
    return BenchRow(
        run.text,
        one.elements,
        one.dtype,
        ("avg" if strategy.mean else "sum") if strategy.collective in SUMMING else "none",
        strategy=strategy.text,
        collective=strategy.collective,
        root=question.root if strategy.collective in ROOTED else -1,
        runtime=question.setup.runtime.name,
        **found,
    )


def _row(question: BenchCell, run: PredictedPlan) -> BenchRow:
    (best, plan, result), setup = run, question.setup
    seconds = question.calls.seconds(plan, result.timeline, setup.constants_of(plan).nccl)
    proved_on, proved, layout = 1, 1.0, setup.layout
    if layout.machines > 1:
        proved_on, wrong = proved_on_few(best, question.workload, layout)
    else:
        problems, proved = verify_part(plan)
        wrong = wrong_elements(problems)
    link = next(iter(result.links), Use("", 0.0))
    return _make_row(
        question,
        best,
        seconds=seconds,
        floor_seconds=min(result.floors.hardware, seconds),
        transfers=plan.transfers,
        wrong=wrong,
        link=link.name,
        link_share=link.share,
        machines=layout.machines,
        proved_on=proved_on,
        interval=interval_of(setup, best, question.nbytes, seconds) if plan.by_channels else None,
        proved=proved,
        moved=setup.find_moved(plan, seconds),
        undispatched=setup.undispatched(best),
    )


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
    each = float(start.min() + np.where(np.isfinite(first), last - first, 0.0).max())
    return each + (max(whole - each, 0.0) / iterations if iterations else 0.0)


def sends_of(plan: Plan) -> int:
    """Sends and receives that each GPU posts in a call, itself among its peers."""
    ranks = len(np.unique(plan.contract.device)) * plan.machines
    return {"all_to_all": 2 * ranks, "send_receive": 2}.get(plan.contract.collective, 0)


LARGE = 1 << 30
"""Bytes of the copies that show a bandwidth: the latency is lost in them."""
SMALL = 16
"""Bytes of the copies that show a latency."""
MOST_GPUS = 128
"""Upper limit: a larger matrix takes long and is hard to read."""

Matrix: TypeAlias = tuple[tuple[float | None, ...], ...]
"""A row per sending GPU; None on the diagonal, and where there is no route."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """With peer access or without it: bytes/s one way, bytes/s both ways together, and seconds."""

    one_way: Matrix
    both_ways: Matrix
    latency: Matrix


@dataclass(frozen=True, slots=True)
class PeerToPeer:
    """The test's output.

    It has the GPUs, which pairs copy to each other directly, and the matrices without and with peer
    access.
    """

    devices: tuple[str, ...]
    peers: tuple[tuple[bool, ...], ...]
    disabled: Matrices
    enabled: Matrices


def peer_to_peer(topology: Topology, calibration: Calibration = NOMINAL) -> PeerToPeer:
    """The predicted matrices of a machine's GPUs. TopologyError for more than `MOST_GPUS`."""
    devices = topology.devices
    if len(devices) > MOST_GPUS:
        raise TopologyError(
            f"{topology.name}: all pairs of {len(devices)} GPUs are asked for, and at most "
            f"{MOST_GPUS} GPUs are compared; name fewer machines or GPUs on the same network"
        )
    return PeerToPeer(
        devices=devices,
        peers=tuple(
            tuple(a != b and topology.router.is_peer(a, b) for b in devices) for a in devices
        ),
        disabled=_matrices(topology.limit_peers(OFF), calibration),
        enabled=_matrices(topology, calibration),
    )


def _matrices(topology: Topology, calibration: Calibration) -> Matrices:
    setup, devices = Setup(topology, IDEAL, calibration), topology.devices
    known: dict[tuple[object, ...], float] = {}  # by all that decides the time of copies

    def seconds(a: str, b: str, nbytes: int, *, both: bool) -> float | None:
        """Seconds of the copy, or of the longer of the two; None if there is no route."""
        try:
            routes = [route(topology, *ends) for ends in ((a, b), (b, a))[: 1 + both]]
        except TopologyError:
            return None
        number: dict[int, int] = {}
        places = tuple(
            tuple(number.setdefault(link, len(number)) for link in each.links) for each in routes
        )
        links = [topology.links[link] for link in number]
        figures = tuple((x.link_class, x.bandwidth, x.latency, x.lanes) for x in links)
        key = nbytes, places, tuple(each.shares for each in routes), figures
        return once(known, key, lambda: setup.simulate(_copies(a, b, nbytes, both=both)).seconds)

    def matrix(nbytes: int, *, both: bool = False) -> Matrix:
        """Seconds of every pair's copies."""
        return tuple(
            tuple(None if a == b else seconds(a, b, nbytes, both=both) for b in devices)
            for a in devices
        )

    def rates(*, both: bool) -> Matrix:
        """Bytes/s of every pair's large copies."""
        moved = LARGE * (1 + both)
        return tuple(tuple(s and moved / s for s in row) for row in matrix(LARGE, both=both))

    return Matrices(rates(both=False), rates(both=True), matrix(SMALL))


def _copies(a: str, b: str, nbytes: int, *, both: bool) -> Plan:
    """A copy of float32 from `a` to `b`, and if `both` another one back, of other values."""
    builder, elements = PlanBuilder((a, b)), nbytes // 4
    for source in (0, 1)[: 1 + both]:
        value = builder.input(source, source * elements, (source + 1) * elements)
        builder.output(builder.copy(value, 1 - source))
    return builder.finish(Contract.broadcast([1], [(0, elements, 0)], 0))
