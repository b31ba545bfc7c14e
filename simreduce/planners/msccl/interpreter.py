"""Runs an algorithm of MSCCL on symbols and proves what it leaves in every buffer.

A chunk holds the sum of what ranks put in, as a count for each (rank, chunk). Steps run as MSCCL's
interpreter runs them: the steps of a thread block in order; a send waits until the receiver has
taken the message before it, because a connection holds few; a receive waits for its message.

One run represents all. Every connection has one sender and one receiver, so messages meet the same
receives in any order of events. A step happens after another if the thread block, a message or a
`deps` says so. Two steps that touch the same chunk must be in such an order if one of them writes.
Otherwise they race, which is a fault whatever the run left behind. Vector clocks find races.

An algorithm of MSCCL as an execution plan of MSCCL++.

The format is that of MSCCL++'s reader (microsoft/mscclpp, `src/executor/execution_plan.cc`, 0.8). A
GPU's thread blocks run `ops` in order. A channel joins two GPUs: memory in a machine, a port
between machines. `put` writes into the other's buffer, `signal` tells it so, and it `wait`s.

Each connection of the algorithm becomes a channel. Each message has a place of its own in the
receiver's scratch: no message waits for room. At first every receiver signals that it runs, so that
nobody writes into the scratch of a call before. What one thread block waits for from another is a
semaphore. A `nop` makes the threads of a block meet; one comes between any two ops.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.planners.msccl import (
    ChunkPlace,
    MscclAlgorithm,
    MscclGpu,
    Step,
    coll_of,
    structure_problems,
)
from simreduce.units import plural

Sum = Mapping[tuple[int, int], int]
"""How often each (rank, chunk) of the input is in a chunk."""

MOST_PROBLEMS = 20
_GARBAGE: Sum = {(-1, -1): 1}
"""The content of a chunk that nobody has written."""


def problems_of(algorithm: MscclAlgorithm) -> list[str]:
    """Return the faults of an algorithm, as sentences; none if it is proved."""
    found = structure_problems(algorithm)
    if found:
        return found[:MOST_PROBLEMS]
    modes = [True] * algorithm.in_place + [False] * algorithm.out_of_place
    for in_place in modes or [True]:
        found += _Run(algorithm, in_place=in_place).problems()
    return list(dict.fromkeys(found))[:MOST_PROBLEMS]


@dataclass(slots=True)
class _Chunk:
    """A chunk of memory: what it holds, who wrote it last and who has read it since."""

    holds: Sum = field(default_factory=lambda: _GARBAGE)
    written: tuple[int, int] | None = None
    read: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Thread:
    """A thread block: what it has done, and its clock: the steps of every block known as done."""

    gpu: int
    number: int
    steps: tuple[Step, ...]
    inbox: tuple[int, int, int]
    outbox: tuple[int, int, int]
    clock: Ints
    done: int = 0
    sending: list[Sum] | None = None
    clocks: list[Ints] = field(default_factory=list)


class _Run:
    """One run, with the buffers of a call in place or not."""

    def __init__(self, algorithm: MscclAlgorithm, *, in_place: bool) -> None:
        self.algorithm, self.in_place = algorithm, in_place
        self.ranks, self.chunks = len(algorithm.gpus), algorithm.chunks
        self.found: list[str] = []
        self.threads: list[_Thread] = []
        self.first: list[int] = []
        total = sum(len(gpu.blocks) for gpu in algorithm.gpus)
        for rank, gpu in enumerate(algorithm.gpus):
            self.first.append(len(self.threads))
            for number, block in enumerate(gpu.blocks):
                inbox = (block.receive, rank, block.channel)
                outbox = (rank, block.send, block.channel)
                clock = np.zeros(total, dtype=np.int64)
                self.threads.append(_Thread(rank, number, block.steps, inbox, outbox, clock))
        self.wires = defaultdict[tuple[int, int, int], deque[tuple[list[Sum], Ints]]](deque)
        self.memory = [defaultdict[ChunkPlace, _Chunk](_Chunk) for _ in algorithm.gpus]
        for rank in range(self.ranks):
            for place, symbol in self._inputs(rank):
                self._chunk(rank, place).holds = {symbol: 1}

    def problems(self) -> list[str]:
        """Run to the end and compare with the contract."""
        moved = True
        while moved:
            moved = sum(self._advance(place) for place in range(len(self.threads))) > 0
        stuck = [t for t in self.threads if t.done < len(t.steps) or t.sending is not None]
        for thread in stuck[:3]:
            self.found.append(f"{self._where(thread)}: waits for ever")
        if not stuck:
            left = [(wire, len(queue)) for wire, queue in self.wires.items() if queue]
            for (source, target, channel), count in left[:3]:
                words = f"gpu {source} sends gpu {target} on channel {channel}"
                self.found.append(f"{words} {plural(count, 'message')} that nobody receives")
            self.found += self._wrong()
        return self.found

    def _inputs(self, rank: int) -> Iterator[tuple[ChunkPlace, tuple[int, int]]]:
        """Where each chunk of a rank's input lies, and its symbol: the rank and the address."""
        inputs, _ = self.algorithm.call_chunks
        first = rank * inputs if self.algorithm.collective == "all_gather" else 0
        for i in range(inputs):
            yield ChunkPlace("i", i), (rank, first + i)

    def _promised(self, rank: int) -> Iterator[tuple[ChunkPlace, Sum]]:
        """Yield each chunk of a rank's output with the sum that it must hold."""
        collective, each = self.algorithm.collective, self.chunks // self.ranks
        for i in range(self.algorithm.call_chunks[1]):
            whole = collective in ("all_reduce", "all_gather")
            address = i if whole else rank * each + i % each
            summed = collective in ("all_reduce", "reduce_scatter")
            givers = range(self.ranks) if summed else [i // each]
            yield ChunkPlace("o", i), {(giver, address): 1 for giver in givers}

    def _chunk(self, rank: int, place: ChunkPlace) -> _Chunk:
        """The memory behind a place. In place, input and output overlap."""
        buffer, offset = place
        if self.in_place and buffer != "s":
            each = self.chunks // self.ranks
            part = {"all_gather": "i", "reduce_scatter": "o"}.get(self.algorithm.collective)
            place = ChunkPlace("i", offset + rank * each if buffer == part else offset)
        return self.memory[rank][place]

    def _advance(self, index: int) -> bool:
        """Run the steps of a thread block as far as they go; whether there was one."""
        thread, moved = self.threads[index], False
        while thread.done < len(thread.steps):
            step = thread.steps[thread.done]
            if thread.sending is None:
                received = self._begin(thread, step)
                if received is None:
                    return moved
                moved = True
                self._compute(index, step, received)
            if thread.sending is not None:
                queue = self.wires[thread.outbox]
                if queue:
                    return moved
                clock = thread.clock.copy()
                # A message has been read when it arrives; a copy beside it may still be written.
                clock[index] = thread.done + (not step.action.writes)
                queue.append((thread.sending, clock))
                thread.sending = None
                moved = True
            thread.done += 1
            thread.clock[index] = thread.done
            thread.clocks.append(thread.clock.copy())
        return moved

    def _begin(self, thread: _Thread, step: Step) -> list[Sum] | None:
        """Return what a step receives once all that it waits for is there; None until then."""
        if step.waits is not None:
            other = self.threads[self.first[thread.gpu] + step.waits[0]]
            told = next(i for i in range(step.waits[1], len(other.steps)) if other.steps[i].tells)
            if other.done <= told:
                return None
            np.maximum(thread.clock, other.clocks[told], out=thread.clock)
        if not step.action.receives:
            return []
        queue = self.wires[thread.inbox]
        if not queue:
            return None
        received, clock = queue.popleft()
        if len(received) != step.count:
            words = f"receives {plural(step.count, 'chunk')} of a message of {len(received)}"
            self.found.append(f"{self._where(thread)}: {words}")
            received = [*received, *[_GARBAGE] * step.count][: step.count]
        np.maximum(thread.clock, clock, out=thread.clock)
        return received

    def _compute(self, index: int, step: Step, received: list[Sum]) -> None:
        """Read, add and write the chunks of a step."""
        thread, action = self.threads[index], step.action
        values: list[Sum] = received or [{}] * step.count
        for use, place in ((action.reads_source, step.source), (action.reads_target, step.target)):
            if use:
                own = [self._read(index, place.after(i)) for i in range(step.count)]
                values = [_added(a, b) for a, b in zip(values, own, strict=True)]
        if action.writes:
            for i, value in enumerate(values):
                self._write(index, step.target.after(i), value)
        if action.sends:
            thread.sending = values

    def _read(self, index: int, place: ChunkPlace) -> Sum:
        thread = self.threads[index]
        chunk = self._chunk(thread.gpu, place)
        if chunk.written is not None:
            self._check(index, chunk.written, place)
        chunk.read[index] = thread.done
        return chunk.holds

    def _write(self, index: int, place: ChunkPlace, value: Sum) -> None:
        thread = self.threads[index]
        chunk = self._chunk(thread.gpu, place)
        for each in (*chunk.read.items(), *([chunk.written] if chunk.written else [])):
            self._check(index, each, place)
        chunk.holds, chunk.written, chunk.read = value, (index, thread.done), {}

    def _check(self, index: int, earlier: tuple[int, int], place: ChunkPlace) -> None:
        """Note a race with an earlier step, given by its thread and its number."""
        other, step = earlier
        thread = self.threads[index]
        if other != index and thread.clock[other] <= step:
            words = f"races with tb {self.threads[other].number} step {step} for {place}"
            self.found.append(f"{self._where(thread)}: {words}")

    def _wrong(self) -> list[str]:
        """Describe every chunk of the outputs that does not hold what it should."""
        return [
            f"gpu {rank} ends with {_words(holds, promised)} in {place}"
            for rank in range(self.ranks)
            for place, promised in self._promised(rank)
            if (holds := self._chunk(rank, place).holds) != promised
        ]

    def _where(self, thread: _Thread) -> str:
        return f"gpu {thread.gpu} tb {thread.number} step {thread.done}"


def _added(a: Sum, b: Sum) -> Sum:
    return {key: a.get(key, 0) + b.get(key, 0) for key in (*a, *b)}


def _words(holds: Sum, promised: Sum) -> str:
    """How a chunk differs from what it should hold."""
    if (-1, -1) in holds:
        return "what nobody wrote"
    missing = sorted({rank for rank, _ in promised.keys() - holds.keys()})
    twice = sorted({rank for (rank, at), n in holds.items() if n > 1 and (rank, at) in promised})
    other = sorted({at for rank, at in holds.keys() - promised.keys()})
    parts = [
        f"nothing of rank {', '.join(map(str, missing))}" if missing else "",
        f"rank {', '.join(map(str, twice))} more than once" if twice else "",
        f"chunks {', '.join(map(str, other))} of the input" if other else "",
    ]
    return " and ".join(filter(None, parts))


Connection = tuple[int, int, int]
"""Sender, receiver and channel."""

Op = dict[str, Any]

MOST_BYTES = 2**64 - 1
_NOP: Op = {"name": "nop"}
_MEMORY, _PORT = "memory", "port"


def plan_text(algorithm: MscclAlgorithm, machines: Sequence[int]) -> str:
    """The JSON of an algorithm for GPUs on these machines."""
    plan = _Plan(algorithm, machines)
    document = {
        "name": algorithm.name,
        "collective": coll_of(algorithm),
        "protocol": "Simple",
        "inplace": algorithm.in_place,
        "reuse_resources": False,
        "gpus": [plan.gpu(rank) for rank in range(len(algorithm.gpus))],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": algorithm.least,
        "max_message_size": min(algorithm.most, MOST_BYTES),
    }
    return json.dumps(document, indent=1) + "\n"


class _Plan:
    """The channels and the places of messages of all GPUs."""

    def __init__(self, algorithm: MscclAlgorithm, machines: Sequence[int]) -> None:
        self.algorithm, self.machines = algorithm, machines
        self.inboxes: dict[Connection, list[tuple[int, int]]] = defaultdict(list)
        self.scratch = [gpu.scratch for gpu in algorithm.gpus]
        for rank, gpu in enumerate(algorithm.gpus):
            for block in gpu.blocks:
                for step in block.steps:
                    if step.action.receives:
                        box = self.inboxes[block.receive, rank, block.channel]
                        box.append((self.scratch[rank], step.count))
                        self.scratch[rank] += step.count

    def kind(self, a: int, b: int) -> str:
        """The type of a channel between two GPUs."""
        return _MEMORY if self.machines[a] == self.machines[b] else _PORT

    def channels(self, rank: int, kind: str) -> list[Connection]:
        """A GPU's channels of a type; those to one peer are in the same order on both sides."""
        own = (e for e in self.inboxes if rank in e[:2] and self.kind(*e[:2]) == kind)
        return sorted(own, key=lambda each: (each[0] + each[1] - rank, each[2], each[0]))

    def gpu(self, rank: int) -> Op:
        """The entry of a GPU."""
        gpu = self.algorithm.gpus[rank]
        channels = {kind: self.channels(rank, kind) for kind in (_MEMORY, _PORT)}
        peers = sorted({b for a, b, _ in self.inboxes if a == rank})
        waits = [(number, at) for number, block in enumerate(gpu.blocks)
                 for at, step in enumerate(block.steps) if step.waits]  # fmt: skip
        semaphores = {wait: i for i, wait in enumerate(waits)}
        blocks = [
            _Block(self, rank, number, semaphores, channels, peers).entry()
            for number in range(len(gpu.blocks))
        ]
        inputs, outputs = self.algorithm.call_chunks
        return {
            "id": rank,
            "input_chunks": inputs,
            "output_chunks": outputs,
            "scratch_chunks": self.scratch[rank],
            "threadblocks": blocks,
            "channels": [
                {"channel_type": kind, "connected_to": [a + b - rank for a, b, _ in found]}
                for kind, found in channels.items()
                if found
            ],
            "remote_buffers": [
                {"rank": peer, "type": "s", "access_channel_types": [self.kind(rank, peer)]}
                for peer in peers
            ],
            "semaphores": [{"init_value": 0} for _ in semaphores],
        }


class _Block:
    """The ops of one thread block."""

    def __init__(
        self,
        plan: _Plan,
        rank: int,
        number: int,
        semaphores: Mapping[tuple[int, int], int],
        channels: Mapping[str, Sequence[Connection]],
        peers: Sequence[int],
    ) -> None:
        self.plan, self.rank, self.number, self.semaphores = plan, rank, number, semaphores
        self.gpu: MscclGpu = plan.algorithm.gpus[rank]
        self.block = self.gpu.blocks[number]
        self.out = (rank, self.block.send, self.block.channel)
        self.into = (self.block.receive, rank, self.block.channel)
        self.channels, self.peers = channels, peers
        self.ops: list[Op] = []
        self.sent = self.received = 0

    def entry(self) -> Op:
        """The thread block, after the first signals."""
        ends = [each for each in (self.into, self.out) if each in self.plan.inboxes]
        for end in ends:
            self._add("signal" if end == self.into else "wait", channel=end)
        for at, step in enumerate(self.block.steps):
            self._step(at, step)
        kinds = {kind: [each for each in ends if each in found]
                 for kind, found in self.channels.items()}  # fmt: skip
        return {
            "id": self.number,
            "ops": self.ops,
            "channels": [
                {"channel_type": kind, "channel_ids": [self.channels[kind].index(e) for e in found]}
                for kind, found in kinds.items()
                if found
            ],
            "remote_buffer_refs": [
                {
                    "access_channel_type": self.plan.kind(sender, peer),
                    "remote_buffer_ids": [self.peers.index(peer)],
                }
                for sender, peer, _ in ends
                if sender == self.rank
            ],
        }

    def _step(self, at: int, step: Step) -> None:
        """The ops of a step."""
        action, box = step.action, ChunkPlace("s", 0)
        if step.waits:
            self._add("sem_acquire", semaphore_ids=[self.semaphores[self.number, at]])
        if action.receives:
            box = ChunkPlace("s", self.plan.inboxes[self.into][self.received][0])
            self.received += 1
            self._add("wait", channel=self.into)
        reads = [step.target] * action.reads_target + [step.source] * action.reads_source
        reads += [box] * action.receives
        result = step.target if action.writes else box if action.receives else step.source
        if len(reads) > 1:
            self._move("re", reads, result, step.count, reduce_op="sum")
        elif action.writes:
            self._move("copy", reads, result, step.count)
        if action.sends:
            self._send(result if len(reads) > 1 else reads[0], step.count)
        if step.tells:
            told = [
                semaphore
                for (block, waiting), semaphore in self.semaphores.items()
                if self.gpu.blocks[block].steps[waiting].waits == (self.number, at)
            ]
            if told:
                self._add("sem_release", semaphore_ids=told)

    def _send(self, source: ChunkPlace, count: int) -> None:
        """Put chunks into the receiver's scratch, and tell it."""
        offset, _ = self.plan.inboxes[self.out][self.sent]
        self.sent += 1
        there = {"buffer_id": 0, "index": offset, "size": count}
        self._add("put", src_buff=[_buffer(source, count)], dst_buff=[there], channel=self.out)
        self._add("signal", channel=self.out)
        if self.plan.kind(*self.out[:2]) == _PORT:  # the source may be overwritten after this only
            self._add("flush", channel=self.out)

    def _move(
        self, name: str, reads: Sequence[ChunkPlace], target: ChunkPlace, count: int, **more: Any
    ) -> None:
        sources, targets = [_buffer(place, count) for place in reads], [_buffer(target, count)]
        self._add(name, src_buff=sources, dst_buff=targets, **more)

    def _add(self, name: str, *, channel: Connection | None = None, **more: Any) -> None:
        op: Op = {"name": name, **more}
        if channel is not None:
            kind = self.plan.kind(*channel[:2])
            ends = [each for each in (self.into, self.out) if each in self.channels[kind]]
            # The channel's number is that among the thread block's channels of its type.
            op |= {"channel_ids": [ends.index(channel)], "channel_type": kind}
        self.ops += [op, _NOP]


def _buffer(place: ChunkPlace, count: int) -> Op:
    return {"type": place.buffer, "index": place.offset, "size": count}
