"""`ring:8`: GPUs in a circle."""

from __future__ import annotations

from simreduce.topology.generators.inline import DEVICES_LIMIT, InlineSettings
from simreduce.topology.generators.shape import Shape, cable, ends
from simreduce.units import plural


def ring(settings: InlineSettings) -> Shape:
    """Each GPU is linked to its two neighbours, and to the host."""
    bandwidth, latency = settings.bandwidth(), settings.latency()
    count = settings.size(DEVICES_LIMIT)
    settings.check()
    *gpus, cpu = nodes = ends(count)
    steps = {1: 0, 2: 1}.get(count, count)
    cables = [cable(gpus[i], gpus[(i + 1) % count], bandwidth, latency) for i in range(steps)]
    cables += [cable(gpu, cpu, bandwidth, latency) for gpu in gpus]
    return Shape(f"{plural(count, 'device')} in a ring", nodes, cables)
