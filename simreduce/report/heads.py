"""What the reports on a scenario have in common: the header, the lines below a table, and the first
keys of documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from simreduce import tables, units
from simreduce.formats.documents import BYTES, COUNT, TEXT, Document, Key, Record, list_of
from simreduce.tables import Table

if TYPE_CHECKING:
    from simreduce.scenario import Scenario


def runtimes_text(runtimes: Iterable[str]) -> str:
    """The runtime of all rows, or where to look for that of each."""
    names = sorted(set(runtimes))
    return one_runtime(names, f"by strategy ({' or '.join(names)})" if names else "by strategy")


def one_runtime(runtimes: Iterable[str], several: str) -> str:
    """The runtime of all rows, or what stands for `several`."""
    names = set(runtimes)
    return names.pop() if len(names) == 1 else several


def with_runtimes(table: Table, runtimes: Iterable[str]) -> Table:
    """The table, with its column of runtimes only if rows have several."""
    return table if len(set(runtimes)) > 1 else tables.without("runtime", table)


def best_rows(table: Table, most: int | None, *, indent: int = 0) -> list[str]:
    """The lines of a ranking's table, or of its best `most` rows and how to see the others."""
    if most is None or len(table.rows) <= most:
        return table.lines(indent=indent)
    others = units.plural(len(table.rows) - most, "other")
    lines = replace(table, rows=table.rows[:most]).lines(indent=indent)
    return [*lines, " " * indent + f"... and {others} (--all shows them, and so does a pipe)"]


def header(
    scenario: Scenario,
    facts: Iterable[tuple[str, str]],
    runtimes: Iterable[str],
    what: str,
    warning: str,
) -> list[str]:
    """The header of a report: `facts` about the question, and `what` it predicts on which
    `runtimes`.
    """
    at = scenario.setup
    ranks = units.plural(len(at.layout), "rank")
    faithful = ", faithful to upstream" * scenario.faithful
    return tables.header(
        scenario.title,
        [
            ("topology", f"{at.topology.name}: {at.topology.title}, {ranks}, {at.topology.digest}"),
            *facts,
            ("runtime", f"{runtimes_text(runtimes)}, {what}{faithful}"),
            ("calibration", tables.label(at.calibration.name, at.calibration.title)),
            ("", warning),
            ("disturbed", at.disturbance.text),
        ],
    )


def same_plan_lines(rows: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """The other names of each row, if any row has some."""
    lines: list[str] = []
    for name, others in rows:
        if others:
            lines += wrap(
                f"{name} = {', '.join(others)}", tables.page_width(100),
                initial_indent="  ", subsequent_indent="    ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return ["", "The same plan under other names:", *lines] if lines else []


def refused_lines(refused: Sequence[tuple[str, str]]) -> list[str]:
    """The strategies that the machine refuses, and why."""
    reasons = [f"  {reason}" for _, reason in refused]
    return ["", f"Not possible here ({len(reasons)}):", *reasons] if reasons else []


def untried_lines(untried: int) -> list[str]:
    """The line of a ranking that Ctrl-C ended."""
    return ["", f"stopped with {units.plural(untried, 'other')} untried"] if untried else []


TOPOLOGY_KEYS = (
    Key("topology", TEXT, "The name of the machine."),
    Key("topology_digest", TEXT, "Names the machine's content: equal machines have equal digests."),
)
CALIBRATION_KEY = Key("calibration", TEXT, "The constants that times were predicted with.")
DISTURBANCE_KEY = Key("disturbance", TEXT, 'What goes wrong, in words; "" for nothing.')
HEAD_KEYS = (
    Key("scenario", TEXT, "The scenario's name or file."),
    *TOPOLOGY_KEYS,
    Key("workload", TEXT, "The name of what is reduced."),
    Key("size_bytes", BYTES, "All gradients."),
    Key("ranks", COUNT, "GPUs that take part."),
    Key("runtime", TEXT, "The runtime of all strategies, or `by_strategy` if they differ."),
    CALIBRATION_KEY,
)
REFUSED_KEY = Key(
    "refused",
    list_of(
        Record(
            "refused",
            "A strategy that the machine refuses.",
            Key("strategy", TEXT, "The strategy."),
            Key("reason", TEXT, "Why it is not possible here."),
        )
    ),
    "Strategies that are not possible on this machine.",
)


def document_head(
    document: Document, scenario: Scenario, runtimes: Iterable[str]
) -> dict[str, Any]:
    """The first keys of a document, in a fixed order: `HEAD_KEYS`."""
    at, workload = scenario.setup, scenario.workload
    return {
        **document.head(),
        "scenario": scenario.name,
        "topology": at.topology.name,
        "topology_digest": at.topology.digest,
        "workload": workload.name,
        "size_bytes": workload.nbytes,
        "ranks": len(at.layout),
        "runtime": one_runtime(runtimes, at.runtime.name),
        "calibration": at.calibration.name,
    }


def refused_keys(refused: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """The refused strategies of a document: `REFUSED_KEY`."""
    return [{"strategy": name, "reason": reason} for name, reason in refused]
