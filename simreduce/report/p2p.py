"""Predicted peer-to-peer matrices, as p2pBandwidthLatencyTest prints them and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simreduce.formats.documents import (
    FLAG,
    GB_PER_SECOND,
    MICROSECONDS,
    TEXT,
    Document,
    Key,
    Kind,
    Record,
    list_of,
    or_null,
)
from simreduce.report.heads import TOPOLOGY_KEYS
from simreduce.tables import Column, Table
from simreduce.topology import Topology
from simreduce.tune.p2p import Matrices, Matrix, PeerToPeer


def p2p_table(predicted: PeerToPeer) -> str:
    """The text of the test. A dash stands on the diagonal, where it measures memory, and where no
    route exists.
    """
    peers = tuple(
        tuple(1.0 if i == j or cell else 0.0 for j, cell in enumerate(row))
        for i, row in enumerate(predicted.peers)
    )
    parts = [_matrix("P2P Connectivity Matrix", peers, 1.0, "{:.0f}")]
    for name, title, scale in (
        ("one_way", "Unidirectional P2P={} Bandwidth Matrix (GB/s)", 1e-9),
        ("both_ways", "Bidirectional P2P={} Bandwidth Matrix (GB/s)", 1e-9),
        ("latency", "P2P={} Latency Matrix (us)", 1e6),
    ):
        for word, matrices in (("Disabled", predicted.disabled), ("Enabled", predicted.enabled)):
            rows: Matrix = getattr(matrices, name)
            parts.append(_matrix(title.format(word), rows, scale, "{:.2f}"))
    return "\n\n".join(parts)


def _matrix(title: str, rows: Sequence[Sequence[float | None]], scale: float, form: str) -> str:
    names = ("D\\D", *map(str, range(len(rows))))
    cells = tuple(
        (str(number), *("-" if cell is None else form.format(cell * scale) for cell in row))
        for number, row in enumerate(rows)
    )
    table = Table(tuple(Column(name, width=6) for name in names), cells)
    return "\n".join([title, *table.lines(gap=1)])


def _matrix_of(kind: Kind) -> Kind:
    return list_of(list_of(kind))


_MATRICES = Record(
    "matrices",
    "A matrix of each kind: a row for each sender, null on the diagonal and without a route.",
    Key("unidirectional_gb_per_s", _matrix_of(or_null(GB_PER_SECOND)), "One way."),
    Key("bidirectional_gb_per_s", _matrix_of(or_null(GB_PER_SECOND)), "Both ways together."),
    Key("latency_us", _matrix_of(or_null(MICROSECONDS)), "Of a small copy."),
)
P2P = Document(
    "topo-p2p",
    "`simreduce topo p2p --json`: what p2pBandwidthLatencyTest would print.",
    *TOPOLOGY_KEYS,
    Key("calibration", TEXT, "The constants that figures were predicted with."),
    Key("devices", list_of(TEXT), "The GPUs, in the order of rows and columns."),
    Key("peer_access", _matrix_of(FLAG), "Whether a GPU reaches another's memory directly."),
    Key("p2p_disabled", _MATRICES, "Without peer access."),
    Key("p2p_enabled", _MATRICES, "With peer access."),
    command="topo p2p",
)


def p2p_document(topology: Topology, predicted: PeerToPeer, calibration: str) -> dict[str, Any]:
    """The document of `topo p2p --json`: `P2P`."""
    return {
        **P2P.head(),
        "topology": topology.name,
        "topology_digest": topology.digest,
        "calibration": calibration,
        "devices": list(predicted.devices),
        "peer_access": [list(row) for row in predicted.peers],
        "p2p_disabled": _document(predicted.disabled),
        "p2p_enabled": _document(predicted.enabled),
    }


def _document(matrices: Matrices) -> dict[str, Any]:
    return {
        "unidirectional_gb_per_s": _scale(matrices.one_way, 1e-9),
        "bidirectional_gb_per_s": _scale(matrices.both_ways, 1e-9),
        "latency_us": _scale(matrices.latency, 1e6),
    }


def _scale(rows: Matrix, factor: float) -> list[list[float | None]]:
    return [[None if cell is None else round(cell * factor, 6) for cell in row] for row in rows]
