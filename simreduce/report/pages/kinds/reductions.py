"""Pages of an explanation, and of a validation: measured times beside predicted ones.

The pages of an order of nodes, and of jobs beside each other: who sits below which switches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from simreduce import units
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
from simreduce.files.tables import Column
from simreduce.report.bench import sizes_section
from simreduce.report.blocks import Attachments, Fact, Page, Picture, Section, Written
from simreduce.report.explain import explain_report, work_words
from simreduce.report.headings import caution, error_cell, sure
from simreduce.report.jobs import jobs_report, placement_report
from simreduce.report.pictures import RANKS_WORDS, ranks_picture
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    measured_block,
    prediction_errors,
    repeat_section,
    timeline_section,
    us,
)
from simreduce.study.advice import runs_nccl


def placement_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce tune --placement --json` and `topo place --json`."""
    best, given = document["orders"][0], document["orders"][-1]
    orders = {each["order"]: each["nodes"] for each in (given, best)}
    return _with_places(placement_report(document), document, beside, document["switches"], orders)


def jobs_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce jobs --json`."""
    switches = [[f"n{node}" for node in group] for group in document["switches"]]
    orders = {each["job"]: [f"n{node}" for node in each["nodes"]] for each in document["jobs"]}
    return _with_places(jobs_report(document), document, beside, switches, orders)


def _with_places(
    page: Page,
    document: Written,
    beside: Attachments,
    switches: Sequence[Sequence[str]],
    orders: Mapping[str, Sequence[str]],
) -> Page:
    """The report with a picture of nodes by the switches that they share, a ring in each order."""
    drawing = ranks_picture(switches, orders)
    pictures = (Picture(drawing, RANKS_WORDS, "ranks"),) if drawing else ()
    sections = (
        *page.sections,
        *[Section("places", "Where ranks are", pictures)] * bool(pictures),
        *machine_section(beside),
        *calibration_section(beside, document),
        *repeat_section(beside, document),
    )
    return replace(page, sections=sections)


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
_SHOWN_US = "{:.1f}".format
TIMES = (
    Key("time_us", positive(MICROSECONDS), "The median of the samples.",
        column=Column("measured", "(us)", show=_SHOWN_US)),
    Key("low_us", MICROSECONDS, "The lower end of the median's 95 % interval.",
        column=Column("from", "(us)", show=_SHOWN_US)),
    Key("high_us", MICROSECONDS, "The upper end of that interval.",
        column=Column("to", "(us)", show=_SHOWN_US)),
)  # fmt: skip
CANDIDATE = (
    Key("size_bytes", BYTES, "The tensor.", column=Column("size", show=units.format_size)),
    Key("algorithm", TEXT, "The strategy, or the name of TensorFlow's own.",
        column=Column("algorithm", left=True)),
    *TIMES,
    Key("predicted_time_us", or_null(MICROSECONDS), "The prediction, or null.",
        column=(
            Column("predicted", "(us)", show=_SHOWN_US, missing=""),
            Column("error", cell=error_cell),
        )),
    Key("wrong", COUNT, "Faults of the results.", column=Column("wrong")),
)  # fmt: skip
_ROW = Record("row", "A strategy at a size.", *CANDIDATE)
READ = Document(
    "validate",
    "What its page reads of `simreduce validate --json`.",
    *DEVICES,
    Key("provenance", map_of(ANYTHING), "What it ran on."),
    Key("rows", list_of(_ROW), "Every candidate."),
)
"""The harness, which this package does not import, writes these keys and more."""


def validate_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce validate --json`."""
    rows = document["rows"]
    right = [row for row in rows if not row["wrong"]]
    errors = prediction_errors(right)
    named = ((row["algorithm"].split("+chunk=")[0], row) for row in right)
    times = measured_block(named, _ROW.table(rows), "Median of measured times")
    devices = f"{units.plural(document['ranks'], 'device')} ({document['backend']})"
    provenance = [(key, str(value)) for key, value in document["provenance"].items()]
    return Page(
        title=f"Measured beside predicted on {document['topology']}",
        about=f"{units.plural(len(rows), 'candidate')} on {devices} that stand for "
        f"{document['topology']}.",
        answer=_answer(rows, errors),
        sure=_right(rows),
        facts=tuple(_facts(document, rows, errors)),
        sections=(
            Section("times", "Measured and predicted", (times,)),
            *machine_section(beside),
            *calibration_section(beside, document),
            *repeat_section(beside, document, provenance),
        ),
    )


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


def _facts(document: Written, rows: list[Written], errors: list[float]) -> Iterable[Fact]:
    right = not any(row["wrong"] for row in rows)
    yield Fact("Are results right?", "yes" if right else "no", _right(rows))
    if errors:
        half, worst = f"{errors[len(errors) // 2]:.0%}", f"{errors[-1]:.0%}"
        more = f"Half of the predictions are at most that far off; the worst is off by {worst}."
        yield Fact("How far off are predictions?", half, more)
    else:
        yield Fact("How far off are predictions?", "not known", "Nothing was predicted.")
    best = min(rows, key=lambda row: (-row["size_bytes"], row["time_us"]), default=None)
    if best is not None:
        size = units.format_size(best["size_bytes"])
        took = f"{us(best['time_us'])} measured for {size}."
        yield Fact("Fastest at the largest size", best["algorithm"], took)
    stand = f"They stand for {document['topology']}; route {document['route'] or 'not said'}."
    yield Fact("Devices", f"{document['ranks']} x {document['backend']}", stand)
