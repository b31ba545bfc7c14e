"""What `simreduce topo import` reads of measurements and of NCCL's graphs, as documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simreduce.calibrate.measured import MeasuredMatrix, MeasuredRow
from simreduce.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    MICROSECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    one_of,
    or_null,
)
from simreduce.topology.importers import NcclGraph

GRAPHS = Document(
    "topo-import-graphs",
    "`simreduce topo import` of NCCL's graph XML (NCCL_GRAPH_DUMP_FILE).",
    Key("program", one_of("nccl"), "What wrote the file."),
    Key(
        "graphs",
        list_of(
            Record(
                "graph",
                "A result of NCCL's search.",
                Key("id", COUNT, "Its number."),
                Key("pattern", TEXT, "What it searched for."),
                Key("speed_intra_gb_per_s", GB_PER_SECOND, "A channel inside a node."),
                Key("speed_inter_gb_per_s", GB_PER_SECOND, "A channel between nodes."),
                Key("type_intra", TEXT, "The class of the paths inside a node."),
                Key("type_inter", TEXT, "The class of the paths between nodes."),
                Key(
                    "channels",
                    list_of(
                        Record(
                            "channel",
                            "A channel.",
                            Key("gpus", list_of(COUNT), "Its GPUs, in order."),
                            Key("net_in", or_null(TEXT), "The NIC before the first."),
                            Key("net_out", or_null(TEXT), "The NIC behind the last."),
                        )
                    ),
                    "The channels.",
                ),
            )
        ),
        "The graphs.",
    ),
    command="topo import",
)


def graphs_document(graphs: Sequence[NcclGraph]) -> dict[str, Any]:
    """NCCL's graphs: `GRAPHS`."""
    return {
        **GRAPHS.head(),
        "program": "nccl",
        "graphs": [
            {
                "id": graph.id,
                "pattern": graph.pattern,
                "speed_intra_gb_per_s": graph.speed_intra / 1e9,
                "speed_inter_gb_per_s": graph.speed_inter / 1e9,
                "type_intra": graph.type_intra,
                "type_inter": graph.type_inter,
                "channels": [
                    {"gpus": list(c.gpus), "net_in": c.net_in, "net_out": c.net_out}
                    for c in graph.channels
                ],
            }
            for graph in graphs
        ],
    }


_MICROSECONDS = list_of(list_of(or_null(MICROSECONDS)))
_GB_PER_SECOND = list_of(list_of(or_null(GB_PER_SECOND)))
MATRICES = Document(
    "topo-import-p2p",
    "`simreduce topo import` of what p2pBandwidthLatencyTest printed.",
    Key("program", one_of("p2pBandwidthLatencyTest"), "What wrote the file."),
    Key(
        "matrices",
        list_of(
            Record(
                "matrix",
                "A matrix: a row for each sender. It has one of the two keys with rows.",
                Key("kind", one_of("one_way", "both_ways", "latency"), "What it is of."),
                Key("peer_access", FLAG, "Whether GPUs reach each other's memory."),
                Key("reads", FLAG, "Whether the receiving GPU drives the copies."),
                Key("rows_us", _MICROSECONDS, "Latencies.", optional=True),
                Key("rows_gb_per_s", _GB_PER_SECOND, "Bandwidths.", optional=True),
            )
        ),
        "The matrices, in the order of the file.",
    ),
    command="topo import",
)


def matrices_document(matrices: Sequence[MeasuredMatrix]) -> dict[str, Any]:
    """Measured matrices: `MATRICES`."""
    found = [
        {
            "kind": each.kind,
            "peer_access": each.peer_access,
            "reads": each.reads,
            "rows_us" if each.kind == "latency" else "rows_gb_per_s": [
                [None if cell is None else round(cell * _scale(each), 6) for cell in row]
                for row in each.rows
            ],
        }
        for each in matrices
    ]
    return {**MATRICES.head(), "program": "p2pBandwidthLatencyTest", "matrices": found}


def _scale(matrix: MeasuredMatrix) -> float:
    return 1e6 if matrix.kind == "latency" else 1e-9


ROWS = Document(
    "topo-import-nccl-tests",
    "`simreduce topo import` of what nccl-tests printed.",
    Key("program", one_of("nccl-tests"), "What wrote the file."),
    Key(
        "rows",
        list_of(
            Record(
                "row",
                "A size.",
                Key("size_bytes", BYTES, "The tensor."),
                Key("count", COUNT, "Elements, counted as nccl-tests does."),
                Key("type", TEXT, "The type of its elements."),
                Key("redop", TEXT, "The reduction, or `none`."),
                Key("time_us", MICROSECONDS, "One collective, out of place."),
                Key("algbw_gb_per_s", GB_PER_SECOND, "Size over time."),
                Key("busbw_gb_per_s", GB_PER_SECOND, "Algbw times nccl-tests' factor."),
            )
        ),
        "Every size, in the order of the file.",
    ),
    command="topo import",
)


def rows_document(rows: Sequence[MeasuredRow]) -> dict[str, Any]:
    """Rows of nccl-tests: `ROWS`."""
    found = [
        {
            "size_bytes": each.size,
            "count": each.count,
            "type": each.dtype,
            "redop": each.redop,
            "time_us": round(each.time * 1e6, 6),
            "algbw_gb_per_s": round(each.algbw / 1e9, 6),
            "busbw_gb_per_s": round(each.busbw / 1e9, 6),
        }
        for each in rows
    ]
    return {**ROWS.head(), "program": "nccl-tests", "rows": found}
