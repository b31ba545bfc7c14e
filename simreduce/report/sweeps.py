"""Sweeps as text and documents: what was computed, tables of rows, pivots.

Also `simreduce compare`: what changed between two sweeps, and what each of two orders of nodes
gives beside the best that was found.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from simreduce import units
from simreduce.computing import group_by
from simreduce.errors import InputError, cut, did_you_mean, load_extra, quote
from simreduce.files import tables
from simreduce.files.formats.documents import (
    COUNT,
    FLAG,
    INTEGER,
    PLAIN,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    number_in,
    one_of,
    or_null,
)
from simreduce.files.tables import Column, Table, table_of
from simreduce.planners.nccl import nominal_text
from simreduce.report.blocks import Fact, Page, Written, first_rows, page_text, table_section
from simreduce.report.jobs import HOSTS_SHOWN, QUESTION, best_order, bracketed, percent
from simreduce.study.sweep import (
    COLUMNS,
    FACTORS,
    KINDS,
    RUN,
    STEP,
    UNITS,
    column_of,
    format_figure,
)
from simreduce.study.sweep.running import CellChange, Comparison, Winner
from simreduce.study.sweep.store import OF_ROWS, Store, Sweep, quoted
from simreduce.version import __version__

_LEFT_OUT: Mapping[str, Collection[str]] = {RUN: ("busbw",), STEP: ("low", "high", "bound")}
"""Figures that tables on terminals do without, by what was asked."""
_MOST_REASONS = 10


def sweep_text(
    sweep: Sweep,
    path: str,
    counts: Mapping[str, int],
    rows: Iterable[Mapping[str, Any]],
    *,
    ended: str = "",
) -> str:
    """How many cells have which state, and why some have no answer."""
    nominal, rows = _nominal(sweep), [*rows]
    kernels = dict.fromkeys(row.get("constants") for row in rows if row["state"] == "done")
    unlike = "; ".join(filter(None, kernels)) if len(kernels) > 1 else ""
    lines = [
        f"simreduce {__version__}: sweep {sweep.id}, {sweep.name}: {_count(sweep.cells)}",
        f"  {path}: {_states(counts)}",
        *[f"  {nominal}"] * bool(nominal),
        *[f"  not compared by like constants: {unlike}"] * bool(unlike),
    ]
    failed = (row for row in rows if row["state"] not in ("done", "waiting"))
    reasons = group_by(failed, lambda row: (row["state"], row["reason"]))
    for (state, reason), (row, *others) in [*reasons.items()][:_MOST_REASONS]:
        cell = " ".join(f"{key}={row[key]}" for key in sweep.keys if key in row)
        more = f" and {len(others)} more" if others else ""
        lines += [f"  {state.replace('_', ' ')}: {cell}{more}:", f"    {reason}"]
    if len(reasons) > _MOST_REASONS:
        lines.append(f"  and {len(reasons) - _MOST_REASONS} more reasons: simreduce table {path}"
                     " --where \"state <> 'done'\"")  # fmt: skip
    return "\n".join([*lines, *filter(None, [ended])])


def _count(cells: int) -> str:
    return f"{cells:,} {units.noun(cells, 'cell')}"


def _states(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {s.replace('_', ' ')}" for s, n in counts.items()) or "nothing"


_OF_KEYS = ("update",)
"""Columns that a key of a step may replace, with values of its own."""
ROW = Record(
    "row",
    "A cell: its keys by their names, figures in SI units, and where they come from. A figure that "
    "does not apply is null. `table --columns` and `--pivot` choose what there is.",
    *(
        replace(
            key, kind=PLAIN if key.name in _OF_KEYS else or_null(key.kind), get="", optional=True
        )
        for key in COLUMNS.keys
    ),
    Key("version", or_null(TEXT), "The simreduce that computed it.", optional=True),
    Key("calibration", or_null(TEXT), "The constants that times come from.", optional=True),
    Key("calibration_digest", or_null(TEXT), "Names their content.", optional=True),
    Key("digest", or_null(TEXT), "Names the question: equal ones share a row.", optional=True),
    Key("taken", or_null(SECONDS), "What it took to compute.", optional=True),
    Key("finished", or_null(TEXT), "When, in UTC, as ISO 8601 has it.", optional=True),
    Key("cells", COUNT, "With `--group`: the cells of which this is the best.", optional=True),
    others=PLAIN,
    order="job slowdown by_failure worst seconds alone fairness low high exposed efficiency"
    " samples_per_second gradients_per_second dropped busbw method chosen bound",
)
"""Also the columns of CSV and Parquet, where null is an empty cell."""
SWEEP = Document(
    "sweep",
    "`simreduce sweep --json` and `simreduce table --json`: the cells of a sweep.",
    Key("topology", or_null(TEXT), "The machine of all rows; null if they differ."),
    Key("topology_digest", or_null(TEXT), "Names its content; null if machines differ."),
    Key("database", TEXT, "The file."),
    Key("sweep", INTEGER, "The number of the sweep there."),
    Key("name", TEXT, "Its name."),
    Key("kind", one_of(*KINDS), "What a cell asks: as `bench`, `run`, `step` or `jobs`."),
    Key("started", TEXT, "When it began, in UTC, as ISO 8601 has it."),
    Key("keys", list_of(TEXT), "The keys that vary."),
    Key("states", map_of(COUNT), "How many cells have each state."),
    Key("rows", list_of(ROW), "The cells, in the order of the sweep unless it is sorted."),
    Key("complete", FLAG, "False if the command was stopped, or if cells wait."),
)


def sweep_document(
    sweep: Sweep, path: str, counts: Mapping[str, int], rows: Sequence[Mapping[str, Any]],
    *, complete: bool,
) -> dict[str, Any]:  # fmt: skip
    """The document of `sweep --json`, and of `table --json`: `SWEEP`."""
    digests = {row.get("topology_digest") for row in rows} - {None}
    names = {row.get("topology") for row in rows} - {None}
    return {
        **SWEEP.head(),
        "version": sweep.version,
        "topology": names.pop() if len(names) == 1 else None,
        "topology_digest": digests.pop() if len(digests) == 1 else None,
        "database": path,
        "sweep": sweep.id,
        "name": sweep.name,
        "kind": sweep.kind,
        "started": sweep.started,
        "keys": list(sweep.keys),
        "states": dict(counts),
        "rows": [dict(row) for row in rows],
        "complete": complete,
    }


def count_states(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many rows have each state, most first."""
    return dict(Counter(row["state"] for row in rows).most_common())


def query(
    columns: Sequence[str],
    *,
    where: str | None = None,
    group: Sequence[str] = (),
    by: str = "seconds",
    sort: Sequence[str] = (),
    limit: int | None = None,
) -> str:
    """The query of `columns` of the view `sweep`. Of each group of equal values, it takes the row
    with the least `by`, or with `-NAME` the greatest, of those that are done.

    InputError for columns that there are not.
    """
    known = [*columns, "cells"] if group else [*columns]
    ordered = [(name.removeprefix("-"), name.startswith("-")) for name in sort]
    best, most = by.removeprefix("-"), by.startswith("-")
    check_columns([*group, best, *(name for name, _ in ordered)], known)
    shown = ", ".join(map(quoted, columns))
    conditions = [f"({where})"] if where else []
    conditions += ["state = 'done'"] if group else []
    text = f"SELECT {shown} FROM sweep"  # noqa: S608 - the user's own file, opened to read
    if conditions:
        text += f" WHERE {' AND '.join(conditions)}"
    if group:
        inner = ", ".join(map(quoted, group))
        order = f"{quoted(best)} IS NULL, {quoted(best)}{' DESC' if most else ''}"
        text = (
            f"SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY {inner} ORDER BY {order})"  # noqa: S608
            f" AS place_, count(*) OVER (PARTITION BY {inner}) AS cells FROM ({text}))"
            " WHERE place_ = 1"
        )
    if ordered:
        names = (f"{quoted(name)}{' DESC' if down else ''}" for name, down in ordered)
        text += f" ORDER BY {', '.join(names)}"
    return text if limit is None else f"{text} LIMIT {limit}"


def check_columns(names: Iterable[str], known: Sequence[str]) -> None:
    """InputError for each name that is no column."""
    problems = [
        f"no column {name!r}{did_you_mean(name, known) or '; there are ' + ', '.join(known)}"
        for name in dict.fromkeys(names)
        if name not in known
    ]
    if problems:
        raise InputError(problems)


def first_columns(sweep: Sweep, rows: Sequence[Mapping[str, Any]], *, group: bool) -> list[str]:
    """What a table shows unless it is told: keys, then figures that there are, all if there is no
    row; the state and the reason where some rows have no figures.
    """
    names = dict.fromkeys(key for key in sweep.keys if not rows or key in rows[0])
    left_out = _LEFT_OUT.get(sweep.kind, ())
    names |= dict.fromkeys(name for name, _ in ROW.columns() if name not in left_out)
    found = [name for name in names if not rows or any(row.get(name) is not None for row in rows)]
    if any(row["state"] != "done" for row in rows):
        found += ["state", "reason"]
    return [*found, "cells"] if group else found


def rows_table(
    names: Sequence[str], rows: Iterable[Mapping[str, Any]], *, all_names: bool = False
) -> Table:
    """Rows as a table for people: times in ms, rates in GB/s. With `all_names`, a narrow page
    leaves none of them out.
    """
    kept = list(rows)
    return table_of([_column(name, kept, always=all_names) for name in names], kept)


def _column(
    name: str, rows: Sequence[Mapping[str, Any]], of: str = "", *, always: bool = True
) -> tuple[str, Column]:
    """A column of these rows with values of the column `of`, its own unless another is given."""
    key = of or name
    declared = dict(ROW.columns()).get(key) or column_of(key, UNITS.get(key, ""))
    left = any(isinstance(row[name], str) for row in rows)
    spare = 0 if always else declared.spare
    return name, replace(declared, name=name if of else declared.name, left=left, spare=spare)


def pivot(
    rows: Iterable[Mapping[str, Any]], down: str, across: str, value: str
) -> tuple[list[str], list[dict[str, Any]]]:
    """A row for each value of `down`, a column for each of `across`, with `value` in the cells: of
    several, that of the row that comes first.
    """
    found: dict[Any, dict[Any, Any]] = {}
    heads: dict[Any, None] = {}
    for row in rows:
        heads.setdefault(row[across])
        found.setdefault(row[down], {}).setdefault(row[across], row[value])
    names = [down, *(str(head) for head in heads)]
    return names, [
        {down: place, **{str(head): cells.get(head) for head in heads}}
        for place, cells in found.items()
    ]


def pivot_table(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], across: str, value: str
) -> Table:
    """A pivot for people, with the unit of its values."""
    down = names[0]
    first = replace(_column(down, rows)[1], unit=f"{across}:")
    return table_of([(down, first), *(_column(name, rows, of=value) for name in names[1:])], rows)


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV, in SI units, with every digit."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row[name] for name in names] for row in rows)
    return file.getvalue()


def parquet_bytes(sweep: Sweep, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as a Parquet file. Columns have the types of the database, also without a value, and
    those with a unit have it in the metadata of their field; the sweep is in that of the file.
    InputError without pyarrow.
    """
    need = "Parquet needs pyarrow: pip install 'simreduce[parquet]'"
    pa, parquet = load_extra("pyarrow", need), load_extra("pyarrow.parquet", need)
    typed = {"TEXT": pa.string(), "INTEGER": pa.int64(), "REAL": pa.float64()}
    fields, columns = [], []
    for name in names:
        values = [row[name] for row in rows]
        kind = typed[_kind(name, values, sweep)]
        if kind == pa.string():
            values = [None if value is None else str(value) for value in values]
        columns.append(pa.array(values, kind))
        unit = {**UNITS, "taken": "s", "size": "B", "bytes": "B"}.get(name, "1")
        fields.append(pa.field(name, kind, metadata={"unit": unit} if unit != "1" else None))
    about = {"version": sweep.version, "kind": sweep.kind, "started": sweep.started}
    text = json.dumps(about | {"specification": dict(sweep.specification)})
    schema = pa.schema(fields, metadata={"simreduce": text})
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_arrays(columns, schema=schema), sink)
    return bytes(sink.getvalue())


def _kind(name: str, values: Iterable[object], sweep: Sweep) -> str:
    """The type of a column in SQL: as the database has it, and for keys what their values need."""
    if name in OF_ROWS and name not in sweep.keys:
        return OF_ROWS[name].partition(" ")[0]
    kinds = {type(value) for value in values} - {type(None)}
    if str in kinds:
        return "TEXT"
    return "REAL" if float in kinds else "INTEGER"


def _nominal(sweep: Sweep) -> str:
    return nominal_text([str(sweep.specification)])


def table_lines(
    store: Store,
    sweep: Sweep,
    table: Table,
    counts: Mapping[str, int],
    most: int | None = None,
) -> list[str]:
    """A table, or its first `most` rows, under a head that says where it is from."""
    calibrations = store.select(
        "SELECT DISTINCT calibration FROM sweep WHERE calibration IS NOT NULL ORDER BY 1"
    )[1]
    several = [str(name) for (name,) in calibrations]
    about = [
        f"simreduce {sweep.version}: sweep {sweep.id}, {sweep.name}: {_count(sweep.cells)}",
        f"{_states(counts)}; calibration {', '.join(several[:4]) or 'unknown'}",
    ]
    about += [nominal] if (nominal := _nominal(sweep)) else []
    how = f"--limit {len(table.rows)} shows them"
    lines = [*tables.comments(about), *first_rows(table, most, how, 0, comment=True)]
    return lines if table.rows else [*lines, "# no row"]


_MOST = 12


def compared_text(both: ComparedSweeps) -> str:
    """Both sweeps, how many answers changed and by how much, the largest changes, and winners."""
    found = both.found
    figure, factor = found.figure, found.figure in FACTORS
    head = tables.header(
        "simreduce compare: which answers changed",
        [
            (word, f"{name}: {sweep.name}, {sweep.version}, {sweep.started[:10]}")
            for word, (name, sweep) in zip(("first", "second"), both.files, strict=True)
        ],
    )
    facts = [
        Fact(f"And only in the {word}?", units.plural(number, "more cell"))
        for number, word in zip(found.only, ("first", "second"), strict=True)
        if number
    ]
    if found.ratios:
        low, middle, high = (found.ratios[i] for i in (0, len(found.ratios) // 2, -1))
        words = f"{figure if factor else 'time'} of the second over the first: "
        facts.append(Fact("By how much?", f"{words}{low:.4g} to {high:.4g}, median {middle:.4g}"))
    best = f"{'Best' if factor else 'Fastest'} {found.chosen}"
    flips = f"{best}: {len(found.flipped)} of {found.questions} changed"
    facts += [Fact("Are other choices best?", flips)] * bool(found.chosen)
    chosen = [key for key in found.keys if key != found.chosen]
    page = Page(
        title="",
        about="",
        answer=f"{units.plural(found.both, 'cell')} in both, {len(found.changed)} changed",
        sure="",
        facts=tuple(facts),
        sections=(
            *table_section(
                "changes", "Changes", "The largest changes",
                _table(found.keys, "change", [
                    (*each.place, *_figures(figure, each), each.reason[:60]
                     if None in each.figures else f"{each.ratio - 1.0:+.2%}")
                    for each in found.changed
                ]),
            ),
            *table_section(
                "winners", "Winners", f"Where another {found.chosen} is the best",
                _table(chosen, f"now {'worse' if factor else 'slower'} by", [
                    (*each.place, *each.choice, f"{each.worth:.2%}") for each in found.flipped
                ]),
            ),
        ),
    )  # fmt: skip
    warnings = [f"Warning: {warning}." for warning in found.warnings]
    return page_text(page, warnings, head=head, most=_MOST)


def _table(keys: Sequence[str], last: str, rows: Sequence[Sequence[Any]]) -> Table:
    """A row for each place, with what the first and the second sweep have there."""
    left = "|".join([*keys, "first", "second"])
    cells = (tuple("" if value is None else str(value) for value in row) for row in rows)
    return Table(tables.columns(f"{left}|{last}", left=left), tuple(cells))


def _figures(name: str, each: CellChange) -> list[str]:
    return [
        state if value is None else format_figure(name, value)
        for state, value in zip(each.states, each.figures, strict=True)
    ]


class ComparedSweeps(NamedTuple):
    """What changed between two sweeps, each with the name of its file."""

    found: Comparison
    files: Sequence[tuple[str, Sweep]]


def _cell_of(each: CellChange | Winner, of: ComparedSweeps) -> dict[str, Any]:
    """The values of the keys that vary; of a winner, without the key that is chosen."""
    keys = of.found.keys
    if isinstance(each, Winner):
        keys = tuple(key for key in keys if key != of.found.chosen)
    return dict(zip(keys, each.place, strict=True))


_CELL = Key("cell", map_of(PLAIN), "The values of the keys that vary.", get_in=_cell_of)
COMPARE = Document(
    "compare",
    "`simreduce compare --json`: what changed between two sweeps. Pairs have the first sweep's "
    "value, then the second's.",
    Key(
        "sweeps",
        list_of(
            Record(
                "sweep",
                "A sweep.",
                Key("file", TEXT, "Its database.", "0"),
                Key("sweep", INTEGER, "Its number there.", "1.id"),
                Key("name", TEXT, "Its name.", "1.name"),
                Key("version", TEXT, "The version of simreduce that began it.", "1.version"),
                Key("started", TEXT, "When it began, in UTC, as ISO 8601 has it.", "1.started"),
            ),
            2,
        ),
        "Both sweeps.",
        "files",
    ),
    Key(
        "figure",
        TEXT,
        "What is compared: `seconds`, or of jobs `slowdown`, then also under names of times.",
        "found.figure",
    ),
    Key("keys", list_of(TEXT), "The keys that vary, by which cells are matched.", "found.keys"),
    Key("cells", COUNT, "Cells in both.", "found.both"),
    Key("only", list_of(COUNT, 2), "Cells in one of the two only.", "found.only"),
    Key(
        "changed",
        list_of(
            Record(
                "change",
                "A cell whose time or state changed.",
                _CELL,
                Key("states", list_of(TEXT, 2), "Its states."),
                Key(
                    "seconds",
                    list_of(or_null(SECONDS), 2),
                    "Its times, or of jobs its slowdowns; null if it has none.",
                    "figures",
                ),
                Key("reason", TEXT, 'Why it has none; "" else.'),
            )
        ),
        "Cells that changed, largest change first.",
        "found.changed",
    ),
    Key(
        "warnings",
        list_of(TEXT),
        "What a library is slow at on a machine, or what makes its times less sure.",
        "found.warnings",
    ),
    Key(
        "chosen",
        TEXT,
        'The key whose fastest value is compared; "" for none.',
        "found.chosen",
    ),
    Key(
        "questions",
        COUNT,
        "Values of the other keys with a fastest one in both.",
        "found.questions",
    ),
    Key(
        "flipped",
        list_of(
            Record(
                "winner",
                "Values of the other keys whose fastest one changed.",
                _CELL,
                Key("choice", list_of(PLAIN, 2), "The fastest."),
                Key(
                    "earlier_s",
                    list_of(SECONDS, 2),
                    "Times of the first sweep's fastest.",
                    "earlier",
                ),
                Key(
                    "later_s",
                    list_of(SECONDS, 2),
                    "Times of the second sweep's fastest.",
                    "later",
                ),
                Key(
                    "slower",
                    RATIO,
                    "The part that the first's fastest is slower in the second.",
                    "worth",
                ),
            )
        ),
        "Where the fastest changed.",
        "found.flipped",
    ),
)
"""Of `ComparedSweeps`."""


_COMMAND = "simreduce tune --placement --json"


@dataclass(frozen=True, slots=True)
class ComparedOrders:
    """Orders of nodes of two results of the same `question`: the best that either found, then the
    given one of each, with its file and its speed beside the best.
    """

    question: Written
    orders: Sequence[Mapping[str, Any]]
    complete: bool


def compare_orders(files: Sequence[str], results: Sequence[Written]) -> ComparedOrders:
    """Compare the given orders of two results of the same question; that no order is faster is
    known where both are of the same nodes. InputError says by which keys
    they are of different ones, and what they lack.
    """
    one, other = results
    problems = [
        f"{files[1]}: its {key} is {quote(str(other.get(key)))}, not {quote(str(one.get(key)))}"
        for key in QUESTION
        if one.get(key) != other.get(key)
    ]
    if problems:
        raise InputError(problems)
    found = [_rows(file, result) for file, result in zip(files, results, strict=True)]
    best = min((each["best"] for each in found), key=lambda row: float(row["time_us"]))
    nodes = [{*each["given"]["nodes"], *each["best"]["nodes"]} for each in found]
    complete = all(result.get("complete") for result in results) and nodes[0] == nodes[1]
    orders = [
        {**row, "order": name, "speed": best["time_us"] / row["time_us"]}
        for name, row in zip(
            ("best", "first", "second"), (best, *(each["given"] for each in found)), strict=True
        )
    ]
    return ComparedOrders(one, orders, complete)


def _rows(file: str, result: Written) -> dict[str, dict[str, Any]]:
    """The best and the given order of a result, by name. InputError if it has no time of one."""
    try:
        rows = {each["order"]: each for each in result["orders"] if each["time_us"]}
        return {
            name: {
                **{key: rows[name][key] for key in ("time_us", "switch_changes", "nodes")},
                "shown": cut(bracketed(result["switches"], rows[name]["nodes"]), HOSTS_SHOWN),
                "file": file,
            }
            for name in ("best", "given")
        }
    except KeyError as error:
        raise InputError(f"{file}: lacks {error.args[0]!r} of {_COMMAND}") from None


def compared_orders_text(found: ComparedOrders) -> str:
    """The answer, and the three orders."""
    asked = found.question
    head = tables.header(
        "simreduce compare: what an order of nodes costs",
        [
            ("topology", f"{asked.get('topology')}, {asked.get('topology_digest')}"),
            ("workload", f"{asked.get('workload')}, {asked.get('strategy')}"),
            ("calibration", str(asked.get("calibration"))),
            ("disturbed", str(asked.get("disturbance") or "")),
        ],
    )
    rows = [COMPARED_ORDER.row(each) for each in found.orders]
    return "\n".join([*head, _answer(found), "", *COMPARED_ORDER.table(rows).lines()])


def _answer(found: ComparedOrders) -> str:
    _, one, other = found.orders
    return (
        f"the order of {one['file']} runs at {percent(one['speed'])} of the speed of"
        f" {best_order(complete=found.complete)}; that of {other['file']} gives"
        f" {percent(other['speed'])}"
    )


COMPARED_ORDER = Record(
    "compared_order",
    "An order of nodes.",
    Key("order", one_of("best", "first", "second"), "The best that either result found, or the"
        " given order of the first or the second.", column=Column("order", left=True)),
    Key("file", TEXT, "The result that has it.", column=Column("of", left=True)),
    Key("time_us", number_in("us"), "Time of a step or an all-reduce.",
        column=Column("time", "(ms)")),
    Key("speed", RATIO, "The time of the best over its own.",
        column=Column("best = 1", show="{:.3f}".format)),
    Key("switch_changes", COUNT, "How often the next node in the order, the first after the last,"
        " shares no switches.", column=Column("changes of switch")),
    Key("nodes", list_of(TEXT), "The nodes in the order of their ranks."),
    Key("shown", TEXT, "The nodes; those that share switches are in brackets.",
        column=Column("nodes", left=True), written=False),
)  # fmt: skip
COMPARED_ORDERS = Document(
    "compared_orders",
    "`simreduce compare --json` of two results of `simreduce tune --placement` or `simreduce topo"
    " place`: what the given order of each gives beside the best that either found.",
    Key("topology", TEXT, "The name of the machine.", "question.topology"),
    Key("workload", TEXT, "The name of what is reduced or trained.", "question.workload"),
    Key("strategy", TEXT, "What runs on the nodes.", "question.strategy"),
    Key("calibration", TEXT, "The constants of the times.", "question.calibration"),
    Key("answer", TEXT, "The answer in a sentence.", _answer),
    Key("complete", FLAG, "Whether no order is faster than the best."),
    Key("orders", list_of(COMPARED_ORDER, 3), "The best order, then the two given ones."),
    command="compare",
)  # fmt: skip
