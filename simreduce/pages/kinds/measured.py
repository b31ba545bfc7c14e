"""What `--measure` timed on real devices, beside what was predicted for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.sections import us
from simreduce.pages.values import Block, Chart, Paragraph, Rows, Section
from simreduce.tables import Table

Document = Mapping[str, Any]


def was_measured(document: Document) -> bool:
    """Whether there are measured times."""
    return bool(document.get("measured"))


def measured_words(document: Document) -> str:
    """Which of them was fastest, and how far off predictions were, in a sentence; "" if nothing was
    measured.
    """
    right = [row for row in document.get("measured") or () if not row["faults"]]
    if not right:
        return ""
    best = min(right, key=lambda row: row["time_us"])
    words = f"Measured on {_where(document)}: {best['strategy']} is fastest, {us(best['time_us'])}"
    errors = sorted(map(abs, _errors(right)))
    if errors:
        words += f"; predictions for these devices are at most {errors[-1]:.0%} off"
    return f"{words}."


def measured_section(document: Document) -> Iterable[Section]:
    """Measured times, if somebody asked for them."""
    if "measured" not in document:
        return
    rows = document["measured"]
    if not rows:
        words = "Measuring failed or was stopped; what was simulated is whole."
        yield Section("measured", "Measured", (Paragraph(words),))
        return
    columns = tables.columns(
        "predicted|strategy|here|measured|from|to|error|faults",
        units="(place)||(ms)|(ms)|(ms)|(ms)||",
        left="strategy|faults",
    )
    table = Table(columns, tuple(map(_cells, rows)))
    blocks: list[Block] = [Paragraph(_about(document, rows)), _drawn(rows, table)]
    yield Section("measured", "Measured", tuple(blocks))


def _about(document: Document, rows: Sequence[Document]) -> str:
    equal = document.get("not_told_apart", [])
    more = ""
    if len(equal) > 1:
        more = f" Measuring does not tell apart {', '.join(equal)}."
    wrong = sum(1 for row in rows if row["faults"])
    if wrong:
        more += f" {units.plural(wrong, 'candidate')} gave wrong results or failed; see the table."
    return (
        f"The first {len(rows)} of the ranking, timed in turns on {_where(document)}. Predictions "
        f"in this section are for these devices, not for {document['topology']}.{more}"
    )


def _where(document: Document) -> str:
    """The devices, as far as the document names them."""
    found = document.get("measured_on")
    settings = found.get("settings", {}) if found else {}
    known = [f"{settings['backend']} devices"] if settings.get("backend") else ["real devices"]
    if settings.get("simulated"):
        known.append(f"taken to be {settings['simulated']}")
    return ", ".join(known)


def _errors(rows: Sequence[Document]) -> list[float]:
    """How far off each prediction is, as a part of what was measured."""
    known = [row for row in rows if row["predicted_time_us"] is not None and row["time_us"]]
    return [float(row["predicted_time_us"]) / float(row["time_us"]) - 1.0 for row in known]


def _drawn(rows: Sequence[Document], table: Table) -> Block:
    right = [row for row in rows if not row["faults"] and row["predicted_time_us"] is not None]
    if not right:
        return Rows("Measured times", table)
    data = {
        "unit": "us",
        "name_x": "predicted",
        "name_y": "measured",
        "groups": [
            {"name": row["strategy"], "points": [(row["predicted_time_us"], row["time_us"], "")]}
            for row in right
        ],
    }
    words = "Measured times over predicted ones. On the dashed line both are equal."
    return Chart("points", words, data, table, 400)


def _cells(row: Document) -> tuple[str, ...]:
    def ms(time: float | None) -> str:
        return "" if time is None else f"{time / 1e3:.3f}"

    errors = [] if row["faults"] else _errors([row])
    return (
        str(row["place"]),
        row["strategy"],
        ms(row["predicted_time_us"]),
        *(ms(row[key]) for key in ("time_us", "low_us", "high_us")),
        f"{errors[0]:+.0%}" if errors else "",
        "; ".join(row["faults"]),
    )
