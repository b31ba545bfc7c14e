"""What limits a plan or a step, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.sections import us
from simreduce.pages.values import Chart, Paragraph, Rows, Section
from simreduce.tables import Table

Document = Mapping[str, Any]

_OPS = {"copy": "copies", "add": "additions", "concat": "concatenations"}
_CAUSES = {
    "bandwidth": "bandwidth of {}",
    "bandwidth share": "sharing {} with other transfers",
    "latency": "latency of {}",
    "dispatch": "starting {}",
    "release": "waiting for the gradients",
    "lane wait": "waiting for {}",
}


def spent(found: Document) -> list[tuple[str, float]]:
    """What the critical path is spent on, by class of link: words and microseconds, most first.

    Waits for a lane count as what its holder did then.
    """
    sums: dict[str, float] = {}
    for part in found["critical_path"]["causes"]:
        cause, where = part["cause"], part["where"]
        if part["meanwhile"]:
            cause, where = part["meanwhile"], part["at"]
        words = _CAUSES.get(cause, "{}").format(_class_words(where, cause))
        sums[words] = sums.get(words, 0.0) + part["time_us"]
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def _class_words(where: str, cause: str) -> str:
    name = where.rsplit(" ", 1)[-1]
    if not name:
        return "the wires"
    if cause in ("dispatch", "release"):
        return _OPS.get(name, name)
    return "memory" if name == "memory" else f"{name} links"


def path_section(beside: Beside) -> Iterable[Section]:
    """What bounds the time."""
    if beside.explanation is not None:
        yield Section("path", "What limits it", path_blocks(beside.explanation))


def path_blocks(found: Document) -> tuple[Chart, Rows]:
    """The critical path of a plan that is explained, and its lower bounds."""
    parts = spent(found)
    whole = found["time_us"]
    columns = tables.columns("spent on|time|of the time", units="|(us)|", left="spent on")
    rows = tuple((words, f"{time:.2f}", f"{time / whole:.1%}") for words, time in parts)
    shown = [*parts[:5], *([("other", sum(t for _, t in parts[5:]))] if len(parts) > 5 else [])]
    ops = units.plural(found["critical_path"]["ops"], "operation")
    chart = Chart(
        "stack",
        f"The critical path of {found['strategy']}: a chain of {ops}, each of which begins when "
        f"the one before lets it. It takes {us(whole)}, spent on:",
        {"unit": "us", "parts": [{"name": n, "value": t} for n, t in shown if t > 0]},
        Table(columns, rows),
        130,
    )
    floors = [
        ("the longest chain of operations, each alone", found["floors"]["critical_path_us"]),
        ("the most loaded link or memory at its full rate", found["floors"]["resource_us"]),
        ("the most loaded lane", found["floors"]["lane_us"]),
        ("the narrowest cut of the machine, for any algorithm", found["floors"]["cut_us"]),
    ]
    table = Table(
        tables.columns("lower bound|time|of the time", units="|(us)|", left="lower bound"),
        tuple((words, f"{time:.2f}", f"{time / whole:.1%}") for words, time in floors if time > 0),
    )
    return chart, Rows("No run of this plan takes less than", table)


_SORTS = {
    "link": "{} links",
    "nic": "{} network links",
    "memory": "{}",
    "dispatch": "a {}",
    "cpu": "{} of CPU devices",
    "lane": "{}",
    "together": "{}",
    "compute": "{}",
}
_CHANGES = {
    ("lanes", "one more on each"): "one more lane on each of the {}",
    ("bandwidth", "+10%"): "10% more bandwidth of {}",
    ("latency", "-10%"): "10% less latency of {}",
    ("cost", "-10%"): "10% less to start {}",
    ("speed", "+10%"): "10% faster {}",
    ("queue", "none"): "no queue of {}",
}


def change_words(change: Document) -> str:
    """`one more lane on each of the ib_ndr network links`."""
    name = _SORTS.get(change["sort"], "{}").format(change["resource"])
    words = _CHANGES.get((change["figure"], change["change"]))
    return words.format(name) if words else f"{name}: {change['figure']} {change['change']}"


def help_section(beside: Beside) -> Iterable[Section]:
    """What a little more of each resource saves of a step or an update, or else of the plan that is
    explained.
    """
    found = beside.look or beside.explanation
    if found is None or not found["changes"]:
        return
    changes, what = found["changes"], _what(found)
    sure = "saving_low_us" in changes[0]
    names = "change|time|saves|of the time" + "|saves at least|at most" * sure
    columns = tables.columns(names, units="|(us)|(us)|" + "|(us)|(us)" * sure, left="change")
    rows = tuple(
        (
            change_words(c),
            f"{c['time_us']:.2f}",
            f"{round(c['saving_us'], 2) + 0.0:.2f}",
            f"{round(c['saving_share'], 4) + 0.0:.2%}",
            *(
                f"{round(c[key], 2) + 0.0:.2f}"
                for key in ("saving_low_us", "saving_high_us")[: 2 * sure]
            ),
        )
        for c in changes
    )
    caption = f"The same {what}, simulated again with one change"
    if sure:
        caption += " and the same random times; bounds with 95% confidence"
    useful = [c for c in changes if _saves(c, 5e-5)][:10]
    if not useful:
        none = f"None of these changes, by itself, makes this {what} faster."
        yield Section(
            "help", "What would help", (Paragraph(none), Rows(caption, Table(columns, rows)))
        )
        return
    data = {
        "unit": "share",
        "names": [change_words(c) for c in useful],
        "values": [c["saving_share"] for c in useful],
        "marks": [1 if i == 0 else 0 for i, _ in enumerate(useful)],
    }
    words = f"{caption}: the part of the time that it saves. The table has those that save nothing."
    height = 30 * len(useful) + 50
    yield Section(
        "help", "What would help", (Chart("bars", words, data, Table(columns, rows), height),)
    )


def _what(found: Document) -> str:
    return "update" if "spent" in found else "step" if "path" in found else "plan"


def _saves(change: Document, least: float) -> bool:
    """Whether a change saves that part of the time; where it is known, for sure."""
    return bool(change["saving_share"] > least and change.get("saving_low_us", 1.0) > 0.0)


def _nics(changes: Iterable[Document]) -> list[Document]:
    """One more lane on links of a network, also together with others that bind with them."""
    lanes = [c for c in changes if c["figure"] == "lanes"]
    names = {c["resource"] for c in lanes if c["sort"] == "nic"}
    return [c for c in lanes if names & set(c["resource"].split(" + "))]


def nic_fact(beside: Beside) -> tuple[str, str]:
    """What one more lane (a port) on each link of a network would save, in words."""
    found = beside.look or beside.explanation
    if found is None:
        return "not known here", beside.missing or "This file has no simulated changes."
    what = _what(found)
    nics = _nics(found["changes"])
    if not nics:
        where = {"plan": "This reduction crosses no link of a network."}
        return "nothing", where.get(what, "There is no network between machines here.")
    best = max(nics, key=lambda c: c["saving_share"])
    links = best["resource"].replace(" + ", " and ")
    with_it = f"the same {what} with a further port beside every {links} port there is"
    if not _saves(best, 5e-4):
        return "nothing", f"Simulated: {with_it} is no faster."
    return f"{best['saving_share']:.1%} less time", (
        f"Simulated: {with_it} takes {us(best['time_us'])} instead of {us(found['time_us'])}."
    )


def limit_fact(beside: Beside) -> tuple[str, str]:
    """What takes most of the time."""
    found = beside.explanation
    parts = spent(found) if found else []
    if found is None or not parts:
        return "not known here", beside.missing or "This file has no critical path."
    words, time = parts[0]
    more = f"{time / found['time_us']:.0%} of the critical path"
    if len(parts) > 1:
        more += f"; then {parts[1][0]}, {parts[1][1] / found['time_us']:.0%}"
    return words, f"{more}."
