"""`simreduce plot`: which columns of a sweep a plot shows, and how they are counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simreduce.errors import InputError
from simreduce.report import plots
from simreduce.report.plots import Axis, Plot, PlotPoint, PlotValue
from simreduce.report.plots.sweeps import BYTES, PLAIN, RATE, SECONDS, SHARE
from simreduce.report.sweeps import check_columns
from simreduce.study.sweep import BENCH, UNITS, Sweep, objective
from simreduce.study.sweep.columns import FACTORS

LINES, HEAT, PARETO = KINDS = ("lines", "heat", "pareto")
"""Kinds of plots."""
_KINDS = {"s": SECONDS, "B": BYTES, "B/s": RATE, "1": SHARE}
_INVERSE = (
    *(name for name, unit in UNITS.items() if unit in ("B/s", "1/s")), "efficiency", "fairness",
    "fit",
)  # fmt: skip
"""Columns of which more is better; those over the time share its interval."""
_SIZES = ("size", "bytes")

Row = Mapping[str, Any]


def sweep_plot(
    sweep: Sweep,
    rows: Sequence[Row],
    kind: str,
    x: str | None = None,
    y: str | None = None,
    value: str | None = None,
) -> Plot:
    """A plot of the rows of a sweep. Lines and Pareto plots show column `y` over `x`; a heat map
    shows `value` for each `x` and `y`. InputError names columns that there are not.
    """
    rows = [_with_bytes(row) for row in rows]
    done = [row for row in rows if row.get("state") == "done"]
    if not done:
        raise InputError(f"{sweep.name}: no cell is done: there is nothing to draw")
    varied = [key for key in sweep.keys if len({row.get(key) for row in rows}) > 1]
    best = objective(sweep.kind)
    default = "busbw" if sweep.kind == BENCH else best
    chosen = {
        LINES: (x or _widest(varied, done, sweep), y or default),
        PARETO: (x or best, y or "ranks"),
        HEAT: (x or _widest(varied, done, sweep), y or ""),
    }[kind]
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
    return _lines(done, chosen, varied, title, about)


def _with_bytes(row: Row) -> Row:
    """The row with sizes, which may be text such as `64M`, in bytes where it has these."""
    sizes = [key for key in _SIZES if isinstance(row.get(key), str)]
    return {**row, **dict.fromkeys(sizes, row["nbytes"])} if sizes and row.get("nbytes") else row


def _widest(varied: Sequence[str], rows: Sequence[Row], sweep: Sweep) -> str:
    """The key of numbers with most values, else the first that varies."""
    counts = {
        key: len({row[key] for row in rows})
        for key in varied
        if all(isinstance(row.get(key), int | float) for row in rows)
    }
    if counts:
        return max(counts, key=counts.__getitem__)
    return (list(varied) or list(sweep.keys) or ["digest"])[0]


def _about(sweep: Sweep, rows: Sequence[Row], varied: Sequence[str]) -> str:
    """What all cells share: the keys with one value, the calibration, the version."""
    shared = [f"{key} {_tick(rows[0], key)}" for key in sweep.keys if key not in varied]
    calibrations = sorted({str(row.get("calibration")) for row in rows} - {"None"})
    versions = sorted({str(row.get("version")).partition("+")[0] for row in rows} - {"None"})
    words = [*shared, *(f"calibration {name}" for name in calibrations[:2])]
    return ", ".join([*words, *(f"simreduce {version}" for version in versions[:2])])


def axis(name: str) -> Axis:
    """The axis of a column."""
    kind = PLAIN if name in FACTORS else _KINDS.get(UNITS.get(name, ""), PLAIN)
    return Axis(_WORDS.get(name, name), BYTES if name in _SIZES else kind)


_WORDS = {
    "seconds": "time",
    "exposed": "exposed communication",
    "samples_per_second": "samples/s",
    "gradients_per_second": "gradients/s",
    "dropped": "dropped gradients",
    "memory": "memory of a GPU",
}


def _band(row: Row, name: str) -> tuple[float | None, float | None]:
    """The interval of a value: that of the time, or of what is over the time."""
    low, high, seconds = row.get("low"), row.get("high"), row.get("seconds")
    if not low or not high or not seconds:
        return None, None
    if name == "seconds":
        return low, high
    if name in _INVERSE:
        return row[name] * seconds / high, row[name] * seconds / low
    return None, None


def _name(row: Row, keys: Iterable[str]) -> str:
    """A cell by the keys that tell it from others: words as they are, numbers with their key."""
    parts = [
        str(row[key]) if isinstance(row[key], str) else f"{key} {row[key]}"
        for key in keys
        if row.get(key) is not None
    ]
    return ", ".join(parts)


def _lines(
    rows: Sequence[Row], chosen: tuple[str, str], varied: Sequence[str], title: str, about: str
) -> Plot:
    x, y = chosen
    series: dict[str, list[PlotValue]] = {}
    others = [key for key in varied if key != x]
    for row in rows:
        if isinstance(row.get(y), int | float) and row.get(x) is not None:
            at = row[x] if isinstance(row[x], str) else float(row[x])
            name = _name(row, others) or axis(y).name
            series.setdefault(name, []).append(PlotValue(at, row[y], *_band(row, y)))
    return plots.draw_lines(series, axis(x), axis(y), title, about)


def _heat(
    rows: Sequence[Row], chosen: tuple[str, str], value: str, varied: Sequence[str], title: str,
    about: str,
) -> Plot:  # fmt: skip
    """Of several cells at one place, the best."""
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
    return plots.draw_heat(cells, axis(x), axis(y), axis(value), title, about)


def _tick(row: Row, name: str) -> str:
    value = row.get(name)
    return axis(name).show(value) if isinstance(value, int | float) else str(value)


def _pareto(
    rows: Sequence[Row], chosen: tuple[str, str], varied: Sequence[str], title: str, about: str
) -> Plot:
    x, y = chosen
    series: dict[str, list[PlotPoint]] = {}
    words = [k for k in varied if any(isinstance(row.get(k), str) for row in rows)]
    for row in rows:
        if isinstance(row.get(x), int | float) and isinstance(row.get(y), int | float):
            choice = PlotPoint(row[x], row[y], *_band(row, x), _name(row, varied))
            series.setdefault(_name(row, words[:1]) or title, []).append(choice)
    wanted = [f"{'high' if name in _INVERSE else 'low'} {axis(name).name}" for name in chosen]
    about = f"best: {' and '.join(wanted)}; {about}"
    best = x in _INVERSE, y in _INVERSE
    return plots.draw_pareto(series, axis(x), axis(y), best, title, about)
