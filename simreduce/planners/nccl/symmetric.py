"""NCCL's symmetric kernels (2.27 and later), and how NCCL chooses among them.

They run on GPUs that links or switches of links join, where an application has registered the
buffers of all ranks as symmetric windows. NCCL has a model of time of its own for them: bytes that
a port carries over the rate of some blocks, after a constant. It takes the kernel of the least
time, with 2.5 % added for each block (`ncclSymkPickKernel` and `queryModel_lsa` of NVIDIA/nccl
src/sym_kernels.cc, 01050a1, read 2026-11; the constants are its own).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log1p
from typing import NamedTuple

BY_ENGINES = ("all_gather", "all_to_all")
"""What copy engines move, with NCCL_CTA_POLICY zero, from a version on."""

_GIB = (1 << 30) / 1e6  # bytes/us
_BLOCKS, _MULTICAST_BLOCKS, _NEWER_BLOCKS = 64, 16, 32
_FLAGGED = 9.0
"""Bytes that a kernel with flags in the data counts for one: twice, and work on them."""
_TOLERANCE, _PENALTY = 1.025, 0.025
_MOST_FLAGGED = 2 << 30
_BLACKWELL = 100
_LEAST_MULTICAST = 3
"""GPUs below which NCCL multicasts nothing."""


class SymmetricKernel(NamedTuple):
    """A kernel: its name, its collective, whether flags come with the data, whether switches
    multicast or sum.
    """

    name: str
    collective: str
    flagged: bool
    switched: bool


_AR, _AG, _RS = "all_reduce", "all_gather", "reduce_scatter"
KERNELS = (
    SymmetricKernel("agxll_r", _AR, flagged=True, switched=False),
    SymmetricKernel("agxllmc_r", _AR, flagged=True, switched=True),
    SymmetricKernel("rsxld_agxst", _AR, flagged=False, switched=False),
    SymmetricKernel("rsxldmc_agxstmc", _AR, flagged=False, switched=True),
    SymmetricKernel("ll", _AG, flagged=True, switched=False),
    SymmetricKernel("llmc", _AG, flagged=True, switched=True),
    SymmetricKernel("st", _AG, flagged=False, switched=False),
    SymmetricKernel("stmc", _AG, flagged=False, switched=True),
    SymmetricKernel("ll", _RS, flagged=True, switched=False),
    SymmetricKernel("ld", _RS, flagged=False, switched=False),
    SymmetricKernel("ldmc", _RS, flagged=False, switched=True),
)
"""NCCL's in its own order, by the names that strategies have. Those that move tiles (TMA) are
switched off unless a user asks for them (NCCL_SYM_TMA_ENABLE).
"""


def choose_symmetric(
    gpus: int, nbytes: int, capability: int, among: Iterable[SymmetricKernel], *, multicast: bool
) -> str:
    """The name of the kernel that a library takes `among` its own for a collective of a tensor of
    `nbytes`; `multicast` says whether switches sum and multicast.
    """
    best, least = "", float("inf")
    for kernel in among:
        if kernel.switched and not (multicast and gpus >= _LEAST_MULTICAST):
            continue
        if kernel.flagged and nbytes >= _MOST_FLAGGED:
            continue
        us, blocks = _estimate(kernel, gpus, nbytes, capability)
        if us * (1.0 + _PENALTY * blocks) < least:
            best, least = kernel.name, us * (1.0 + _PENALTY * blocks)
    return best


def _estimate(
    kernel: SymmetricKernel, gpus: int, nbytes: int, capability: int
) -> tuple[float, int]:
    """NCCL's estimate in microseconds, and the blocks that it takes."""
    newer, reduces = capability >= _BLACKWELL, kernel.collective == _AR
    given = nbytes if reduces else nbytes / gpus  # of a rank
    most, multiplier = _BLOCKS, 1.0
    if kernel.flagged:
        carried = gpus * given * _FLAGGED
        multiplier = 1.1 if kernel.switched else 1.0
    elif kernel.switched:
        carried = given / gpus + given if reduces else (gpus - 1) * given
        multiplier = gpus if reduces else 0.55 * gpus
        most = -(-(_NEWER_BLOCKS if newer else _MULTICAST_BLOCKS) // gpus)
    else:
        carried = 2.0 * given * (gpus - 1) / gpus if reduces else (gpus - 1) * given
    base = _base(kernel, newer=newer)
    each = (55.0 if newer else 65.0 if reduces else 44.0) * _GIB
    sums = reduces and kernel.switched and not kernel.flagged
    peak = ((1000.0 if sums else 600.0) if newer else 480.0 if sums else 320.0) * _GIB

    def us(blocks: int) -> float:
        rate = _soft_least(blocks * each * multiplier, peak, each)
        return base + _soft_most(carried / rate - 1.0)

    best = us(most)
    fewest = next((n for n in range(1, most) if us(n) <= _TOLERANCE * best), most)
    return us(fewest), fewest


def _base(kernel: SymmetricKernel, *, newer: bool) -> float:
    """Microseconds of a kernel without bytes."""
    if not newer:
        return 4.5 if kernel.flagged else 7.8
    if kernel.flagged:
        return 8.5 if kernel.collective == _AG else 11.0
    return 19.5 if kernel.collective == _AR else 13.0


def _soft_least(x: float, ceiling: float, softness: float) -> float:
    """A smooth least of `x` and the ceiling."""
    return ceiling - softness * log1p((exp(ceiling / softness) - 1.0) * exp(-x / softness))


def _soft_most(z: float) -> float:
    """A smooth most of `z` and 0."""
    return z if z >= 100.0 else log1p(exp(z))


def choose_engine(gpus: int, part: int, capability: int, *, multicast: bool) -> str:
    """`engine` or, where a switch multicasts, `engine_mc`: what NCCL takes for an all-gather of
    `part` bytes of each GPU, by the floor and the rate of its model without CUDA graphs
    (NVIDIA/nccl src/tuning/ce_model.cc, 8898068, read 2026-11).
    """
    if not multicast:
        return "engine"
    newer = capability >= _BLACKWELL
    rate = (779.0 if newer else 392.0) * 1e3  # bytes/us
    one = (32.04 if newer else 17.5) + (0.13 if newer else 1.957) * gpus + part * (gpus - 1) / rate
    many = (29.14 if newer else 14.9) + (0.137 if newer else 0.726) * gpus + part * gpus / rate
    return "engine_mc" if many < one else "engine"
