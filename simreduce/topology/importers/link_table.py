"""Figures of links for what a file of an importer leaves out: `[links.NAME]` tables without pairs,
as in a machine file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simreduce.errors import TopologyError
from simreduce.formats import Faults
from simreduce.topology.classes import LinkClass, link_classes
from simreduce.topology.file_formats import LINK_FIGURES
from simreduce.topology.files import read_document
from simreduce.topology.machine import read_link_class


def read_link_table(path: str) -> Mapping[str, LinkClass]:
    """The shipped classes, with those of the file over them and beside them; raises `TopologyError`
    with every fault.

    A class that is shipped may leave out what is as there; another one must give its bandwidth and
    latency.
    """
    document = read_document(Path(path), path)
    faults = Faults(path, document.origin)
    found = dict(link_classes())
    values = LINK_FIGURES.read(document.tables, faults)
    for name, figures in (values["links"] or {}).items():
        found[name] = read_link_class(faults, f"links.{name}", name, figures, path)
    faults.raise_any(TopologyError)
    return found
