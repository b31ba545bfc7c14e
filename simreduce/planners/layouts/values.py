"""Layouts as values: ranks, tasks, hosts and the lanes between ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias

from simreduce.errors import StrategyError
from simreduce.planners.layouts.rings import NCCL, LibraryRules
from simreduce.planners.layouts.sparse import SparseRow, keep
from simreduce.planners.synthesis.network import (
    MOST_RANKS,
    Network,
    direct_network,
    is_connected,
    switched_network,
)


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
    links: tuple[Sequence[int], ...]
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

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that a plan may name: ranks, then hosts, then switches that can sum."""
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
        kept = [
            (tuple(place[r] for r in task if r in place), host)
            for task, host in zip(self.tasks, self.hosts, strict=True)
        ]
        kept = sorted((task, host) for task, host in kept if task)
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
        whole = any(len(switch.ranks) == self.n for switch in self.reducers)
        return whole or all(
            self.links[i][j] for i in range(self.n) for j in range(self.n) if i != j
        )

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
        ranks = range(self.n)
        lanes = {
            (i, j): float(self.links[i][j])
            for i in ranks
            for j in ranks
            if i != j and self.links[i][j]
        }
        make = (
            direct_network if is_connected(self.n, list(lanes)) and not routed else switched_network
        )
        return make(self.ranks, lanes, self.tasks)
