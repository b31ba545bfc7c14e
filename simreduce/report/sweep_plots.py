"""`simreduce plot`: which columns of a sweep a plot shows, and how they are counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from simreduce.errors import InputError
from simreduce.report.blocks import Written
from simreduce.report.plots import Axis, Facet, Plot, PlotPoint, PlotSeries, Quantity
from simreduce.report.sweeps import check_columns
from simreduce.study.sweep import BENCH, UNITS, Sweep, objective
from simreduce.study.sweep.cells import FACTORS

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
_SIZES = ("size", "bytes")


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
    sizes = [key for key in _SIZES if isinstance(row.get(key), str)]
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
    unit = "B" if name in _SIZES else "" if name in FACTORS else UNITS.get(name, "")
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
    points = [point for each in series.values() for point in each]
    values = [(point.x, point.y) for point in points]
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
