"""`switch:64`: every GPU on one switch."""

from __future__ import annotations

from simreduce.topology.generators.inline import Settings
from simreduce.topology.generators.shape import Shape, cable, ends
from simreduce.topology.graph import Node
from simreduce.topology.ways import FatTreeWays


def switch(settings: Settings) -> Shape:
    """GPUs and the host, each on a port; with `reduce=yes` the switch can sum."""
    bandwidth, latency = settings.bandwidth(), settings.latency()
    count, reduces = settings.size(settings.limit), settings.flag("reduce")
    settings.check()
    nodes = ends(count)
    middle = Node("switch0", "switch", machine="", reduces=reduces)
    cables = [cable(node, middle, bandwidth, latency / 2) for node in nodes]
    ways = FatTreeWays(tuple(range(len(nodes))), radix=len(nodes), leaves=1, spines=0)
    title = f"{count} devices on one switch" + (" that reduces" if reduces else "")
    return Shape(title, [*nodes, middle], cables, ways)
