"""What GPUs compute, what their kernels take, and what these lose beside a collective.

Rates are those of data sheets, with the parts of them that programs reach. Those of A100 and H100
are fitted to published steps; `simreduce accuracy mesh` says how far off predictions by them are.
H800 and H200 have the chip of H100. A user's file overrides any.

Beside a collective a GPU is `slowed`, and its kernels take longer: `interference` says how.

`Kernels` has the seconds of a transformer's kernels, from their shapes. A product takes the larger
of its FLOPs, at the part of the GPU's rate that large products reach, and its bytes. Its tiles are
computed in waves, one on each unit; the last wave may be partly empty. What is no product takes the
bytes that it reads and writes: the tables below count them for each element, 2 bytes each, and 1
for a mask. Each kernel takes a moment besides. The host launches them one by one, so no part is
faster than that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, isfinite
from pathlib import Path
from statistics import NormalDist
from typing import Any

from simreduce import units
from simreduce.computing import group_by, once
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, TopologyError, near_or_all
from simreduce.files import exists, parse_toml, read_text
from simreduce.files.formats import DURATION, FLAG, LINE, Field, Format, number, quantity, whole
from simreduce.files.formats.syntax import Faults
from simreduce.topology import Node
from simreduce.topology.importers.parts import model_named
from simreduce.training.interference import ALONE, HEAD, Beside, Slowdown

SPREAD = number(0.0, 0.5)
"""How files say a standard deviation, in parts of the mean."""

PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Parts of all draws."""


def slowest_of(count: int, spread: float, part: float | None = None) -> float:
    """How many times as long as the mean the slowest of `count` is expected to take, if their times
    have the standard deviation `spread`, in parts of the mean.

    With a `part`, what the slowest takes at most in that part of all draws of so many: the largest
    of n is below x where all n are, so its distribution is the n-th power of one's. Times are
    normal (Blom's approximation of the largest of a sample), and the same whether GPUs differ from
    each other or each from step to step. GPUs of one kind differ by 8 % in clusters: Sinha et al.
    2022, https://arxiv.org/abs/2208.11035.
    """
    if not spread:
        return 1.0
    below = (count - 0.375) / (count + 0.25) if part is None else part ** (1.0 / count)
    return 1.0 + spread * NormalDist().inv_cdf(below)


_RATE = quantity(units.flops, "a rate of computing", ("312 TFLOP/s",))
_PART = number(1e-3, 1.0)

COMPUTE = Format(
    "compute",
    "What a GPU computes: its rates, and the parts of them that programs reach. What is left out is"
    " that of the machine's GPU; but beside `flops`, products of other types need a rate of their"
    " own.",
    Field("title", LINE, "What was measured."),
    Field("flops", _RATE, "Dense products of 16 bits, as on the data sheet."),
    Field("flops8", _RATE, "Dense products of 8 bits."),
    Field("flops_tf32", _RATE, "Dense products of TF32."),
    Field("flops32", _RATE, "Products of float32, without tensor cores."),
    Field("memory_bandwidth", quantity(units.bandwidth, "a bandwidth", ("2 TB/s",)),
          "Bytes a second of its memory."),
    Field("units", whole(1, 10**4), "Streaming multiprocessors, or compute units."),
    Field("clusters", FLAG, "Whether blocks of products come in clusters, as from Hopper on."),
    Field("products", _PART, "The part of `flops` that large products reach."),
    Field("products8", _PART, "The part of `flops8` that large products reach."),
    Field("products32", _PART, "The part of `flops32` that large products reach."),
    Field("bf16", FLAG, "Whether it has products of bfloat16."),
    Field("flash", FLAG, "Whether it runs FlashAttention; else fused attention is memory-efficient"
          " attention."),
    Field("attention", _PART, "The part of `flops` that fused attention reaches."),
    Field("memory", _PART, "The part of `memory_bandwidth` that other kernels reach."),
    Field("kernel", DURATION, "Time of an empty kernel between two others."),
    Field("host", DURATION, "Time of the host for each kernel: no part is faster."),
    Field("spread", SPREAD, "The standard deviation of GPUs' speeds, as a part: all wait for the"
          " slowest, the more of them the slower."),
    Field("handover", DURATION, "Time between two passes besides their kernels."),
    Field("measured", LINE, "A step that constants are fitted to, as `simreduce calibrate step`"
          " writes it: its stack (`kernels` of a `[step]`), and its model's blocks and width, as in"
          " `megatron 32x4096`."),
    Field("step", DURATION, "Time of a step besides its passes, collectives and the optimizer."),
)  # fmt: skip


THUMB = "a rule of thumb"
"""The source of a constant that nobody measured on the GPU, nor on one like it."""
STATED = "stated"
"""The source of a constant that a user's file has."""
_BORROWED = "constants of "
_ELSEWHERE = {"products32": f"{_BORROWED}V100"}
"""The sources of constants that were measured on one GPU and are every GPU's default."""


_RATES = {"fp8": "flops8", "tf32": "flops_tf32", "fp32": "flops32"}
"""The rate of products of a precision, if not `flops`."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The figures of `COMPUTE` in SI units; `title` names the GPU.

    Rates and units are those of the data sheet; one is 0 without products of that type. Without
    `flash`, fused attention is memory-efficient attention. `sources` says where each other constant
    comes from; what it lacks is `THUMB`.
    """

    title: str
    flops: float
    flops8: float
    memory_bandwidth: float
    units: int
    products: float = 0.75
    products8: float = 0.6
    products32: float = 0.87
    attention: float = 0.5
    memory: float = 0.8
    kernel: float = 2e-6
    host: float = 6e-6
    spread: float = 0.0
    handover: float = 0.0
    step: float = 0.0
    bf16: bool = True
    clusters: bool = False
    flash: bool = True
    flops_tf32: float = 0.0
    flops32: float = 0.0
    measured: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    slowed: Slowdown = ALONE

    def slowest(self, count: int, part: float | None = None) -> float:
        """How many times as long as the mean GPU the slowest of `count` takes; see `slowest_of`."""
        return slowest_of(count, self.spread, part)

    def next_to(self, beside: Beside, only: str = "") -> Gpu:
        """The GPU while that runs beside its kernels, or `only` beside those of a kind."""
        known = self.units, self.memory_bandwidth, self.clusters
        return replace(self, slowed=Slowdown(*known, beside, only))

    def lacks(self, precision: str) -> str:
        """Why it cannot compute products of that type; "" if it can."""
        key = _RATES.get(precision, "")
        able = getattr(self, key) if key else self.bf16 or precision != "bf16"
        if key and not able and self.sources.get("flops") == STATED:
            return f"the file of {self.title} lacks {key}, the rate of its products of {precision}"
        if precision == "tf32" and able and not self.flash:  # fused attention has none of TF32
            return self.lacks("fp32")
        return "" if able else f"{self.title} has no products of {precision}"

    def guesses(self, bits: int = 16) -> dict[str, str]:
        """The constants that decide most steps with products of 8, 16 or 32 bits and that nobody
        measured on this GPU, and where each comes from. TF32 has those of 16 bits.
        """
        names = ("products" if bits == 16 else f"products{bits}", "memory", "host")
        sources = {name: self.sources.get(name, _ELSEWHERE.get(name, THUMB)) for name in names}
        return {k: text for k, text in sources.items() if text.startswith((_BORROWED, THUMB))}

    def lent(self, bits: int = 16) -> str:
        """Which constants of its kernels are of other GPUs, and of which; "" for none."""
        guesses = self.guesses(bits)
        found = group_by(guesses, guesses.__getitem__)
        return "; ".join(f"{', '.join(names)} by {source}" for source, names in found.items())

    def nominal(self, bits: int = 16) -> str:
        """Says that its kernels rest on constants of other GPUs; "" if they do not."""
        lent = self.lent(bits)
        return f"kernels of {self.title} are nominal: {lent}" if lent else ""


_Known = tuple[str, Mapping[str, float]]
"""Who measured constants, and these."""


def _gpu(
    title: str, flops: float, flops8: float, terabytes: float, units: int, *known: _Known,
    tf32: float, fp32: float, clusters: bool = False, ampere: bool = True,
) -> Gpu:  # fmt: skip
    values = {name: value for _, each in known for name, value in each.items()}
    sources = {name: source for source, each in known for name in each}
    return Gpu(
        title, flops * 1e12, flops8 * 1e12, terabytes * 1e12, units, bf16=ampere, flash=ampere,
        sources=sources, clusters=clusters, flops_tf32=tf32 * 1e12, flops32=fp32 * 1e12,
        slowed=ALONE, **dict[str, Any](values),
    )  # fmt: skip


def _borrowed(name: str, *known: _Known) -> _Known:
    """The constants of another GPU."""
    return f"{_BORROWED}{name}", {key: value for _, each in known for key, value in each.items()}


# Fitted to published steps, `simreduce/files/published/steps.csv`, by
# `python -m simreduce.study.accuracy.mesh`. Standard errors: products 2 %, memory 5 %, host 1 %.
_STEPS = "fitted to published steps"
_AMPERE: _Known = _STEPS, {"products": 0.711, "memory": 0.818, "host": 62.4e-6}
# products 2 %, products8 3 %, attention 15 %; the spread is that of 64 to 2,048 GPUs of one recipe.
_HOPPER: _Known = (
    _STEPS,
    {"products": 0.661, "products8": 0.506, "attention": 0.550, "spread": 0.0223},
)
# No dense step of H100 waits for its host. Fitted to one step of experts (Qwen3 30B-A3B in FP8 with
# ep=16); the others of that model, with other meshes, precisions and GPUs, took no part.
_HOST: _Known = _STEPS, {"host": 50e-6}
# Kernels of `simreduce/files/published/compute.csv` take what these say.
_KERNELS: _Known = "measured kernels", {"memory": 0.8, "kernel": 2e-6}
_H100 = (_HOPPER, _HOST, _KERNELS)
# Parts of the data sheet that products of 16 and 8 bits and copies reach: arXiv:2510.27583.
_CDNA3: _Known = "arXiv:2510.27583", {"products": 0.45, "products8": 0.45, "memory": 0.81}
_NO_HOST = _borrowed("H100", _HOST)
_AMD = _CDNA3, _NO_HOST
_LIKE_MI300X = _borrowed("MI300X", _CDNA3), _NO_HOST

# Large products of DeepBench, in `compute.csv`; attention of heads of 64 and 128 as in `eager`.
_VOLTA: _Known = "measured kernels", {"products": 0.77, "products32": 0.87, "attention": 0.27}

_LIKE_A100, _LIKE_H100 = _borrowed("A100", _AMPERE), _borrowed("H100", *_H100)
_CARDS = {
    # name: TFLOP/s of 16 and 8 bits, TB/s, SMs, TFLOP/s of TF32 and of 32 bits, dense with sums of
    # 32 bits. NVIDIA's data sheets, of GeForce and RTX 6000 the white papers "NVIDIA Ampere GA102
    # GPU Architecture", "NVIDIA Ada GPU Architecture" and "NVIDIA RTX Blackwell GPU Architecture".
    "A30": (165, 0, 0.933, 56, 82, 10.3), "A10": (125, 0, 0.6, 72, 62.5, 31.2),
    "A10G": (70, 0, 0.6, 80, 35, 31.5), "A40": (149.7, 0, 0.696, 84, 74.8, 37.4),
    "A5000": (111.1, 0, 0.768, 64, 55.6, 27.8), "A6000": (154.8, 0, 0.768, 84, 77.4, 38.7),
    "3090": (71, 0, 0.936, 82, 35.6, 35.6), "L4": (121, 242.5, 0.3, 58, 60, 30.3),
    "L20": (119.5, 239, 0.864, 92, 59.8, 59.8), "L40": (181, 362, 0.864, 142, 90.5, 90.5),
    "L40S": (362, 733, 0.864, 142, 183, 91.6), "4090": (165.2, 330.3, 1.008, 128, 82.6, 82.6),
    "6000 Ada": (364.2, 728.5, 0.96, 142, 182.1, 91.1),
    "5090": (209.5, 419, 1.792, 170, 104.8, 104.8),
    "PRO 6000": (503.8, 1007.6, 1.792, 188, 251.9, 126),
    "H100 NVL": (835.5, 1670.5, 3.938, 132, 417.5, 60),
    "H200 NVL": (835.5, 1670.5, 4.8, 132, 417.5, 60),
    "B300": (2250, 4500, 8.0, 160, 1125, 75), "GB300": (2500, 5000, 8.0, 160, 1250, 80),
}  # fmt: skip
_CLUSTERED = ("H100 NVL", "H200 NVL", "B300", "GB300")

GPUS: Mapping[str, Gpu] = {
    # NVIDIA's data sheets, dense: A100 (2021), H100 and H200 (2023), B200 (2024), H800 and A800
    # as H100 and A100
    "V100": _gpu(
        "V100", 125, 0, 0.9, 80, _borrowed("A100", _AMPERE), _VOLTA, tf32=0, fp32=15.7, ampere=False
    ),
    "A100": _gpu("A100", 312, 0, 2.039, 108, _AMPERE, tf32=156, fp32=19.5),
    "A800": _gpu("A800", 312, 0, 2.039, 108, _borrowed("A100", _AMPERE), tf32=156, fp32=19.5),
    "H100-PCIE": _gpu(
        "H100 PCIe",
        756.4,
        1512.9,
        2.039,
        114,
        _borrowed("H100", *_H100),
        tf32=378.2,
        fp32=51.2,
        clusters=True,
    ),
    "H20": _gpu(
        "H20", 148, 296, 4.0, 78, _borrowed("H100", *_H100), tf32=74, fp32=44, clusters=True
    ),
    "H100": _gpu("H100", 989.4, 1978.9, 3.35, 132, *_H100, tf32=494.7, fp32=66.9, clusters=True),
    # torchtitan's, of 96 GB and 500 W: the power of a chip goes with the cube of its clock.
    "H100-96GB": _gpu(
        "H100-96GB",
        989.4,
        1978.9,
        2.4,
        132,
        *_H100,
        ("H100's at 500 of 700 W", {"products": 0.591, "products8": 0.452}),
        tf32=494.7,
        fp32=66.9,
        clusters=True,
    ),
    "H800": _gpu("H800", 989.4, 1978.9, 3.35, 132, *_H100, tf32=494.7, fp32=66.9, clusters=True),
    "H200": _gpu("H200", 989.4, 1978.9, 4.8, 132, *_H100, tf32=494.7, fp32=66.9, clusters=True),
    "B200": _gpu(
        "B200", 2250, 4500, 8.0, 148, _borrowed("H100", *_H100), tf32=1125, fp32=75, clusters=True
    ),
    # AMD's data sheets: MI250X (2021; one of two dies, without products of 8-bit floats), MI300X
    # and MI325X (2023, 2024), MI350X and MI355X (2025)
    "MI250X": _gpu("MI250X", 191.5, 0, 1.638, 110, *_LIKE_MI300X, tf32=0, fp32=23.9),
    "MI300X": _gpu("MI300X", 1307.4, 2614.9, 5.3, 304, *_AMD, tf32=653.7, fp32=163.4),
    "MI325X": _gpu("MI325X", 1307.4, 2614.9, 6.0, 304, *_LIKE_MI300X, tf32=653.7, fp32=163.4),
    "MI350X": _gpu("MI350X", 2306.9, 4613.7, 8.0, 256, *_LIKE_MI300X, tf32=0, fp32=144.2),
    "MI355X": _gpu("MI355X", 2516.6, 5033.2, 8.0, 256, *_LIKE_MI300X, tf32=0, fp32=157.3),
    **{
        name: _gpu(
            name,
            flops,
            flops8,
            rate,
            sms,
            _LIKE_H100 if flops8 else _LIKE_A100,
            tf32=tf32,
            fp32=fp32,
            clusters=name in _CLUSTERED,
        )
        for name, (flops, flops8, rate, sms, tf32, fp32) in _CARDS.items()
    },
    "T4": _gpu("T4", 65, 0, 0.32, 40, _LIKE_A100, _VOLTA, tf32=0, fp32=8.1, ampere=False),
}
"""By a part of a model's name."""

_MIB = 1 << 20
_BYTES: Mapping[tuple[str, int], int] = {
    # CUDA's deviceQuery, PyTorch, rocm-smi and amd-smi in public logs (read 2026-11), of the
    # newest driver that there is one of: they differ by 0.1 %, as drivers keep some.
    ("V100", 16): 16_945_512_448,
    ("V100", 32): 34_072_559_616,
    ("A100", 40): 42_298_834_944,
    ("A100", 80): 84_987_740_160,
    ("H100", 80): 85_017_755_648,
    ("H800", 80): 85_017_755_648,  # that of H100, whose boards have as much by nvidia-smi
    ("H200", 141): 143_156 * _MIB,
    ("GH200", 96): 101_468_602_368,
    ("GB200", 186): 188_733 * _MIB,
    ("B200", 180): 182_631 * _MIB,
    ("L40S", 48): 47_576_711_168,
    ("A6000", 48): 51_160_023_040,
    ("MI250X", 64): 65_520 * _MIB,
    ("MI300X", 192): 196_592 * _MIB,
    ("MI325X", 256): 262_128 * _MIB,
    ("MI350X", 288): 308_902_100_992,
    ("MI355X", 288): 309_220_868_096,
}
"""Bytes that programs find on a GPU, by a part of its model's name and the gigabytes of its data
sheet: a card of 80 GB has 85.0, one of 48 may have 47.6, as checks of errors take some.
"""


def memory_of(node: Node) -> int:
    """Bytes that programs find on a GPU that is sold with its `memory`, or, where nobody says,
    that; 0 if that is not known.
    """
    found = [
        total for (name, sold), total in _BYTES.items()
        if node.memory == sold * 10**9 and name.lower() in node.model.lower()
    ]  # fmt: skip
    return found[0] if found else node.memory


def gpu_of(model: str, memory_bandwidth: float | None = None) -> Gpu | None:
    """The GPU of a model such as `A100-SXM4-80GB`, with the machine's memory; None if unknown."""
    # An RTX A4000 is no A40.
    names = [n for n in GPUS if re.search(rf"{re.escape(n)}(?!\d)", model, re.IGNORECASE)]
    found = GPUS[max(names, key=len)] if names else None
    return found and replace(found, memory_bandwidth=memory_bandwidth or found.memory_bandwidth)


def gpu_among(nodes: Sequence[Node]) -> Gpu | None:
    """The GPU that these nodes are; None if it is not known, or if they differ."""
    if len({node.model for node in nodes}) != 1:
        return None
    rate = nodes[0].memory_bandwidth
    return gpu_of(nodes[0].model, rate if isfinite(rate) else None)


def utilization(
    gpu: Gpu | None, flops: float, seconds: float, ranks: int, bits: int = 16
) -> float | None:
    """MFU: a model's FLOPs of a step over those that all GPUs could do in its time, of products in
    so many bits; None where any of these is not known.

    FLOPs that are computed again do not count (Chowdhery et al. 2022, arXiv 2204.02311,
    appendix B).
    """
    if gpu is None or not flops or not seconds:
        return None
    return flops / (seconds * ranks * (gpu.flops if bits == 16 else gpu.flops8))


@lru_cache(maxsize=256)
def gpu_at(setup: Setup) -> Gpu | None:
    """The GPU of a setup's ranks, as `gpu_among` has it."""
    return gpu_among([setup.topology.nodes[name] for name in setup.layout.ranks])


def _gpu_named(text: str) -> Gpu | None:
    """The GPU that programs call so, `NVIDIA A100-SXM4-80GB`; None if its figures are not known."""
    try:
        model = model_named(text)
    except TopologyError:
        return None
    return gpu_of(model.name, model.memory)


def load_gpu(text: str, own: Gpu | None, beside: Callable[[str], str] = str) -> Gpu:
    """The GPU of that name, or of the file `text`, which overrides figures of the machine's `own`.

    `beside` finds files of a scenario. InputError lists every fault.
    """
    if found := GPUS.get(text) or _gpu_named(text):
        return found
    text = beside(text) if text.endswith(".toml") else text
    if not exists(text):
        near = near_or_all(text, GPUS)
        raise InputError(f"no GPU {text!r}{near}; or a file as described under compute")
    faults = Faults(text)
    values = COMPUTE.read(parse_toml(text, read_text(Path(text), InputError), InputError), faults)
    given = {key: value for key, value in values.items() if value is not None}
    needed = () if own else ("flops", "memory_bandwidth", "units")
    words = "the machine's GPU is not known, so it must be stated"
    faults.add_broken("", ((key, key not in given, words) for key in needed))
    faults.raise_any()
    base = own or Gpu("", given["flops"], 0.0, given["memory_bandwidth"], given["units"])
    sources = dict(base.sources)
    if {"flops", "units"} & given.keys():  # another chip
        sources = dict.fromkeys(sources, f"{_BORROWED}{base.title}")
    if "flops" in given:  # whose other rates are its own too
        base = replace(base, flops8=0.0, flops_tf32=0.0, flops32=0.0)
    sources |= dict.fromkeys(given, STATED)
    return replace(base, **{"title": Path(text).name, "sources": sources, **given})


def gpu_for(
    text: str | None,
    nodes: Sequence[Node],
    beside: Callable[[str], str] = str,
    instead: str = "",
) -> Gpu:
    """The GPU that `text` names, as `load_gpu` reads it, or else the one that these nodes are.

    InputError if neither says which, with what else to give `instead`.
    """
    own = gpu_among(nodes)
    if text is not None:
        return load_gpu(text, own, beside)
    if own is None:
        models = sorted({node.model for node in nodes})
        which = ", ".join(model or "no model" for model in models) or "no model"
        why = "differ" if models[1:] else "are not known"
        known = f"one of {', '.join(GPUS)}, or a file{instead}"
        raise InputError(f"missing; the machine's GPUs ({which}) {why}: name {known}")
    return own


@lru_cache(maxsize=256)
def least_gpu(setup: Setup) -> Gpu | None:
    """The GPU with the fewest SMs among a setup's ranks; None if one of them is not known."""
    nodes = [setup.topology.nodes[name] for name in setup.layout.ranks]
    found = [gpu_of(model) for model in {node.model for node in nodes}]
    known = [each for each in found if each is not None]
    return min(known, key=lambda gpu: gpu.units) if len(known) == len(found) else None


_FASTER = ("products", "products8", "products32", "attention", "memory")
_SHORTER = ("kernel", "host", "handover", "step")


def faster_gpu(gpu: Gpu, factor: float) -> Gpu:
    """The GPU with all that it and its host do `factor` times as fast."""
    parts = {name: getattr(gpu, name) * factor for name in _FASTER}
    return replace(gpu, **parts, **{name: getattr(gpu, name) / factor for name in _SHORTER})


_TILE = 128
"""Rows and columns of a product's tile, as of CUTLASS's usual kernels.

Not those of `interference.tiling_of`, by which `eager` counts: with these, published steps on A100
are 6.3 % off in the median and 16.8 % at the 90th percentile instead of 5.7 and 15.0 % (vTrain, 2
and 8 GPUs), those on H100 1.7 and 5.4 % instead of 2.1 and 5.8 % (DGX Cloud), with one factor for
all rates in both cases and no other constant fitted anew. They are of kernels of Hopper.
"""

NORM = (4.0, 8.0)
"""Bytes of an element that a norm moves, forward and backward: input, output; two gradients too."""
RESIDUAL = (6.0, 4.0)
"""The sum with what went past a part."""
DROPOUT = (3.0, 5.0)
"""Besides the residual: a mask written; gradient, mask and result."""
PLAIN, GATED = (4.0, 6.0), (6.0, 10.0)
"""The nonlinearity, for each element of the inner width."""
SOFTMAX = (4.0, 6.0)
"""For each score of unfused attention, with scaling and mask in one kernel."""
SOFTMAX_APART = ((6.0, 6.0), (8.0, 8.0), (9.0, 9.0), (8.0, 12.0), (6.0, 6.0))
"""The same in kernels of their own: to float32, scaled, masked, softmax, to 16 bits."""
_SOFTMAX_ROWS = 4
"""Sequences times heads are a multiple of it where Megatron-LM has that one kernel
(`is_kernel_available` of `fused_softmax.py`).
"""
LOSS = (38.0, 14.0)
"""For each logit, as Megatron-LM's `cross_entropy.py` has it: to float32 (6), maximum (4),
difference (8), exponentials (8), sum (4), quotient (8); the gradient's factor (8), to 16 bits (6).
"""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a part: forward, backward for inputs, and backward for weights.

    `again` are those of attention by itself, which selective recomputation repeats; `kernels` is
    how many a forward pass has.
    """

    forward: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0
    again: float = 0.0
    kernels: int = 0

    def __add__(self, other: Times) -> Times:
        return Times(
            self.forward + other.forward,
            self.inputs + other.inputs,
            self.weights + other.weights,
            self.again + other.again,
            self.kernels + other.kernels,
        )

    @property
    def seconds(self) -> float:
        """All passes."""
        return self.forward + self.inputs + self.weights


@dataclass(frozen=True)
class Kernels:
    """Kernels of a GPU; products have `bits` 16 or 8."""

    gpu: Gpu
    bits: int = 16
    _products: dict[tuple[int, int, int, int, int], float] = field(
        default_factory=dict, repr=False, compare=False
    )

    def product(self, rows: int, columns: int, inner: int, count: int = 1, bits: int = 0) -> float:
        """Seconds of `count` products of rows x inner and inner x columns in one kernel."""
        facts = rows, columns, inner, count, bits or self.bits
        return once(self._products, facts, lambda: self._product(*facts))

    def _product(self, rows: int, columns: int, inner: int, count: int, bits: int) -> float:
        gpu = self.gpu
        tiles = ceil(rows / _TILE) * ceil(columns / _TILE) * count
        full = ceil(tiles / gpu.units) * gpu.units * _TILE * _TILE
        rate = gpu.flops * gpu.products if bits == 16 else gpu.flops8 * gpu.products8
        width = bits / 8
        moved = (rows * inner + inner * columns) * width + 2.0 * rows * columns
        seconds = max(2.0 * full * inner / rate, self._bytes(count * moved))
        return seconds * gpu.slowed.product(rows, columns, inner, count) + gpu.kernel

    def _bytes(self, count: float) -> float:
        return count / (self.gpu.memory_bandwidth * self.gpu.memory)

    def moves(self, elements: float, table: tuple[float, float]) -> Times:
        """A kernel that is no product."""
        slowed, kernel = self.gpu.slowed.moves, self.gpu.kernel
        forward, backward = (self._bytes(elements * each) * slowed + kernel for each in table)
        return Times(forward, backward, kernels=1)

    def linear(self, rows: int, inner: int, columns: int, count: int = 1) -> Times:
        """A product with weights, forward and for both gradients; `count` of them in one kernel."""
        return Times(
            self.product(rows, columns, inner, count),
            self.product(rows, inner, columns, count),
            self.product(inner, columns, rows, count),
            kernels=1,
        )

    def fused_attention(self, tokens: float, keys: float, width: float, *, causal: bool) -> Times:
        """FlashAttention of all heads together; backward has five products to forward's two."""
        flops = 4.0 * tokens * keys * width * (0.5 if causal else 1.0)
        slowed = self.gpu.slowed.attention(tokens, width / HEAD)
        forward = flops / (self.gpu.flops * self.gpu.attention) * slowed + self.gpu.kernel
        return Times(forward, 2.5 * forward, kernels=1)

    def unfused_attention(
        self, queries: int, keys: int, head: int, count: int, *, dropout: bool
    ) -> Times:
        """Scores, softmax, dropout and values, each in a kernel, for `count` heads.

        Of heads narrower than a tile, products use that part of the GPU; so say published steps
        with heads of 64, 96 and 128.
        """
        narrow = max(_TILE / head, 1.0)
        scores = narrow * self.product(queries, keys, head, count, 16)
        values = narrow * self.product(queries, head, keys, count, 16)
        found = Times(scores + values, 2.0 * (scores + values), kernels=2)
        for table in SOFTMAX_APART if count % _SOFTMAX_ROWS else (SOFTMAX,):
            found += self.moves(float(count) * queries * keys, table)
        if dropout:
            found += self.moves(float(count) * queries * keys, (5.0, 5.0))
        return Times(
            found.forward, found.inputs, found.weights, found.forward, kernels=found.kernels
        )
