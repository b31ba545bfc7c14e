"""What planners may know of a machine: ranks, tasks, hosts and which GPUs are linked. No time, and
of bandwidth only the shares of a `Network`, for planners that make their plan for the graph at
hand.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, overload

from simreduce.errors import StrategyError, TopologyError
from simreduce.synthesis.network import (
    MOST_RANKS,
    Network,
    Path,
    connected,
    direct_network,
    switched_network,
)

if TYPE_CHECKING:
    from simreduce.topology import Folded, Topology


class Wiring(Protocol):
    """The networks of a machine, worked out when somebody asks."""

    def network(
        self, ranks: tuple[str, ...], tasks: tuple[tuple[int, ...], ...], *, routed: bool
    ) -> Network:
        """That of the GPUs `ranks`, of which `tasks` stand in one machine each; see
        `Layout.network`.
        """


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Row(Sequence[int]):
    """`size` numbers, zero but for those in `values`. It reads, compares and hashes like the tuple
    of them, in less room: thousands of ranks have few links each.
    """

    values: Mapping[int, int]
    size: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Row: ...
    def __getitem__(self, place: int | slice) -> int | Row:
        if isinstance(place, slice):
            kept = range(self.size)[place]
            return Row({kept.index(i): v for i, v in self.values.items() if i in kept}, len(kept))
        if 0 <= place < self.size:
            return self.values.get(place, 0)
        return self.values.get(range(self.size)[place], 0)

    def __iter__(self) -> Iterator[int]:
        dense = [0] * self.size
        for place, value in self.values.items():
            dense[place] = value
        return iter(dense)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Row):
            return self.size == other.size and self.values == other.values
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def _only(row: Sequence[int], place: Mapping[int, int]) -> Row:
    """The entries of a row whose places are keys of `place`, at the places that it says."""
    values = row.values.items() if isinstance(row, Row) else enumerate(row)
    return Row({place[i]: value for i, value in values if i in place and value}, len(place))


@dataclass(frozen=True, slots=True)
class Reducer:
    """A switch that can sum what passes through it, with the ranks and the other such switches that
    it is linked to.
    """

    name: str
    ranks: tuple[int, ...]
    switches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The machine as plain data; a rank is an index into `ranks`.

    `ranks` are the GPUs, machine by machine. `tasks` are the ranks of each machine. `hosts` is, per
    task, its first CPU: what TensorFlow calls `/cpu:0`, one device for all sockets, whose memory is
    taken to be on the first; "" for a machine without a CPU. `links[i][j]` counts the lanes of the
    direct links from rank i to rank j, 0 for none. `order` is the order of GPUs that rings take
    inside every task (tf_cnn_benchmarks' `--gpu_indices`): positions in the task; empty for that of
    the task itself. `reducers` are the switches that can sum. `wiring` knows what lies between the
    ranks; without it, what `links` says is taken for all there is to know. Of a folded machine, all
    of this is that of one of `machines` equal ones, which count as tasks of their own unless they are
    `one_task`.
    """

    ranks: tuple[str, ...]
    tasks: tuple[tuple[int, ...], ...]
    hosts: tuple[str, ...]
    links: tuple[Sequence[int], ...]
    order: tuple[int, ...] = ()
    reducers: tuple[Reducer, ...] = ()
    machines: int = 1
    one_task: bool = False
    wiring: Wiring | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def n(self) -> int:
        """The number of ranks, of all equal machines."""
        return len(self.ranks) * self.machines

    @property
    def task_count(self) -> int:
        """The number of tasks, of all equal machines."""
        return 1 if self.one_task else len(self.tasks) * self.machines

    @property
    def ring_tasks(self) -> tuple[tuple[int, ...], ...]:
        """`tasks`, each in ring order."""
        if not self.order:
            return self.tasks
        return tuple(tuple(task[i] for i in self.order) for task in self.tasks)

    def ordered(self, order: Sequence[int]) -> Layout:
        """The same machine with rings that take the GPUs of every task in `order`.

        Raises `StrategyError` unless it holds every position of every task once.
        """
        if any(sorted(order) != list(range(len(task))) for task in self.tasks):
            sizes = sorted({len(task) for task in self.tasks})
            raise StrategyError(
                f"gpu_indices {','.join(map(str, order))}: must hold each of 0 to n-1 once, where n is the number of "
                f"GPUs of a task, {' or '.join(map(str, sizes))} here"
            )
        return replace(self, order=tuple(order))

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device a plan may name: the ranks, then the hosts that exist, each once, then the
        switches that can sum.
        """
        hosts = (host for host in self.hosts if host)
        return tuple(
            dict.fromkeys((*self.ranks, *hosts, *(switch.name for switch in self.reducers)))
        )

    def host_devices(self, algorithm: str) -> tuple[int, ...]:
        """Per task, the index in `devices` of its host; raises `StrategyError` when a task has
        none.
        """
        index = {name: i for i, name in enumerate(self.devices)}
        for task, host in zip(self.tasks, self.hosts, strict=True):
            if not host:
                raise StrategyError(
                    f"{algorithm}: it needs a CPU beside {self.ranks[task[0]]!r}, and there is none"
                )
        return tuple(index[host] for host in self.hosts)

    def few(self, machines: int) -> Layout:
        """So many of the equal machines that this one stands for, each by itself."""
        n, copies = len(self.ranks), range(machines)
        tasks = [tuple(rank + n * i for rank in task) for i in copies for task in self.tasks]
        hosts = [f"m{i}.{host}" if host else "" for i in copies for host in self.hosts]
        if self.one_task:
            tasks, hosts = [tuple(range(n * machines))], [""]
        return replace(
            self,
            ranks=tuple(f"m{i}.{name}" for i in copies for name in self.ranks),
            tasks=tuple(tasks),
            hosts=tuple(hosts),
            links=tuple(
                Row({rank + n * i: lanes for rank, lanes in enumerate(row) if lanes}, n * machines)
                for i in copies for row in self.links
            ),
            machines=1,
            one_task=False,
        )  # fmt: skip

    def subset(self, k: int) -> Layout:
        """The first `k` ranks with their tasks and hosts; raises `ValueError` unless 1 <= k <= n."""
        if not 1 <= k <= self.n:
            raise ValueError(f"cannot take {k} of {self.n} devices; choose from 1 to {self.n}")
        return self._kept(range(k))

    def only(self, ranks: Sequence[int]) -> Layout:
        """The given ranks, in ascending order, with their tasks and hosts; raises `ValueError`
        unless each is there and is named once.
        """
        unknown = [r for r in ranks if not 0 <= r < self.n]
        if unknown or len(set(ranks)) < len(ranks) or not ranks:
            fault = (
                f"there is no {', '.join(map(str, unknown))}" if unknown else "each is named once"
            )
            raise ValueError(
                f"cannot take devices {','.join(map(str, ranks))}: {fault if ranks else 'name one at least'}; "
                f"choose from 0 to {self.n - 1}"
            )
        return self._kept(sorted(ranks))

    def _kept(self, ranks: Sequence[int]) -> Layout:
        if self.machines > 1:
            raise ValueError(
                f"one of {self.machines} equal machines stands for all (folded): none can be left out"
            )
        place = {rank: i for i, rank in enumerate(ranks)}
        kept = [
            (tuple(place[r] for r in task if r in place), host)
            for task, host in zip(self.tasks, self.hosts, strict=True)
        ]
        kept = [(task, host) for task, host in kept if task]
        return Layout(
            ranks=tuple(self.ranks[r] for r in ranks),
            tasks=tuple(task for task, _ in kept),
            hosts=tuple(host for _, host in kept),
            links=tuple(_only(self.links[i], place) for i in ranks),
            order=() if len(ranks) < self.n else self.order,
            reducers=tuple(
                replace(switch, ranks=tuple(place[r] for r in switch.ranks if r in place))
                for switch in self.reducers
                if not switch.ranks or place.keys() & set(switch.ranks)
            ),
            wiring=self.wiring,
        )

    def network(self, *, routed: bool = False) -> Network:
        """What transfers between the ranks compete for.

        If the direct links between the ranks connect them all, in both directions, these are the
        network: libraries do not send over PCIe what NVLink can carry, and a copy between two
        linked GPUs never goes another way. Otherwise, or if `routed`, every two ranks have the one
        way that the engine sends them. Without `wiring`, lanes are capacities and ranks that no
        links connect have a port each, of one lane, on a switch.

        Raises `StrategyError` for more than `MOST_RANKS` ranks: searches would take too long.
        """
        if self.n > MOST_RANKS:
            raise StrategyError(
                f"plans are made for the graph at hand up to {MOST_RANKS} GPUs, and these are {self.n}"
            )
        if self.wiring is not None:
            return self.wiring.network(self.ranks, self.tasks, routed=routed)
        ranks = range(self.n)
        lanes = {
            (i, j): float(self.links[i][j])
            for i in ranks
            for j in ranks
            if i != j and self.links[i][j]
        }
        make = direct_network if connected(self.n, list(lanes)) and not routed else switched_network
        return make(self.ranks, lanes, self.tasks)


@dataclass(frozen=True, slots=True)
class _Machine:
    """The wiring of a topology."""

    topology: Topology

    def network(
        self, ranks: tuple[str, ...], tasks: tuple[tuple[int, ...], ...], *, routed: bool
    ) -> Network:
        return _network(self.topology, ranks, tasks, routed)


@functools.lru_cache(maxsize=32)
def _network(
    topology: Topology, ranks: tuple[str, ...], tasks: tuple[tuple[int, ...], ...], routed: bool
) -> Network:
    """The achievable rates, in bytes/s, of the links that the engine's routes between `ranks`
    cross. Figures (what copies through the host share besides) are loops, which take capacity and
    join nothing.
    """
    linked = {(link.source, link.target) for link in topology.links if not link.is_toll}
    n = range(len(ranks))
    pairs = [(u, v) for u in n for v in n if u != v]
    direct = [(u, v) for u, v in pairs if (ranks[u], ranks[v]) in linked]
    used = direct if connected(len(ranks), direct) and not routed else pairs
    crossed = {(u, v): _links(topology, ranks[u], ranks[v]) for u, v in used}
    links = {
        link: arc
        for arc, link in enumerate(sorted({link for way in crossed.values() for link in way}))
    }
    ends = [topology.links[link] for link in links]
    names = dict.fromkeys((*ranks, *(name for link in ends for name in (link.source, link.target))))
    vertex = {name: i for i, name in enumerate(names)}
    return Network(
        names=tuple(names),
        ranks=len(ranks),
        arcs=tuple(
            (
                vertex[link.source],
                vertex[link.source if link.is_toll else link.target],
                link.bandwidth,
            )
            for link in ends
        ),
        paths=tuple(
            tuple(tuple(links[link] for link in crossed.get((u, v), ())) for v in n) for u in n
        ),
        tasks=tasks,
    )


def _links(topology: Topology, source: str, target: str) -> Path:
    """The links of a route, figures included; of bytes that are split over equal paths, those of
    the first.
    """
    try:
        found = topology.router.route(source, target)
    except TopologyError:
        return ()
    hops = set(itertools.pairwise(found.path))
    ends = [topology.links[link] for link in found.links]
    return tuple(link.id for link in ends if link.is_toll or (link.source, link.target) in hops)


def layout(topology: Topology | Folded) -> Layout:
    """The layout of a topology, of a folded one that of one of its machines."""
    from simreduce.topology import Folded  # noqa: PLC0415 - layouts are loaded without machines

    if isinstance(topology, Folded):
        pair = layout(topology.pair)
        one = pair.only([rank for rank, name in enumerate(pair.ranks) if name in topology.devices])
        return replace(
            one,
            hosts=tuple(host if host in topology.hosts else "" for host in one.hosts),
            reducers=(),
            machines=topology.machines,
            one_task=topology.one_task,
            wiring=None,
        )
    ranks = topology.devices
    index = {name: rank for rank, name in enumerate(ranks)}
    tasks: dict[str, list[int]] = {}
    for rank, name in enumerate(ranks):
        tasks.setdefault(topology.nodes[name].machine, []).append(rank)
    hosts: dict[str, str] = {}
    for name in topology.hosts:
        hosts.setdefault(topology.nodes[name].machine, name)
    links: list[dict[int, int]] = [{} for _ in ranks]
    for link in topology.links:
        if link.source in index and link.target in index and not link.is_toll:
            row, column = links[index[link.source]], index[link.target]
            row[column] = row.get(column, 0) + link.lanes
    near: dict[str, list[str]] = {node.name: [] for node in topology.nodes.values() if node.reduces}
    for link in topology.links:
        if link.source in near and not link.is_toll:
            near[link.source].append(link.target)
    return Layout(
        ranks=ranks,
        tasks=tuple(tuple(task) for task in tasks.values()),
        hosts=tuple(hosts.get(machine, "") for machine in tasks),
        links=tuple(Row(row, len(ranks)) for row in links),
        reducers=tuple(
            Reducer(
                name,
                tuple(sorted(index[t] for t in ends if t in index)),
                tuple(t for t in ends if t in near),
            )
            for name, ends in near.items()
        ),
        wiring=_Machine(topology),
    )
