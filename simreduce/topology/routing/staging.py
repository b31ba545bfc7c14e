"""Copies that go through the memory of a host, and the tolls they pay.

Two GPUs of one machine beyond each other's reach (`reach`) copy through the host nearest to the
sender. A GPU whose NIC is beyond its reach sends and receives over a network through the memory of
its nearest host, and pays at that end what a staged copy does. On networks whose class begins with
`tcp` all GPUs do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from simreduce.errors import TopologyError
from simreduce.topology.elements import BOTH_WAYS, DEFAULT_REACH, OFF, TCP, Link
from simreduce.topology.naming import natural
from simreduce.topology.routing.reach import is_beyond, is_staged
from simreduce.topology.routing.search import Path, PathSearch


class Staging:
    """Detours through hosts. `path` finds the direct path between two nodes or raises
    `TopologyError`.
    """

    def __init__(self, search: PathSearch, path: Callable[[str, str], Path]) -> None:
        self._nodes, self._search, self._path = search.nodes, search, path
        self._ways: dict[str, Path] = {}
        """Of each node that was asked for, the path to the nearest host of its machine, if any."""

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
        node = self._nodes[gpu]
        nics = [
            n.name for n in self._nodes.values() if n.kind == "nic" and n.machine == node.machine
        ]
        paths = list(self._paths(gpu, nics))
        near = any(not self._is_beyond(path, node.gpudirect) for path in paths)
        return [] if near else [path[-1] for path in paths]

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

    def _to_host(self, source: str) -> Path:
        """The path to the host nearest to a node; () for none."""
        if source not in self._ways:
            machine = self._nodes[source].machine
            hosts = [n for n in self._nodes.values() if n.kind == "cpu" and n.machine == machine]
            names = sorted((host.name for host in hosts), key=natural)
            self._ways[source] = min(self._paths(source, names), key=len, default=())
        return self._ways[source]

    def _paths(self, source: str, targets: Sequence[str]) -> Iterator[Path]:
        """Yield the path to each of `targets` that a node reaches."""
        for target in targets:
            try:
                path = self._path(source, target)
            except TopologyError:
                continue
            yield path

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
