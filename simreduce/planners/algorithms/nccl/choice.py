"""NCCL's choice where nobody knows the machine: a rule from ranks, links and bytes alone."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce import dtypes
from simreduce.planners.algorithms.nccl.paths import rings
from simreduce.planners.layouts import Decision, Layout

_LL, _LL128 = 1 << 16, 1 << 22
"""Bytes up to which the protocols are taken."""

_SENDS = ("all_to_all", "send_receive")

SYMMETRIC, BY_ENGINE = "symmetric", "engine"
"""The algorithms of a decision for one of NCCL's symmetric kernels, or one of the ways of copy
engines, which its protocol names.
"""

_FLOATS = ("float32", "float16", "bfloat16")
"""What symmetric kernels sum; NCCL has others of 8 bits too (src/sym_kernels.cc)."""

_SIMPLE_ONLY = ("nvls", "nvlstree", "collnet", "pat", "p2p")

_FEWEST = 2
"""GPUs for which NCCL has switches sum nothing, at most."""

_THRESHOLD = {"simple": 64 * 512, "ll": 8 * 512, "ll128": 8 * 640}
"""Bytes of a tensor for each channel, at least; of a ring by LL, for each rank as well."""


def decided(
    layout: Layout, ranks: Sequence[int], collective: str, nbytes: int, wanted: Decision,
    dtype: int = 0,
) -> Decision:  # fmt: skip
    """Fill in what `wanted` leaves open: by the machine's own choice, or else by a plain rule."""
    wanted = wanted._replace(rules=layout.rules, floats=dtypes.NAMES[dtype] in _FLOATS)
    if layout.decide:
        return layout.decide(tuple(layout.ranks[r] for r in ranks), collective, nbytes, wanted)
    if not wanted.is_open:
        return wanted
    if wanted.algorithm in (SYMMETRIC, BY_ENGINE):
        own = "engine"
        if wanted.algorithm == SYMMETRIC:
            own = _symmetric(layout, ranks, collective, nbytes)
        return wanted._replace(protocol=wanted.protocol or own)
    algorithm = wanted.algorithm or ("p2p" if collective in _SENDS else "ring")
    small = "ll" if nbytes <= _LL else "ll128" if nbytes <= _LL128 else "simple"
    protocol = wanted.protocol or ("simple" if algorithm in _SIMPLE_ONLY else small)
    least = _THRESHOLD[protocol] * (
        len(ranks) * layout.machines if protocol == "ll" and algorithm == "ring" else 1
    )
    most = 2 * max(len(rings(layout, ranks)), 8)
    channels = wanted.channels or max(min(most, nbytes // least), 1)
    return wanted._replace(algorithm=algorithm, protocol=protocol, channels=channels)


_KERNELS = {
    "all_reduce": ("agxll_r", "rsxld_agxst", "rsxldmc_agxstmc"),
    "all_gather": ("ll", "st", "stmc"),
    "reduce_scatter": ("ll", "ld", "ldmc"),
}
"""By collective: with flags, without, and by switches."""


def _symmetric(layout: Layout, ranks: Sequence[int], collective: str, nbytes: int) -> str:
    """The symmetric kernel: flags beside small data, else switches that sum, or loads, stores."""
    flags, plain, by_switch = _KERNELS[collective]
    multicast = any({*ranks} <= {*switch.ranks} for switch in layout.reducers)
    large = by_switch if multicast and len(ranks) > _FEWEST else plain
    return flags if nbytes <= _LL // len(ranks) else large
