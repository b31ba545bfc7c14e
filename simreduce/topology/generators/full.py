"""`full:8`: a link for every pair of GPUs."""

from __future__ import annotations

from simreduce.topology.generators.inline import InlineSettings
from simreduce.topology.generators.shape import Shape, cable, ends
from simreduce.units import plural

_LIMIT = 512
"""There are n x n links."""


def full(settings: InlineSettings) -> Shape:
    """Every two GPUs are linked, and each to the host."""
    bandwidth, latency = settings.bandwidth(), settings.latency()
    count = settings.size(_LIMIT)
    settings.check()
    *gpus, cpu = nodes = ends(count)
    cables = [cable(a, b, bandwidth, latency) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    cables += [cable(gpu, cpu, bandwidth, latency) for gpu in gpus]
    return Shape(f"{plural(count, 'device')}, every pair linked", nodes, cables)
