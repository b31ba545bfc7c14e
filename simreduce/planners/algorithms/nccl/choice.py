"""NCCL's choice where nobody knows the machine: a rule from ranks, links and bytes alone."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.planners.algorithms.nccl.paths import rings
from simreduce.planners.layouts import Decision, Layout

_LL, _LL128 = 1 << 16, 1 << 22
"""Bytes up to which the protocols are taken."""

_SENDS = ("all_to_all", "send_receive")

_THRESHOLD = {"simple": 64 * 512, "ll": 8 * 512, "ll128": 8 * 640}
"""Bytes of a tensor for each channel, at least; of a ring by LL, for each rank as well."""


def decided(
    layout: Layout, ranks: Sequence[int], collective: str, nbytes: int, wanted: Decision
) -> Decision:
    """Fill in what `wanted` leaves open: by the machine's own choice, or else by a plain rule."""
    if layout.decide:
        return layout.decide(tuple(layout.ranks[r] for r in ranks), collective, nbytes, wanted)
    if not wanted.is_open:
        return wanted
    algorithm = wanted.algorithm or ("p2p" if collective in _SENDS else "ring")
    small = "ll" if nbytes <= _LL else "ll128" if nbytes <= _LL128 else "simple"
    protocol = wanted.protocol or ("simple" if algorithm in ("nvls", "nvlstree", "p2p") else small)
    least = _THRESHOLD[protocol] * (
        len(ranks) * layout.machines if protocol == "ll" and algorithm == "ring" else 1
    )
    most = 2 * max(len(rings(layout, ranks)), 8)
    return Decision(algorithm, protocol, wanted.channels or max(min(most, nbytes // least), 1))
