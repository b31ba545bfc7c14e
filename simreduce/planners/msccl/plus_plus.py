"""An algorithm of MSCCL as an execution plan of MSCCL++.

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
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from simreduce.planners.msccl.algorithm import (
    ChunkPlace,
    MscclAlgorithm,
    MscclGpu,
    Step,
    coll_of,
)

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
