"""What a notebook shows of a result: its pictures above its table."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterable, Mapping

from simreduce.errors import InputError
from simreduce.files.tables import Table
from simreduce.files.textfiles import exists
from simreduce.report.drawing import to_svg
from simreduce.report.pictures import heat_picture
from simreduce.topology import Topology, load_topology

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
