"""Runs executions: compute by time, and collectives and sends on whatever moves them.

A collective begins when all recorded ranks of its group are there, as NCCL's does; the k-th of one
rank of a group is the k-th of every other. A rank's nodes of one lane run one at a time, those that
are ready in their order. Ranks without nodes keep nobody waiting. Nodes may be added while the run
goes on. While something moves, it may slow down the compute of its ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

import simpy

from simreduce.errors import Deadlock, InputError
from simreduce.training.executions import COLLECTIVE, COMPUTE, SEND, Execution, ExecutionNode
from simreduce.training.interference import Channels, Flying, Loses

_SHOWN = 5
Meeting = tuple[object, ...]
"""The identity of a collective: its group or pair, and its number there."""


Move = Callable[[ExecutionNode, tuple[int, ...]], simpy.Event]
"""Starts what a node moves in a group or between a pair; the event is its end."""
Act = Callable[[float], simpy.Event]
"""What a node does, given when it was ready, in seconds; the event is its end."""


class Slows(NamedTuple):
    """What slows down compute beside what nodes move: the channels `of` a node in its group, and by
    what part of their speed kernels of a phase `lose` beside some.
    """

    of: Callable[[ExecutionNode, tuple[int, ...]], Channels]
    lose: Loses


SLOWS_NOTHING = Slows(lambda _node, _group: Channels(0), lambda _flying, _phase: 0.0)
"""Compute is as fast beside what moves as without it."""


@dataclass(frozen=True, slots=True)
class Movement:
    """A collective, or a send with its receive.

    `arrived` and `met` are when its first and its last recorded rank were there, `end` when its
    last rank was done, in seconds; `recorded` is the shortest time that a rank recorded for it, as
    others also waited.
    """

    collective: str
    nbytes: int
    group: tuple[int, ...]
    arrived: float
    met: float
    end: float
    recorded: float | None


class Ran(NamedTuple):
    """A node of a rank, from `begin` to `end` in seconds.

    A collective begins when its rank is there, and moves `since` all are. The `cause` is the node
    whose end let it begin, by rank and number, or of a collective that of the last rank; None at
    the start of a run, and of nodes that were added later and did not wait. Compute `lost`
    seconds beside each of what was in flight.
    """

    rank: int
    node: ExecutionNode
    begin: float
    end: float
    number: int
    since: float
    cause: Place | None
    lost: Lost = ()


Lost = tuple[tuple[Flying, float], ...]
"""Seconds that are lost beside what is in flight at once."""
Place = tuple[int, int]
"""A rank, and the number of one of its nodes."""


@dataclass(slots=True)
class _Begun:
    """A node under way: when it began, since when it goes on, and what let it."""

    begin: float
    since: float
    cause: Place | None


def length_of(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that spans of time cover together."""
    total, until = 0.0, -inf
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def run_nodes(
    execution: Execution, env: simpy.Environment, move: Move, slows: Slows = SLOWS_NOTHING
) -> tuple[Ran, ...]:
    """The run on whatever moves data, in the order of ends; Deadlock says who waits for whom."""
    return tuple(Run(execution, env, move, slows=slows).finish())


class _Rank:
    """The work of a rank: `nodes` that are left, with what they wait for and who follows them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.nodes: dict[int, ExecutionNode] = {}
        self.waits: list[int] = []
        self.followers: dict[int, list[int]] = defaultdict(list)
        self.busy: dict[str, int] = defaultdict(int)
        self.queues: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
        self.met: dict[Meeting, Iterator[int]] = defaultdict(count)
        self.begun: dict[int, _Begun] = {}
        self.acts: dict[int, Act] = {}
        self.causes: dict[int, Place] = {}
        self.computing: dict[int, _Compute] = {}
        self.flying: Flying = ()


@dataclass(slots=True)
class _Compute:
    """Seconds that are `left` of it at full speed, from the time `since`, when it goes on at the
    part `speed` of that; `end` is their end.
    """

    left: float
    since: float
    speed: float = 1.0
    end: simpy.Event | None = None
    lost: dict[Flying, float] = field(default_factory=dict)

    def reach(self, now: float, flying: Flying) -> None:
        """Go on to a time beside what was in flight until then."""
        took = now - self.since
        self.left, self.since = max(self.left - took * self.speed, 0.0), now
        if self.speed < 1.0:
            self.lost[flying] = self.lost.get(flying, 0.0) + took * (1.0 - self.speed)


class Run:
    """All ranks, on what moves their data; compute of a `slow` rank takes so many times as long.

    Each of the `streams` is a lane that runs so many nodes at a time, first ready, first served.
    All nodes that the execution had from the start are done when it is `over`.
    """

    def __init__(
        self, execution: Execution, env: simpy.Environment, move: Move,
        slow: Mapping[int, float] = MappingProxyType({}),
        streams: Mapping[str, int] = MappingProxyType({}), slows: Slows = SLOWS_NOTHING,
    ) -> None:  # fmt: skip
        self.execution, self.env, self.move = execution, env, move
        self.slow, self.streams, self.slows, self.came = slow, streams, slows, count()
        self.ranks = {rank: _Rank(rank) for rank in execution.nodes}
        self.meetings: dict[Meeting, list[tuple[_Rank, int]]] = defaultdict(list)
        self.moved: list[Movement] = []
        self.ran: list[Ran] = []
        self.written: list[ExecutionNode] | None = None  # all that is added, if a list is here
        self.total = sum(len(nodes) for nodes in execution.nodes.values())
        self.over = env.event()
        for rank, nodes in execution.nodes.items():
            for node in nodes:
                self.add(node, of=rank)

    def add(
        self, node: ExecutionNode, act: Act | None = None, of: int = 0, cause: int | None = None
    ) -> int:
        """Add a node of a rank, which begins once `start` is called, and return its index.

        One with an `act` of its own does that, and waits for no other rank. One that waits for
        nothing may have a `cause`, a node of its rank.
        """
        rank = self.ranks[of]
        index = len(rank.waits)
        left = [each for each in node.after if each >= index or each in rank.nodes]
        for before in left:
            rank.followers[before].append(index)
        rank.nodes[index] = node
        if self.written is not None:
            self.written.append(node)
        if act is not None:
            rank.acts[index] = act
        if cause is not None:
            rank.causes[index] = of, cause
        rank.waits.append(int(0 < len(node.after) == len(left)) if node.early else len(left))
        if not rank.waits[index]:
            self._ready(rank, index)
        return index

    def join(self, index: int, node: int, of: int = 0) -> None:
        """Let what follows a node of a rank follow another one too."""
        rank = self.ranks[of]
        for follower in rank.followers[index]:
            rank.followers[node].append(follower)
            rank.waits[follower] += 1

    def is_done(self, index: int, of: int = 0) -> bool:
        """Whether a node of a rank has ended."""
        return index not in self.ranks[of].nodes

    def finish(self) -> Iterator[Ran]:
        """Run to the end, and yield each node when it is done; Deadlock if something is left."""
        self.start()
        done = 0
        while self.env.peek() < inf:
            self.env.step()
            yield from self.ran[done:]
            done = len(self.ran)
        self._check_done()

    def start(self) -> None:
        """Start what waits for nothing."""
        for rank in self.ranks.values():
            self._serve(rank)

    def then(self, act: Callable[[], Any], _: float = 0.0, seconds: float = 0.0) -> simpy.Event:
        """Act after `seconds`, later than what else begins now; the event is when."""
        event = self.env.timeout(seconds)
        event.callbacks.append(lambda _: act())
        return event

    def _ready(self, rank: _Rank, index: int) -> None:
        lane, now = rank.nodes[index].lane, float(self.env.now)
        order = next(self.came) if lane in self.streams else index
        heappush(rank.queues[lane], (order, index, now))

    def _serve(self, rank: _Rank, cause: Place | None = None) -> None:
        """Start the first that is ready of every lane that is free, which the end of `cause` lets.

        A stream takes it after what else begins at that instant.
        """
        for lane, queue in list(rank.queues.items()):
            while queue and (lane == "" or rank.busy[lane] < self.streams.get(lane, 1)):
                rank.busy[lane] += 1
                _, index, ready = heappop(queue)
                if lane in self.streams:
                    turn = self.env.timeout(0.0)
                    turn.callbacks.append(partial(self._start, rank, index, ready, cause))
                else:
                    self._start(rank, index, ready, cause)

    def _start(
        self, rank: _Rank, index: int, ready: float, cause: Place | None,
        _: simpy.Event | None = None,
    ) -> None:  # fmt: skip
        node, act = rank.nodes[index], rank.acts.pop(index, None)
        own = rank.causes.pop(index, None)
        rank.begun[index] = _Begun(float(self.env.now), float(self.env.now), cause or own)
        if act is not None:
            act(ready).callbacks.append(partial(self._finish, [(rank, index)]))
        elif node.kind == COMPUTE:
            seconds = (node.seconds or 0.0) * self.slow.get(rank.rank, 1.0)
            rank.computing[index] = _Compute(seconds, float(self.env.now))
            self._compute(rank, index)
        else:
            self._meet(rank, index)

    def _compute(self, rank: _Rank, index: int) -> None:
        """Let compute that has begun go on, at the speed that it has now; an unchanged speed leaves
        its end as it is, to the bit.
        """
        compute, phase = rank.computing[index], rank.nodes[index].phase
        speed = 1.0 - self.slows.lose(rank.flying, phase) if rank.flying else 1.0
        if compute.end is not None and speed == compute.speed:
            return
        compute.speed = speed
        end = compute.end = self.env.timeout(compute.left / compute.speed)
        end.callbacks.append(partial(self._computed, rank, index))

    def _computed(self, rank: _Rank, index: int, event: simpy.Event) -> None:
        compute = rank.computing.get(index)
        if compute is not None and compute.end is event:
            compute.reach(float(self.env.now), rank.flying)
            self._finish([(rank, index)], event)

    def _slow(self, rank: _Rank, flying: Iterable[Channels]) -> None:
        """Let all that a rank computes go on beside this."""
        now, before, rank.flying = float(self.env.now), rank.flying, tuple(sorted(flying))
        for index, compute in rank.computing.items():
            compute.reach(now, before)
            self._compute(rank, index)

    def slow_beside(self, done: simpy.Event, channels: Channels, of: int = 0) -> None:
        """Slow down what a rank computes beside these channels, and what they bring, until
        something is `done`.
        """
        if channels.number or channels.brings:
            rank = self.ranks[of]
            self._slow(rank, (*rank.flying, channels))

            def end(_: simpy.Event) -> None:
                left = [*rank.flying]
                left.remove(channels)
                self._slow(rank, left)

            done.callbacks.append(end)

    def _meet(self, rank: _Rank, index: int) -> None:
        """Note that a rank is there; start when all are."""
        node = rank.nodes[index]
        if node.kind == COLLECTIVE:
            group = self.execution.members(node)
            place: Meeting = ("group", *group)
        else:
            group = (rank.rank, node.peer) if node.kind == SEND else (node.peer, rank.rank)
            place = (*group, node.tag, "transfer")
        needed = sum(member in self.ranks for member in group)
        number = next(rank.met[place])
        there = self.meetings[*place, number]
        there.append((rank, index))
        if len(there) == needed:
            del self.meetings[*place, number]
            self._move(there, group)

    def _move(self, there: list[tuple[_Rank, int]], group: tuple[int, ...]) -> None:
        nodes = [rank.nodes[index] for rank, index in there]
        if len({(node.collective, node.nbytes, node.root) for node in nodes}) > 1:
            whose = ", ".join(
                f"rank {rank.rank}: {rank.nodes[index].collective or 'transfer'} of "
                f"{rank.nodes[index].nbytes} bytes"
                for rank, index in there[:_SHOWN]
            )
            raise InputError(f"{self.execution.source}: ranks that meet disagree: {whose}")
        node = nodes[0]
        done = self.move(node, group)
        known = [each.seconds for each in nodes if each.seconds is not None]
        last, at = there[-1]
        begun, met = [rank.begun[index] for rank, index in there], float(self.env.now)
        for each in begun:
            each.since, each.cause = met, last.begun[at].cause
        arrived = min(each.begin for each in begun)
        found = node.collective or "send_receive", node.nbytes, group, arrived, met
        done.callbacks.append(
            lambda _: self.moved.append(
                Movement(*found, float(self.env.now), min(known) if known else None)
            )
        )
        for rank, _ in there:
            self.slow_beside(done, self.slows.of(node, group), rank.rank)
        done.callbacks.append(partial(self._finish, there))

    def _finish(self, done: Sequence[tuple[_Rank, int]], _: simpy.Event) -> None:
        now = float(self.env.now)
        for rank, index in done:
            node, begun = rank.nodes.pop(index), rank.begun.pop(index)
            compute = rank.computing.pop(index, None)
            lost = tuple(compute.lost.items()) if compute else ()
            ran = Ran(rank.rank, node, begun.begin, now, index, begun.since, begun.cause, lost)
            self.ran.append(ran)
            rank.busy[node.lane] -= 1
            for follower in rank.followers.pop(index, ()):
                rank.waits[follower] -= 1
                if not rank.waits[follower]:
                    self._ready(rank, follower)
            self._serve(rank, (rank.rank, index))
        if len(self.ran) == self.total:
            self.over.succeed()

    def _check_done(self) -> None:
        """Deadlock that says who waits for whom, if something is left."""
        if not any(rank.nodes for rank in self.ranks.values()):
            return
        words = []
        for place, there in list(self.meetings.items())[:_SHOWN]:
            (rank, index), present = there[0], {each.rank for each, _ in there}
            missing = [m for m in place[1:-1] if m in self.ranks and m not in present]
            words.append(f"rank {rank.rank} waits in {rank.nodes[index].name!r} for {missing}")
        raise Deadlock(
            f"{self.execution.source}: the recorded ranks wait for each other for ever: "
            + ("; ".join(words) or "nodes wait for each other in a circle")
        )
