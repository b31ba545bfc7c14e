"""The parts of a machine that planners may know: ranks, tasks, hosts and linked GPUs.

No time, and bandwidth only as the capacities of a `Network`, for planners that search the graph at
hand. `layout` makes the `Layout` of a topology.

Rows of mostly zeros.

Layouts as values: ranks, tasks, hosts and the lanes between ranks.

Layouts of topologies.

The trees of switches that sum what the NICs of several machines send (SHARP).

The NICs in the same place of all machines are a rail, and each rail has a tree of its own: the
switch that has all of them, or a switch above all that have some. A switch of NVIDIA's carries two
streaming aggregation flows at most, so that the leaves have to be those of one rail or two (NVIDIA
HPC-X Software Toolkit Rev 2.25.1, "NCCL-RDMA-SHARP Plugins",
https://docs.nvidia.com/networking/display/hpcxv2251/nccl-rdma-sharp-plugins).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, overload

from simreduce.computing import grouped
from simreduce.errors import NotFoldable, StrategyError, TopologyError
from simreduce.planners.layouts.rings import NCCL, LibraryRules, rules_of
from simreduce.planners.synthesis import (
    MOST_RANKS,
    Network,
    Path,
    direct_network,
    is_connected,
    switched_network,
)

if TYPE_CHECKING:
    from simreduce.topology import Folded, Topology


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SparseRow(Sequence[int]):
    """A row of `size` numbers, zero except the ones in `values`.

    It reads, compares and hashes like a tuple. Thousands of ranks have few links each, so this
    saves memory.
    """

    values: Mapping[int, int]
    size: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[int, ...]: ...
    def __getitem__(self, place: int | slice) -> int | tuple[int, ...]:
        if isinstance(place, slice):
            return tuple(self)[place]
        if 0 <= place < self.size:
            return self.values.get(place, 0)
        return self.values.get(range(self.size)[place], 0)

    def __iter__(self) -> Iterator[int]:
        dense = [0] * self.size
        for place, value in self.values.items():
            dense[place] = value
        return iter(dense)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SparseRow):
            return self.size == other.size and self.values == other.values
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def keep(row: Sequence[int], place: Mapping[int, int]) -> SparseRow:
    """The entries of a row at the keys of `place`, moved to its values."""
    values = row.values.items() if isinstance(row, SparseRow) else enumerate(row)
    return SparseRow({place[i]: value for i, value in values if i in place and value}, len(place))


class Wiring(Protocol):
    """Makes the networks of a machine when they are needed."""

    def network(
        self, ranks: tuple[str, ...], tasks: tuple[tuple[int, ...], ...], *, routed: bool
    ) -> Network:
        """The network of the GPUs `ranks`; each of `tasks` has the ranks of one machine.

        See `Layout.network`.
        """

    def joined(self, ranks: tuple[str, ...]) -> bool:
        """Whether links between GPUs, or their switches, join every two of the GPUs `ranks`."""


class Decision(NamedTuple):
    """How NCCL runs one collective; "" and 0 leave a field open.

    `step` is an eighth of the buffer of Simple, in bytes. A send gives a channel `part` bytes
    before it takes another; at 0 all channels carry as much. `way` leaves out all channels but the
    ones of one way round the GPUs, for simulations where one way represents all; -1 leaves out
    none. `rules` are the library's, and a chunk of Simple has so many `slices`. `floats` says
    whether elements are floats of at most 32 bits.
    """

    algorithm: str = ""  # ring, tree, nvls, nvlstree, collnet, symmetric; of an all-to-all, p2p
    protocol: str = ""  # simple, ll or ll128; of symmetric, the kernel
    channels: int = 0
    step: int = 1 << 19
    part: int = 0
    way: int = -1
    rules: LibraryRules = NCCL
    slices: int = NCCL.slices
    floats: bool = True

    @property
    def is_open(self) -> bool:
        """Whether something is left open."""
        return not (self.algorithm and self.protocol and self.channels)


OPEN = Decision()
"""Nothing is decided."""

Decide: TypeAlias = Callable[[tuple[str, ...], str, int, Decision], Decision]
"""From GPUs, collective, bytes and a decision to NCCL's choice of what the decision leaves open."""


@dataclass(frozen=True, slots=True)
class Reducer:
    """A switch that can sum what passes through it, with the ranks and the other such switches that
    it is linked to. One with `heads` gives a sum to the rank that asks for it, which sends it back
    to be multicast (NVSwitch); others multicast it themselves (SHARP). `nics` are the ranks whose
    NICs it is linked to.
    """

    name: str
    ranks: tuple[int, ...]
    switches: tuple[str, ...]
    heads: bool = False
    nics: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """A machine as plain data. A rank is an index into `ranks`.

    `ranks` are the GPUs, machine by machine, and `tasks` the ranks of each machine. `hosts` has the
    first CPU of every task, "" for a machine without one. (TensorFlow's `/cpu:0` is one device for
    all sockets; its memory is taken to be on the first.) `links[i][j]` counts the lanes of the
    direct links from rank i to rank j. `order` is the order in which rings take the GPUs of a task
    (tf_cnn_benchmarks' `--gpu_indices`), as positions in the task; empty for the task's own.
    `reducers` are the switches that can sum. `nics` has the place of each rank's NIC in its
    machine, -1 for none; empty where nothing is known of NICs. `wiring` knows what lies between
    the ranks; without it `links` is all there is to know. `decide` knows what NCCL chooses here,
    and `rules` which rings its channels take.

    A folded machine has the layout of one of its `machines` equal ones. They count as tasks of
    their own unless they are `one_task`.
    """

    ranks: tuple[str, ...]
    tasks: tuple[tuple[int, ...], ...]
    hosts: tuple[str, ...]
    links: tuple[Sequence[int], ...] = field(hash=False)  # all pairs: ranks and hosts tell enough
    order: tuple[int, ...] = ()
    reducers: tuple[Reducer, ...] = ()
    nics: tuple[int, ...] = ()
    machines: int = 1
    one_task: bool = False
    rules: LibraryRules = NCCL
    wiring: Wiring | None = field(default=None, compare=False, repr=False)
    decide: Decide | None = field(default=None, compare=False, repr=False)

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

    def among(self, ranks: Collection[int]) -> list[list[int]]:
        """The tasks of these ranks, with no others."""
        chosen = {*ranks}
        tasks = ([rank for rank in task if rank in chosen] for task in self.tasks)
        return [task for task in tasks if task]

    def with_order(self, order: Sequence[int]) -> Layout:
        """The same machine with rings that take the GPUs of every task in `order`.

        Raises `StrategyError` unless it holds every position of every task once.
        """
        if any(sorted(order) != list(range(len(task))) for task in self.tasks):
            sizes = sorted({len(task) for task in self.tasks})
            raise StrategyError(
                f"gpu_indices {','.join(map(str, order))}: must hold each of 0 to n-1 once, "
                f"where n is the number of GPUs of a task, {' or '.join(map(str, sizes))} here"
            )
        return replace(self, order=tuple(order))

    def nic(self, rank: int) -> int:
        """The place of a rank's NIC in its machine; 0 where nothing is known of NICs."""
        return self.nics[rank] if self.nics else 0

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that a plan may name: ranks, then hosts, then switches that can sum."""
        hosts, switches = filter(None, self.hosts), (switch.name for switch in self.reducers)
        return tuple(dict.fromkeys((*self.ranks, *hosts, *switches)))

    def host_devices(self, algorithm: str) -> tuple[int, ...]:
        """Per task, the index in `devices` of its host; raises `StrategyError` when a task has
        none.
        """
        for task, host in zip(self.tasks, self.hosts, strict=True):
            if not host:
                raise StrategyError(
                    f"{algorithm}: it needs a CPU beside {self.ranks[task[0]]!r}, and there is none"
                )
        return tuple(map(self.devices.index, self.hosts))

    def few(self, machines: int) -> Layout:
        """The layout of `machines` of the equal machines, not folded."""
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
                SparseRow({r + n * i: lanes for r, lanes in enumerate(row) if lanes}, n * machines)
                for i in copies for row in self.links
            ),
            nics=self.nics * machines,
            machines=1,
            one_task=False,
        )  # fmt: skip

    def subset(self, k: int) -> Layout:
        """The first `k` ranks with their tasks and hosts; `ValueError` unless 1 <= k <= n."""
        if not 1 <= k <= self.n:
            raise ValueError(f"cannot take {k} of {self.n} devices; choose from 1 to {self.n}")
        return self._keep(range(k))

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
                f"cannot take devices {','.join(map(str, ranks))}: "
                f"{fault if ranks else 'name one at least'}; choose from 0 to {self.n - 1}"
            )
        return self._keep(sorted(ranks))

    def on(self, tasks: Sequence[int]) -> Layout:
        """The ranks of these tasks, in the order given: the first has rank 0. Raises `ValueError`
        unless each is there and is named once.
        """
        if not tasks or len({*tasks}) < len(tasks) or not {*tasks} <= {*range(len(self.tasks))}:
            raise ValueError(
                f"cannot take nodes {','.join(map(str, tasks))}: name each once, one at least; "
                f"choose from 0 to {len(self.tasks) - 1}"
            )
        kept = self._keep([rank for task in tasks for rank in self.tasks[task]])
        return replace(kept, order=self.order)

    def without(self, names: Collection[str]) -> Layout:
        """The ranks that have none of these names, with their tasks and hosts."""
        if not names:
            return self
        return self._keep([i for i, name in enumerate(self.ranks) if name not in names])

    def _keep(self, ranks: Sequence[int]) -> Layout:
        if self.machines > 1:
            raise ValueError(
                f"one of {self.machines} equal machines stands for all (folded): "
                "none can be left out"
            )
        place = {rank: i for i, rank in enumerate(ranks)}
        kept = sorted(
            (tuple(place[r] for r in task if r in place), host)
            for task, host in zip(self.tasks, self.hosts, strict=True)
            if place.keys() & {*task}
        )
        return Layout(
            ranks=tuple(self.ranks[r] for r in ranks),
            tasks=tuple(task for task, _ in kept),
            hosts=tuple(host for _, host in kept),
            links=tuple(keep(self.links[i], place) for i in ranks),
            order=() if len(ranks) < self.n else self.order,
            reducers=tuple(
                replace(
                    switch,
                    ranks=tuple(place[r] for r in switch.ranks if r in place),
                    nics=tuple(place[r] for r in switch.nics if r in place),
                )
                for switch in self.reducers
                if not switch.ranks or place.keys() & set(switch.ranks)
            ),
            nics=tuple(self.nics[r] for r in ranks) if self.nics else (),
            rules=self.rules,
            wiring=self.wiring,
            decide=self.decide,
        )

    @property
    def joined(self) -> bool:
        """Whether links between GPUs, or switches of such links, join every two ranks, so that a
        kernel on one reads and writes the memory of all.
        """
        if self.machines > 1:
            return False
        if self.wiring is not None:
            return self.wiring.joined(self.ranks)
        pairs = itertools.permutations(range(self.n), 2)
        whole = any(len(switch.ranks) == self.n for switch in self.reducers)
        return whole or all(self.links[i][j] for i, j in pairs)

    def network(self, *, routed: bool = False) -> Network:
        """The graph of links that transfers between the ranks share.

        If direct links connect all ranks, in both directions, these are the network: libraries do
        not send over PCIe what NVLink can carry, and a copy between two linked GPUs takes their
        link. Otherwise, or if `routed`, every two ranks have the engine's path. Without `wiring`,
        lanes are capacities, and ranks that no links connect have a port of one lane on a switch.

        Raises `StrategyError` for more than `MOST_RANKS` ranks: searches would take too long.
        """
        if self.n > MOST_RANKS:
            raise StrategyError(
                f"plans are made for the graph at hand up to {MOST_RANKS} GPUs, "
                f"and these are {self.n}"
            )
        if self.wiring is not None:
            return self.wiring.network(self.ranks, self.tasks, routed=routed)
        pairs = itertools.permutations(range(self.n), 2)
        lanes = {(i, j): float(self.links[i][j]) for i, j in pairs if self.links[i][j]}
        alone = is_connected(self.n, list(lanes)) and not routed
        return (direct_network if alone else switched_network)(self.ranks, lanes, self.tasks)


@dataclass(frozen=True, slots=True)
class _Wiring:
    """The wiring of a topology."""

    topology: Topology

    def network(
        self, ranks: tuple[str, ...], tasks: tuple[tuple[int, ...], ...], *, routed: bool
    ) -> Network:
        return _network(self.topology, ranks, tasks, routed)

    def joined(self, ranks: tuple[str, ...]) -> bool:
        return joined(self.topology, ranks)


@functools.lru_cache(maxsize=32)
def joined(topology: Topology | Folded, ranks: tuple[str, ...]) -> bool:
    """Whether the route of every two ranks passes GPUs and their switches only. Of folded machines
    nothing joins all.
    """
    from simreduce.topology import Folded  # noqa: PLC0415 - it loads networkx, which --help need not

    if isinstance(topology, Folded):
        return False
    kinds = {name: topology.nodes[name].kind for name in topology.nodes}
    try:
        ways = [topology.router.route(a, b).path for a, b in itertools.permutations(ranks, 2)]
    except TopologyError:
        return False
    return all(kinds[node] in ("gpu", "nvswitch") for way in ways for node in way)


@functools.lru_cache(maxsize=32)
def _network(
    topology: Topology, ranks: tuple[str, ...], tasks: tuple[tuple[int, ...], ...], routed: bool
) -> Network:
    """The links that the engine's routes between `ranks` cross, with their achievable rates in
    bytes/s. Tolls are loops: they take capacity and join nothing.
    """
    linked = {(link.source, link.target) for link in topology.wires}
    n = range(len(ranks))
    pairs = list(itertools.permutations(n, 2))
    direct = [(u, v) for u, v in pairs if (ranks[u], ranks[v]) in linked]
    used = direct if is_connected(len(ranks), direct) and not routed else pairs
    crossed = {(u, v): _links(topology, ranks[u], ranks[v]) for u, v in used}
    place = {name: i for i, name in enumerate(topology.nodes)}
    ends = sorted(  # whatever the order of a file's lines
        (topology.links[each] for each in {link for path in crossed.values() for link in path}),
        key=lambda link: (place[link.source], place[link.target], link.bandwidth, link.id),
    )
    links = {link.id: arc for arc, link in enumerate(ends)}
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
    """The links of a route, tolls included, or of the first of its equal paths."""
    try:
        found = topology.router.route(source, target)
    except TopologyError:
        return ()
    hops = set(itertools.pairwise(found.path))
    ends = [topology.links[link] for link in found.links]
    return tuple(link.id for link in ends if link.is_toll or (link.source, link.target) in hops)


def _nics(topology: Topology) -> tuple[int, ...]:
    """By rank, the place of its NIC among those that GPUs of its machine have; -1 for none."""
    places: dict[str, dict[str, int]] = {}
    found = []
    for name in topology.devices:
        nic = topology.router.nic(name)
        place = places.setdefault(topology.nodes[name].machine, {})
        found.append(place.setdefault(nic, len(place)) if nic else -1)
    return tuple(found)


def node_names(shape: Layout, topology: Topology) -> tuple[str, ...]:
    """The node of each task of a layout."""
    return tuple(topology.nodes[shape.ranks[task[0]]].machine for task in shape.tasks)


def layout(topology: Topology | Folded) -> Layout:
    """The layout of a topology, or of one of the machines of a folded one."""
    from simreduce.topology import Folded  # noqa: PLC0415 - it loads networkx, which --help need not

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
    tasks = grouped((topology.nodes[name].machine, rank) for rank, name in enumerate(ranks))
    hosts = {topology.nodes[name].machine: name for name in reversed(topology.hosts)}
    links: list[dict[int, int]] = [{} for _ in ranks]
    for link in topology.wires:
        if link.source in index and link.target in index:
            row, column = links[index[link.source]], index[link.target]
            row[column] = row.get(column, 0) + link.lanes
    near = {
        node.name: [link.target for link in topology.wires_from[node.name]]
        for node in topology.nodes.values()
        if node.reduces
    }
    at = grouped((topology.router.nic(name), i) for i, name in enumerate(ranks if near else ()))
    return Layout(
        ranks=ranks,
        tasks=tuple(tuple(task) for task in tasks.values()),
        hosts=tuple(hosts.get(machine, "") for machine in tasks),
        links=tuple(SparseRow(row, len(ranks)) for row in links),
        reducers=tuple(
            Reducer(
                name,
                tuple(sorted(index[t] for t in ends if t in index)),
                tuple(t for t in ends if t in near),
                topology.nodes[name].kind == "nvswitch",
                tuple(sorted(rank for t in ends for rank in at.get(t, ()))),
            )
            for name, ends in near.items()
        ),
        nics=_nics(topology),
        rules=rules_of(topology.nodes[ranks[0]].model if ranks else ""),
        wiring=_Wiring(topology),
    )


MOST_FLOWS = 2
"""Streaming aggregation flows that a switch carries at once."""


class Aggregation(NamedTuple):
    """The tree of one rail: its top, and for each machine the leaf of its NIC; the top itself where
    one switch has all NICs.
    """

    top: str
    leaves: tuple[str, ...]


def aggregations(layout: Layout, ranks: Sequence[int]) -> dict[int, Aggregation]:
    """By place of the NIC, the tree that sums what the machines of `ranks` send there.

    Raises `StrategyError` where there is none, with what is missing.
    """
    if layout.machines > 1:
        raise NotFoldable("the network's switches sum over all machines")
    tasks = layout.among(ranks)
    if len(tasks) < 2:
        raise StrategyError("switches of a network sum between machines, and these GPUs share one")
    rails = [dict.fromkeys(map(layout.nic, task)) for task in tasks]
    if any(rail.keys() != rails[0].keys() for rail in rails):
        raise StrategyError("needs GPUs at the same NICs of every machine")
    flows: Counter[str] = Counter()
    found = {}
    for place in rails[0]:
        heads = [next(r for r in task if layout.nic(r) == place) for task in tasks]
        found[place] = _tree(layout, heads, flows)
    crowded = [name for name, count in flows.items() if count > MOST_FLOWS]
    if crowded:
        raise StrategyError(
            f"{flows[crowded[0]]} rails would share {crowded[0]}, and a switch carries "
            f"{MOST_FLOWS} aggregation flows at once; a rail-optimised network has a leaf for "
            "each rail"
        )
    return found


def _tree(layout: Layout, heads: Sequence[int], flows: Counter[str]) -> Aggregation:
    """The tree over the NICs of these ranks, by the top that has the fewest flows yet."""
    summing = [switch for switch in layout.reducers if not switch.heads]
    leaves = [_leaf(layout, summing, head) for head in heads]
    names = dict.fromkeys(leaves)
    above = [each.name for each in summing if names.keys() <= {*each.switches}]
    tops = leaves[:1] if len(names) == 1 else above
    if not tops:
        raise StrategyError(f"no switch that sums is linked to all of {', '.join(names)}")
    top = min(tops, key=lambda name: flows[name])
    flows.update(dict.fromkeys((*names, top)).keys())
    return Aggregation(top, tuple(leaves))


def _leaf(layout: Layout, summing: Sequence[Reducer], head: int) -> str:
    """The switch at the NIC of a rank."""
    for switch in summing:
        if head in switch.nics or head in switch.ranks:
            return switch.name
    raise StrategyError(
        f"needs switches of the network that sum, and none is at the NIC of {layout.ranks[head]}; "
        "a topology says `reduces = true` at such a switch, a generator reduce=yes"
    )


__all__ = ["OPEN", "Decide", "Decision", "Layout", "Reducer", "joined", "layout", "node_names"]
