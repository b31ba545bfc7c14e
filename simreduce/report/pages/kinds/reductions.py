"""Pages of an explanation, and of a validation: measured times beside predicted ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simreduce import units
from simreduce.files import tables
from simreduce.files.formats.documents import (
    ANYTHING,
    BYTES,
    COUNT,
    MICROSECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    or_null,
    positive,
)
from simreduce.files.tables import Table
from simreduce.report.advised import caution, sure
from simreduce.report.bench import sizes_section
from simreduce.report.blocks import Attachments, Block, Chart, Fact, Page, Rows, Section, Written
from simreduce.report.explain import explain_report, work_words
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    timeline_section,
    us,
)
from simreduce.study.advice import runs_nccl


def explain_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce explain --json`: the report, its machine and its timeline."""
    found = replace(beside, explanation=document)
    factor = beside.factor if runs_nccl(document["strategy"]) else None
    page = explain_report(document, found)
    words = f"What every device, link and lane does during one {work_words(document)}."
    sections = (
        *page.sections,
        *machine_section(found),
        *timeline_section(found, words),
        *sizes_section(found),
        *calibration_section(found, document),
        *repeat_section(found, document),
    )
    facts = (*page.facts, Fact("How sure is that?", *sure(factor)))
    how = caution(factor, document["calibration"])
    return replace(page, sure=how, facts=facts, sections=sections)


DEVICES = (
    Key("topology", TEXT, "The name of the machine."),
    Key("ranks", COUNT, "Devices that take part."),
    Key("backend", TEXT, "What ran it."),
    Key("route", TEXT, "How TensorFlow ran it."),
    Key("runtime", TEXT, "The system that runs it."),
    Key("calibration", TEXT, "The constants that times were predicted with."),
)
TIMES = (
    Key("time_us", positive(MICROSECONDS), "The median of the samples."),
    Key("low_us", MICROSECONDS, "The lower end of the median's 95 % interval."),
    Key("high_us", MICROSECONDS, "The upper end of that interval."),
)
CANDIDATE = (
    Key("size_bytes", BYTES, "The tensor."),
    Key("algorithm", TEXT, "The strategy, or the name of TensorFlow's own."),
    *TIMES,
    Key("predicted_time_us", or_null(MICROSECONDS), "The prediction, or null."),
    Key("wrong", COUNT, "Faults of the results."),
)
READ = Document(
    "validate",
    "What its page reads of `simreduce validate --json`.",
    *DEVICES,
    Key("provenance", map_of(ANYTHING), "What it ran on."),
    Key("rows", list_of(Record("row", "A strategy at a size.", *CANDIDATE)), "Every candidate."),
)
"""The harness, which this package does not import, writes these keys and more."""


def validate_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce validate --json`."""
    rows = document["rows"]
    known = [row for row in rows if row["predicted_time_us"] is not None and not row["wrong"]]
    devices = f"{units.plural(document['ranks'], 'device')} ({document['backend']})"
    provenance = [(key, str(value)) for key, value in document["provenance"].items()]
    return Page(
        title=f"Measured beside predicted on {document['topology']}",
        about=f"{units.plural(len(rows), 'candidate')} on {devices} that stand for "
        f"{document['topology']}.",
        answer=_answer(rows, sorted(map(_error, known))),
        sure=_right(rows),
        facts=tuple(_facts(document, rows, known)),
        sections=(
            Section("times", "Measured and predicted", (_times(rows, known),)),
            *machine_section(beside),
            *calibration_section(beside, document),
            *repeat_section(beside, document, provenance),
        ),
    )


def _error(row: Written) -> float:
    """How far off a prediction is, as a part of what was measured."""
    return abs(float(row["predicted_time_us"]) / float(row["time_us"]) - 1.0)


def _right(rows: list[Written]) -> str:
    wrong = sum(1 for row in rows if row["wrong"])
    if wrong:
        return f"{units.plural(wrong, 'candidate')} gave wrong results."
    return "Every result on every device was compared with the true sum, and all were right."


def _answer(rows: list[Written], errors: list[float]) -> str:
    if not errors:
        return f"{units.plural(len(rows), 'candidate')} measured, no prediction to compare."
    if len(errors) == 1:
        return f"The one prediction is off by {errors[0]:.0%} of what was measured."
    return (
        f"Half of {units.plural(len(errors), 'prediction')} are within "
        f"{errors[len(errors) // 2]:.0%} of what was measured, and the worst is off by "
        f"{errors[-1]:.0%}."
    )


def _facts(document: Written, rows: list[Written], known: list[Written]) -> Iterable[Fact]:
    right = not any(row["wrong"] for row in rows)
    yield Fact("Are results right?", "yes" if right else "no", _right(rows))
    worst = max(known, key=_error, default=None)
    if worst is None:
        yield Fact("How far off are predictions?", "not known", "Nothing was predicted.")
    else:
        errors = sorted(map(_error, known))
        half = f"{errors[len(errors) // 2]:.0%}"
        yield Fact("Typical error", half, "Half of the predictions are at most that far off.")
        where = f"{worst['algorithm']} at {units.format_size(worst['size_bytes'])}."
        yield Fact("Largest error", f"{errors[-1]:.0%}", where)
    best = min(rows, key=lambda row: (-row["size_bytes"], row["time_us"]), default=None)
    if best is not None:
        size = units.format_size(best["size_bytes"])
        took = f"{us(best['time_us'])} measured for {size}."
        yield Fact("Fastest at the largest size", best["algorithm"], took)
    stand = f"They stand for {document['topology']}; route {document['route'] or 'not said'}."
    yield Fact("Devices", f"{document['ranks']} x {document['backend']}", stand)


def _times(rows: list[Written], known: list[Written]) -> Block:
    columns = tables.columns(
        "size|algorithm|measured|from|to|predicted|error|wrong",
        units="||(us)|(us)|(us)|(us)||", left="algorithm",
    )  # fmt: skip
    table = Table(columns, tuple(map(_cells, rows)))
    groups: dict[str, list[tuple[float, float, str]]] = {}
    for row in known:
        name = row["algorithm"].split("+chunk=")[0]
        point = (row["predicted_time_us"], row["time_us"], units.format_size(row["size_bytes"]))
        groups.setdefault(name, []).append(point)
    if not groups:
        return Rows("Measured times", table)
    data = {
        "unit": "us",
        "name_x": "predicted",
        "name_y": "measured",
        "groups": [{"name": name, "points": points} for name, points in groups.items()],
    }
    words = "Median of measured times over predicted ones. On the dashed line both are equal."
    return Chart("points", words, data, table, 460)


def _cells(row: Written) -> tuple[str, ...]:
    predicted = row["predicted_time_us"]
    return (
        units.format_size(row["size_bytes"]),
        row["algorithm"],
        *(f"{row[key]:.1f}" for key in ("time_us", "low_us", "high_us")),
        "" if predicted is None else f"{predicted:.1f}",
        "" if predicted is None else f"{predicted / row['time_us'] - 1:+.0%}",
        str(row["wrong"]),
    )
