"""Machines as documents: `simreduce topo list`, `topo show` and `topo check`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simreduce.formats.documents import (
    COUNT,
    GB_PER_SECOND,
    INTEGER,
    MICROSECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    one_of,
)
from simreduce.topology import Topology
from simreduce.topology.routing.spread import CHOICES

LIST = Document(
    "topo-list",
    "`simreduce topo list --json`: the machines that come with simreduce.",
    Key(
        "topologies",
        list_of(
            Record(
                "topology",
                "A machine.",
                Key("name", TEXT, "Its name."),
                Key("title", TEXT, "What it is."),
            )
        ),
        "Every machine.",
    ),
    command="topo list",
)


def list_document(machines: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The document of `topo list --json`: `LIST`. Machines are names and titles."""
    rows = [{"name": name, "title": title} for name, title in machines]
    return {**LIST.head(), "topologies": rows}


SHOW = Document(
    "topo-show",
    "`simreduce topo show --json`: the nodes and links of a machine.",
    Key("topology", TEXT, "Its name."),
    Key("title", TEXT, "What it is."),
    Key("digest", TEXT, "Names its content: equal machines have equal digests."),
    Key(
        "equal_cost",
        Record(
            "equal_cost",
            "What happens where several routes are equally short.",
            Key("choice", one_of(*CHOICES), "Which of them are taken."),
            Key("seed", INTEGER, "The seed of hashed routes."),
        ),
        "The choice among equal routes.",
    ),
    Key(
        "nodes",
        list_of(
            Record(
                "node",
                "A device, a switch, a NIC, ...",
                Key("name", TEXT, "Its name."),
                Key("kind", TEXT, "What it is."),
                Key("model", TEXT, 'Its model; "" if it is not known.'),
            )
        ),
        "Every node.",
    ),
    Key(
        "links",
        list_of(
            Record(
                "link",
                "A link, one way.",
                Key("source", TEXT, "Where it begins."),
                Key("target", TEXT, "Where it ends."),
                Key("class", TEXT, "Its class, such as `nvlink2`."),
                Key("lanes", COUNT, "Its lanes."),
                Key("nominal_gb_per_s", GB_PER_SECOND, "What it is sold as."),
                Key("bandwidth_gb_per_s", GB_PER_SECOND, "What it carries."),
                Key("latency_us", MICROSECONDS, "What a byte takes."),
            )
        ),
        "Every link, each way.",
    ),
    command="topo show",
)


def show_document(machine: Topology) -> dict[str, Any]:
    """The document of `topo show --json`: `SHOW`."""
    return {
        **SHOW.head(),
        "topology": machine.name,
        "title": machine.title,
        "digest": machine.digest,
        "equal_cost": {
            "choice": machine.router.equal_cost.choice,
            "seed": machine.router.equal_cost.seed,
        },
        "nodes": [
            {"name": n.name, "kind": n.kind, "model": n.model} for n in machine.nodes.values()
        ],
        "links": [
            {
                "source": link.source,
                "target": link.target,
                "class": link.link_class,
                "lanes": link.lanes,
                "nominal_gb_per_s": link.nominal / 1e9,
                "bandwidth_gb_per_s": link.bandwidth / 1e9,
                "latency_us": link.latency * 1e6,
            }
            for link in machine.links
        ],
    }


CHECK = Document(
    "topo-check",
    "`simreduce topo check --json`: the faults of a file.",
    Key("file", TEXT, "The file, or the name of a machine."),
    Key("problems", list_of(TEXT), "Every fault and every warning, with its place."),
    command="topo check",
)


def check_document(file: str, problems: Iterable[str]) -> dict[str, Any]:
    """The document of `topo check --json`: `CHECK`."""
    return {**CHECK.head(), "file": file, "problems": list(problems)}
