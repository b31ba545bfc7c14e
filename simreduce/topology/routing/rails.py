"""The NIC that each GPU of a machine has as its own.

Where several NICs are equally near to a GPU, the GPUs that share them take them in turn: the first
GPU the first NIC, and so on. Near means few hops, and among those few sockets.
"""

from __future__ import annotations

from collections.abc import Mapping

from simreduce.topology.naming import natural
from simreduce.topology.routing.search import PathSearch


class Rails:
    """The GPUs' own NICs; each machine is looked at once."""

    def __init__(self, search: PathSearch) -> None:
        self._search = search
        self._found: dict[str, Mapping[str, str]] = {}

    def nic(self, name: str) -> str:
        """The NIC that is a GPU's own, "" for none and for other nodes."""
        node = self._search.nodes[name]
        if node.kind != "gpu" or not node.machine:
            return ""
        if node.machine not in self._found:
            self._found[node.machine] = self._deal(node.machine)
        return self._found[node.machine].get(name, "")

    def _deal(self, machine: str) -> Mapping[str, str]:
        """The NICs of a machine, dealt to the GPUs that they are nearest to."""
        names = sorted(self._search.machines[machine], key=natural)
        nodes = [self._search.nodes[name] for name in names]
        nics = [node.name for node in nodes if node.kind == "nic"]
        sharing: dict[tuple[str, ...], list[str]] = {}
        for gpu in [node.name for node in nodes if node.kind == "gpu"] if nics else []:
            sharing.setdefault(self._nearest(gpu, nics, machine), []).append(gpu)
        return {
            gpu: near[place % len(near)]
            for near, gpus in sharing.items()
            if near
            for place, gpu in enumerate(gpus)
        }

    def _nearest(self, gpu: str, nics: list[str], machine: str) -> tuple[str, ...]:
        hops = self._search.within(machine).hops(gpu)
        least = min((hops[nic] for nic in nics if nic in hops), default=-1)
        near = [nic for nic in nics if hops.get(nic) == least]
        if len(near) < 2:
            return tuple(near)
        sockets = {nic: self._sockets(self._search.path(gpu, nic, machine)) for nic in near}
        return tuple(nic for nic in near if sockets[nic] == min(sockets.values()))

    def _sockets(self, path: tuple[str, ...]) -> int:
        return sum(self._search.nodes[name].kind == "cpu" for name in path)
