"""`switch:64`: every GPU on one switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.topology.elements import Node
from simreduce.topology.generators.inline import InlineSettings
from simreduce.topology.generators.shape import Join, NetworkParts, Shape, switches, textbook
from simreduce.topology.routing.fat_tree import FatTreeRule


@dataclass(frozen=True, slots=True)
class SingleSwitch:
    """One switch with a port for each of `hosts`."""

    hosts: int
    reduces: bool = False

    @property
    def title(self) -> str:
        """Its description."""
        return "one switch" + (" that reduces" if self.reduces else "")

    @property
    def cables(self) -> int:
        """The number of cables, one for each host."""
        return self.hosts

    def wire(
        self, nodes: Sequence[Node], hosts: Sequence[int], first: int, join: Join
    ) -> NetworkParts:
        """See `Blueprint`."""
        made = switches("switch", 1, reduces=self.reduces)
        rule = FatTreeRule(tuple(hosts), radix=len(hosts), leaves=1, spines=0, first=first)
        return NetworkParts(made, [join(nodes[host], made[0]) for host in hosts], rule)


def switch(settings: InlineSettings) -> Shape:
    """GPUs and the host, each on a port; with `reduce=yes` the switch can sum."""
    return textbook(settings, read_switch, settings.limit)


def read_switch(settings: InlineSettings, machines: int, nics: int) -> SingleSwitch:
    """A port for every NIC."""
    return SingleSwitch(machines * nics, settings.flag("reduce"))
