"""Reads machines from the files of other tools: `nvidia-smi topo -m`, `rocm-smi`,
`amd-smi`, NCCL's and RCCL's XML.
"""

from __future__ import annotations

from simreduce.topology.importers.nccl_xml import (
    NcclChannel,
    NcclGraph,
    read_nccl_graphs,
    read_nccl_topology,
)
from simreduce.topology.importers.parts import (
    FORMS,
    MODELS,
    UNKNOWN,
    GpuModel,
    model_named,
    read_link_table,
    with_nvlinks,
    without_nvlinks,
)
from simreduce.topology.importers.rocm_smi import is_rocm_smi, read_rocm_smi, table_reader
from simreduce.topology.importers.topo_m import CONTRADICTION, is_topo_m, read_topo_m
from simreduce.topology.importers.xml_writer import to_nccl_xml

__all__ = [
    "CONTRADICTION",
    "FORMS",
    "MODELS",
    "UNKNOWN",
    "GpuModel",
    "NcclChannel",
    "NcclGraph",
    "is_rocm_smi",
    "is_topo_m",
    "model_named",
    "read_link_table",
    "read_nccl_graphs",
    "read_nccl_topology",
    "read_rocm_smi",
    "read_topo_m",
    "table_reader",
    "to_nccl_xml",
    "with_nvlinks",
    "without_nvlinks",
]
