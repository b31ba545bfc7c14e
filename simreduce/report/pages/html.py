"""Writes a page as one HTML file. Equal pages give equal bytes.

Templates escape every text. The policy in the file's head admits the scripts and styles of the file
alone, by their digests, and no connection at all.

The documents that a page is made of are read here too.

What a notebook shows of a result: its pictures above its table.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import statistics
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simreduce.computing.lists import grouped
from simreduce.errors import InputError, load_extra
from simreduce.files.formats.syntax import read_json
from simreduce.files.tables import Table
from simreduce.files.textfiles import exists
from simreduce.report.blocks import Chart, Page, TimelineBlock, Written
from simreduce.report.drawing import to_svg
from simreduce.report.pages.kinds import check_kinds
from simreduce.report.pictures import heat_picture
from simreduce.report.plots import Facet
from simreduce.report.timelines import timeline_data
from simreduce.topology import Topology, load_topology
from simreduce.version import __version__

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
    return timeline_data(drawn) if isinstance(drawn, TimelineBlock) else asdict(drawn)


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
        for word in re.split(r"(\s+)", text)
    )


def _tokens(text: str, markup: Any) -> Any:
    """A command escaped, each of its options in one line: --all, not -- and all."""
    return markup("").join(
        markup('<span class="token">{}</span>').format(word) if "-" in word else markup.escape(word)
        for word in re.split(r"(\s+)", text)
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
    run = lines[0]
    provenance = run["provenance"]
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


Picture = tuple[str, str]
"""Words for those who cannot see it, and the SVG."""


def cell_html(headline: str, table: Table, pictures: Iterable[Picture] = ()) -> str:
    """The result as HTML for a notebook. Pictures are images, which run no script."""
    images = "".join(
        f'<img alt="{html.escape(words)}" style="max-width: 100%; background: white" '
        f'src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'
        for words, svg in pictures
    )
    return f"<div>{images}</div>{table.html([headline])}" if images else table.html([headline])


def load_pictures(name: str, digest: str, loads: Mapping[str, float]) -> list[Picture]:
    """The machine under load; none if simreduce does not have this machine under its name."""
    machine = machine_named(name, digest)
    if machine is None:
        return []
    words = f"How busy each link of {name} is"
    return [(words, to_svg(heat_picture(machine, loads)))]


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
