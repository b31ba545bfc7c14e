"""Reads figures of link classes, which imported files leave out, from `[links.NAME]` tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simreduce.errors import TopologyError
from simreduce.files.formats import Faults
from simreduce.topology.classes import LinkClass, link_classes
from simreduce.topology.file_formats import LINK_FIGURES
from simreduce.topology.files import read_document
from simreduce.topology.machine import read_link_class


def read_link_table(path: str) -> Mapping[str, LinkClass]:
    """Return the shipped classes, replaced and extended by the classes of the file.

    A table of a shipped class replaces only the keys that it gives. Any other class needs a
    bandwidth and a latency. Raises `TopologyError` with every fault.
    """
    document = read_document(Path(path), path)
    faults = Faults(path, document.origin)
    found = dict(link_classes())
    values = LINK_FIGURES.read(document.tables, faults)
    for name, figures in (values["links"] or {}).items():
        found[name] = read_link_class(faults, f"links.{name}", name, figures, path)
    faults.raise_any(TopologyError)
    return found
