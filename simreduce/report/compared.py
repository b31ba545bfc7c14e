"""`simreduce compare`: what changed between two sweeps, as text and as a document."""

from __future__ import annotations

from typing import Any, NamedTuple

from simreduce import units
from simreduce.files import tables
from simreduce.files.formats.documents import (
    COUNT,
    INTEGER,
    PLAIN,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    or_null,
)
from simreduce.files.tables import Table
from simreduce.study.sweep import Sweep
from simreduce.study.sweep.columns import FACTORS, format_figure
from simreduce.study.sweep.compare import CellChange, Comparison, Place, Winner

_MOST = 12


def compared_text(both: ComparedSweeps) -> str:
    """Both sweeps, how many answers changed and by how much, the largest changes, and winners."""
    found = both.found
    lines = tables.header(
        "simreduce compare: which answers changed",
        [
            (word, f"{name}: {sweep.name}, {sweep.version}, {sweep.started[:10]}")
            for word, (name, sweep) in zip(("first", "second"), both.files, strict=True)
        ],
    )
    count = len(found.changed)
    lines.append(f"{units.plural(found.both, 'cell')} in both, {count} changed")
    for number, word in zip(found.only, ("first", "second"), strict=True):
        if number:
            lines.append(f"  {units.plural(number, 'more cell')} only in the {word}")
    if found.ratios:
        ratios, what = found.ratios, _word(found, "time", found.figure)
        middle = ratios[len(ratios) // 2]
        lines.append(
            f"  {what} of the second over the first: {ratios[0]:.4g} to {ratios[-1]:.4g},"
            f" median {middle:.4g}"
        )
    if found.changed:
        lines += ["", *_changes(found).lines(indent=2)]
        if count > _MOST:
            lines.append(f"  {count - _MOST} more")
    if found.chosen:
        flips, best = len(found.flipped), _word(found, "Fastest", "Best")
        lines += ["", f"{best} {found.chosen}: {flips} of {found.questions} changed"]
    if found.flipped:
        lines += _winners(found).lines(indent=2)
    lines += ["", *(f"Warning: {warning}." for warning in found.warnings)] if found.warnings else []
    return "\n".join(lines)


def _changes(found: Comparison) -> Table:
    """The largest changes: the keys, both times, and how much longer the second takes."""
    head = tables.columns(
        "|".join([*found.keys, "first", "second", "change"]), left="|".join(found.keys)
    )
    rows = [
        (*_words(each.place), *_figures(found.figure, each), _percent(each))
        for each in found.changed[:_MOST]
    ]
    return Table(head, tuple(rows))


def _winners(found: Comparison) -> Table:
    keys = [key for key in found.keys if key != found.chosen]
    head = tables.columns(
        "|".join([*keys, "first", "second", _word(found, "now slower by", "now worse by")]),
        left="|".join([*keys, "first", "second"]),
    )
    rows = [
        (*_words(each.place), *map(str, each.choice), f"{each.worth:.2%}")
        for each in found.flipped[:_MOST]
    ]
    return Table(head, tuple(rows))


def _word(found: Comparison, of_times: str, of_factors: str) -> str:
    """The word for what is compared."""
    return of_factors if found.figure in FACTORS else of_times


def _words(place: Place) -> list[str]:
    return ["" if value is None else str(value) for value in place]


def _figures(name: str, each: CellChange) -> list[str]:
    return [
        state if value is None else format_figure(name, value)
        for state, value in zip(each.states, each.figures, strict=True)
    ]


def _percent(each: CellChange) -> str:
    return each.reason[:60] if None in each.figures else f"{each.ratio - 1.0:+.2%}"


class ComparedSweeps(NamedTuple):
    """Two sweeps with the names of their files, and what changed between them."""

    found: Comparison
    sweeps: tuple[Sweep, Sweep]
    names: tuple[str, str]

    @property
    def files(self) -> list[tuple[str, Sweep]]:
        """Each file with its sweep."""
        return [*zip(self.names, self.sweeps, strict=True)]


def _cell_of(each: CellChange | Winner, of: ComparedSweeps) -> dict[str, Any]:
    """The values of the keys that vary; of a winner, without the key that is chosen."""
    keys = of.found.keys
    if isinstance(each, Winner):
        keys = tuple(key for key in keys if key != of.found.chosen)
    return dict(zip(keys, each.place, strict=True))


_CELL = Key("cell", map_of(PLAIN), "The values of the keys that vary.", get_in=_cell_of)
COMPARE = Document(
    "compare",
    "`simreduce compare --json`: what changed between two sweeps. Pairs have the first sweep's "
    "value, then the second's.",
    Key(
        "sweeps",
        list_of(
            Record(
                "sweep",
                "A sweep.",
                Key("file", TEXT, "Its database.", "0"),
                Key("sweep", INTEGER, "Its number there.", "1.id"),
                Key("name", TEXT, "Its name.", "1.name"),
                Key("version", TEXT, "The version of simreduce that began it.", "1.version"),
                Key("started", TEXT, "When it began, in UTC, as ISO 8601 has it.", "1.started"),
            ),
            2,
        ),
        "Both sweeps.",
        "files",
    ),
    Key(
        "figure",
        TEXT,
        "What is compared: `seconds`, or of jobs `slowdown`, then also under names of times.",
        "found.figure",
    ),
    Key("keys", list_of(TEXT), "The keys that vary, by which cells are matched.", "found.keys"),
    Key("cells", COUNT, "Cells in both.", "found.both"),
    Key("only", list_of(COUNT, 2), "Cells in one of the two only.", "found.only"),
    Key(
        "changed",
        list_of(
            Record(
                "change",
                "A cell whose time or state changed.",
                _CELL,
                Key("states", list_of(TEXT, 2), "Its states."),
                Key(
                    "seconds",
                    list_of(or_null(SECONDS), 2),
                    "Its times, or of jobs its slowdowns; null if it has none.",
                    "figures",
                ),
                Key("reason", TEXT, 'Why it has none; "" else.'),
            )
        ),
        "Cells that changed, largest change first.",
        "found.changed",
    ),
    Key(
        "warnings",
        list_of(TEXT),
        "What a library is slow at on a machine, or whose constants its times have.",
        "found.warnings",
    ),
    Key(
        "chosen",
        TEXT,
        'The key whose fastest value is compared; "" for none.',
        "found.chosen",
    ),
    Key(
        "questions",
        COUNT,
        "Values of the other keys with a fastest one in both.",
        "found.questions",
    ),
    Key(
        "flipped",
        list_of(
            Record(
                "winner",
                "Values of the other keys whose fastest one changed.",
                _CELL,
                Key("choice", list_of(PLAIN, 2), "The fastest."),
                Key(
                    "earlier_s",
                    list_of(SECONDS, 2),
                    "Times of the first sweep's fastest.",
                    "earlier",
                ),
                Key(
                    "later_s",
                    list_of(SECONDS, 2),
                    "Times of the second sweep's fastest.",
                    "later",
                ),
                Key(
                    "slower",
                    RATIO,
                    "The part that the first's fastest is slower in the second.",
                    "worth",
                ),
            )
        ),
        "Where the fastest changed.",
        "found.flipped",
    ),
)
"""Of `ComparedSweeps`."""
