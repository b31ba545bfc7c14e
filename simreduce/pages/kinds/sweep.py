"""The page of a sweep: one question for many values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.defaults import faster_than
from simreduce.pages.kinds.sections import machine_section, repeat_section
from simreduce.pages.values import Block, Chart, Fact, Page, Rows, Section
from simreduce.tables import Table

Document = Mapping[str, Any]
Row = Mapping[str, Any]

_MOST_LINES, _MOST_BARS = 6, 15


def sweep_page(document: Document, beside: Beside) -> Page:
    """The page of `simreduce sweep --json` and `simreduce table --json`."""
    keys = document["keys"]
    done = [row for row in document["rows"] if row.get("seconds") is not None]
    done.sort(key=lambda row: row["seconds"])
    states = ", ".join(f"{n:,} {state}" for state, n in document["states"].items())
    return Page(
        title=f"{document['name']} over {_listed(keys)}",
        about=f"{document['name']} for many values of {_listed(keys)}: {states}.",
        answer=_answer(done, keys),
        sure=_sure(done, keys),
        facts=tuple(_facts(document, done, keys)),
        sections=(
            *_curves(done, keys),
            _rows(document, keys),
            *(replace(each, title=_machine(document)) for each in machine_section(beside)),
            *repeat_section(beside, document),
        ),
    )


def _machine(document: Document) -> str:
    return "Machine" if document["topology"] else "Machine of the fastest cell"


def _listed(words: Sequence[str]) -> str:
    """`nodes, size and strategy`."""
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def _cell(row: Row, keys: Iterable[str]) -> str:
    """`nodes 4, strategy ring`."""
    return ", ".join(f"{key} {_shown(row[key], key)}" for key in keys if row.get(key) is not None)


def _shown(value: object, key: str = "") -> str:
    if key == "size" and isinstance(value, int):
        return units.format_size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_CHOICES = ("strategy", "method")
"""Keys that somebody chooses; the others say for what."""


class _Wins(NamedTuple):
    """In how many cases each choice is the fastest, most often first, and the slowest case."""

    cases: int
    counts: tuple[tuple[str, int], ...]
    largest: tuple[Row, Row]


def _wins(done: Sequence[Row], keys: Sequence[str]) -> _Wins | None:
    """None unless there are choices, and several cases with at least two of them."""
    choices = [key for key in keys if key in _CHOICES]
    rest = [key for key in keys if key not in _CHOICES]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in done:
        groups.setdefault(tuple(str(row.get(key)) for key in rest), []).append(row)
    groups = {case: rows for case, rows in groups.items() if len(rows) > 1}
    if not choices or len(groups) < 2:
        return None
    counts: dict[str, int] = {}
    for rows in groups.values():
        name = _chosen(rows[0], choices)
        counts[name] = counts.get(name, 0) + 1
    slowest = max(groups.values(), key=lambda rows: float(rows[0]["seconds"]))
    order = tuple(sorted(counts.items(), key=lambda item: -item[1]))
    return _Wins(len(groups), order, (slowest[0], slowest[1]))


def _chosen(row: Row, choices: Sequence[str]) -> str:
    """The choice of a cell, without the word strategy where that is all there is to choose."""
    return str(row[choices[0]]) if len(choices) == 1 else _cell(row, choices)


def _compared(wins: _Wins, keys: Sequence[str]) -> str:
    """Which choice is the fastest how often, and by how much where it takes longest."""
    (name, count), *others = wins.counts
    rest = _listed([key for key in keys if key not in _CHOICES])
    often = f"all {count}" if not others else f"{count} of {wins.cases}"
    also = f" ({', '.join(f'{other} in {n}' for other, n in others[:2])})" if others else ""
    best, second = wins.largest
    choices = [key for key in keys if key in _CHOICES]
    case = _cell(best, [key for key in keys if key not in _CHOICES])
    ratio = faster_than(best["seconds"], second["seconds"])
    return (
        f"{name} is the fastest in {often} cases of {rest}{also}. With {case}, "
        f"{_chosen(best, choices)} takes {units.format_duration(best['seconds'])}, {ratio} "
        f"{_chosen(second, choices)}."
    )


def _answer(done: Sequence[Row], keys: Sequence[str]) -> str:
    if not done:
        return "No cell of this sweep has an answer."
    if wins := _wins(done, keys):
        return _compared(wins, keys)
    best, took = done[0], units.format_duration(done[0]["seconds"])
    if len(done) == 1:
        return f"{_cell(best, keys)} takes {took}."
    worst = done[-1]["seconds"] / best["seconds"] if best["seconds"] else 1.0
    return (
        f"The fastest is {_cell(best, keys)}: {took}; the slowest takes {worst:.2f} times as long."
    )


def _sure(done: Sequence[Row], keys: Sequence[str]) -> str:
    if not done:
        return ""
    wins = _wins(done, keys)
    best = wins.largest[0] if wins else done[0]
    what = "that time" if wins else "the fastest"
    if best.get("low") is None:
        return f"How sure: nothing is known of the error of the prediction of {what}."
    low, high = (best[key] / best["seconds"] for key in ("low", "high"))
    return (
        f"How sure: with 80% probability {what} is {low:.2f} to {high:.2f} times what is predicted."
    )


def _facts(document: Document, done: Sequence[Row], keys: Sequence[str]) -> Iterable[Fact]:
    if done:
        wins = _wins(done, keys)
        best = wins.largest[0] if wins else done[0]
        took = f"{units.format_duration(best['seconds'])}."
        if wins:
            name, count = wins.counts[0]
            rest = _cell(best, [key for key in keys if key not in _CHOICES])
            yield Fact("What is the fastest?", name, f"In {count} of {wins.cases} cases.")
            yield Fact("What takes longest?", rest, f"Then the fastest takes {took}")
        else:
            yield Fact("Which cell is the fastest?", _cell(best, keys), took)
        if best.get("low") is not None:
            ends = " to ".join(units.format_duration(best[key]) for key in ("low", "high"))
            yield Fact("How sure is that?", ends, "With 80% probability.")
        if best.get("bound"):
            share = best.get("bound_share")
            more = f"For {share:.0%} of the time." if share is not None else ""
            yield Fact("Which link is the busiest then?", best["bound"], more)
    matters = _matters(done, keys)
    if matters:
        key, factor = matters[0]
        others = "; ".join(f"{name}, {ratio:.3g} times" for name, ratio in matters[1:3])
        more = f"From one value to another, all else equal, up to {factor:.3g} times the time."
        yield Fact("What matters most?", key, f"{more}{f' Others: {others}.' if others else ''}")
    count, answered = sum(document["states"].values()), document["states"].get("done", 0)
    if answered < count:
        more = "The table has the reasons of the others."
        yield Fact("How many have an answer?", f"{answered:,} of {count:,}", more)


def _matters(done: Sequence[Row], keys: Sequence[str]) -> list[tuple[str, float]]:
    """Keys, and the largest ratio of two times that differ in this key alone; largest first."""
    found = []
    for key in keys:
        groups: dict[tuple[object, ...], list[float]] = {}
        for row in done:
            rest = tuple(str(row.get(name)) for name in keys if name != key)
            groups.setdefault(rest, []).append(row["seconds"])
        ratios = [max(g) / min(g) for g in groups.values() if len(g) > 1 and min(g) > 0]
        if ratios:
            found.append((key, max(ratios)))
    return sorted(found, key=lambda pair: -pair[1])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _curves(done: Sequence[Row], keys: Sequence[str]) -> Iterable[Section]:
    """Over the number with most values, a line for each value of the others; else bars."""
    numbers = [
        key
        for key in keys
        if all(_is_number(row.get(key)) and row[key] > 0 for row in done)
        and len({row[key] for row in done}) > 1
    ]
    table = _table(done, keys)
    if not done:
        return
    if not numbers:
        shown = done[:_MOST_BARS]
        data: dict[str, Any] = {
            "unit": "us",
            "names": [_cell(row, keys) for row in shown],
            "values": [row["seconds"] * 1e6 for row in shown],
            "marks": [1, *[0] * (len(shown) - 1)],
        }
        words = (
            f"{units.plural(len(shown), 'cell')}, the fastest first."
            if len(shown) == len(done)
            else f"The fastest {len(shown)} of {len(done):,} cells."
        )
        chart = Chart("bars", words, data, table, 26 * len(shown) + 46)
    else:
        across = max(numbers, key=lambda key: len({row[key] for row in done}))
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in done:
            name = _cell(row, [key for key in keys if key != across]) or "time"
            lines.setdefault(name, []).append((row[across], row["seconds"] * 1e6))
        first = list(lines.items())[:_MOST_LINES]
        values = [row[across] for row in done]
        spread = max(values) / min(values)
        data = {
            "x": "bytes" if across == "size" else "plain",
            "y": "us",
            "log": True,
            "base": 2 if spread < 1025 else 10,
            "name_x": across,
            "name_y": "time",
            "lines": [{"name": name, "points": sorted(points)} for name, points in first],
        }
        more = (
            ""
            if len(first) == len(lines)
            else f" The {len(first)} of {len(lines)} that begin fastest."
        )
        chart = Chart("curves", f"Time over {across}.{more}", data, table, 400)
    yield Section("curves", "Times", (chart,))


def _table(rows: Sequence[Row], keys: Sequence[str]) -> Table:
    columns = tables.columns(
        "|".join([*keys, "time", "busiest", "busy"]),
        units="|".join([*("" for _ in keys), "(ms)", "", ""]), left="|".join([*keys, "busiest"]),
    )  # fmt: skip
    cells = tuple(
        (
            *(_shown(row.get(key), key) for key in keys),
            f"{row['seconds'] * 1e3:.3f}",
            str(row.get("bound") or ""),
            "" if row.get("bound_share") is None else f"{row['bound_share']:.0%}",
        )
        for row in rows
    )
    return Table(columns, cells)


def _rows(document: Document, keys: Sequence[str]) -> Section:
    """Every cell, with the reason of those that have no answer."""
    columns = tables.columns(
        "|".join([*keys, "state", "time", "reason"]),
        units="|".join([*("" for _ in keys), "", "(ms)", ""]),
        left="|".join([*keys, "state", "reason"]),
    )
    cells = tuple(
        (
            *(_shown(row.get(key), key) for key in keys),
            str(row.get("state", "")),
            "" if row.get("seconds") is None else f"{row['seconds'] * 1e3:.3f}",
            str(row.get("reason") or ""),
        )
        for row in document["rows"]
    )
    words = f"All {units.plural(len(cells), 'cell')}"
    blocks: tuple[Block, ...] = (Rows(words, Table(columns, cells), folded=len(cells) > 20),)
    return Section("cells", "Every cell", blocks)
