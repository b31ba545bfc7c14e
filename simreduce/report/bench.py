"""`simreduce bench`: nccl-tests' table and our document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simreduce import dtypes, tables, units
from simreduce.algorithms import COLLECTIVES
from simreduce.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    one_of,
    or_null,
)
from simreduce.report.heads import CALIBRATION_KEY, DISTURBANCE_KEY, one_runtime, with_runtimes
from simreduce.tables import Column, Table
from simreduce.tune.bench import DIVIDED, BenchRow, Bounded, Entry, Stuck
from simreduce.tune.busbw import algbw, busbw

Row = BenchRow | Stuck | Bounded

_TYPES = {"float32": "float", "float16": "half", "float64": "double", "bfloat16": "bfloat16"}
_COLUMNS = (
    Column("size", "(B)", width=12),
    Column("count", "(elements)", width=12, spare=5),
    Column("type", width=8, spare=6),
    Column("redop", width=6, spare=9),
    Column("root", width=6, spare=8),
    Column("time", "(us)", width=7),
    Column("algbw", "(GB/s)", spare=2),
    Column("busbw", "(GB/s)"),
    Column("#wrong", spare=1),
    Column("floor", "(us)", width=6, spare=4),
    Column("transfers", spare=7),
    Column("runtime", left=True, spare=3),
    Column("algorithm, busiest link", left=True),
)


def folded_lines(rows: Sequence[Row]) -> list[str]:
    """Says for which rows one of many equal machines was simulated, or a part was proved."""
    done, _ = split_stuck(rows)
    found = dict.fromkeys((r.machines, r.proved_on) for r in done if r.machines > 1)
    some = "" if all(r.machines > 1 for r in done) else " (where machines do the same)"
    parts = [
        f"#wrong of {r.algorithm} at {r.nbytes} B is found in {r.proved:.2%} of the elements: "
        "stretches of them, evenly spread"
        for r in done
        if r.proved < 1.0
    ]
    return parts + [
        f"folded{some}: one of {machines} equal machines is simulated; "
        f"#wrong is proved on {proved_on} of them"
        for machines, proved_on in found
    ]


def bench_table(
    rows: Sequence[Row], ranks: int, about: Sequence[str], *, complete: bool = True
) -> str:
    """nccl-tests' columns in its places, ours to the right; the last line says if the run is not
    `complete`.
    """
    lines = [*tables.comments(about), *bench_rows(rows, ranks).lines(comment=True)]
    done, stuck = split_stuck(rows)
    wrong = sum(r.wrong for r in done)
    lines.append(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    if stuck:
        lines.append(f"# Can never finish     : {len(stuck)} FAILED")
    lines.append(f"# Avg bus bandwidth    : {_best_average(done, ranks)}")
    bounded = sum(isinstance(r, Bounded) for r in rows)
    if bounded:
        lines.append(
            f"# {units.plural(bounded, 'row')} with >= may take longer, and another is faster at "
            "that size (--all simulates them to the end)"
        )
    if not complete:
        lines.append("# stopped before all sizes were simulated")
    return "\n".join(lines)


def bench_rows(rows: Sequence[Row], ranks: int) -> Table:
    """A row per size and algorithm."""
    table = Table(_COLUMNS, tuple(_cells(r, ranks) for r in rows))
    return with_runtimes(table, (r.runtime for r in rows))


def split_stuck(rows: Sequence[Row]) -> tuple[list[BenchRow], list[Stuck]]:
    """Rows that end, and rows that never do."""
    return [r for r in rows if isinstance(r, BenchRow)], [r for r in rows if isinstance(r, Stuck)]


def preview_lines(rows: Sequence[Row]) -> list[str]:
    """The fastest row of each size so far."""
    best: dict[int, BenchRow] = {}
    for r in rows:
        if isinstance(r, BenchRow) and (r.nbytes not in best or r.seconds < best[r.nbytes].seconds):
            best[r.nbytes] = r
    return [
        f"{size:12} B {_cell(r.seconds * 1e6)} us  {r.algorithm}"
        for size, r in sorted(best.items())
    ]


def _cells(r: Row, ranks: int) -> tuple[str, ...]:
    question = (str(r.nbytes), str(count_of(r, ranks)), type_of(r), r.redop, str(r.root))
    if isinstance(r, Bounded):
        known = f">={_cell(r.seconds * 1e6)}"
        return (*question, known, *"-----", r.runtime, f"{r.algorithm}, {r.reason}")
    if isinstance(r, Stuck):
        return (*question, *"------", r.runtime, f"{r.algorithm} failed: {r.reason}")
    return (
        *question,
        _cell(r.seconds * 1e6),
        _cell(algbw(r.nbytes, r.seconds) / 1e9, 6),
        _cell(busbw(r.nbytes, r.seconds, ranks, r.collective) / 1e9, 6),
        str(r.wrong),
        _cell(r.floor_seconds * 1e6),
        str(r.transfers),
        r.runtime,
        r.algorithm + (f", {r.link} {r.link_share:.0%}" if r.link else "") + _interval(r),
    )


def _interval(r: BenchRow) -> str:
    """The 80 % interval of the time, where there is one."""
    if r.interval is None:
        return ""
    low, high = (_cell(end * 1e6) for end in r.interval)
    return f", {low} to {high} us"


def count_of(row: Entry, ranks: int) -> int:
    """nccl-tests' count: the elements of one rank's part where ranks have parts."""
    return row.count // ranks if row.collective in DIVIDED else row.count


def type_of(row: Entry) -> str:
    name = dtypes.NAMES[row.dtype]
    return _TYPES.get(name, name)


def _cell(value: float, width: int = 7) -> str:
    """Two decimals, fewer when the cell is full."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return text


def _best_average(rows: Sequence[BenchRow], ranks: int) -> str:
    """nccl-tests' last figure: of several algorithms the highest average, because one over all
    would describe none of them.
    """
    by_name: dict[str, list[BenchRow]] = {}
    for row in rows:
        by_name.setdefault(row.strategy or row.algorithm, []).append(row)
    found = {name: average_busbw(mine, ranks) for name, mine in by_name.items()}
    best = max(found, key=found.__getitem__, default="")
    if len(found) < 2:
        return f"{found.get(best, 0.0):g}"
    chunks = {row.algorithm for row in by_name[best]}
    name = chunks.pop() if len(chunks) == 1 else best
    return f"{found[best]:g} ({name}, the highest of {len(found)} algorithms)"


def average_busbw(rows: Sequence[BenchRow], ranks: int) -> float:
    return (
        sum(busbw(r.nbytes, r.seconds, ranks, r.collective) for r in rows) / len(rows) / 1e9
        if rows
        else 0.0
    )


_TENSOR = (
    Key("size_bytes", BYTES, "The tensor, rounded down to whole elements and equal parts."),
    Key("count", COUNT, "Elements, counted as nccl-tests does."),
    Key("type", TEXT, "The type of its elements, as nccl-tests writes it."),
    Key("redop", TEXT, "The reduction: `sum`, or `none` of collectives that add nothing."),
    Key("algorithm", TEXT, "The strategy."),
    Key("runtime", TEXT, "The system that runs it."),
)
BENCH = Document(
    "bench",
    "`simreduce bench --json`: the time of one collective by size and strategy.",
    Key("topology", TEXT, "The name of the machine."),
    Key("ranks", COUNT, "GPUs that take part."),
    Key("runtime", TEXT, "The runtime of all rows, or `by_strategy` if they differ."),
    CALIBRATION_KEY,
    Key("collective", one_of(*COLLECTIVES), "What is done."),
    DISTURBANCE_KEY,
    Key(
        "rows",
        list_of(
            Record(
                "row",
                "A strategy at a size.",
                *_TENSOR,
                Key("time_us", MICROSECONDS, "One collective."),
                Key("algbw_gb_per_s", GB_PER_SECOND, "Size over time."),
                Key("busbw_gb_per_s", GB_PER_SECOND, "Algbw times nccl-tests' factor."),
                Key("wrong", COUNT, "Elements whose result is wrong."),
                Key(
                    "low_us",
                    or_null(MICROSECONDS),
                    "The lower end of the time's 80 % interval; null if nothing is known of "
                    "errors.",
                ),
                Key("high_us", or_null(MICROSECONDS), "The upper end of that interval, or null."),
                Key("floor_us", MICROSECONDS, "The least time that any schedule takes."),
                Key("bottleneck", TEXT, 'The busiest link; "" if nothing moves.'),
                Key("transfers", COUNT, "Copies between devices."),
                Key(
                    "folded_machines",
                    COUNT,
                    "Equal machines of which one was simulated for all; 1: none.",
                ),
                Key("proved", RATIO, "The part of the elements among which wrong ones are sought."),
            )
        ),
        "Every row that was simulated to its end, size by size.",
    ),
    Key(
        "failed",
        list_of(
            Record(
                "failed",
                "A plan that never finishes.",
                Key("size_bytes", BYTES, "The tensor."),
                Key("algorithm", TEXT, "The strategy."),
                Key("reason", TEXT, "Why it is stuck."),
            )
        ),
        "Plans that never finish.",
    ),
    Key(
        "bounded",
        list_of(
            Record(
                "bounded",
                "A size of a strategy that was not simulated to its end, as another is faster.",
                Key("size_bytes", BYTES, "The tensor."),
                Key("algorithm", TEXT, "The strategy."),
                Key("runtime", TEXT, "The system that runs it."),
                Key("at_least_us", MICROSECONDS, "What it takes at least."),
                Key("reason", TEXT, "Why it takes as long."),
            )
        ),
        "Rows that cannot be the fastest of their size.",
    ),
    Key("complete", FLAG, "False if the command was stopped and rows are missing."),
)


def bench_document(
    rows: Sequence[Row], ranks: int, topology: str, runtime: str, calibration: str,
    collective: str = "all_reduce", disturbance: str = "", *, complete: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The document of `--json`: `BENCH`.

    A plan that never finishes has no time, so it stands under `failed`; one that was not simulated
    to its end stands under `bounded`.
    """
    done, stuck = split_stuck(rows)
    return {
        **BENCH.head(),
        "topology": topology,
        "ranks": ranks,
        "runtime": one_runtime((r.runtime for r in rows), runtime),
        "calibration": calibration,
        "collective": collective,
        "disturbance": disturbance,
        "rows": [
            {
                "size_bytes": r.nbytes,
                "count": count_of(r, ranks),
                "type": type_of(r),
                "redop": r.redop,
                "algorithm": r.algorithm,
                "runtime": r.runtime,
                "time_us": r.seconds * 1e6,
                "algbw_gb_per_s": algbw(r.nbytes, r.seconds) / 1e9,
                "busbw_gb_per_s": busbw(r.nbytes, r.seconds, ranks, r.collective) / 1e9,
                "wrong": r.wrong,
                "low_us": r.interval and r.interval[0] * 1e6,
                "high_us": r.interval and r.interval[1] * 1e6,
                "floor_us": r.floor_seconds * 1e6,
                "bottleneck": r.link,
                "transfers": r.transfers,
                "folded_machines": r.machines,
                "proved": r.proved,
            }
            for r in done
        ],
        "failed": [
            {"size_bytes": r.nbytes, "algorithm": r.algorithm, "reason": r.reason} for r in stuck
        ],
        "bounded": [
            {
                "size_bytes": r.nbytes,
                "algorithm": r.algorithm,
                "runtime": r.runtime,
                "at_least_us": r.seconds * 1e6,
                "reason": r.reason,
            }
            for r in rows
            if isinstance(r, Bounded)
        ],
        "complete": complete,
    }
