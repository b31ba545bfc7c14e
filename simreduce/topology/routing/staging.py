"""Copies that go through the memory of a host, and the tolls they pay.

Two GPUs of one machine beyond each other's reach copy through the host nearest to the
sender. A GPU whose NIC is beyond its reach sends and receives over a network through the memory of
its nearest host, and pays at that end what a staged copy does. On networks whose class begins with
`tcp` all GPUs do.

How copies use NVLinks, and AMD's xGMI links between GPUs, which count as NVLinks everywhere.

Two linked GPUs copy over their own NVLinks, as one hop beats every longer path (`search`). Other
GPUs use NVLinks only over NVSwitches, because GPUs do not forward (`Node.forwards`). A path of
NVLinks is the nearest kind of path: only GPUs whose `peer` is "off" avoid it.

Which copies go directly, and which have to go through the memory of a host.

The *reach* of a GPU is the farthest kind of path over which it copies directly: `Node.peer` to
other GPUs of its machine, where the nearer of the two counts, and `Node.gpudirect` to a NIC
(GPUDirect RDMA). A copy beyond the reach is *staged*: it goes through the memory of a host, and
pays the tolls (`[links.staged_pcie3]` in a machine file) of the GPUs and PCIe switches on its way.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

from simreduce.errors import TopologyError
from simreduce.topology.elements import (
    BOTH_WAYS,
    DEFAULT_REACH,
    OFF,
    REACHES,
    TCP,
    Link,
    Node,
    NodeKind,
    natural,
)
from simreduce.topology.routing.route import Path, PathSearch

XGMI = "xgmi_cdna"
"""Prefix of the classes of xGMI links between GPUs; xGMI between CPUs has another."""
HOST_XGMI = "xgmi_cpu_gpu"
"""The class of xGMI links between a CPU and a GPU."""
GPU_LINKS = ("nvlink", XGMI)
"""Prefixes of the classes of links that GPUs have for each other."""


def is_nvlink(link: Link) -> bool:
    """Whether a link is an NVLink or an xGMI link of GPUs, by its class."""
    return link.link_class.startswith(GPU_LINKS)


def links_name(link_class: str) -> str:
    """What the links of a class are called: NVLinks, or xGMI links."""
    return "xGMI links" if link_class.startswith(XGMI) else "NVLinks"


def is_nvlink_path(nodes: Sequence[Node], wires: Sequence[Link]) -> bool:
    """Whether a path over `nodes`, both ends included, stays on NVLinks and crosses no CPU."""
    return all(node.kind != "cpu" for node in nodes[1:-1]) and all(map(is_nvlink, wires))


_BY_DISTANCE = (OFF, "NV", "PIX", "PXB", "P2C", "PHB", "SYS")


def path_kind(nodes: Sequence[Node], wires: Sequence[Link]) -> str:
    """NV, PIX, PXB, PHB, SYS or NET: the kind of path over `nodes`, both ends included, and the
    links between them.
    """
    between = [node.kind for node in nodes[1:-1]]
    if is_nvlink_path(nodes, wires):
        return "NV"
    if "switch" in between or not all(link.holds_lane for link in wires):
        return "NET"
    # A CPU at an end of the path is a host bridge that the path reaches, and counts like one in
    # between.
    bridges = sum(node.kind == "cpu" for node in nodes)
    if bridges:
        return "SYS" if bridges > 1 else "PHB"
    return "PXB" if between.count("pcie_switch") > 1 else "PIX"


def is_staged(nodes: Sequence[Node], wires: Sequence[Link]) -> bool:
    """Whether a copy along this path has to go through the memory of a host."""
    source, target = nodes[0], nodes[-1]
    if not (source.kind == target.kind == "gpu" and source.machine == target.machine):
        return False
    return is_beyond(nodes, wires, min(source.peer, target.peer, key=REACHES.index))


def is_beyond(nodes: Sequence[Node], wires: Sequence[Link], reach: str) -> bool:
    """Whether this path stays inside a machine and is farther than `reach`."""
    kind = path_kind(nodes, wires)
    if kind == "PHB" and nodes[-1].kind == "nic" and wires[0].link_class.startswith("c2c"):
        kind = "P2C"
    return kind != "NET" and _BY_DISTANCE.index(kind) > _BY_DISTANCE.index(reach)


class Staging:
    """Detours through hosts. `path` is the direct path between two nodes or raises
    `TopologyError`; `find` returns () then.
    """

    def __init__(
        self,
        search: PathSearch,
        path: Callable[[str, str], Path],
        find: Callable[[str, str], Path],
    ) -> None:
        self._nodes, self._search, self._path, self._find = search.nodes, search, path, find
        self._to_host = functools.cache(self._find_host)

    def is_staged(self, path: Path) -> bool:
        """Whether the copy whose direct path is given goes through a host."""
        if self._nodes[path[0]].peer == self._nodes[path[-1]].peer == DEFAULT_REACH:
            return False  # nothing is too far
        return is_staged([self._nodes[name] for name in path], self._wires(path))

    def detour(self, path: Path) -> tuple[Path, list[Link]]:
        """The path that a copy takes instead of the direct one, and the tolls of its hosts."""
        if self.is_staged(path):
            path = self._through_host(path)
            hosts = [place for place, name in enumerate(path) if self._nodes[name].kind == "cpu"]
            return path, self._tolls(path[: hosts[0]], path[hosts[-1] + 1 :])
        path, out = self._from_host(path)
        back, into = self._from_host(path[::-1])
        return back[::-1], self._tolls(path[:out], back[:into][::-1])

    def nics_beyond(self, gpu: str) -> list[str]:
        """The NICs of a GPU's machine, if it reaches some and its `gpudirect` none of them; else
        [].
        """
        paths = self._paths(gpu, "nic")
        far = all(self._is_beyond(path, self._nodes[gpu].gpudirect) for path in paths)
        return [path[-1] for path in paths] if far else []

    def _wires(self, path: Path) -> list[Link]:
        return [self._search.wires[hop] for hop in itertools.pairwise(path)]

    def _is_beyond(self, path: Path, reach: str) -> bool:
        return is_beyond([self._nodes[name] for name in path], self._wires(path), reach)

    def _from_host(self, path: Path) -> tuple[Path, int]:
        """The path, through a host if it begins at a GPU that is too far from its NIC, and how many
        nodes come before that host.
        """
        at = self._nic(path)
        if not at:
            return path, 0
        tcp = self._search.wires[path[at], path[at + 1]].link_class.startswith(TCP)
        begin = path[: at + 1]
        if not self._is_beyond(begin, OFF if tcp else self._nodes[path[0]].gpudirect):
            return path, 0
        begin = self._through_host(begin)
        before = next(place for place, name in enumerate(begin) if self._nodes[name].kind == "cpu")
        return (*begin, *path[at + 1 :]), before

    def _nic(self, path: Path) -> int:
        """The place of the NIC over which the path of a GPU leaves its machine, 0 for none."""
        machine = self._nodes[path[0]].machine
        leaves = machine and self._nodes[path[-1]].machine != machine
        if self._nodes[path[0]].kind != "gpu" or not leaves:
            return 0
        mine = itertools.takewhile(lambda name: self._nodes[name].machine == machine, path)
        return next(
            (place for place, name in enumerate(mine) if self._nodes[name].kind == "nic"), 0
        )

    def _through_host(self, path: Path) -> Path:
        """The path, or if no CPU is on it the path through the host nearest to its first node."""
        if any(self._nodes[name].kind == "cpu" for name in path):
            return path
        source, target = path[0], path[-1]
        out = self._to_host(source)
        if not out:
            raise TopologyError(
                f"no route from {source!r} to {target!r}: without peer access or GPUDirect a copy "
                "needs a CPU to go through"
            )
        return (*out, *self._path(out[-1], target)[1:])

    def _find_host(self, source: str) -> Path:
        """The path to the host nearest to a node; () for none."""
        paths = self._paths(source, "cpu")
        return min(paths, key=lambda path: (len(path), natural(path[-1])), default=())

    def _paths(self, source: str, kind: NodeKind) -> list[Path]:
        """The paths to all nodes of a kind in the same machine that a node reaches."""
        machine = self._nodes[source].machine
        there = [n.name for n in self._nodes.values() if n.kind == kind and n.machine == machine]
        return [path for name in there if (path := self._find(source, name))]

    def _tolls(self, out: Iterable[str], into: Iterable[str]) -> list[Link]:
        """The tolls of the nodes on the path to a host, and on the path from one, each once."""
        found = [toll for name in out for toll in self._node_tolls(name, into=False)]
        found += [toll for name in into for toll in self._node_tolls(name, into=True)]
        return list(dict.fromkeys(found))

    def _node_tolls(self, name: str, *, into: bool) -> list[Link]:
        """The tolls of a node in one direction: of each two links the first is out of the node, the
        second into it. Those of both ways are the first of their two.
        """
        return [
            toll
            for place, toll in enumerate(self._search.tolls.get((name, name), ()))
            if place % 2 == (into and not toll.link_class.endswith(BOTH_WAYS))
        ]
