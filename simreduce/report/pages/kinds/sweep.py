"""The page of a sweep: one question for many values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from simreduce import units
from simreduce.computing.lists import group_by
from simreduce.errors import InputError
from simreduce.files.tables import Column, Table, table_of
from simreduce.report.blocks import Attachments, Chart, Fact, Page, Rows, Section, Written
from simreduce.report.headings import faster_than
from simreduce.report.plots import bar_facet
from simreduce.report.sections import machine_section, repeat_section
from simreduce.report.sweep_plots import axis, lines_facet, widest, with_bytes
from simreduce.report.sweeps import ROW
from simreduce.study.sweep import STEP, objective
from simreduce.study.sweep.cells import FACTORS

_MOST_LINES, _MOST_BARS = 6, 15


def sweep_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce sweep --json` and `simreduce table --json`."""
    keys = document["keys"]
    choices = [key for key in keys if key in _CHOICES]
    if left := [key for key in choices if any(key not in row for row in document["rows"])]:
        raise InputError(f"its rows lack {_listed(left)}: write them without --columns")
    figure = objective(document.get("kind", ""))
    done = [row for row in document["rows"] if row.get(figure) is not None]
    done.sort(key=lambda row: row[figure])
    states = ", ".join(f"{n:,} {state}" for state, n in document["states"].items())
    wins = _wins(done, keys)
    best = wins.largest[0] if wins else next(iter(done), None)
    return Page(
        title=f"{document['name']} over {_listed(keys)}",
        about=f"{document['name']} for many values of {_listed(keys)}: {states}.",
        answer=_answer(done, keys, figure, wins),
        sure=_sure(document, wins, best, figure),
        facts=(
            *(_best_facts(document, best, figure, wins) if best else ()),
            *_facts(document, done, figure),
        ),
        sections=(
            *_curves(done, keys, figure),
            _rows(document, figure),
            *(replace(each, title=_machine(document, figure)) for each in machine_section(beside)),
            *repeat_section(beside, document),
        ),
    )


def _machine(document: Written, figure: str) -> str:
    best = "best" if figure in FACTORS else "fastest"
    return "Machine" if document["topology"] else f"Machine of the {best} cell"


def _listed(words: Sequence[str]) -> str:
    """`nodes, size and strategy`."""
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def _cell(row: Written, keys: Iterable[str]) -> str:
    """`nodes 4, strategy ring`."""
    return ", ".join(f"{key} {_shown(row[key], key)}" for key in keys if row.get(key) is not None)


def _shown(value: object, key: str = "") -> str:
    if key == "size" and isinstance(value, int):
        return units.format_size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_CHOICES = ("strategy", "method")
"""Keys that somebody chooses; the others say for what."""


class _Wins(NamedTuple):
    """The keys that are chosen and the others; in how many cases each choice is the fastest, most
    often first, and the slowest case.
    """

    choices: Sequence[str]
    rest: Sequence[str]
    cases: int
    counts: tuple[tuple[str, int], ...]
    largest: tuple[Written, Written]


def _wins(done: Sequence[Written], keys: Sequence[str]) -> _Wins | None:
    """None unless there are choices, and several cases with at least two of them."""
    choices = [key for key in keys if key in _CHOICES]
    rest = [key for key in keys if key not in _CHOICES]
    cases = [rows for rows in _by(done, rest) if len(rows) > 1]
    if not choices or len(cases) < 2:
        return None
    counts = Counter(_chosen(rows[0], choices) for rows in cases)
    slowest = max(cases, key=lambda rows: float(rows[0]["seconds"]))
    return _Wins(choices, rest, len(cases), tuple(counts.most_common()), (slowest[0], slowest[1]))


def _by(rows: Sequence[Written], keys: Sequence[str]) -> list[list[Written]]:
    """The rows by the values of these keys."""
    return [*group_by(rows, lambda row: tuple(str(row.get(key)) for key in keys)).values()]


def _chosen(row: Written, choices: Sequence[str]) -> str:
    """The choice of a cell, without the word strategy where that is all there is to choose."""
    return str(row[choices[0]]) if len(choices) == 1 else _cell(row, choices)


def _compared(wins: _Wins) -> str:
    """Which choice is the fastest how often, and by how much where it takes longest."""
    (name, count), *others = wins.counts
    often = f"all {count}" if not others else f"{count} of {wins.cases}"
    also = f" ({', '.join(f'{other} in {n}' for other, n in others[:2])})" if others else ""
    best, second = wins.largest
    ratio = faster_than(best["seconds"], second["seconds"])
    return (
        f"{name} is the fastest in {often} cases of {_listed(wins.rest)}{also}. With "
        f"{_cell(best, wins.rest)}, {_chosen(best, wins.choices)} takes "
        f"{units.format_duration(best['seconds'])}, {ratio} {_chosen(second, wins.choices)}."
    )


def _answer(done: Sequence[Written], keys: Sequence[str], figure: str, wins: _Wins | None) -> str:
    if not done:
        return "No cell of this sweep has an answer."
    if wins:
        return _compared(wins)
    best, worst = done[0], done[-1]
    if figure in FACTORS:
        return (
            f"Jobs lose least with {_cell(best, keys)}: {_loss(best, figure)}; and most with"
            f" {_cell(worst, keys)}: {_loss(worst, figure)}."
        )
    took = units.format_duration(best["seconds"])
    if len(done) == 1:
        return f"{_cell(best, keys)} takes {took}."
    times = worst["seconds"] / best["seconds"] if best["seconds"] else 1.0
    return (
        f"The fastest is {_cell(best, keys)}: {took}; the slowest takes {times:.2f} times as long."
    )


def _loss(row: Written, figure: str) -> str:
    """What the job that loses most loses in a cell."""
    return f"{row.get('job') or 'one'} takes {row[figure]:.2f} times as long as alone"


def _if_right(document: Written) -> str:
    """What an interval of a step leaves out: it is of communication, computing is as stated."""
    return ", if GPUs compute as fast as the question says" if document.get("kind") == STEP else ""


def _sure(document: Written, wins: _Wins | None, best: Written | None, figure: str) -> str:
    if best is None:
        return ""
    what = "that time" if wins else "slowdowns" if figure in FACTORS else "the fastest"
    if None in (best.get("low"), best.get("high")) or not best["seconds"]:
        return f"How sure: nothing is known of the error of the prediction of {what}."
    low, high = (best[key] / best["seconds"] for key in ("low", "high"))
    return (
        f"How sure: with 80% probability {what} is {low:.2f} to {high:.2f} times what is predicted"
        f"{_if_right(document)}."
    )


def _best_facts(
    document: Written, best: Written, figure: str, wins: _Wins | None
) -> Iterable[Fact]:
    """Which cell is the best, how sure that is, and which link it keeps busy."""
    keys = document["keys"]
    if figure in FACTORS:
        yield Fact("Where do jobs lose least?", _cell(best, keys), f"{_loss(best, figure)}.")
        return
    took = f"{units.format_duration(best['seconds'])}."
    if wins:
        name, count = wins.counts[0]
        yield Fact("What is the fastest?", name, f"In {count} of {wins.cases} cases.")
        yield Fact("What takes longest?", _cell(best, wins.rest), f"Then the fastest takes {took}")
    else:
        yield Fact("Which cell is the fastest?", _cell(best, keys), took)
    if None not in (best.get("low"), best.get("high")):
        ends = " to ".join(units.format_duration(best[key]) for key in ("low", "high"))
        yield Fact("How sure is that?", ends, f"With 80% probability{_if_right(document)}.")
    if best.get("bound"):
        share = best.get("bound_share")
        more = f"For {share:.0%} of the time." if share is not None else ""
        yield Fact("Which link is the busiest then?", best["bound"], more)


def _facts(document: Written, done: Sequence[Written], figure: str) -> Iterable[Fact]:
    """Which key matters most, and how many cells have an answer."""
    if matters := _matters(done, document["keys"], figure):
        (key, factor), what = matters[0], axis(figure).name
        others = "; ".join(f"{name}, {ratio:.3g} times" for name, ratio in matters[1:3])
        more = f"From one value to another, all else equal, up to {factor:.3g} times the {what}."
        yield Fact("What matters most?", key, f"{more}{f' Others: {others}.' if others else ''}")
    count, answered = sum(document["states"].values()), document["states"].get("done", 0)
    if answered < count:
        more = "The table has the reasons of the others."
        yield Fact("How many have an answer?", f"{answered:,} of {count:,}", more)


def _matters(done: Sequence[Written], keys: Sequence[str], figure: str) -> list[tuple[str, float]]:
    """Keys, and the largest ratio of two figures that differ in this key alone; largest first."""
    found = []
    for key in keys:
        groups = _by(done, [name for name in keys if name != key])
        ratios = [g[-1][figure] / g[0][figure] for g in groups if len(g) > 1 and g[0][figure]]
        if ratios:
            found.append((key, max(ratios)))
    return sorted(found, key=lambda pair: -pair[1])


def _curves(done: Sequence[Written], keys: Sequence[str], figure: str) -> Iterable[Section]:
    """Over the number with most values, a line for each value of the others, those that begin best;
    else bars.
    """
    if not done:
        return
    table = _table(done, keys, ROW.columns("html"))
    name, rows = axis(figure).name, [with_bytes(row) for row in done]
    if across := widest(keys, rows):
        facet = lines_facet(rows, (across, figure), keys)
        count = len(facet.series)
        more = f" The {_MOST_LINES} of {count} that begin lowest." if count > _MOST_LINES else ""
        words = f"{name.capitalize()} over {across}.{more}"
        facet = replace(facet, series=facet.series[:_MOST_LINES])
    else:
        shown, best = done[:_MOST_BARS], "the least" if figure in FACTORS else "the fastest"
        bars = [(_cell(row, keys), row[figure]) for row in shown]
        facet = bar_facet(replace(axis(figure), log=False), bars, [1, *[0] * (len(bars) - 1)])
        words = (
            f"{units.plural(len(shown), 'cell')}, {best} first."
            if len(shown) == len(done)
            else f"{best.capitalize()} {len(shown)} of {len(done):,} cells."
        )
    yield Section("curves", f"{name.capitalize()}s", (Chart(words, facet, table),))


def _table(
    rows: Sequence[Written], keys: Sequence[str], columns: Iterable[tuple[str, Column]]
) -> Table:
    """A column for each key, then others."""
    shown = [(key, Column(key, left=True, show=partial(_shown, key=key))) for key in keys]
    return table_of([*shown, *columns], rows)


def _rows(document: Written, figure: str) -> Section:
    """Every cell, with the reason of those that have no answer."""
    state, reason = ((name, Column(name, left=True, missing="")) for name in ("state", "reason"))
    column = dict(ROW.columns("html"))[figure]
    table = _table(document["rows"], document["keys"], (state, (figure, column), reason))
    words = f"All {units.plural(len(table.rows), 'cell')}"
    return Section("cells", "Every cell", (Rows(words, table, folded=len(table.rows) > 20),))
