"""`simreduce compare`: what changed between two sweeps, as text and as a document."""

from __future__ import annotations

from typing import Any

from simreduce import tables, units
from simreduce.sweep import Sweep
from simreduce.sweep.compare import Change, Comparison, Place, Winner
from simreduce.tables import Table
from simreduce.version import __version__

_MOST = 12


def compared_text(found: Comparison, sweeps: tuple[Sweep, Sweep], names: tuple[str, str]) -> str:
    """Both sweeps, how many answers changed and by how much, the largest changes, and winners."""
    lines = tables.header(
        "simreduce compare: which answers changed",
        [
            (word, f"{name}: {sweep.name}, {sweep.version}, {sweep.started[:10]}")
            for word, name, sweep in zip(("first", "second"), names, sweeps, strict=True)
        ],
    )
    count = len(found.changed)
    lines.append(f"{units.plural(found.both, 'cell')} in both, {count} changed")
    for number, word in zip(found.only, ("first", "second"), strict=True):
        if number:
            lines.append(f"  {units.plural(number, 'more cell')} only in the {word}")
    if found.ratios:
        ratios = found.ratios
        middle = ratios[len(ratios) // 2]
        lines.append(
            f"  time of the second over the first: {ratios[0]:.4g} to {ratios[-1]:.4g},"
            f" median {middle:.4g}"
        )
    if found.changed:
        lines += ["", *_changes(found).lines(indent=2)]
        if count > _MOST:
            lines.append(f"  {count - _MOST} more")
    if found.chosen:
        flips = len(found.flipped)
        lines += ["", f"Fastest {found.chosen}: {flips} of {found.questions} changed"]
    if found.flipped:
        lines += _winners(found).lines(indent=2)
    return "\n".join(lines)


def _changes(found: Comparison) -> Table:
    """The largest changes: the keys, both times, and how much longer the second takes."""
    head = tables.columns(
        "|".join([*found.keys, "first", "second", "change"]), left="|".join(found.keys)
    )
    rows = [(*_words(each.place), *_times(each), _percent(each)) for each in found.changed[:_MOST]]
    return Table(head, tuple(rows))


def _winners(found: Comparison) -> Table:
    keys = [key for key in found.keys if key != found.chosen]
    head = tables.columns(
        "|".join([*keys, "first", "second", "now slower by"]),
        left="|".join([*keys, "first", "second"]),
    )
    rows = [
        (*_words(each.place), *map(str, each.choice), f"{each.worth:.2%}")
        for each in found.flipped[:_MOST]
    ]
    return Table(head, tuple(rows))


def _words(place: Place) -> list[str]:
    return ["" if value is None else str(value) for value in place]


def _times(each: Change) -> list[str]:
    return [
        state if seconds is None else units.format_duration(seconds)
        for state, seconds in zip(each.states, each.seconds, strict=True)
    ]


def _percent(each: Change) -> str:
    return each.reason[:60] if None in each.seconds else f"{each.ratio - 1.0:+.2%}"


def compared_document(
    found: Comparison, sweeps: tuple[Sweep, Sweep], names: tuple[str, str]
) -> dict[str, Any]:
    """The keys that others may rely on, in a fixed order; times in seconds."""
    return {
        "command": "compare",
        "version": __version__,
        "sweeps": [
            {
                "file": name,
                "sweep": s.id,
                "name": s.name,
                "version": s.version,
                "started": s.started,
            }
            for name, s in zip(names, sweeps, strict=True)
        ],
        "keys": list(found.keys),
        "cells": found.both,
        "only": list(found.only),
        "changed": [_change_keys(found, each) for each in found.changed],
        "chosen": found.chosen,
        "questions": found.questions,
        "flipped": [_winner_keys(found, each) for each in found.flipped],
    }


def _change_keys(found: Comparison, each: Change) -> dict[str, Any]:
    return {
        "cell": dict(zip(found.keys, each.place, strict=True)),
        "states": list(each.states),
        "seconds": list(each.seconds),
        "reason": each.reason,
    }


def _winner_keys(found: Comparison, each: Winner) -> dict[str, Any]:
    keys = [key for key in found.keys if key != found.chosen]
    return {
        "cell": dict(zip(keys, each.place, strict=True)),
        "choice": list(each.choice),
        "earlier_s": list(each.earlier),
        "later_s": list(each.later),
        "slower": each.worth,
    }
