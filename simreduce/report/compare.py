"""`simreduce compare`: what changed between two sweeps, as text and as a document.

`simreduce compare` of two orders of nodes: what each gives beside the best that was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simreduce import units
from simreduce.errors import InputError, quote
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
from simreduce.files.tables import Column, Table
from simreduce.report.blocks import Fact, Page, Written, page_text, table_section
from simreduce.report.placement import QUESTION, best_order, cut, grouped, percent
from simreduce.study.sweep import Sweep
from simreduce.study.sweep.cells import FACTORS, format_figure
from simreduce.study.sweep.compare import CellChange, Comparison, Winner

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
                    (*each.place, *_figures(figure, each), _percent(each))
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


def _percent(each: CellChange) -> str:
    return each.reason[:60] if None in each.figures else f"{each.ratio - 1.0:+.2%}"


class ComparedSweeps(NamedTuple):
    """Two sweeps with the names of their files, and what changed between them."""

    found: Comparison
    sweeps: tuple[Sweep, Sweep]
    names: tuple[str, str]

    @property
    def files(self) -> list[tuple[str, Sweep]]:
        """Each file with its sweep."""
        return [*zip(self.names, self.sweeps, strict=True)]


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
        "What a library is slow at on a machine, or whose constants its times have.",
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
                "shown": cut(grouped(result["switches"], rows[name]["nodes"])),
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
