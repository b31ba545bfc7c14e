"""Reports as one HTML file that needs nothing else: pure functions of documents.

Templates escape every text. The policy in the file's head admits the scripts and styles of the file
alone, by their digests, and no connection at all.

What pages say of each kind of document; those of steps and sweeps have modules of their own.

An explanation; a validation, with measured times beside predicted ones; an order of nodes, and jobs
beside each other: who sits below which switches.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import statistics
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from simreduce import units
from simreduce.computing import grouped
from simreduce.errors import InputError, did_you_mean, escape, load_extra, quote
from simreduce.files import exists
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
from simreduce.files.formats.syntax import read_json
from simreduce.files.tables import Column, Table
from simreduce.report.bench import BENCH, bench_page, sizes_section
from simreduce.report.blocks import (
    Attachments,
    Chart,
    Fact,
    Page,
    Picture,
    Section,
    TimelineBlock,
    Written,
    timeline_data,
)
from simreduce.report.capacity import CAPACITY, CAPACITY_JOBS
from simreduce.report.capacity_page import capacity_page
from simreduce.report.drawing import to_svg
from simreduce.report.explain import EXPLAIN, explain_report, work_words
from simreduce.report.headings import caution, error_cell, sure
from simreduce.report.jobs import BESIDE, PLACEMENT, jobs_report, load_section, placement_report
from simreduce.report.pages.sweep import sweep_page
from simreduce.report.pictures import RANKS_WORDS, heat_picture, ranks_picture
from simreduce.report.plots import Facet
from simreduce.report.ranking import RUN, TUNE, run_page, tune_page
from simreduce.report.replicas import REPLICAS, replicas_page
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    measured_block,
    prediction_errors,
    repeat_section,
    timeline_section,
    us,
)
from simreduce.report.step_page import step_page
from simreduce.report.steps import MESHES, STEP, TUNED_MESHES
from simreduce.report.sweeps import SWEEP
from simreduce.study.advice import runs_nccl
from simreduce.topology import Topology, load_topology
from simreduce.version import __version__


def placement_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce tune --placement --json` and `topo place --json`."""
    best, given = document["orders"][0], document["orders"][-1]
    orders = {each["order"]: each["nodes"] for each in (given, best)}
    return _with_places(placement_report(document), document, beside, document["switches"], orders)


def jobs_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce jobs --json`."""
    switches = [[f"n{node}" for node in group] for group in document["switches"]]
    orders = {each["job"]: [f"n{node}" for node in each["nodes"]] for each in document["jobs"]}
    page = jobs_report(document)
    more = replace(page, sections=(*page.sections, *load_section(document)))
    return _with_places(more, document, beside, switches, orders)


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


KINDS: Mapping[str, tuple[Record, Callable[[Written, Attachments], Page]]] = {
    "run": (RUN, run_page),
    "step": (STEP, step_page),
    "bench": (BENCH, bench_page),
    "explain": (EXPLAIN, explain_page),
    "tune": (TUNE, tune_page),
    "validate": (READ, validate_page),
    "capacity": (CAPACITY, capacity_page),
    "sweep": (SWEEP, sweep_page),
    "jobs": (BESIDE, jobs_page),
}
"""Keys and pages by the `command` of a document that `--json` prints."""

_OTHERS: Mapping[tuple[str, str], tuple[Record, Callable[[Written, Attachments], Page]]] = {
    ("step", "replicas_to_aggregate"): (REPLICAS, replicas_page),
    ("step", "global_batch"): (MESHES, step_page),
    ("tune", "global_batch"): (TUNED_MESHES, step_page),
    ("tune", "distinct_orders"): (PLACEMENT, placement_page),
    ("capacity", "jobs"): (CAPACITY_JOBS, capacity_page),
}
"""Of a command's `--json` on `[replicas]`, a mesh, an order or jobs, by a key of its own."""


_STOPPED = {
    "tune": "",
    "capacity": "Not all values at which the choice changes were found.",
    "sweep": "The sweep has not run to its end.",
}
"""What is said of a document that is not complete, if not that its command was stopped."""


_HURRIED = "Left out to save time: what promises least. A longer --budget simulates more."


def _beware(document: Written, beside: Attachments) -> str:
    """The disturbance of the machine and what is missing, for the first screen."""
    disturbed, found = document.get("disturbance"), ""
    if isinstance(disturbed, str) and disturbed:
        found = f" Disturbed: {disturbed}."
    if document.get("hurried"):
        found += f" {beside.hurried or _HURRIED}"
    elif document.get("complete") is False:
        stopped = _STOPPED.get(document["command"], "The command was stopped before its end.")
        found += f" {stopped}" if stopped else ""
    return found


def kind_of(
    document: Written, place: str
) -> tuple[str, Record, Callable[[Written, Attachments], Page]]:
    """The command of a document, its keys and its page; InputError if it has none."""
    kind = document.get("command")
    if not isinstance(kind, str) or kind not in KINDS:
        said = "has no key command" if kind is None else f"command is {quote(str(kind))}"
        near = did_you_mean(str(kind), KINDS) if kind is not None else ""
        raise InputError(f"{place}: {said}{near}; a report takes the --json of {', '.join(KINDS)}")
    other = (found for (of, key), found in _OTHERS.items() if kind == of and key in document)
    return kind, *next(other, KINDS[kind])


def check_kinds(document: Written, place: str) -> None:
    """Raise InputError with every value that is not as its command writes it.

    A key may be missing, as in documents of versions that did not have it yet.
    """
    kind, keys, _ = kind_of(document, place)
    wrong = [f"{each.place} must be {each.words}" for each in keys.misfits(document)]
    if wrong:
        about = f"{place}: is no document of simreduce {kind} --json"
        raise InputError([f"{about}: {words}" for words in wrong])


def make_page(document: Written, beside: Attachments, place: str = "the document") -> Page:
    """The page of a document. InputError if there is none for its kind, or it lacks a key.

    `check_kinds` has checked what others wrote.
    """
    kind, _, page_of = kind_of(document, place)
    try:
        page = page_of(document, beside)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    except KeyError as error:
        for each in filter(None, (document, beside.explanation, beside.sizes)):
            kind, keys, _ = kind_of(each, place)
            if error.args[0] in keys.names():
                lacks = f"lacks the key {error.args[0]!r} of simreduce {kind} --json"
                raise InputError(f"{place}: {lacks}") from None
        raise
    return replace(page, about=f"{page.about}{_beware(document, beside)}")


_STATIC = Path(__file__).parent / "static"
_LICENCES = ("NOTICE", "LICENSE", "LICENSE-d3")
_SCRIPTS = ("echarts.min.js", "charts.js", "page.js")


def check_pages() -> None:
    """Raises InputError unless the library that fills the template is installed."""
    load_extra("jinja2", "a report needs jinja2: pip install 'simreduce[report]'")


def page_html(page: Page) -> str:
    """The page as HTML."""
    parts = page_parts(page)
    specs = {name: spec for part in parts for name, spec in part.charts.items()}
    scripts = [*map(_static, _SCRIPTS)] if specs else []
    style = _static("page.css")
    return str(
        templates(_STATIC)
        .get_template("page.html")
        .render(
            page=page,
            parts=parts,
            version=__version__,
            policy=_policy(scripts, style),
            style=style,
            scripts=scripts,
            data=_json(specs),
            licences=[_static(f"echarts-{name}.txt") for name in _LICENCES],
        )
    )


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of a page, to put into another page.

    `charts` has the specification of each chart by the name of its place.
    """

    key: str
    html: str
    charts: Mapping[str, Mapping[str, Any]]


def page_parts(page: Page) -> list[PagePart]:
    """The answer and the sections of a page, each by itself."""
    check_pages()
    template = templates(_STATIC).get_template("fragment.html")
    parts = [PagePart("answer", str(template.render(page=page, section=None)), {})]
    for section in page.sections:
        charts = [b for b in section.blocks if isinstance(b, Chart)]
        names = {id(chart): f"{section.key}-{i}" for i, chart in enumerate(charts)}
        html = template.render(section=section, number_of=lambda c, names=names: names[id(c)])
        specs = {names[id(chart)]: _spec(chart.drawn) for chart in charts}
        parts.append(PagePart(section.key, str(html), specs))
    return parts


def _spec(drawn: Facet | TimelineBlock) -> dict[str, Any]:
    data = timeline_data(drawn) if isinstance(drawn, TimelineBlock) else asdict(drawn)
    return {key: _escaped(value) for key, value in data.items()}


def _escaped(value: Any) -> Any:
    """The value with every text in it as `escape` shows it."""
    match value:
        case str():
            return escape(value)
        case dict():
            return {key: _escaped(each) for key, each in value.items()}
        case list() | tuple():
            return [*map(_escaped, value)]
    return value


def _policy(scripts: list[str], style: str) -> str:
    """The page's content security policy: the browser runs and applies only what is in it."""
    own = " ".join(map(_digest, scripts)) or "'none'"
    return (
        f"default-src 'none'; script-src {own}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    """JSON for a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


_LONG = 12
"""Characters of a name that may go on in the next line."""


def _breakable(text: str, markup: Any) -> Any:
    """The text escaped, with places where a long name may go on in the next line."""
    return markup("").join(
        markup("<wbr>").join(map(markup.escape, re.split(r"(?<=[+,/=_:>])(?=\w{2})", word)))
        if len(word) > _LONG
        else markup.escape(word)
        for word in re.split(r"(\s+)", escape(text))
    )


def _tokens(text: str, markup: Any) -> Any:
    """A command escaped, each of its options in one line: --all, not -- and all."""
    return markup("").join(
        markup('<span class="token">{}</span>').format(word) if "-" in word else markup.escape(word)
        for word in re.split(r"(\s+)", escape(text))
    )


@cache
def _static(name: str) -> str:
    return (_STATIC / name).read_text("utf-8")


@cache
def templates(folder: Path) -> Any:
    """Those of a folder; they escape every text."""
    import jinja2  # noqa: PLC0415 - an extra
    import markupsafe  # noqa: PLC0415 - comes with it

    place = jinja2.Environment(
        autoescape=True,
        finalize=lambda value: escape(value) if type(value) is str else value,
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    place.filters["kind_of"] = lambda block: type(block).__name__.lower()
    place.filters["svg"] = to_svg
    place.filters["words"] = lambda text: _breakable(text, markupsafe.Markup)
    place.filters["tokens"] = lambda text: _tokens(text, markupsafe.Markup)
    return place


def read_document(text: str, place: str) -> Written:
    """Read what `--json` printed, or what `simreduce validate --out` kept, line by line.

    Raises InputError with every value that is not as the command writes it.
    """
    try:
        found = read_json(text, f"{place}: is no JSON document")
    except InputError:
        lines = [_line(line) for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or not all(lines):
            raise
        found = _of_records([line for line in lines if line], place)
    if not isinstance(found, dict):
        raise InputError(f"{place}: is no document of simreduce: it must be a JSON object")
    document: Written = _of_records([found], place) if found.get("record") == "run" else found
    check_kinds(document, place)
    return document


def _line(text: str) -> dict[str, Any] | None:
    try:
        found = read_json(text, "")
    except InputError:
        return None
    return found if isinstance(found, dict) else None


def _of_records(lines: Sequence[Written], place: str) -> dict[str, Any]:
    """The records of a validation as its document; a candidate without samples has no row."""
    try:
        return _document(lines)
    except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
        raise InputError(f"{place}: is no file of simreduce validate --out: {error!r}") from None


def _document(lines: Sequence[Written]) -> dict[str, Any]:
    provenance = lines[0]["provenance"]
    samples = grouped(
        (line["id"], float(line["us"])) for line in lines if line["record"] == "sample"
    )
    wrong = {line["id"]: len(line["faults"]) for line in lines if line["record"] == "checked"}
    rows = [
        {
            "size_bytes": line["size_bytes"],
            "algorithm": line["algorithm"],
            "time_us": statistics.median(samples[line["id"]]),
            "low_us": min(samples[line["id"]]),
            "high_us": max(samples[line["id"]]),
            "predicted_time_us": line["predicted_us"],
            "wrong": wrong.get(line["id"], 0),
        }
        for line in lines
        if line["record"] == "candidate" and line["id"] in samples
        if line["then_us"] is None  # others are controls
    ]
    return {
        "command": "validate",
        "version": str(provenance.get("simreduce", "")),
        "topology": str(provenance.get("topology", "")),
        "ranks": int(provenance.get("ranks", 0)),
        "backend": str(provenance.get("backend", "")),
        "route": str(provenance.get("route", "")),
        "runtime": str(provenance.get("runtime", "")),
        "calibration": str(provenance.get("calibration", "")),
        "provenance": provenance,
        "rows": rows,
    }


CellPicture = tuple[str, str]
"""Words for those who cannot see it, and the SVG."""


def cell_html(headline: str, table: Table, pictures: Iterable[CellPicture] = ()) -> str:
    """The result as HTML for a notebook. Pictures are images, which run no script."""
    images = "".join(
        f'<img alt="{html.escape(words)}" style="max-width: 100%; background: white" '
        f'src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'
        for words, svg in pictures
    )
    return f"<div>{images}</div>{table.html([headline])}" if images else table.html([headline])


def load_pictures(name: str, digest: str, loads: Mapping[str, float]) -> list[CellPicture]:
    """The machine under load; none if simreduce does not have this machine under its name."""
    machine = machine_named(name, digest)
    if machine is None:
        return []
    return [(f"How busy each link of {name} is", to_svg(heat_picture(machine, loads)))]


def machine_named(name: str, digest: str | None) -> Topology | None:
    """The shipped or inline machine of a result, None if there is none with this content. No file
    of a user is read.
    """
    if exists(name):
        return None
    try:
        machine = load_topology(name)
    except InputError:
        return None
    return machine if digest in (None, machine.digest) else None
