"""`fat_tree:1024,radix=32,oversubscription=2`: hosts under leaves under spines, one path for every pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simreduce.topology.generators.inline import DEVICES_LIMIT, Settings
from simreduce.topology.generators.shape import Shape, cable, ends, placed
from simreduce.topology.graph import Cable, Node
from simreduce.topology.ways import FatTreeWays

RADIX = 32


@dataclass(frozen=True, slots=True)
class Tree:
    """Two levels over `hosts` hosts: `radix` of them under each leaf, which has one cable to each spine."""

    hosts: int
    radix: int
    spines: int
    reduces: bool

    @property
    def leaves(self) -> int:
        """As many as it takes; the last may have free ports."""
        return -(-self.hosts // self.radix)

    @property
    def title(self) -> str:
        """The words for it."""
        words = f"{self.leaves} leaves of {self.radix} and {self.spines} spines"
        return words + (", switches that reduce" if self.reduces else "")

    def wire(
        self, nodes: list[Node], hosts: Sequence[int], first: int, join: Callable[[Node, Node], Cable]
    ) -> tuple[list[Node], list[Cable], FatTreeWays]:
        """Switches, cables and ways for the `hosts`, places in `nodes` in the order of their ports; any beyond those
        of the tree sit on the last leaf too. Switches come after `nodes`, the cables after `first` others.
        """
        leaves = [Node(f"leaf{i}", "switch", machine="", reduces=self.reduces) for i in range(self.leaves)]
        spines = [Node(f"spine{i}", "switch", machine="", reduces=self.reduces) for i in range(self.spines)]
        ways = FatTreeWays(tuple(hosts), self.radix, self.leaves, self.spines, first)
        cables = [
            join(nodes[host], leaves[min(port // self.radix, self.leaves - 1)])
            for port, host in enumerate(hosts)
        ]
        cables += [join(leaf, spine) for leaf in leaves for spine in spines]
        return [*leaves, *spines], cables, ways


def read_tree(settings: Settings, hosts: int) -> Tree:
    """The tree that `radix=`, `oversubscription=` and `reduce=` ask for; a single leaf needs no spines."""
    radix = settings.whole("radix", min(RADIX, hosts), 1, DEVICES_LIMIT)
    ratio = settings.ratio("oversubscription")
    up = radix / ratio
    if up.denominator != 1 or not 1 <= up <= DEVICES_LIMIT:
        settings.faults.add(
            "oversubscription",
            f"{radix} hosts under a leaf / {float(ratio):g} is not a number of up-links from 1 to {DEVICES_LIMIT}",
        )
    return Tree(hosts, radix, int(up) if hosts > radix else 0, settings.flag("reduce"))


def fat_tree(settings: Settings) -> Shape:
    """GPUs as the hosts; the host `cpu0` has one more port, on the last leaf."""
    bandwidth, latency = settings.bandwidth(), settings.latency()
    count = settings.size(DEVICES_LIMIT)
    tree, places = read_tree(settings, count), placed(settings, count)
    settings.check()
    nodes = ends(count)
    switches, cables, ways = tree.wire(
        nodes, [*places, count], 0, lambda a, b: cable(a, b, bandwidth, latency / 2)
    )
    return Shape(f"{count} devices on a fat tree, {tree.title}", [*nodes, *switches], cables, ways)
