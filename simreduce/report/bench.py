"""`simreduce bench`: nccl-tests' table and file, our document, and its page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from simreduce import dtypes, units
from simreduce.computing import group_by
from simreduce.engine import TENSORFLOW, AtLeast
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, first_words
from simreduce.files import tables
from simreduce.files.formats.documents import (
    ABSENT,
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    INTEGER,
    ITSELF,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    one_of,
    or_null,
    unwritten,
)
from simreduce.files.tables import Column, Table
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.planners.strategy import parse_strategy
from simreduce.report.blocks import Attachments, Chart, Fact, Page, Section, Written, bars
from simreduce.report.explain import help_section, path_section
from simreduce.report.headings import (
    CALIBRATION_KEY,
    DISTURBANCE_KEY,
    EQUAL_PATHS_KEY,
    MOVED_KEY,
    NCCL_KEY,
    NOMINAL_KEY,
    WARNING_KEY,
    caution,
    faster_than,
    one_runtime,
    sure,
    took_of,
)
from simreduce.report.plots import Facet, PlotPoint, PlotSeries
from simreduce.report.plots.axes import Axis
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    names_block,
    repeat_section,
    us,
)
from simreduce.study.ranking import TIED, Refused, Stuck, lasting_us, moved_lines
from simreduce.study.tune.sizes import BY_DEFAULT, DIVIDED, BenchCalls, BenchRow, algbw, busbw
from simreduce.study.tune.whatif import library_warning
from simreduce.topology import Folded
from simreduce.version import __version__

_TYPES = {"float32": "float", "float16": "half", "float64": "double", "bfloat16": "bfloat16"}


class SizeTimes(NamedTuple):
    """Times of one collective over sizes; not `complete` if the command was stopped."""

    setup: Setup
    rows: Sequence[BenchRow]
    collective: str = "all_reduce"
    complete: bool = True
    calls: BenchCalls = BY_DEFAULT

    @property
    def nthreads(self) -> int:
        """Threads of each machine if they drive several GPUs each; else 0."""
        each = self.calls.gpus
        return len(self.setup.layout.tasks[0]) // each if each else 0

    @property
    def done(self) -> list[BenchRow]:
        """The rows that were simulated to their end."""
        return [row for row in self.rows if row.unfinished is None]

    def unfinished(self, kind: type) -> list[BenchRow]:
        """The rows that are stuck, that the machine refuses, or that another one beat."""
        return [row for row in self.rows if isinstance(row.unfinished, kind)]

    @property
    def nominal(self) -> str:
        """Which times rest on no measurement, or ""."""
        rows = [row for row in self.rows if not isinstance(row.unfinished, Refused)]
        own = ((parse_strategy(row.strategy, row.collective), row.nbytes) for row in rows)
        calls = (self.setup.call_of(strategy, nbytes) for strategy, nbytes in own)
        return self.setup.nominal((row.algorithm for row in rows), filter(None, calls))

    @property
    def fastest(self) -> list[BenchRow]:
        """By ascending size, the rows that are the fastest of their size where another strategy was
        before. One that is as fast as another does not replace it, and what lacks costs counts not.
        """
        right = (row for row in self.done if not (row.wrong or row.undispatched))
        by_size = group_by(right, lambda row: row.nbytes)
        found: list[BenchRow] = []
        for _, rows in sorted(by_size.items()):
            best = min(rows, key=attrgetter("seconds"))
            held = [row for row in rows if found and row.strategy == found[-1].strategy]
            if not (held and held[0].seconds <= best.seconds * TIED):
                found.append(best)
        return found

    @property
    def warning(self) -> str:
        """What the library is slow at here, in a sentence, or ""."""
        return library_warning(self.setup, (row.runtime for row in self.rows))


def count_of(row: BenchRow, times: SizeTimes) -> int:
    """nccl-tests' count: the elements of one rank's part where ranks have parts."""
    return row.count // times.setup.layout.n if row.collective in DIVIDED else row.count


def type_of(row: BenchRow) -> str:
    """The type of the elements as nccl-tests writes it."""
    name = dtypes.NAMES[row.dtype]
    return _TYPES.get(name, name)


def algbw_of(row: BenchRow) -> float:
    """Size over time, in bytes per second."""
    return algbw(row.nbytes, row.seconds)


def busbw_of(row: BenchRow, times: SizeTimes) -> float:
    """Algbw times nccl-tests' factor, in bytes per second."""
    return busbw(row.nbytes, row.seconds, times.setup.layout.n, row.collective)


def _fit(value: float, width: int = 7) -> str:
    """Two decimals, fewer when the cell is full."""
    texts = [f"{value:.{decimals}f}" for decimals in (2, 1, 0)]
    return next((text for text in texts if len(text) <= width), texts[-1])


def _time_cell(row: Written) -> str:
    if "at_least_us" in row:
        return f">={_fit(row['at_least_us'])}"
    return _fit(row["time_us"]) if "time_us" in row else "-"


def _algorithm_cell(row: Written) -> str:
    """The algorithm, with the busiest link and the interval, or with what became of it."""
    if "time_us" not in row:
        return f"{row['algorithm']}{row['end']}{row['reason']}"
    link, low = row["bottleneck"], row["low_us"]
    share = f" {row['bottleneck_share']:.0%}" if "bottleneck_share" in row else ""
    busiest = f", {link}{share}" if link else ""
    interval = f", {_fit(low)} to {_fit(row['high_us'])} us" if low is not None else ""
    moved = moved_lines(row["moved_us"] * 1e-6 if "moved_us" in row else None)
    return ", ".join([f"{row['algorithm']}{busiest}{interval}", *moved])


_SIZE = Key(
    "size_bytes", BYTES, "The tensor, rounded down to whole elements and equal parts.", "nbytes",
    column=(
        Column("size", "(B)", width=12, on="text"),
        Column("size", show=units.format_size, on="html"),
    ),
)  # fmt: skip
_ELEMENTS = (
    Key(
        "count", COUNT, "Elements, counted as nccl-tests does.", get_in=count_of,
        column=Column("count", "(elements)", width=12, spare=5, on="text"),
    ),
    Key(
        "type", TEXT, "The type of its elements, as nccl-tests writes it.", type_of,
        column=Column("type", width=8, spare=6, on="text"),
    ),
    Key(
        "redop", TEXT, "The reduction: `sum`, or `none` of collectives that add nothing.",
        column=Column("redop", width=6, spare=9, on="text"),
    ),
)  # fmt: skip
_ROOT = Key(
    "root", INTEGER, "The root's rank; -1 for collectives without one.",
    column=Column("root", width=6, spare=8, on="text"), written=False,
)  # fmt: skip
_ALGORITHM = Key(
    "algorithm", TEXT, "The strategy.",
    column=Column("algorithm, busiest link", left=True, cell=_algorithm_cell),
)  # fmt: skip
_RUNTIME = Key(
    "runtime", TEXT, "The system that runs it.",
    column=Column("runtime", left=True, spare=3, keep="varied"),
)  # fmt: skip
ROW = Record(
    "row",
    "A strategy at a size.",
    _SIZE,
    *_ELEMENTS,
    _ROOT,
    _ALGORITHM,
    _RUNTIME,
    Key(
        "time_us", MICROSECONDS, "One collective.", "seconds",
        column=Column("time", "(us)", width=7, cell=_time_cell),
    ),
    Key(
        "algbw_gb_per_s", GB_PER_SECOND, "Size over time.", algbw_of,
        column=Column("algbw", "(GB/s)", spare=2, show=partial(_fit, width=6)),
    ),
    Key(
        "busbw_gb_per_s", GB_PER_SECOND, "Algbw times nccl-tests' factor.", get_in=busbw_of,
        column=Column("busbw", "(GB/s)", show=partial(_fit, width=6)),
    ),
    Key(
        "wrong", COUNT, "Elements whose result is wrong.", column=Column("#wrong", spare=1),
    ),
    Key(
        "low_us", or_null(MICROSECONDS),
        "The lower end of the time's 80 % interval; null if nothing is known of errors.",
        lambda row: row.interval and row.interval[0],
    ),
    Key(
        "high_us", or_null(MICROSECONDS), "The upper end of that interval, or null.",
        lambda row: row.interval and row.interval[1], null_as="low_us",
    ),
    Key(
        "floor_us", MICROSECONDS, "No algorithm takes less here, by links alone.", "floor_seconds",
        column=Column("floor", "(us)", width=6, spare=4, show=_fit),
    ),
    replace(MOVED_KEY, column=()),
    Key(
        "lower_bound", FLAG,
        "Whether it takes longer: the calibration does not know what TensorFlow takes to dispatch "
        "each op. Missing where that is known.",
        lambda row: row.undispatched or ABSENT, optional=True,
    ),
    Key("bottleneck", TEXT, 'The busiest link; "" if nothing moves.', "link"),
    Key(
        "bottleneck_share", RATIO, "The part of the time in which it is busy.", "link_share",
        written=False,
    ),
    Key("transfers", COUNT, "Copies between devices.", column=Column("transfers", spare=7)),
    Key(
        "folded_machines", COUNT, "Equal machines of which one was simulated for all; 1: none.",
        "machines",
    ),
    Key("proved", RATIO, "The part of the elements among which wrong ones are sought."),
    order="size_bytes count type redop root time_us algbw_gb_per_s busbw_gb_per_s wrong floor_us "
    "transfers runtime algorithm",
)  # fmt: skip
_SHORT_SIZE = replace(_SIZE, about="The tensor.")


def _end(words: str) -> Key:
    """What stands between an algorithm and the reason why it has no time."""
    return Key("end", TEXT, "How it ended.", lambda _: words, written=False)


_FAILED = Record(
    "failed",
    "A plan that never finishes.",
    _SHORT_SIZE,
    *unwritten(*_ELEMENTS, _ROOT, _RUNTIME),
    _ALGORITHM,
    _end(" failed: "),
    Key("reason", TEXT, "Why it is stuck.", lambda row: first_words(row.unfinished.error)),
)
_REFUSED = Record(
    "refused",
    "A strategy that is not possible at a size.",
    _SHORT_SIZE,
    *unwritten(*_ELEMENTS, _ROOT, _RUNTIME),
    _ALGORITHM,
    _end(" refused: "),
    Key("reason", TEXT, "Why the machine refuses it.",
        lambda row: row.unfinished.reason(row.strategy).removeprefix(f"{row.strategy}: ")),
)  # fmt: skip
_BOUNDED = Record(
    "bounded",
    "A size of a strategy that was not simulated to its end, as another is faster.",
    _SHORT_SIZE,
    *unwritten(*_ELEMENTS, _ROOT),
    _ALGORITHM,
    _RUNTIME,
    _end(", "),
    Key("at_least_us", MICROSECONDS, "What it takes at least.", "unfinished.seconds"),
    Key("reason", TEXT, "Why it takes as long.", "unfinished.reason"),
)
_FASTEST = Record(
    "fastest",
    "The strategy that is the fastest from a size on.",
    Key("size_bytes", BYTES, "The first size at which it is.", "nbytes"),
    Key("algorithm", TEXT, "The strategy."),
)  # fmt: skip
BENCH = Document(
    "bench",
    "`simreduce bench --json`: the time of one collective by size and strategy.",
    Key("topology", TEXT, "The name of the machine.", "setup.machine.name"),
    replace(EQUAL_PATHS_KEY, get="setup.equal_paths"),
    Key("ranks", COUNT, "GPUs that take part.", "setup.layout.n"),
    Key(
        "runtime", TEXT, "The runtime of all rows, or `by_strategy` if they differ.",
        lambda times: one_runtime((row.runtime for row in times.rows), times.setup.runtime.name),
    ),
    replace(NCCL_KEY, get="setup.nccl.text"),
    replace(
        NOMINAL_KEY,
        get=lambda times: times.nominal or ABSENT,
    ),
    replace(WARNING_KEY, get=lambda times: times.warning or ABSENT),
    replace(CALIBRATION_KEY, get="setup.calibration.name"),
    Key("collective", one_of(*COLLECTIVES), "What is done."),
    replace(DISTURBANCE_KEY, get="setup.disturbed"),
    Key(
        "gpus_per_thread", COUNT, "GPUs that one thread drives; 0: a process for each GPU.",
        "calls.gpus",
    ),
    Key("iterations", COUNT, "Calls of NCCL in a row.", "calls.iterations"),
    Key(
        "rows", list_of(ROW), "Every row that was simulated to its end, size by size.", "done",
    ),
    Key(
        "fastest", list_of(_FASTEST),
        "Where the fastest changes: from each size on, the strategy that is the fastest then.",
        lambda times: times.fastest if len(times.fastest) > 1 else ABSENT, optional=True,
    ),
    Key("failed", list_of(_FAILED), "Plans that never finish.",
        lambda times: times.unfinished(Stuck)),
    Key(
        "refused", list_of(_REFUSED),
        "What the machine refuses of strategies that were named; missing if nothing.",
        lambda times: times.unfinished(Refused) or ABSENT, optional=True,
    ),
    Key("bounded", list_of(_BOUNDED), "Rows that cannot be the fastest of their size.",
        lambda times: times.unfinished(AtLeast)),
    Key("complete", FLAG, "False if the command was stopped and rows are missing."),
)  # fmt: skip
"""Of `SizeTimes`. Rows without a time stand under `failed`, `refused` and `bounded`."""


def bench_rows(times: SizeTimes) -> Table:
    """A row per size and algorithm."""
    records = {type(None): ROW, Stuck: _FAILED, Refused: _REFUSED, AtLeast: _BOUNDED}
    return ROW.table(records[type(row.unfinished)].row(row, times) for row in times.rows)


def bench_table(times: SizeTimes, about: Sequence[str]) -> str:
    """nccl-tests' columns in its places, ours to the right; the last line says if the run is not
    complete.
    """
    lines = [*tables.comments(about), *bench_rows(times).lines(comment=True)]
    wrong = sum(row.wrong for row in times.done)
    lines.append(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    if stuck := times.unfinished(Stuck):
        lines.append(f"# Can never finish     : {len(stuck)} FAILED")
    lines.append(f"# Avg bus bandwidth    : {_best_average(times)}")
    if len(times.fastest) > 1:
        lines.append(f"# Fastest              : {_fastest_text(times)}")
    if bounded := times.unfinished(AtLeast):
        lines.append(
            f"# {units.plural(len(bounded), 'row')} with >= may take longer, and another is "
            "faster at that size (--all simulates them to the end)"
        )
    if not times.complete:
        lines.append("# stopped before all sizes were simulated")
    return "\n".join(lines)


def _fastest_text(times: SizeTimes) -> str:
    """`oneshot, multimem from 512 KiB`."""
    first, *others = times.fastest
    turns = [f"{row.algorithm} from {units.exact_size(row.nbytes)}" for row in others]
    return ", ".join([first.algorithm, *turns])


def calls_line(times: SizeTimes) -> str:
    """Says how NCCL's calls are issued, unless as by default."""
    calls = times.calls
    if calls == BY_DEFAULT:
        return ""
    each = units.plural(calls.gpus, "GPU")
    who = "a process for each GPU"
    if times.nthreads:
        who = f"{units.plural(times.nthreads, 'thread')} of each machine, {each} each"
    return f"calls of NCCL: {who}, {units.plural(calls.iterations, 'iteration')}"


def folded_lines(times: SizeTimes) -> list[str]:
    """Says for which rows one of many equal machines was simulated, or a part was proved, and that
    machines that were to be folded were not.
    """
    found = dict.fromkeys((r.machines, r.proved_on) for r in times.done if r.machines > 1)
    some = "" if all(r.machines > 1 for r in times.done) else " (where machines do the same)"
    parts = [
        f"#wrong of {r.algorithm} at {r.nbytes} B is found in {r.proved:.2%} of the elements: "
        "stretches of them, evenly spread"
        for r in times.done
        if r.proved < 1.0
    ]
    parts += [
        f"folded{some}: one of {machines} equal machines is simulated; "
        f"#wrong is proved on {proved_on} of them"
        for machines, proved_on in found
    ]
    gpus = times.setup.layout.n
    if any(1 < r.machines < gpus and r.runtime == TENSORFLOW.name for r in times.done):
        parts.append(
            "whether times of folded machines hang on ties in queues is not tried (--no-fold tries "
            "it)"
        )
    whole = [r for r in times.done if r.machines == 1]
    if whole and isinstance(times.setup.machine, Folded):
        parts.append(
            f"all machines are simulated for {units.plural(len(whole), 'row')}: parts of unequal "
            "size, an algorithm that machines share unequally, or chunks without +chunk="
        )
    return parts


def preview_lines(rows: Sequence[BenchRow]) -> list[str]:
    """The fastest row of each size so far."""
    done = [row for row in rows if row.unfinished is None]
    slowest_first = sorted(done, key=lambda r: (r.undispatched, r.seconds), reverse=True)
    best = {row.nbytes: row for row in slowest_first}
    return [
        f"{size:12} B {_fit(r.seconds * 1e6)} us  {r.algorithm}" for size, r in sorted(best.items())
    ]


def _best_average(times: SizeTimes) -> str:
    """nccl-tests' last figure: of several algorithms the highest average, because one over all
    would describe none of them. What rests on lower bounds of times may be less than it says.
    """
    by_name = group_by(times.done, lambda row: row.strategy or row.algorithm)
    found = {name: average_busbw(mine, times) / 1e9 for name, mine in by_name.items()}
    known = [name for name, mine in by_name.items() if not any(row.undispatched for row in mine)]
    best = max(known or found, key=found.__getitem__, default="")
    if len(found) < 2:
        return f"{found.get(best, 0.0):g}"
    chunks = {row.algorithm for row in by_name[best]}
    name = chunks.pop() if len(chunks) == 1 else best
    among = f"the highest of {len(found)} algorithms"
    if bounds := sum(each > found[best] for each in found.values()):
        have = units.noun(
            bounds, "has a lower bound of its time", "have lower bounds of their times"
        )
        among = (
            f"the highest that is known; {units.plural(bounds, 'other')} {have} only, as the "
            "calibration knows no dispatch of TensorFlow's ops"
        )
    return f"{found[best]:g} ({name}, {among})"


def average_busbw(rows: Sequence[BenchRow], times: SizeTimes) -> float:
    """The mean bus bandwidth of these rows in bytes per second; 0 without rows."""
    return sum(busbw_of(row, times) for row in rows) / len(rows) if rows else 0.0


class TimedRun(NamedTuple):
    """A run of `simreduce bench`: its times, its arguments, when it began and ended (ISO 8601)."""

    times: SizeTimes
    args: Sequence[str]
    began: str
    ended: str

    @property
    def wrong(self) -> int:
        """Wrong elements of all rows."""
        return sum(row.wrong for row in self.times.done)


_BLOCK = Record(
    "block",
    "Times and rates, as nccl-tests has them.",
    Key("time", MICROSECONDS, "One collective.", "seconds"),
    Key("alg_bw", GB_PER_SECOND, "Size over time.", algbw_of),
    Key("bus_bw", GB_PER_SECOND, "Algbw times nccl-tests' factor.",
        get_in=lambda row, run: busbw_of(row, run.times)),
    Key("nwrong", COUNT, "Elements whose result is wrong.", "wrong"),
)  # fmt: skip
NCCL_TESTS = Record(
    "bench-nccl-tests",
    "`simreduce bench -J FILE`: the format of nccl-tests' `-J`, without plans that never finish. "
    "The key `algorithm` is ours.",
    Key(
        "version",
        TEXT,
        "`simreduce` and its version.",
        lambda _: f"simreduce {__version__}",
    ),
    Key("start_time", TEXT, "When the command began, in UTC, as ISO 8601 has it.", "began"),
    Key("args", list_of(TEXT), "The arguments of the command."),
    Key(
        "config",
        Record(
            "config",
            "The machine.",
            Key("topology", TEXT, "Its name.", "times.setup.machine.name"),
            Key("nthreads", COUNT, "Threads of a process.", lambda run: run.times.nthreads or 1),
            Key("ngpus", COUNT, "GPUs of a thread.", lambda run: run.times.calls.gpus or 1),
            Key("iterations", COUNT, "Calls in a row.", "times.calls.iterations"),
            Key("simulated", FLAG, "True: no device ran.", lambda _: True),
        ),
        "What ran.",
        ITSELF,
    ),
    Key(
        "devices",
        list_of(Record("device", "A GPU.", Key("rank", COUNT, "Its rank.", ITSELF))),
        "GPUs.",
        lambda run: range(run.times.setup.layout.n),
    ),
    Key(
        "results",
        list_of(
            Record(
                "result",
                "A strategy at a size.",
                Key("size", BYTES, "The tensor.", "nbytes"),
                Key(
                    "count",
                    COUNT,
                    "Elements, counted as nccl-tests does.",
                    get_in=lambda row, run: count_of(row, run.times),
                ),
                Key("type", TEXT, "The type of its elements.", type_of),
                Key("redop", TEXT, "The reduction, or `none`."),
                Key("root", INTEGER, "The root's rank; -1 for collectives without one."),
                Key("algorithm", TEXT, "The strategy."),
                Key("out_of_place", _BLOCK, "Results in other memory.", ITSELF),
                Key(
                    "in_place",
                    _BLOCK,
                    "The same: a simulation does not tell them apart.",
                    ITSELF,
                ),
            )
        ),
        "Every row, size by size.",
        "times.done",
    ),
    Key("end_time", TEXT, "When the command ended.", "ended"),
    Key(
        "out_of_bounds",
        Record(
            "out_of_bounds",
            "Wrong results of all rows.",
            Key("count", COUNT, "Wrong elements.", "wrong"),
            Key("okay", FLAG, "Whether there are none.", lambda run: run.wrong == 0),
        ),
        "Whether results are right.",
        ITSELF,
    ),
    Key(
        "average_bus_bandwidth",
        Record(
            "average_bus_bandwidth",
            "The mean of all rows.",
            Key(
                "bandwidth",
                GB_PER_SECOND,
                "Busbw; 0 without rows.",
                lambda run: average_busbw(run.times.done, run.times),
            ),
        ),
        "The mean busbw.",
        ITSELF,
    ),
)


def plain_name(row: Written) -> str:
    """The algorithm of a row without its size of chunks."""
    return str(row["algorithm"].split("+chunk=")[0])


def sizes_section(
    beside: Attachments, document: Written | None = None, today: str = ""
) -> Iterable[Section]:
    """Curves over size with the bound of the links, or bars of one size, and what the names mean;
    `today` is what runs today.
    """
    found = beside.sizes if document is None else document
    if found is None or not found["rows"]:
        return
    sizes = {row["size_bytes"] for row in found["rows"]}
    title, chart = (
        ("At one size", _at_one_size(found))
        if len(sizes) == 1
        else ("Over sizes", _over_sizes(found, today))
    )
    # Where curves stand beside a ranking, the names are explained there.
    names = names_block(row["algorithm"] for row in found["rows"]) if document else ()
    yield Section("sizes", title, (chart, *names))


def sizes_facet(found: Written, today: str = "", most: int | None = None) -> Facet:
    """Bus bandwidths over sizes, a curve for each of the first `most` strategies, and what no run
    of the best of these plans can exceed.
    """
    curves: dict[str, list[PlotPoint]] = {}
    bound: dict[int, float] = {}
    for row in found["rows"]:
        size, rate = row["size_bytes"], row["busbw_gb_per_s"] * 1e9
        curves.setdefault(plain_name(row), []).append(PlotPoint(size, rate))
        reach = rate * row["time_us"] / row["floor_us"] if row["floor_us"] else 0.0
        bound[size] = max(bound.get(size, 0.0), reach)
    series = [
        PlotSeries(
            f"{name} (runs today)" if name == today else name,
            sorted(points),
            colour="today" if name == today else "",
        )
        for name, points in list(curves.items())[:most]
    ]
    ends = [PlotPoint(size, rate) for size, rate in sorted(bound.items()) if rate]
    series.append(PlotSeries("highest bound of these plans", ends, "dotted", "", "ink"))
    return Facet(Axis("size", "bytes"), Axis("bus bandwidth", "bytes/s"), series)


def _over_sizes(found: Written, today: str) -> Chart:
    collective = found["collective"].replace("_", "-")
    words = (
        f"Bus bandwidth of one {collective} of one tensor over its size, on {found['topology']}. "
        "The dotted line is what no run of the best of these plans can exceed."
    )
    return Chart(words, sizes_facet(found, today, 6), ROW.table(found["rows"], on="html"))


def _at_one_size(found: Written) -> Chart:
    """Bars instead of curves of one point each."""
    shown = sorted(found["rows"], key=lambda row: float(row["time_us"]))[:15]
    best = _fastest(found["rows"])
    collective = found["collective"].replace("_", "-")
    size = units.format_size(shown[0]["size_bytes"])
    words = (
        f"Time of one {collective} of {size} on {found['topology']}. Blue: the fastest. The tick "
        "is what no run of the plan can take less than."
    )
    rows = [{**row, "name": plain_name(row)} for row in shown]
    marks = [int(row is best) for row in shown]
    table = ROW.table(found["rows"], on="html")
    return bars(words, table, rows, "name", "time_us", marks, "floor_us")


def bench_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce bench --json`."""
    rows = document["rows"]
    if not rows:
        raise InputError("it has no rows")
    largest = max(row["size_bytes"] for row in rows)
    at = [row for row in rows if row["size_bytes"] == largest]
    best, factor = _fastest(at), _factor(rows)
    size, collective = units.format_size(largest), document["collective"].replace("_", "-")
    name = plain_name(best)
    time, rate = took_of(best), f"{best['busbw_gb_per_s']:.1f} GB/s of bus bandwidth"
    answer = f"At {size}, {name} is the fastest of these: {time}, {rate}"
    other = min((row for row in at if row is not best), key=lasting_us, default=None)
    if other is None:
        answer = f"At {size}, {name} takes {time}: {rate}"
    elif lasting_us(other) < lasting_us(best):
        bound = f"{plain_name(other)} takes {us(other['time_us'])} at least, a lower bound"
        answer = f"At {size}, {name} is the fastest that is known: {time}, {rate}; {bound}"
    else:
        ratio = faster_than(lasting_us(best), lasting_us(other))
        answer += f", {ratio} {plain_name(other)}"
    at_least = best["floor_us"] / best["time_us"] if best["time_us"] else 0.0
    found = replace(beside, factor=factor)
    several = len({row["size_bytes"] for row in rows}) > 1
    first = "Fastest at the largest size" if several else "What is the fastest?"
    facts = (
        Fact(first, name, f"{time} for {size}."),
        *([Fact("Fastest at each size", *_by_size(rows))] if several else []),
        Fact("How sure is that?", *sure(factor)),
        Fact(
            "How near the bound?",
            f"{at_least:.0%}",
            f"No algorithm takes less than {us(best['floor_us'])} here, by its links.",
        ),
        Fact("Busiest link", best["bottleneck"] or "none", f"With {name} at {size}."),
    )
    ranks = units.plural(document["ranks"], "rank")
    return Page(
        title=f"{collective[0].upper()}{collective[1:]} on {document['topology']}: how fast?",
        about=f"{collective[0].upper()}{collective[1:]} of one tensor on {document['topology']}, "
        f"{ranks}. {units.plural(len(rows), 'run')} simulated, at "
        f"{units.plural(len({row['size_bytes'] for row in rows}), 'size')}.",
        answer=f"{answer}.",
        sure=caution(factor, document["calibration"]),
        facts=facts,
        sections=(
            *sizes_section(found, document),
            *machine_section(found),
            *path_section(found),
            *help_section(found),
            *calibration_section(found, document),
            *repeat_section(found, document),
        ),
    )


def _fastest(rows: Sequence[Written]) -> Written:
    """The fastest row with a time; with a lower bound if there are no others."""
    return min([row for row in rows if not row.get("lower_bound")] or rows, key=lasting_us)


def _by_size(rows: list[Written]) -> tuple[str, str]:
    """Which algorithms are the fastest, and where."""
    by_size: dict[int, list[Written]] = group_by(rows, lambda row: row["size_bytes"])
    best = {size: plain_name(_fastest(found)) for size, found in sorted(by_size.items())}
    turns = [(name, next(sizes)) for name, sizes in groupby(best, key=best.__getitem__)]
    if len(turns) == 1:
        return turns[0][0], "At every size."
    words = [f"{name} from {units.format_size(size)}" for name, size in turns]
    return f"{len({*best.values()})} algorithms", f"{'; '.join(words[:5])}."


def _factor(rows: list[Written]) -> float | None:
    """Of the largest size whose time has an interval."""
    known = [row for row in rows if row["time_us"] and row.get("low_us")]
    row = max(known, key=lambda row: row["size_bytes"], default=None)
    return max(row["high_us"] / row["time_us"], row["time_us"] / row["low_us"]) if row else None
