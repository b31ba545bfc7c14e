"""Figures of GPUs by model, which imported files leave out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from simreduce.errors import TopologyError, did_you_mean, quote
from simreduce.topology.elements import DEFAULT_NIC_REACH, OFF


@dataclass(frozen=True, slots=True)
class GpuModel:
    """`nvlink` is the class of its NVLinks, "" if it has none, and `nvlinks` how many it has;
    `bridged` says that all of them lead to one other GPU. `memory` is in bytes/s and its `size` in
    bytes, 0 where there are several.

    `sm` is NCCL's name of its compute capability, in RCCL the major and minor number of `arch`, the
    target of AMD's compilers ("" of NVIDIA's GPUs). `peer` and `gpudirect` are the farthest ways of
    peer copies and of GPUDirect RDMA (`topology.routing.staging`).
    """

    name: str
    sm: int
    nvlink: str
    nvlinks: int
    pcie: str
    memory: float
    size: int = 0
    peer: str = "PHB"
    gpudirect: str = DEFAULT_NIC_REACH
    bridged: bool = False
    arch: str = ""


GB = 10**9

MODELS: Mapping[str, GpuModel] = {
    model.name: model
    for model in (
        GpuModel("K80", 37, "", 0, "pcie3_x16", 240e9, 12 * GB),
        GpuModel("P100", 60, "nvlink1", 4, "pcie3_x16", 732e9, 16 * GB),
        GpuModel("P100-PCIE", 60, "", 0, "pcie3_x16", 732e9),
        GpuModel("V100", 70, "nvlink2", 6, "pcie3_x16", 900e9),
        GpuModel("V100-PCIE", 70, "", 0, "pcie3_x16", 900e9),
        GpuModel("A100", 80, "nvlink3", 12, "pcie4_x16", 1555e9, 40 * GB),
        GpuModel("A100-80GB", 80, "nvlink3", 12, "pcie4_x16", 2039e9, 80 * GB),
        GpuModel("A10G", 86, "", 0, "pcie4_x16", 600e9, 24 * GB),
        GpuModel("RTX2080Ti", 75, "nvlink2", 2, "pcie3_x16", 616e9, 11 * GB, OFF, OFF, True),
        GpuModel("RTX3090", 86, "nvlink3_ga102", 4, "pcie4_x16", 936e9, 24 * GB, OFF, OFF, True),
        GpuModel("RTXA6000", 86, "nvlink3_ga102", 4, "pcie4_x16", 768e9, 48 * GB, bridged=True),
        GpuModel("A40", 86, "nvlink3_ga102", 4, "pcie4_x16", 696e9, 48 * GB, bridged=True),
        GpuModel("RTX4090", 89, "", 0, "pcie4_x16", 1008e9, 24 * GB, peer=OFF, gpudirect=OFF),
        GpuModel("L40S", 89, "", 0, "pcie4_x16", 864e9, 48 * GB),
        GpuModel("H100", 90, "nvlink4", 18, "pcie5_x16", 3350e9, 80 * GB),
        GpuModel("H200", 90, "nvlink4", 18, "pcie5_x16", 4800e9, 141 * GB),
        GpuModel("H800", 90, "nvlink4", 8, "pcie5_x16", 3350e9, 80 * GB),
        GpuModel("GH200", 90, "nvlink4", 18, "pcie5_x16", 4000e9, peer="SYS"),
        GpuModel("B200", 100, "nvlink5", 18, "pcie5_x16", 8000e9, 180 * GB),
        GpuModel("GB200", 100, "nvlink5", 18, "pcie5_x16", 8000e9, 186 * GB, peer="SYS"),
        GpuModel("MI250X", 90, "xgmi_cdna2", 8, "pcie4_x16", 1638e9, 64 * GB, arch="gfx90a"),
        GpuModel("MI300X", 94, "xgmi_cdna3", 7, "pcie5_x16", 5300e9, 192 * GB, arch="gfx942"),
        GpuModel("MI308X", 94, "xgmi_cdna3", 7, "pcie5_x16", 5300e9, 192 * GB, arch="gfx942"),
        GpuModel("MI325X", 94, "xgmi_cdna3", 7, "pcie5_x16", 6000e9, 256 * GB, arch="gfx942"),
        GpuModel("MI350X", 95, "xgmi_cdna4", 7, "pcie5_x16", 8000e9, 288 * GB, arch="gfx950"),
        GpuModel("MI355X", 95, "xgmi_cdna4", 7, "pcie5_x16", 8000e9, 288 * GB, arch="gfx950"),
    )
}
"""Data sheets of NVIDIA; models without a suffix are those with NVLink sockets (SXM), an A100-PCIE
with a bridge is an A100. Bridges: four links in the white paper "NVIDIA Ampere GA102 GPU
Architecture" (RTX 3090, RTX A6000, A40), two links of NVLink 2 in "NVIDIA Turing GPU Architecture"
(RTX 2080 Ti). The drivers of GeForce refuse peer access over PCIe, not over a bridge.

Data sheets of AMD; an MI250X is one of its two dies, and its links are all that a die has. Targets
of compilers: AMD GPU specifications, rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html.
"""

_OLD_ARCH = {"910": "90a"}
"""RCCL's numbers of targets before it wrote their names, of the models above."""

UNKNOWN = GpuModel("", 0, "nvlink2", 0, "pcie3_x16", math.inf)
"""Stands in where no model is named: any number of slow NVLinks, and unlimited
memory.
"""


def model_named(name: str) -> GpuModel:
    """The model of `--gpu`, with or without spaces and the maker's words, such as `NVIDIA GeForce
    RTX 3090`; raises `TopologyError` that names the nearest of the same product.
    """
    plain = _plain(re.sub(r"(?i)\b(nvidia|geforce|tesla|quadro|amd|instinct)\b", "", name))
    for known, model in MODELS.items():
        if plain and _plain(known) == plain:
            return model
    # Another letter or number before that is another product.
    head = re.match(r"[a-z]*[0-9]*", plain)
    alike = [known for known in MODELS if head and head[0] and head[0] in _plain(known)]
    near = did_you_mean(plain, alike) or f"; known are {', '.join(MODELS)}"
    raise TopologyError(f"--gpu: unknown model {name!r}{near}")


def without_nvlinks(model: GpuModel, links: int, peers: int = 1) -> str:
    """The fault of a model that has no NVLinks where a file shows `links` at a GPU, to so many
    others.
    """
    able = [m for m in MODELS.values() if m.nvlinks >= links and not (m.bridged and peers > 1)]
    able = [m for m in able if m.nvlinks == links] or able
    names = ", ".join(m.name for m in sorted(able, key=lambda m: abs(m.sm - model.sm))[:4])
    return (
        f"{model.name} has no NVLinks, but the file shows {links} at a GPU; "
        f"{f'GPUs with so many: {names}' if names else 'no GPU has so many'}"
    )


@lru_cache(maxsize=256)
def model_in(text: str) -> GpuModel | None:
    """The model in a name such as "Tesla V100-SXM2-16GB", None if unknown."""
    plain = _plain(text)
    return max(
        (model for model in MODELS.values() if _plain(model.name) in plain),
        key=lambda model: len(model.name),
        default=None,
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def model_of_arch(gcn: str) -> GpuModel:
    """The first model of an AMD target as RCCL writes it: gfx942, or 910 for gfx90a in old files.

    Raises `TopologyError` that names the nearest.
    """
    known = {model.arch: model for model in reversed([*MODELS.values()]) if model.arch}
    plain = gcn if gcn.startswith("gfx") else f"gfx{_OLD_ARCH.get(gcn, gcn)}"
    if plain.partition(":")[0] not in known:
        near = did_you_mean(plain, known) or f"; known are {', '.join(sorted(known))}"
        raise TopologyError(f"gcn {quote(gcn)} is no known target{near}; --gpu names a model")
    return known[plain.partition(":")[0]]


def model_of_sm(sm: str, *, linked: bool = False) -> GpuModel:
    """The first model of a compute capability as NCCL writes it, if `linked` one with NVLinks if
    there is one; `UNKNOWN` if there is none.
    """
    alike = [model for model in MODELS.values() if str(model.sm) == sm and not model.arch]
    return next((model for model in alike if model.nvlink or not linked), (*alike, UNKNOWN)[0])
