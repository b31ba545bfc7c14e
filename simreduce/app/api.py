"""The functions of `import simreduce`: every argument is an object or the name of one.

Results as the Python API returns them: with a short repr, a table, a document and a plot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from numbers import Integral
from operator import itemgetter
from os import PathLike
from typing import Any, ClassVar, TypeVar

import numpy as np

from simreduce import dtypes, engine, plan as plans, topology, units
from simreduce.computing import group_by
from simreduce.engine import (
    CALM,
    NOMINAL,
    TENSORFLOW,
    Calibration,
    Disturbance,
    Recording,
    Runtime,
    calibrate,
)
from simreduce.engine.setup import (
    BY_STRATEGY,
    Machine,
    Ready,
    Setup,
    Text,
    read_machine,
    read_strategy,
    read_text,
    read_workload,
)
from simreduce.errors import InputError, StrategyError, expect, quote, whole
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import ITERATIONS
from simreduce.files.tables import Table, columns
from simreduce.plan import Kind, Plan, Problem
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy, check_collective
from simreduce.planners.strategy.compiler import compile_collective
from simreduce.report.bench import BENCH, SizeTimes, bench_rows, sizes_facet
from simreduce.report.blocks import timeline_of_threads, timeline_plot
from simreduce.report.headings import runtimes_text
from simreduce.report.pages import CellPicture, cell_html, load_pictures
from simreduce.report.plots import Plot, bar_plot
from simreduce.report.ranking import RUN, ranking_rows
from simreduce.report.steps import gradient_names, step_document, step_rows
from simreduce.report.sweeps import count_states, first_columns, rows_table, sweep_document
from simreduce.report.trace import step_threads
from simreduce.study import scenario as scenarios, scenario_files
from simreduce.study.scenario import CALL_COST, Scenario
from simreduce.study.sweep import FACTORS, objective
from simreduce.study.sweep.grid import Sample, read_specification
from simreduce.study.sweep.running import CellRunner
from simreduce.study.sweep.store import IN_MEMORY, Store, Sweep
from simreduce.study.tune import rank as ranked, steps
from simreduce.study.tune.rank import rank as rank_strategies
from simreduce.study.tune.sizes import ROOTED, BenchCalls, bench as bench_sizes, parts_of
from simreduce.study.tune.steps import rank_steps
from simreduce.topology import Folded, Topology
from simreduce.topology.loader import Overrides
from simreduce.workload import MOST_BYTES, Workload
from simreduce.workload.loader import load_workload as load_gradients

T = TypeVar("T")

_DRAWN = 15
"""Plans of a ranking that a notebook draws."""

_FRAMES: Mapping[str, Callable[[Any, list[dict[str, Any]]], object]] = {
    "pandas": lambda pandas, rows: pandas.DataFrame(rows),
    "polars": lambda polars, rows: polars.DataFrame(rows, infer_schema_length=None),
}
"""How each library makes a frame of rows; `to_frame` takes the first that is installed."""


class Answer(ABC):
    """A result that shows itself; subclasses define all but `to_frame`."""

    __slots__ = ()

    headline: Any
    """The result in one line."""

    rows_key: ClassVar[str] = "rows"
    """The key of the document that has a row for each of `to_frame`."""

    @abstractmethod
    def table(self) -> Table:
        """The result as rows of text."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The result as JSON types, with the keys of `--json` documents."""

    @abstractmethod
    def plot(self) -> Plot:
        """The result as a chart."""

    def records(self) -> list[dict[str, Any]]:
        """The rows of `to_frame`."""
        return list(self.to_dict()[self.rows_key])

    def to_frame(self) -> Any:
        """The rows as a pandas or a polars frame, whichever is installed."""
        for name, make in _FRAMES.items():
            try:
                library = import_module(name)
            except ImportError:
                continue
            return make(library, self.records())
        raise ImportError(f"to_frame needs one of {', '.join(_FRAMES)}: pip install pandas")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    def pictures(self) -> list[CellPicture]:
        """Pictures that a notebook draws above the table."""
        return [(self.headline, self.plot().svg())]

    def _repr_html_(self) -> str:
        return cell_html(self.headline, self.table(), self.pictures())


class Prediction(Answer, engine.Result):
    """The prediction for one plan: an `engine.Result` that shows itself."""

    __slots__ = ()

    @property
    def subtitle(self) -> str:
        """The runtime and the calibration."""
        return f"runtime {self.runtime}, calibration {self.calibration}"

    def table(self) -> Table:
        """A row per busy link, memory and lane."""
        rows = [(use.name, f"{use.share:.1%}") for use in (*self.links, *self.lanes)]
        return Table(columns("link, memory or lane|busy", left="link, memory or lane"), tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        """Time, floors and what is busy; times in microseconds, shares from 0 to 1."""
        return {
            "topology": self.topology,
            "topology_digest": self.topology_digest,
            "runtime": self.runtime,
            "calibration": self.calibration,
            "disturbance": self.disturbance,
            "plan_digest": self.plan_digest,
            "time_us": self.seconds * 1e6,
            "floor_us": self.floors.hardware * 1e6,
            "transfers": self.transfers,
            "bottleneck": self.bottleneck,
            "links": [{"name": u.name, "share": u.share, "bytes": u.nbytes} for u in self.links],
            "lanes": [{"name": u.name, "share": u.share} for u in self.lanes],
        }

    def pictures(self) -> list[CellPicture]:
        """The machine, with each link in the colour of its load."""
        loads = {use.name: use.share for use in self.links}
        return load_pictures(self.topology, self.topology_digest, loads)

    def records(self) -> list[dict[str, Any]]:
        """A row per op of the plan."""
        names = self.devices
        return [
            {
                "op": op,
                "kind": Kind(kind).name,
                "source": names[source] if kind == Kind.COPY else names[device],
                "device": names[device],
                "bytes": nbytes,
                "ready_us": ready * 1e6,
                "start_us": start * 1e6,
                "finish_us": finish * 1e6,
            }
            for op, (kind, source, device, nbytes, ready, start, finish) in enumerate(
                zip(
                    *(c.tolist() for c in (self.kind, self.source, self.device, self.nbytes)),
                    *(c.tolist() for c in (self.ready, self.start, self.finish)),
                    strict=True,
                )
            )
        ]

    def plot(self) -> Plot:
        """Seconds that each link, memory and lane is busy, as bars."""
        uses = [(use.name, use.share * self.seconds) for use in (*self.links, *self.lanes)]
        return bar_plot(uses, self.headline, self.subtitle)


class _Ranked(Answer):
    """Candidates in order."""

    __slots__ = ()

    rows_key = "candidates"
    scenario: Any
    candidates: Any
    advice: Any
    _unit: ClassVar[str] = ""

    @property
    def headline(self) -> str:
        """The workload and the machine, and what to do."""
        s, first = self.scenario, "none is proven right"
        for best in self.advice[:1]:
            first = f"{best.do}, {units.format_duration(best.option.seconds)}{self._unit}"
        return f"{s.workload.name} on {s.setup.topology.name}: {first}"

    @property
    def subtitle(self) -> str:
        """The runtimes and the calibration."""
        return _name_models((c.runtime for c in self.candidates), self.scenario.setup)

    def plot(self) -> Plot:
        """The time of each candidate as a bar."""
        return bar_plot(
            [(c.names[0], c.seconds) for c in self.candidates], self.headline, self.subtitle
        )


class Ranking(_Ranked, ranked.StrategyRanking):
    """Strategies in order: a `tune.rank.StrategyRanking` that shows itself."""

    __slots__ = ()

    table = ranking_rows

    def to_dict(self) -> dict[str, Any]:
        """The document of `simreduce run --json`."""
        return RUN.write(self)

    def pictures(self) -> list[CellPicture]:
        """The first plans as bars."""
        return [(self.headline, replace(self, candidates=self.candidates[:_DRAWN]).plot().svg())]


class StepRanking(_Ranked, steps.MethodRanking):
    """Methods by the training step around them: a `tune.steps.MethodRanking` that shows itself."""

    __slots__ = ()

    _unit = " a step"

    table = step_rows
    to_dict = step_document

    def timeline(self) -> Plot:
        """Compute and transfers during the fastest step."""
        found = timeline_of_threads(step_threads(self.recommended.step, gradient_names(self)))
        return timeline_plot(found, self.headline, self.subtitle)

    def pictures(self) -> list[CellPicture]:
        """The methods as bars, and the timeline of the fastest step."""
        return [*super().pictures(), (f"Timeline: {self.headline}", self.timeline().svg())]


class Bench(Answer, SizeTimes):
    """Strategies over sizes, one tensor each, as nccl-tests measures them."""

    __slots__ = ()

    @property
    def headline(self) -> str:
        """The collective, the machine and the number of rows."""
        rows = units.plural(len(self.rows), "row")
        ranks = units.plural(self.setup.layout.n, "rank")
        return f"{self.collective} on {self.setup.machine.name}, {ranks}: {rows}"

    @property
    def subtitle(self) -> str:
        """The runtime and the calibration."""
        return _name_models((row.runtime for row in self.rows), self.setup)

    table = bench_rows

    def to_dict(self) -> dict[str, Any]:
        """The document of `simreduce bench --json`."""
        return BENCH.write(self)

    def plot(self) -> Plot:
        """Bus bandwidth over sizes, a curve for each strategy."""
        return Plot(self.headline, self.subtitle, [sizes_facet(self.to_dict())])


@dataclass(frozen=True, slots=True, repr=False)
class SweepRows(Answer):
    """The rows of a sweep: a dictionary for each cell, in SI units, its keys first."""

    sweep: Sweep
    path: str
    rows: tuple[Mapping[str, Any], ...]

    @property
    def headline(self) -> str:
        """The keys that vary."""
        count = units.plural(len(self.rows), "cell")
        return f"{self.sweep.name}: {count} over {', '.join(self.sweep.keys)}"

    @property
    def subtitle(self) -> str:
        """The calibrations."""
        names = sorted({row["calibration"] for row in self.rows if row["calibration"]})
        return f"calibration {', '.join(names)}"

    def table(self) -> Table:
        """A row per cell, in ms and GB/s."""
        return rows_table(first_columns(self.sweep, self.rows, group=False), self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The document of `simreduce sweep --json`."""
        counts = count_states(self.rows)
        return sweep_document(
            self.sweep, self.path, counts, self.rows, complete="waiting" not in counts
        )

    def best(self, *keys: str, by: str = "") -> list[dict[str, Any]]:
        """The row with the least `by` for each combination of values of `keys`, of rows that have
        one; by default the least time, of jobs the least slowdown.
        """
        by = by or objective(self.sweep.kind)
        known = (row for row in self.records() if row[by] is not None)
        groups = group_by(known, lambda row: tuple(row[key] for key in keys))
        return [min(rows, key=itemgetter(by)) for rows in groups.values()]

    def plot(self) -> Plot:
        """A bar for each of the fastest cells, or of those whose jobs lose least."""
        name = objective(self.sweep.kind)
        rows = sorted((r for r in self.rows if r[name]), key=lambda r: float(r[name]))
        bars = [
            (", ".join(f"{key} {row[key]}" for key in self.sweep.keys), row[name]) for row in rows
        ]
        return bar_plot(bars, self.headline, self.subtitle, name if name in FACTORS else "")


def _name_models(runtimes: Iterable[str], setup: Setup) -> str:
    return f"runtime {runtimes_text(runtimes)}, calibration {setup.calibration.name}"


def as_answer(kind: type[T], value: Any) -> T:
    """The same value as an answer, a subclass that adds no fields."""
    return kind(**{each.name: getattr(value, each.name) for each in fields(value) if each.init})


_PLAN = "a Plan, as compile makes it"


def load_topology(name: Text, overrides: Overrides | None = None) -> Topology:
    """The machine of that name, in that file, or written inline (`switch:8,bandwidth=10GB/s`).

    `overrides` maps keys of its file to new values: `{"links.qpi.bandwidth": "9.6 GB/s"}`.
    """
    return topology.load_topology(read_text(name, "the name of a machine"), overrides)


def load_workload(name: Text) -> Workload:
    """The gradients of that model, in that file, or one of that size (`bytes:64MiB`)."""
    return load_gradients(read_text(name, "the name of a workload"))


def load_calibration(name: Text) -> Calibration:
    """The calibration of that name or in that file."""
    return calibrate.load_calibration(read_text(name, "the name of a calibration"))


def load_scenario(name: Text, batch: int | None = None, **overrides: object) -> Scenario:
    """The scenario of that name or in that file. Keyword arguments replace its keys, `batch` the
    samples of its step.
    """
    text = read_text(name, "the name of a scenario")
    if batch is not None:
        whole(batch, "batch", 1)
    return scenario_files.load_scenario(text, batch, **overrides)


def layout(machine: Machine) -> Layout:
    """The layout of a machine, which planners see: its tasks, direct links and rank orders."""
    return Setup(machine).layout


def fold(machine: Topology | Text, machines: int | None = None) -> Folded:
    """The equal machines of a topology as one; with `machines`, as many of them.

    TopologyError says why they cannot stand for each other.
    """
    unfolded = expect(read_machine(machine), Topology, "a Topology that is not folded")
    return topology.fold(unfolded, machines if machines is None else whole(machines, "machines", 2))


def compile(  # noqa: A001 - as re.compile
    strategy: Strategy | str,
    workload: Workload | Text,
    machine: Layout | Machine,
    collective: str = "all_reduce",
    *,
    root: int = 0,
    faithful: bool = False,
) -> Plan:
    """The plan of a strategy for the gradients of a workload on a machine, or on its layout.

    `faithful` reproduces upstream's quirks, wrong sums included. StrategyError if the machine does
    not accept the strategy.
    """
    shape = machine if isinstance(machine, Layout) else layout(machine)
    chosen, gradients = read_strategy(strategy, collective), read_workload(workload)
    _check_root(root, chosen.collective, shape.n)
    _check_flag(faithful, "faithful")
    return compile_collective(
        chosen.collective, chosen, gradients, shape, root=root, faithful=faithful
    )


def verify(plan: Plan) -> list[Problem]:
    """Every rule that the plan breaks; an empty list proves that it does what it promises."""
    return plans.verify(expect(plan, Plan, _PLAN))


def repeat(plan: Plan, times: int) -> Plan:
    """The plan `times` times in a row: on every device, one starts when the one before is done."""
    return plans.repeat(expect(plan, Plan, _PLAN), times)


def simulate(
    plan: Plan,
    machine: Machine,
    runtime: Runtime | str = TENSORFLOW,
    calibration: Calibration | Text = NOMINAL,
    ready: Ready = 0.0,
    disturbance: Disturbance = CALM,
) -> Prediction:
    """How long a plan takes on a machine, and why; its inputs exist from `ready` on, in seconds.

    Deadlock if it can never finish, InputError if it needs devices or routes that are not there.
    """
    result = Setup(machine, runtime, calibration, disturbance).simulate(plan, ready)
    return as_answer(Prediction, result)


def record(
    plan: Plan,
    machine: Machine,
    runtime: Runtime | str = TENSORFLOW,
    calibration: Calibration | Text = NOMINAL,
    ready: Ready = 0.0,
    disturbance: Disturbance = CALM,
) -> Recording:
    """As `simulate`, with the rate of every flow over time."""
    return Setup(machine, runtime, calibration, disturbance).record(plan, ready)


def rank(
    machine: Scenario | Machine,
    workload: Workload | Text | None = None,
    strategies: Sequence[Strategy | str] | str | None = None,
    *,
    runtime: Runtime | str | None = None,
    calibration: Calibration | Text | None = None,
    disturbance: Disturbance | None = None,
    repeat: int | None = None,
    faithful: bool | None = None,
    workers: int = 1,
    simulate_all: bool = False,
) -> Ranking:
    """Strategies for a workload on a machine, fastest first: all that it accepts unless given.

    Unless they are given or `simulate_all` is set, strategies with large plans that cannot be among
    the first ten are in `bounded`, with what they take at least.

    Without a workload, the first argument is a scenario, or the name of one; what is given besides
    replaces what the scenario says.
    """
    whole(workers, "workers", 1)
    listed = [] if strategies is None else _as_list(strategies, "strategies")
    given = {
        "repeat": None if repeat is None else whole(repeat, "repeat", 1),
        "faithful": None if faithful is None else _check_flag(faithful, "faithful"),
        "strategies": tuple(map(read_strategy, listed)) or None,
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if workload is None:
        scenario = _scenario(machine)
    else:
        setup = Setup(machine, BY_STRATEGY, call_cost=CALL_COST)
        gradients = read_workload(workload)
        name = f"{gradients.name} on {setup.machine.name}"
        scenario = Scenario(name, name, setup, gradients, None)
    scenario = replace(scenario, **changes).but(
        runtime=runtime, calibration=calibration, disturbance=disturbance
    )
    return as_answer(Ranking, rank_strategies(scenario, workers, simulate_all=simulate_all))


def step(
    scenario: Scenario | Text,
    batch: int | None = None,
    *,
    disturbance: Disturbance | None = None,
    workers: int = 1,
    simulate_all: bool = False,
) -> StepRanking:
    """The strategies of a scenario that has a `[step]`, by the training step around them.

    Unless the scenario names them or `simulate_all` is set, those that cannot be among the first
    ten are in `bounded`, with what they take at least.
    """
    whole(workers, "workers", 1)
    found = _scenario(scenario, batch).but(disturbance=disturbance)
    question = scenarios.with_step(found)
    return as_answer(StepRanking, rank_steps(question, workers, simulate_all=simulate_all))


def bench(
    machine: Machine,
    strategies: Sequence[Strategy | str] | Strategy | str = "nccl",
    sizes: Sequence[int | str] | int | str = "32MiB",
    collective: str = "all_reduce",
    *,
    dtype: str = "float",
    root: int = 0,
    runtime: Runtime | str = BY_STRATEGY,
    calibration: Calibration | Text = NOMINAL,
    disturbance: Disturbance = CALM,
    faithful: bool = False,
    nthreads: int | None = None,
    iters: int = ITERATIONS,
) -> Bench:
    """One collective of one tensor of each size, in bytes or as text, by each strategy, on its own
    runtime unless one is given.

    Of `iters` calls of NCCL in a row, by a process for each GPU, or by so many threads that share
    the GPUs of each machine equally.
    """
    setup = Setup(machine, runtime, calibration, disturbance)
    check_collective(collective)
    chosen = [read_strategy(each, collective) for each in _as_list(strategies, "strategies")]
    code = dtypes.code(expect(dtype, str, "the name of a dtype, such as 'float'"))
    least = dtypes.SIZES[code] * parts_of(collective, setup.layout.n)
    nbytes = [_read_size(each, least) for each in _as_list(sizes, "sizes")]
    _check_root(root, collective, setup.layout.n)
    _check_flag(faithful, "faithful")
    whole(iters, "iters", 1)
    calls = BenchCalls.by_threads(nthreads, setup.layout, iters, setup.nccl.release)
    rows = bench_sizes(setup, chosen, nbytes, code, faithful=faithful, root=root, calls=calls)
    return Bench(setup, tuple(rows), collective, calls=calls)


def run_sweep(
    question: Text,
    over: Mapping[str, object],
    fixed: Mapping[str, object] | None = None,
    *,
    zipped: Sequence[Sequence[str]] = (),
    sample: tuple[str, int, int] | None = None,
    kind: str | None = None,
    db: Text = IN_MEMORY,
    workers: int = 1,
) -> SweepRows:
    """The question, a scenario's or a machine's, for every combination of the values of the keys
    `over`: lists, or text as `--over` takes it. `fixed` holds keys that all cells have, `sample` a
    rule (random or sobol), how many cells, and a seed.

    Rows are kept in the database `db`, which is used again. `workers` processes share the work.
    """
    whole(workers, "workers", 1)
    text = read_text(question, "the name of a scenario or a machine")
    chosen = Sample(*sample) if sample else None
    spec = read_specification(text, over, fixed or {}, zipped, chosen, kind)
    plan = spec.plan()
    with Store(read_text(db, "the name of a database"), write=True) as store:
        begun = store.begin(spec.title, spec.document, plan)
        with CellRunner(store, workers=workers if workers > 1 else 0) as runner:
            for _ in runner.run(runner.missing(p.cell for p in plan if p.cell)):
                pass
        return SweepRows(begun, str(db), tuple(store.table(begun.id)))


def open_sweep(db: Text, number: int | None = None) -> SweepRows:
    """The sweep of that number in a database, the last unless given, as far as it is computed."""
    path = read_text(db, "the name of a database")
    with Store(path) as store:
        found = store.sweep(number)
        return SweepRows(found, path, tuple(store.table(found.id)))


def _scenario(scenario: Any, batch: int | None = None) -> Scenario:
    """The scenario itself, or the one of that name or in that file."""
    if isinstance(scenario, (str, PathLike)):
        return load_scenario(scenario, batch)
    found = expect(scenario, Scenario, "a Scenario or the name of one")
    if batch is not None:
        raise TypeError("batch is for a scenario that is named")
    return found


def _as_list(values: Any, name: str) -> list[Any]:
    """The values of the argument of that name, a list or a single one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        return [values]
    found = list(values)
    if not found:
        raise InputError(f"{name}: name at least one")
    return found


def _read_size(size: Any, least: int) -> int:
    """Bytes of a number or of text as `-b` takes it, at least one element of every part."""
    if isinstance(size, str):
        faults = Faults()
        nbytes = faults.require(faults.attempt("sizes", units.cli_size, size))
    elif isinstance(size, bool) or not isinstance(size, Integral):
        words = "sizes: expected bytes as a whole number or text such as '1M'"
        raise TypeError(f"{words}, got {type(size).__name__} {quote(size)}")
    else:
        nbytes = int(size)
    if not least <= nbytes <= MOST_BYTES:
        raise InputError(
            f"sizes: must be between {least} bytes (one element per part) and 1 PiB, "
            f"got {quote(size)}"
        )
    return nbytes


def _check_root(root: int, collective: str, ranks: int) -> None:
    """InputError for a root that the collective does not have, or that is none of its ranks."""
    whole(root, "root", 0)
    if root and collective not in ROOTED:
        raise InputError(f"root: {collective} has no root, got {root}; {' and '.join(ROOTED)} have")
    if root >= ranks:
        raise StrategyError(f"root {root}: the ranks are 0 to {ranks - 1}")


def _check_flag(value: object, name: str) -> object:
    if isinstance(value, (bool, np.bool_)):
        return value
    raise TypeError(f"{name}: expected True or False, got {type(value).__name__} {quote(value)}")
