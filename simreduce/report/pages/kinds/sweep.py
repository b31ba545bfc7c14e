"""The page of a sweep: one question for many values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from simreduce import units
from simreduce.errors import InputError
from simreduce.files.tables import Column, Table, table_of
from simreduce.report.advised import faster_than
from simreduce.report.blocks import Attachments, Chart, Fact, Page, Rows, Section
from simreduce.report.sections import machine_section, repeat_section
from simreduce.report.sweeps import ROW
from simreduce.study.sweep import STEP

Document = Mapping[str, Any]
Row = Mapping[str, Any]

_MOST_LINES, _MOST_BARS = 6, 15


def sweep_page(document: Document, beside: Attachments) -> Page:
    """The page of `simreduce sweep --json` and `simreduce table --json`."""
    keys = document["keys"]
    choices = [key for key in keys if key in _CHOICES]
    if left := [key for key in choices if any(key not in row for row in document["rows"])]:
        raise InputError(f"its rows lack {_listed(left)}: write them without --columns")
    done = [row for row in document["rows"] if row.get("seconds") is not None]
    done.sort(key=lambda row: row["seconds"])
    states = ", ".join(f"{n:,} {state}" for state, n in document["states"].items())
    return Page(
        title=f"{document['name']} over {_listed(keys)}",
        about=f"{document['name']} for many values of {_listed(keys)}: {states}.",
        answer=_answer(done, keys),
        sure=_sure(document, done, keys),
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
    cases = [rows for rows in _by(done, rest) if len(rows) > 1]
    if not choices or len(cases) < 2:
        return None
    counts = Counter(_chosen(rows[0], choices) for rows in cases)
    slowest = max(cases, key=lambda rows: float(rows[0]["seconds"]))
    return _Wins(len(cases), tuple(counts.most_common()), (slowest[0], slowest[1]))


def _by(rows: Sequence[Row], keys: Sequence[str]) -> list[list[Row]]:
    """The rows by the values of these keys."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(key)) for key in keys), []).append(row)
    return [*groups.values()]


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


def _if_right(document: Document) -> str:
    """What an interval of a step leaves out: it is of communication, computing is as stated."""
    return ", if GPUs compute as fast as the question says" if document.get("kind") == STEP else ""


def _sure(document: Document, done: Sequence[Row], keys: Sequence[str]) -> str:
    if not done:
        return ""
    wins = _wins(done, keys)
    best = wins.largest[0] if wins else done[0]
    what = "that time" if wins else "the fastest"
    if None in (best.get("low"), best.get("high")) or not best["seconds"]:
        return f"How sure: nothing is known of the error of the prediction of {what}."
    low, high = (best[key] / best["seconds"] for key in ("low", "high"))
    return (
        f"How sure: with 80% probability {what} is {low:.2f} to {high:.2f} times what is predicted"
        f"{_if_right(document)}."
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
        if None not in (best.get("low"), best.get("high")):
            ends = " to ".join(units.format_duration(best[key]) for key in ("low", "high"))
            yield Fact("How sure is that?", ends, f"With 80% probability{_if_right(document)}.")
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
        groups = _by(done, [name for name in keys if name != key])
        ratios = [
            g[-1]["seconds"] / g[0]["seconds"] for g in groups if len(g) > 1 and g[0]["seconds"]
        ]
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
    if not done:
        return
    if numbers:
        chart = _lines(done, keys, max(numbers, key=lambda key: len({row[key] for row in done})))
    else:
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
        chart = Chart("bars", words, data, _table(done, keys), 26 * len(shown) + 46)
    yield Section("curves", "Times", (chart,))


def _lines(done: Sequence[Row], keys: Sequence[str], across: str) -> Chart:
    """Time over a key, a line for each value of the others, those that begin fastest."""
    others = [key for key in keys if key != across]
    lines = [
        {
            "name": _cell(rows[0], others) or "time",
            "points": sorted((row[across], row["seconds"] * 1e6) for row in rows),
        }
        for rows in _by(done, others)
    ]
    values = [row[across] for row in done]
    data = {
        "x": "bytes" if across == "size" else "plain",
        "y": "us",
        "log": True,
        "base": 2 if max(values) / min(values) < 1025 else 10,
        "name_x": across,
        "name_y": "time",
        "lines": lines[:_MOST_LINES],
    }
    count = len(lines)
    more = f" The {_MOST_LINES} of {count} that begin fastest." if count > _MOST_LINES else ""
    return Chart("curves", f"Time over {across}.{more}", data, _table(done, keys), 400)


def _columns(keys: Sequence[str], *more: tuple[str, Column]) -> list[tuple[str, Column]]:
    """A column for each key, then others."""
    shown = [(key, Column(key, left=True, show=partial(_shown, key=key))) for key in keys]
    return [*shown, *more]


def _table(rows: Sequence[Row], keys: Sequence[str]) -> Table:
    return table_of(_columns(keys, *ROW.columns("html")), rows)


def _rows(document: Document, keys: Sequence[str]) -> Section:
    """Every cell, with the reason of those that have no answer."""
    state, reason = (Column(name, left=True, missing="") for name in ("state", "reason"))
    time = dict(ROW.columns("html"))["seconds"]
    columns = _columns(keys, ("state", state), ("seconds", time), ("reason", reason))
    table = table_of(columns, document["rows"])
    count = len(table.rows)
    words = f"All {units.plural(count, 'cell')}"
    return Section("cells", "Every cell", (Rows(words, table, folded=count > 20),))
