"""`simreduce compare` of two orders of nodes: what each gives beside the best that was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simreduce.errors import InputError, quote
from simreduce.files import tables
from simreduce.files.formats.documents import (
    COUNT,
    FLAG,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    number_in,
    one_of,
)
from simreduce.files.tables import Column
from simreduce.report.blocks import Written
from simreduce.report.placement import QUESTION, best_order, cut, grouped, percent

_COMMAND = "simreduce tune --placement --json"


@dataclass(frozen=True, slots=True)
class ComparedOrders:
    """The given orders of two results, each with its `file`, and the `best` that either found; as
    results have them. `question` has what they have in common.
    """

    question: Written
    best: Mapping[str, Any]
    given: Sequence[Mapping[str, Any]]
    complete: bool

    @property
    def orders(self) -> list[Mapping[str, Any]]:
        """All three, with the speed of each beside the best."""
        named = zip(("best", "first", "second"), (self.best, *self.given), strict=True)
        return [
            {**each, "order": name, "speed": self.best["time_us"] / each["time_us"]}
            for name, each in named
        ]


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
    return ComparedOrders(one, best, [each["given"] for each in found], complete)


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
