"""Writes a page as one HTML file. Equal pages give equal bytes.

Templates escape every text. The policy in the file's head admits the scripts and styles of the file
alone, by their digests, and no connection at all.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from simreduce.errors import InputError
from simreduce.report.blocks import Chart, Code, Page, Paragraph, Picture, Rows
from simreduce.report.drawing import to_svg
from simreduce.version import __version__

_STATIC = Path(__file__).parent / "static"
_LICENCES = ("NOTICE", "LICENSE", "LICENSE-d3")
_SCRIPTS = ("echarts.min.js", "charts.js", "page.js")
_BLOCKS = {Paragraph: "paragraph", Code: "code", Rows: "rows", Picture: "picture", Chart: "chart"}


def check_pages() -> None:
    """Raises InputError unless the library that fills the template is installed."""
    try:
        import_module("jinja2")
    except ImportError:
        raise InputError("a report needs jinja2: pip install 'simreduce[report]'") from None


def page_html(page: Page) -> str:
    """The page as HTML."""
    check_pages()
    charts = [b for s in page.sections for b in s.blocks if isinstance(b, Chart)]
    numbers = {id(chart): i for i, chart in enumerate(charts)}
    scripts = [*map(_static, _SCRIPTS)] if charts else []
    style = _static("page.css")
    return str(
        templates(_STATIC)
        .get_template("page.html")
        .render(
            page=page,
            version=__version__,
            policy=_policy(scripts, style),
            style=style,
            scripts=scripts,
            data=_json([_spec(chart) for chart in charts]),
            number_of=lambda chart: numbers[id(chart)],
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
        specs = {names[id(chart)]: _spec(chart) for chart in charts}
        parts.append(PagePart(section.key, str(html), specs))
    return parts


def _spec(chart: Chart) -> dict[str, Any]:
    return {"kind": chart.kind, **chart.data}


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
    place.filters["kind_of"] = lambda block: _BLOCKS[type(block)]
    place.filters["svg"] = to_svg
    place.filters["words"] = lambda text: _breakable(text, markupsafe.Markup)
    place.filters["tokens"] = lambda text: _tokens(text, markupsafe.Markup)
    return place
