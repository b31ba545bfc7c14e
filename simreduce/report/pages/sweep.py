"""The page of a sweep: one question for many values.

`simreduce plot`: which columns of a sweep a plot shows, and how they are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from simreduce import units
from simreduce.computing import group_by
from simreduce.errors import InputError
from simreduce.files.tables import Column, Table, table_of
from simreduce.report.blocks import Attachments, Chart, Fact, Page, Rows, Section, Written
from simreduce.report.headings import faster_than
from simreduce.report.plots import Facet, Plot, PlotPoint, PlotSeries, bar_facet
from simreduce.report.plots.axes import Axis, Quantity
from simreduce.report.sections import machine_section, repeat_section
from simreduce.report.sweeps import ROW, check_columns
from simreduce.study.sweep import BENCH, FACTORS, MESH, STEP, UNITS, objective
from simreduce.study.sweep.grid import SIZES
from simreduce.study.sweep.store import Sweep

LINES, HEAT, PARETO = KINDS = ("lines", "heat", "pareto")
"""Kinds of plots."""
_QUANTITIES: Mapping[str, Quantity] = {
    "s": "seconds", "B": "bytes", "B/s": "bytes/s", "1": "share",
}  # fmt: skip
_INVERSE = (
    *(name for name, unit in UNITS.items() if unit in ("B/s", "1/s")), "efficiency", "fairness",
    "fit",
)  # fmt: skip
"""Columns of which more is better; those over the time share its interval."""


def sweep_plot(
    sweep: Sweep,
    rows: Sequence[Written],
    kind: str,
    x: str | None = None,
    y: str | None = None,
    value: str | None = None,
) -> Plot:
    """A plot of the rows of a sweep. Lines and Pareto plots show column `y` over `x`; a heat map
    shows `value` for each `x` and `y`. InputError names columns that there are not.
    """
    rows = [with_bytes(row) for row in rows]
    done = [row for row in rows if row.get("state") == "done"]
    if not done:
        raise InputError(f"{sweep.name}: no cell is done: there is nothing to draw")
    varied = [key for key in sweep.keys if len({row.get(key) for row in rows}) > 1]
    best = objective(sweep.kind)
    default = "busbw" if sweep.kind == BENCH else best
    first = x or widest(varied, done) or [*varied, *sweep.keys, "digest"][0]
    chosen = (x or best, y or "ranks") if kind == PARETO else (first, y or default)
    if kind == HEAT and not y:
        others = [key for key in varied if key != chosen[0]]
        if not others:
            raise InputError("-y: a heat map needs two keys that vary; this sweep has one")
        chosen = chosen[0], others[0]
    shown = value or default
    check_columns([*chosen, *([shown] if kind == HEAT else [])], [*rows[0]])
    title, about = sweep.name, _about(sweep, done, varied)
    if kind == HEAT:
        return _heat(rows, chosen, shown, varied, title, about)
    if kind == PARETO:
        return _pareto(done, chosen, varied, title, about)
    facet = lines_facet(done, chosen, varied)
    banded = any(point.low is not None for series in facet.series for point in series.points)
    return _plot(title, about, facet, ["bands: 80 % interval of the calibration"] * banded)


def with_bytes(row: Written) -> Written:
    """The row with sizes, which may be text such as `64M`, in bytes where it has these."""
    sizes = [key for key in SIZES if isinstance(row.get(key), str)]
    return {**row, **dict.fromkeys(sizes, row["nbytes"])} if sizes and row.get("nbytes") else row


def widest(keys: Iterable[str], rows: Sequence[Written]) -> str:
    """The key of numbers with most values, "" if no numbers vary."""
    counts = {
        key: len({row[key] for row in rows})
        for key in keys
        if all(type(row.get(key)) in (int, float) for row in rows)
    }
    most = max(counts, key=counts.__getitem__, default="")
    return most if counts.get(most, 0) > 1 else ""


def _about(sweep: Sweep, rows: Sequence[Written], varied: Sequence[str]) -> str:
    """What all cells share: the keys with one value, the calibration, the version."""
    shared = [f"{key} {_tick(rows[0], key)}" for key in sweep.keys if key not in varied]
    calibrations = sorted({str(row.get("calibration")) for row in rows} - {"None"})
    versions = sorted({str(row.get("version")).partition("+")[0] for row in rows} - {"None"})
    words = [*shared, *(f"calibration {name}" for name in calibrations[:2])]
    return ", ".join([*words, *(f"simreduce {version}" for version in versions[:2])])


def axis(name: str) -> Axis:
    """The axis of a column."""
    unit = "B" if name in SIZES else "" if name in FACTORS else UNITS.get(name, "")
    return Axis(_WORDS.get(name, name), _QUANTITIES.get(unit, "number"))


_WORDS = {
    "seconds": "time",
    "exposed": "exposed communication",
    "samples_per_second": "samples/s",
    "gradients_per_second": "gradients/s",
    "dropped": "dropped gradients",
    "memory": "memory of a GPU",
}


def _band(row: Written, name: str) -> tuple[float | None, float | None]:
    """The interval of a value: that of the time, or of what is over the time."""
    low, high, seconds = row.get("low"), row.get("high"), row.get("seconds")
    if not low or not high or not seconds:
        return None, None
    if name == "seconds":
        return low, high
    if name in _INVERSE:
        return row[name] * seconds / high, row[name] * seconds / low
    return None, None


def _name(row: Written, keys: Iterable[str]) -> str:
    """A cell by the keys that tell it from others: words as they are, numbers with their key."""
    parts = [
        str(row[key]) if isinstance(row[key], str) else f"{key} {row[key]}"
        for key in keys
        if row.get(key) is not None
    ]
    return ", ".join(parts)


def lines_facet(rows: Sequence[Written], chosen: tuple[str, str], keys: Sequence[str]) -> Facet:
    """The second chosen column over the first, a line for each value of the other keys. Words on
    the x axis stand side by side in the order in which they come.
    """
    x, y = chosen
    rows = [r for r in rows if isinstance(r.get(y), int | float) and r.get(x) is not None]
    across = replace(axis(x), zero=False)
    values = list(dict.fromkeys(row[x] for row in rows))
    if any(isinstance(each, str) for each in values):
        across = replace(across, names=[str(each) for each in values])
    elif across.quantity == "number":
        across = replace(across, ticks=sorted(values))
    series: dict[str, list[PlotPoint]] = {}
    for row in rows:
        at = values.index(row[x]) if across.names else float(row[x])
        name = _name(row, (key for key in keys if key != x)) or axis(y).name
        series.setdefault(name, []).append(PlotPoint(at, row[y], *_band(row, y)))
    drawn = [PlotSeries(n, sorted(points, key=lambda p: p.x)) for n, points in series.items()]
    return Facet(across, axis(y), drawn, height=340.0)


def _plot(title: str, about: str, facet: Facet, notes: Sequence[str] = ()) -> Plot:
    if not any(series.points for series in facet.series):
        raise InputError("no cell of the sweep has these values: there is nothing to draw")
    return Plot(title, about, [facet], notes=notes)


_SCALE = ((0, 32, 77), (65, 77, 107), (124, 123, 120), (188, 174, 108), (255, 234, 70))
"""The scale of colours cividis, which colour-blind readers see alike: red, green and blue."""


def _heat(
    rows: Sequence[Written], chosen: tuple[str, str], value: str, varied: Sequence[str], title: str,
    about: str,
) -> Plot:  # fmt: skip
    """A cell for each pair of values, with its value as colour and as text, and a cross where there
    is none. Of several cells at one place, the best.
    """
    x, y = chosen
    cells: dict[tuple[str, str], float | None] = {}
    for row in rows:
        at = _tick(row, x), _tick(row, y)
        found = row.get(value) if row.get("state") == "done" else None
        before = cells.setdefault(at, None)
        if isinstance(found, int | float) and (
            before is None or (found > before) == (value in _INVERSE)
        ):
            cells[at] = float(found)
    others = [key for key in varied if key not in chosen]
    if others:
        about = f"best over {', '.join(others)}; {about}"
    columns, lines = (list(dict.fromkeys(at[k] for at in cells)) for k in (0, 1))
    known = [each for each in cells.values() if each is not None]
    scale = replace(axis(value), zero=False).scale(known)
    drawn: dict[str, list[PlotPoint]] = {}
    for (column, line), found in cells.items():
        text, colour = (
            ("x", "#ffffff")
            if found is None
            else (axis(value).show(found), _colour(scale.at(found)))
        )
        place = PlotPoint(columns.index(column), lines.index(line), label=text)
        drawn.setdefault(colour, []).append(place)
    series = [PlotSeries("", points, "", "cell", colour) for colour, points in drawn.items()]
    series += [
        PlotSeries(
            f"{axis(value).label}: {text}" if k == 0 else text, (), "", "cell", _colour(part)
        )
        for k, (part, text) in enumerate(scale.ticks(6))
    ]
    across, up = replace(axis(x), names=columns), replace(axis(y), names=lines)
    return _plot(title, about, Facet(across, up, series, height=30.0 * len(lines)))


def _colour(part: float) -> str:
    """The colour of a part of the scale from 0 to 1."""
    k = min(int(part * 4), 3)
    mixed = (a + (b - a) * (part * 4 - k) for a, b in zip(*_SCALE[k : k + 2], strict=True))
    return "#" + "".join(f"{round(each):02x}" for each in mixed)


def _tick(row: Written, name: str) -> str:
    value = row.get(name)
    return axis(name).show(value) if isinstance(value, int | float) else str(value)


def _pareto(
    rows: Sequence[Written], chosen: tuple[str, str], varied: Sequence[str], title: str, about: str
) -> Plot:
    """Points by two values, and those that no other beats in both, with labels."""
    x, y = chosen
    series: dict[str, list[PlotPoint]] = {}
    words = [k for k in varied if any(isinstance(row.get(k), str) for row in rows)]
    for row in rows:
        if isinstance(row.get(x), int | float) and isinstance(row.get(y), int | float):
            point = PlotPoint(row[x], row[y], *_band(row, x), _name(row, varied))
            series.setdefault(_name(row, words[:1]) or title, []).append(point)
    values = [(point.x, point.y) for each in series.values() for point in each]
    front = [values[i] for i in pareto(values, (x in _INVERSE, y in _INVERSE))]
    drawn = [
        PlotSeries(
            name,
            [p._replace(label=p.label * (p[:2] in front)) for p in each],
            "",
            interval="across",
        )
        for name, each in series.items()
    ]
    drawn.append(PlotSeries("frontier", [PlotPoint(*p) for p in front], "dotted", "", "ink"))
    wanted = [f"{'high' if name in _INVERSE else 'low'} {axis(name).name}" for name in chosen]
    about = f"best: {' and '.join(wanted)}; {about}"
    return _plot(title, about, Facet(replace(axis(x), zero=False), axis(y), drawn, height=380.0))


def pareto(points: Sequence[tuple[float, ...]], best: tuple[bool, bool]) -> list[int]:
    """The places of the points that no other beats in both values, by the first value. Of equal
    points the first counts; `best` says of both values whether more is better.
    """
    signs = [-1.0 if more else 1.0 for more in best]
    order = sorted(
        range(len(points)), key=lambda i: (signs[0] * points[i][0], signs[1] * points[i][1], i)
    )
    found: list[int] = []
    for i in order:
        if not found or signs[1] * points[i][1] < signs[1] * points[found[-1]][1]:
            found.append(i)
    return found


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


def _if_right(document: Written, best: Written) -> str:
    """What an interval of a step leaves out, but for meshes: it is of communication, computing is
    as stated.
    """
    stated = document.get("kind") == STEP and best.get("method") != MESH
    return ", if GPUs compute as fast as the question says" if stated else ""


def _sure(document: Written, wins: _Wins | None, best: Written | None, figure: str) -> str:
    if best is None:
        return ""
    what = "that time" if wins else "slowdowns" if figure in FACTORS else "the fastest"
    if None in (best.get("low"), best.get("high")) or not best["seconds"]:
        return f"How sure: nothing is known of the error of the prediction of {what}."
    low, high = (best[key] / best["seconds"] for key in ("low", "high"))
    return (
        f"How sure: with 80% probability {what} is {low:.2f} to {high:.2f} times what is predicted"
        f"{_if_right(document, best)}."
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
        yield Fact("How sure is that?", ends, f"With 80% probability{_if_right(document, best)}.")
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
