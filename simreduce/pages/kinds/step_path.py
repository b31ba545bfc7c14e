"""What a training step waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.limits import path_blocks
from simreduce.pages.kinds.sections import us
from simreduce.pages.values import Block, Chart, Paragraph, Rows, Section
from simreduce.tables import Table

Document = Mapping[str, Any]

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
_OWN = ("forward", "backward", "update", "launch")
"""What a step does itself."""


def step_parts(look: Document) -> list[tuple[str, float, int]]:
    """What the critical path of a step is made of: words, microseconds and pieces, most first."""
    return [(_words(part), part["time_us"], part["pieces"]) for part in look["path"]]


def _words(part: Document) -> str:
    if part["kind"] == "transfer":
        lane = str(part["lane"])
        return lane if lane.endswith("s") else f"{lane}s"
    if part["kind"] == "turn":
        return f"{part['lane']} that wait for their turn"
    return _KINDS.get(part["kind"], str(part["kind"]))


def exposed_words(look: Document) -> str:
    """What of the step is neither compute nor update nor launch, most first."""
    rest = [part for part in look["path"] if part["kind"] not in _OWN and part["share"] >= _LEAST]
    if not rest:
        return "No communication is exposed."
    parts = ", ".join(f"{_words(part)} {part['share']:.1%}" for part in rest[:3])
    return f"Exposed: {parts}."


def most_exposed(look: Document) -> tuple[str, float]:
    """What of that takes longest, and its microseconds."""
    rest = [part for part in look["path"] if part["kind"] not in _OWN]
    return (_words(rest[0]), rest[0]["time_us"]) if rest else ("nothing", 0.0)


def step_path_section(beside: Beside) -> Iterable[Section]:
    """The critical path of a step, and the transfer that it waits for most."""
    look = beside.look
    if look is None:
        return
    parts, whole = step_parts(look), look["time_us"]
    columns = tables.columns("spent on|pieces|time|of the step", units="||(us)|", left="spent on")
    rows = tuple((words, str(n), f"{t:.2f}", f"{t / whole:.1%}") for words, t, n in parts)
    chart = Chart(
        "stack",
        f"The critical path of a step of {look['strategy']}: a chain of passes and transfers, each "
        f"of which begins when the one before lets it. Its {us(sum(t for _, t, _ in parts))} are "
        "spent on:",
        {"unit": "us", "parts": [{"name": words, "value": t} for words, t, _ in parts if t > 0]},
        Table(columns, rows),
        130,
    )
    yield Section("path", "What limits it", (chart, *_transfers(look), *_alone(look)))


def _transfers(look: Document) -> Iterable[Block]:
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
    count = units.plural(len(found), "transfer")
    yield Rows(
        f"What the step waits for, longest first: {count}", Table(columns, rows), len(rows) > 10
    )


def _gradients(name: str) -> str:
    """`4 gradients (a to b)` for the `4: a to b` of a timeline."""
    count, colon, names = name.partition(": ")
    return f"{count} gradients ({names})" if colon and count.isdigit() else name


def _alone(look: Document) -> Iterable[Block]:
    """The longest of them by itself."""
    alone, found = look["alone"], look["transfers"]
    if alone is None or not found:
        return
    size = units.format_size(alone["size_bytes"])
    yield Paragraph(
        f"The longest of them is {found[0]['lane']} of {_gradients(alone['strategy'])}, {size}. "
        f"By itself, with nothing beside it on the links, it takes {us(alone['time_us'])}."
    )
    yield from path_blocks(alone)
