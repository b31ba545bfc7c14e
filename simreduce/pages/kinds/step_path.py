"""What a training step waits for."""

from __future__ import annotations

import re
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


def limit_of_step(look: Document) -> tuple[str, str]:
    """What most of the critical path is spent on, in a few words and a sentence. Both passes count
    as compute.
    """
    shares: dict[str, float] = {}
    for part in look["path"]:
        name = "compute" if part["kind"] in ("forward", "backward") else _words(part)
        shares[name] = shares.get(name, 0.0) + part["share"]
    (first, share), *others = sorted(shares.items(), key=lambda each: -each[1]) or [("nothing", 1)]
    then = ", ".join(f"{name} {part:.1%}" for name, part in others[:2] if part >= _LEAST)
    more = f"; then {then}" if then else ""
    return first, f"{share:.1%} of the step's critical path{more}."


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
    every = sum(p["pieces"] for p in look["path"] if p["kind"] in ("transfer", "read"))
    count = units.plural(every, "transfer")
    if every > len(found):
        count = f"the first {len(found)} of {count}"
    caption = f"What the step waits for, longest first: {count}"
    yield Rows(caption, Table(columns, rows), len(rows) > 10)


def _tensors(name: str) -> str:
    """`reads of 4 tensors (a to b)` for the `reads of 4: a to b` of a timeline."""
    return re.sub(r"\b(\d+): (.+)", r"\1 tensors (\2)", name)


def _alone(look: Document) -> Iterable[Block]:
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
