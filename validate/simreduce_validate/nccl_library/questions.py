"""What answers are kept of: each machine that ships and differs to NCCL, and some of several nodes
or with settings. All are asked of the newest versions, and a few of all versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simreduce.errors import TopologyError
from simreduce.topology import load_topology
from simreduce.topology.loader import shipped
from simreduce_validate.nccl_library.asking import fake_node

_THROUGHOUT = ("2.27.7", "2.30.7", "2.32.3")
"""Versions that are asked of every machine."""
_ALWAYS = (
    "a100-pcie-8", "dgx-a100", "dgx-h100", "dgx1v", "v100-mesh-4", "dgx-a100x2",
    "dgx-h100x2", "dgx1v-2nicx2", "gh200x4", "alps", "hgx-b200", "p4dx2", "snelliusx2",
)  # fmt: skip
_SEVERAL = (
    "a100-pcie-8x2", "alpsx2", "dgx-a100x4", "dgx1vx2", "gh200x2", "hgx-b200x2", "hgx-b200x3",
    "p5x2", "polarisx2",
)  # fmt: skip
_WITH_SETTINGS = (
    ("a100-pcie-8", {"NCCL_P2P_LEVEL": "NVL"}),
    ("dgx1v", {"NCCL_NTHREADS": "256"}),
    ("dgx1v", {"NCCL_P2P_DISABLE": "1"}),
    ("dgx-a100", {"NCCL_MAX_NCHANNELS": "4"}),
    ("dgx-h100", {"NCCL_MAX_CTAS": "4"}),
    ("dgx-h100", {"NCCL_MAX_NCHANNELS": "4"}),
    ("dgx-h100", {"NCCL_PROTO": "Simple"}),
    ("dgx-h100", {"NCCL_NVLS_ENABLE": "0"}),
    ("dgx-h100x2", {"NCCL_CROSS_NIC": "0"}),
)


def questions(version: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Machines with settings, in the order in which to ask."""
    if version not in _THROUGHOUT:
        yield from ((name, {}) for name in _ALWAYS)
        return
    names = dict.fromkeys((*_differing(), *_ALWAYS, *_SEVERAL))
    yield from ((name, {}) for name in names)
    yield from _WITH_SETTINGS


def _differing() -> Iterator[str]:
    """Machines that ship, one of each file of NCCL's; none of AMD's."""
    seen = set[object]()
    for name, _ in shipped():
        try:
            node = fake_node(load_topology(name))
        except TopologyError:
            continue
        key = node.shape, node.environment["FAKE_PEER"]
        if len(node.gpus) > 1 and key not in seen:
            seen.add(key)
            yield name
