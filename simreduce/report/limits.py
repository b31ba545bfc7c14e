"""What limits a plan or a step, what would help, and the page of an explanation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf

from simreduce import units
from simreduce.files import tables
from simreduce.files.tables import Table
from simreduce.report.advised import took_of
from simreduce.report.blocks import (
    Attachments,
    Block,
    Chart,
    Paragraph,
    Rows,
    Section,
    Written,
    folded_when_long,
    stack,
)
from simreduce.report.explain import CHANGE, change_words
from simreduce.report.sections import us

_OPS = {"copy": "copies", "add": "additions", "concat": "concatenations"}
_CAUSES = {
    "bandwidth": "bandwidth of {}",
    "bandwidth share": "sharing {} with other transfers",
    "latency": "latency of {}",
    "dispatch": "starting {}",
    "release": "waiting for the gradients",
    "lane wait": "waiting for {}",
}


def spent(found: Written) -> list[tuple[str, float]]:
    """The causes of the critical path by class of link: words and microseconds, longest first.

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


def path_section(beside: Attachments) -> Iterable[Section]:
    """The section on the critical path and the lower bounds of an explained plan."""
    if beside.explanation is not None:
        yield Section("path", "What limits it", path_blocks(beside.explanation))


def _shares(name: str, parts: Iterable[tuple[str, float]], whole: float) -> Table:
    """Microseconds, and their parts of the whole."""
    columns = tables.columns(f"{name}|time|of the time", units="|(us)|", left=name)
    rows = ((words, f"{t:.2f}", f"{t / (whole or inf):.1%}") for words, t in parts)
    return Table(columns, tuple(rows))


def path_blocks(found: Written) -> tuple[Chart, Rows]:
    """The critical path of a plan that is explained, and its lower bounds."""
    parts = spent(found)
    whole = found["time_us"]
    shown = [*parts[:5], *([("other", sum(t for _, t in parts[5:]))] if len(parts) > 5 else [])]
    ops = units.plural(found["critical_path"]["ops"], "operation")
    chart = stack(
        f"The critical path of {found['strategy']}: a chain of {ops}, each of which begins when "
        f"the one before lets it. It takes {took_of(found)}, spent on:",
        shown,
        _shares("spent on", parts, whole),
        130,
    )
    floors = [
        ("the longest chain of operations, each alone", found["floors"]["critical_path_us"]),
        ("the most loaded link or memory at its full rate", found["floors"]["resource_us"]),
        ("the most loaded lane", found["floors"]["lane_us"]),
        ("the machine's links and latencies, by any algorithm", found["floors"]["hardware_us"]),
    ]
    table = _shares("lower bound", [each for each in floors if each[1] > 0], whole)
    return chart, Rows("No run of this plan takes less than", table)


def help_section(beside: Attachments) -> Iterable[Section]:
    """The section on changes that save time of a step, an update or the explained plan."""
    found = beside.look or beside.explanation
    if found is None or not found["changes"]:
        return
    changes, what = found["changes"], _what(found)
    table = CHANGE.table(changes, on="html")
    caption = f"The same {what}, simulated again with one change"
    if "saving_low_us" in changes[0]:
        caption += " and the same random times; bounds with 95% confidence"
    useful = [c for c in changes if _saves(c, 5e-5)][:10]
    if not useful:
        none = f"None of these changes, by itself, makes this {what} faster."
        yield Section("help", "What would help", (Paragraph(none), Rows(caption, table)))
        return
    data = {
        "unit": "share",
        "names": [change_words(c) for c in useful],
        "values": [c["saving_share"] for c in useful],
        "marks": [1, *[0] * (len(useful) - 1)],
    }
    words = f"{caption}: the part of the time that it saves. The table has those that save nothing."
    height = 30 * len(useful) + 50
    yield Section("help", "What would help", (Chart("bars", words, data, table, height),))


def _what(found: Written) -> str:
    return "update" if "spent" in found else "step" if "path" in found else "plan"


def _saves(change: Written, least: float) -> bool:
    """Whether a change saves that part of the time; where it is known, for sure."""
    return bool(change["saving_share"] > least and change.get("saving_low_us", 1.0) > 0.0)


def _nics(changes: Iterable[Written]) -> list[Written]:
    """One more lane on links of a network, also together with others that bind with them."""
    lanes = [c for c in changes if c["figure"] == "lanes"]
    names = {c["resource"] for c in lanes if c["sort"] == "nic"}
    return [c for c in lanes if names & set(c["resource"].split(" + "))]


def nic_fact(beside: Attachments) -> tuple[str, str]:
    """The saving by one more lane (a port) on each link of a network, in words."""
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
    with_it = f"Simulated: with one more {links} port beside each, the same {what}"
    if not _saves(best, 5e-4):
        return "nothing", f"{with_it} is not faster."
    return f"{best['saving_share']:.1%} less time", (
        f"{with_it} takes {us(best['time_us'])} instead of {us(found['time_us'])}."
    )


def limit_fact(beside: Attachments) -> tuple[str, str]:
    """The largest cause of the critical path, in a few words and a sentence."""
    found = beside.explanation
    parts = spent(found) if found else []
    if found is None or not parts:
        return "not known here", beside.missing or "This file has no critical path."
    (words, time), whole = parts[0], found["time_us"] or inf  # no part of no time
    more = f"{time / whole:.0%} of the critical path"
    if len(parts) > 1:
        more += f"; then {parts[1][0]}, {parts[1][1] / whole:.0%}"
    return words, f"{more}."


_KINDS = {
    "forward": "forward passes",
    "backward": "backward passes",
    "update": "updating the variables",
    "launch": "launching the step",
    "read": "reads of variables",
    "wait": "waits in a queue",
}


_LEAST = 5e-4
"""Part of a step that is said."""


def step_parts(look: Written) -> list[tuple[str, float, int]]:
    """Parts of a step's critical path: words, microseconds and pieces, longest first."""
    return [(_path_words(part), part["time_us"], part["pieces"]) for part in look["path"]]


def _path_words(part: Written) -> str:
    if part["kind"] == "transfer":
        lane = str(part["lane"])
        return lane if lane.endswith("s") else f"{lane}s"
    if part["kind"] == "turn":
        return f"{part['lane']} that wait for their turn"
    return _KINDS.get(part["kind"], str(part["kind"]))


def limit_of_step(look: Written) -> tuple[str, str]:
    """The largest part of a step's critical path, in a few words and a sentence.

    Both passes count as compute.
    """
    shares: dict[str, float] = {}
    for part in look["path"]:
        name = "compute" if part["kind"] in ("forward", "backward") else _path_words(part)
        shares[name] = shares.get(name, 0.0) + part["share"]
    (first, share), *others = sorted(shares.items(), key=lambda each: -each[1]) or [("nothing", 1)]
    then = ", ".join(f"{name} {part:.1%}" for name, part in others[:2] if part >= _LEAST)
    more = f"; then {then}" if then else ""
    return first, f"{share:.1%} of the step's critical path{more}."


def step_path_section(beside: Attachments) -> Iterable[Section]:
    """The critical path of a step, and the transfer that it waits for most."""
    look = beside.look
    if look is None:
        return
    parts, whole = step_parts(look), look["time_us"]
    columns = tables.columns("spent on|pieces|time|of the step", units="||(us)|", left="spent on")
    rows = tuple((words, str(n), f"{t:.2f}", f"{t / whole:.1%}") for words, t, n in parts)
    chart = stack(
        f"The critical path of a step of {look['strategy']}: a chain of passes and transfers, each "
        f"of which begins when the one before lets it. Its {us(sum(t for _, t, _ in parts))} are "
        "spent on:",
        [(words, t) for words, t, _ in parts],
        Table(columns, rows),
        130,
    )
    yield Section("path", "What limits it", (chart, *_transfers(look), *_alone(look)))


def _transfers(look: Written) -> Iterable[Block]:
    found = look["transfers"]
    if not found:
        yield Paragraph("No transfer is on the critical path: all of them are hidden.")
        return
    columns = tables.columns(
        "transfer|of|size|begins|on the path", units="|||(us)|(us)", left="transfer|of"
    )
    rows = tuple(
        (
            each["lane"],
            each["what"],
            units.format_size(each["size_bytes"]),
            f"{each['begin_us']:.2f}",
            f"{each['time_us']:.2f}",
        )
        for each in found
    )
    every = sum(p["pieces"] for p in look["path"] if p["kind"] in ("transfer", "read"))
    count = units.plural(every, "transfer")
    if every > len(found):
        count = f"the first {len(found)} of {count}"
    caption = f"What the step waits for, longest first: {count}"
    yield folded_when_long(caption, Table(columns, rows), 10)


def _tensors(name: str) -> str:
    """`reads of 4 tensors (a to b)` for the `reads of 4: a to b` of a timeline."""
    return re.sub(r"\b(\d+): (.+)", r"\1 tensors (\2)", name)


def _alone(look: Written) -> Iterable[Block]:
    """The longest of them by itself."""
    alone = look["alone"]
    if alone is None:
        return
    size, name = units.format_size(alone["size_bytes"]), _tensors(str(alone["strategy"]))
    yield Paragraph(
        f"The longest of them: {name}, {size}. With nothing beside it on the links, it takes "
        f"{us(alone['time_us'])}."
    )
    yield from path_blocks({**alone, "strategy": name})
