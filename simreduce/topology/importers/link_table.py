"""Figures of links for what a file of an importer leaves out: `[links.NAME]` tables without pairs,
as in a machine file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simreduce.topology.classes import LinkClass, link_classes
from simreduce.topology.faults import Faults
from simreduce.topology.files import read_document
from simreduce.topology.machine import read_wire

_KEYS = ("bandwidth", "achievable", "latency", "holds_lane", "both_ways")


def read_link_table(path: str) -> Mapping[str, LinkClass]:
    """The shipped classes, with those of the file over them and beside them; raises `TopologyError`
    with every fault.

    A class that is shipped may leave out what is as there; another one must give its bandwidth and
    latency.
    """
    document = read_document(Path(path), path)
    faults = Faults(path, document.origin)
    faults.unknown("", document.tables, ("links",))
    found = dict(link_classes())
    for name, value in faults.table("links", document.tables.get("links", {})).items():
        fields = faults.table(f"links.{name}", value)
        faults.unknown(f"links.{name}", fields, _KEYS)
        wire = read_wire(faults, f"links.{name}", name, fields)
        found[name] = LinkClass(
            name, wire.nominal, wire.bandwidth, wire.latency, wire.holds_lane, path, wire.both_ways
        )
    faults.raise_any()
    return found
