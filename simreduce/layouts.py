"""What planners may know of a machine: ranks, tasks, hosts and which GPUs are linked. No bandwidth, no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

from simreduce.errors import StrategyError

if TYPE_CHECKING:
    from simreduce.topology import Topology


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Row(Sequence[int]):
    """`size` numbers, zero but for those in `values`. It reads, compares and hashes like the tuple of them, in less
    room: thousands of ranks have few links each.
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


@dataclass(frozen=True, slots=True)
class Layout:
    """The machine as plain data; a rank is an index into `ranks`.

    `ranks` are the GPUs, machine by machine. `tasks` are the ranks of each machine. `hosts` is, per task, its first
    CPU: what TensorFlow calls `/cpu:0`, one device for all sockets, whose memory is taken to be on the first; "" for
    a machine without a CPU. `links[i][j]` counts the lanes of the direct links from rank i to rank j, 0 for none.
    `order` is the order of GPUs that rings take inside every task (tf_cnn_benchmarks' `--gpu_indices`): positions in
    the task; empty for that of the task itself.
    """

    ranks: tuple[str, ...]
    tasks: tuple[tuple[int, ...], ...]
    hosts: tuple[str, ...]
    links: tuple[Sequence[int], ...]
    order: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

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
        """Every device a plan may name: the ranks, then the hosts that exist, each once."""
        return tuple(dict.fromkeys((*self.ranks, *(host for host in self.hosts if host))))

    def host_devices(self, algorithm: str) -> tuple[int, ...]:
        """Per task, the index in `devices` of its host; raises `StrategyError` when a task has none."""
        index = {name: i for i, name in enumerate(self.devices)}
        for task, host in zip(self.tasks, self.hosts, strict=True):
            if not host:
                raise StrategyError(
                    f"{algorithm}: it needs a CPU beside {self.ranks[task[0]]!r}, and there is none"
                )
        return tuple(index[host] for host in self.hosts)

    def subset(self, k: int) -> Layout:
        """The first `k` ranks with their tasks and hosts; raises `ValueError` unless 1 <= k <= n."""
        if not 1 <= k <= self.n:
            raise ValueError(f"cannot take {k} of {self.n} devices; choose from 1 to {self.n}")
        kept = [
            (tuple(r for r in task if r < k), host) for task, host in zip(self.tasks, self.hosts, strict=True)
        ]
        kept = [(task, host) for task, host in kept if task]
        return Layout(
            ranks=self.ranks[:k],
            tasks=tuple(task for task, _ in kept),
            hosts=tuple(host for _, host in kept),
            links=tuple(row[:k] for row in self.links[:k]),
            order=() if k < self.n else self.order,
        )


def layout(topology: Topology) -> Layout:
    """The layout of a topology."""
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
        if link.source in index and link.target in index:
            row, column = links[index[link.source]], index[link.target]
            row[column] = row.get(column, 0) + link.lanes
    return Layout(
        ranks=ranks,
        tasks=tuple(tuple(task) for task in tasks.values()),
        hosts=tuple(hosts.get(machine, "") for machine in tasks),
        links=tuple(Row(row, len(ranks)) for row in links),
    )
