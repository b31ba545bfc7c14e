"""The page of a validation: measured times beside predicted ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.sections import calibration_section, machine_section, repeat_section, us
from simreduce.pages.values import Block, Chart, Fact, Page, Rows, Section
from simreduce.tables import Table

Document = Mapping[str, Any]


def validate_page(document: Document, beside: Beside) -> Page:
    """The page of `simreduce validate --json`."""
    rows = document["rows"]
    known = [row for row in rows if row["predicted_time_us"] is not None and not row["wrong"]]
    errors = sorted(abs(row["predicted_time_us"] / row["time_us"] - 1) for row in known)
    wrong = sum(1 for row in rows if row["wrong"])
    middle = errors[len(errors) // 2] if errors else None
    right = "Every result on every device was compared with the true sum, and all were right."
    if wrong:
        right = f"{units.plural(wrong, 'candidate')} gave wrong results."
    if middle is None:
        answer = f"{units.plural(len(rows), 'candidate')} measured, none with a prediction to compare."
    else:
        answer = (
            f"Half of {units.plural(len(errors), 'prediction')} are within {middle:.0%} of what was "
            f"measured, and the worst is off by {errors[-1]:.0%}."
        )
    best = min(rows, key=lambda row: (-row["size_bytes"], row["time_us"]), default=None)
    facts = [
        Fact("Are results right?", "no" if wrong else "yes", right),
        Fact("Typical error", "not known" if middle is None else f"{middle:.0%}", "Half of the predictions are nearer."),
        Fact("Largest error", "not known" if not errors else f"{errors[-1]:.0%}", _worst(known)),
    ]
    if best is not None:
        facts.append(
            Fact("Fastest at the largest size", best["algorithm"], f"{us(best['time_us'])} measured for {units.format_size(best['size_bytes'])}.")
        )
    facts.append(Fact("Devices", f"{document['ranks']} x {document['backend']}", f"They stand for {document['topology']}; route {document['route']}."))
    return Page(
        title=f"Measured beside predicted on {document['topology']}",
        about=f"{units.plural(len(rows), 'candidate')} on {units.plural(document['ranks'], 'device')} ({document['backend']}) that stand for {document['topology']}.",
        answer=answer,
        sure=right,
        facts=tuple(facts),
        sections=tuple([
            Section("times", "Measured and predicted", tuple(_times(rows, known))),
            *machine_section(beside, document),
            *calibration_section(beside, document),
            *repeat_section(beside, document, [(k, str(v)) for k, v in document["provenance"].items()]),
        ]),
    )  # fmt: skip


def _worst(rows: list[Document]) -> str:
    if not rows:
        return "Nothing was predicted."
    row = max(rows, key=lambda row: abs(row["predicted_time_us"] / row["time_us"] - 1))
    return f"{row['algorithm']} at {units.format_size(row['size_bytes'])}."


def _times(rows: list[Document], known: list[Document]) -> list[Block]:
    groups: dict[str, list[tuple[float, float, str]]] = {}
    for row in known:
        name = row["algorithm"].split("+chunk=")[0]
        point = (row["predicted_time_us"], row["time_us"], units.format_size(row["size_bytes"]))
        groups.setdefault(name, []).append(point)
    columns = tables.columns(
        "size|algorithm|measured|from|to|predicted|error|wrong", units="||(us)|(us)|(us)|(us)||", left="algorithm"
    )
    cells = tuple(
        (
            units.format_size(row["size_bytes"]),
            row["algorithm"],
            f"{row['time_us']:.1f}",
            f"{row['low_us']:.1f}",
            f"{row['high_us']:.1f}",
            "" if row["predicted_time_us"] is None else f"{row['predicted_time_us']:.1f}",
            "" if row["predicted_time_us"] is None else f"{row['predicted_time_us'] / row['time_us'] - 1:+.0%}",
            str(row["wrong"]),
        )
        for row in rows
    )
    table = Table(columns, cells)
    if not groups:
        return [Rows("Measured times", table)]
    data = {
        "unit": "us", "name_x": "predicted", "name_y": "measured",
        "groups": [{"name": name, "points": points} for name, points in groups.items()],
    }  # fmt: skip
    words = "Median of measured times over predicted ones. On the dashed line both are equal."
    return [Chart("points", words, data, table, 460)]
