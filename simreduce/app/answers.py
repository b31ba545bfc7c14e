"""Results as the Python API returns them: with a short repr, a table, a document and a plot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from importlib import import_module
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

from simreduce import engine, units
from simreduce.computing.lists import group_by
from simreduce.engine.setup import Setup
from simreduce.files.tables import Table, columns
from simreduce.plan import Kind
from simreduce.report.bench import BENCH, SizeTimes, bench_rows, sizes_facet
from simreduce.report.headings import runtimes_text
from simreduce.report.pages.html import Picture, cell_html, load_pictures
from simreduce.report.plots import Plot, bar_plot
from simreduce.report.ranking import RUN, ranking_rows
from simreduce.report.steps import gradient_names, step_document, step_rows
from simreduce.report.sweeps import count_states, first_columns, rows_table, sweep_document
from simreduce.report.timelines import timeline_of_threads, timeline_plot
from simreduce.report.trace import step_threads
from simreduce.study.sweep import Sweep, objective
from simreduce.study.sweep.cells import FACTORS
from simreduce.study.tune import rank, steps

A = TypeVar("A")

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

    def pictures(self) -> list[Picture]:
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

    def pictures(self) -> list[Picture]:
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


class Ranking(_Ranked, rank.StrategyRanking):
    """Strategies in order: a `tune.rank.StrategyRanking` that shows itself."""

    __slots__ = ()

    table = ranking_rows

    def to_dict(self) -> dict[str, Any]:
        """The document of `simreduce run --json`."""
        return RUN.write(self)

    def pictures(self) -> list[Picture]:
        """The first plans as bars."""
        shown = replace(self, candidates=self.candidates[:_DRAWN])
        return [(self.headline, shown.plot().svg())]


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

    def pictures(self) -> list[Picture]:
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


def as_answer(kind: type[A], value: Any) -> A:
    """The same value as an answer, a subclass that adds no fields."""
    return kind(**{each.name: getattr(value, each.name) for each in fields(value) if each.init})
