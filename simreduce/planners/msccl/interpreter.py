"""Runs an algorithm of MSCCL on symbols and proves what it leaves in every buffer.

A chunk holds the sum of what ranks put in, as a count for each (rank, chunk). Steps run as MSCCL's
interpreter runs them: the steps of a thread block in order; a send waits until the receiver has
taken the message before it, because a connection holds few; a receive waits for its message.

One run represents all. Every connection has one sender and one receiver, so messages meet the same
receives in any order of events. A step happens after another if the thread block, a message or a
`deps` says so. Two steps that touch the same chunk must be in such an order if one of them writes.
Otherwise they race, which is a fault whatever the run left behind. Vector clocks find races.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.planners.msccl.algorithm import ChunkPlace, MscclAlgorithm, Step, structure_problems
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
