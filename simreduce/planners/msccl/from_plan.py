"""From a plan to an algorithm of MSCCL.

Every value gets a place. Address c of the input and of the result is chunk c of one buffer (calls
are in place), its *home*; what cannot be there while another value still needs the home is in
scratch. A copy becomes a send and a receive. If one sum is all that reads it, the receive adds it
at once (`rrc`), where the other operand lies. `blocks` makes thread blocks of the moves.

Moves come in the plan's order. Of a round of copies, no two on one connection, all sends come
before the receives: so what one round receives and the next sends is one step. Every thread block
runs in that order, no step waits for a later one, and no send finds its connection full. So nothing
can wait in a circle, with one message in flight on a connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simreduce.errors import StrategyError
from simreduce.plan import ZEROS, Kind, Plan
from simreduce.planners.msccl.algorithm import (
    MOST_COUNT,
    ChunkPlace,
    MscclAlgorithm,
    MscclGpu,
    ThreadBlock,
)
from simreduce.planners.msccl.blocks import Move, gpus_of
from simreduce.planners.msccl.structure import limit_problems
from simreduce.planners.msccl.values import Content, PlanChunks

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
_MOST_OPS = 50_000
_NOWHERE = ChunkPlace("i", 0)


def algorithm_of(plan: Plan, name: str, protocol: str = "Simple") -> MscclAlgorithm:
    """The algorithm, for calls in place, that does what a plan of one tensor does.

    Raises `StrategyError` with what MSCCL has no step for, or with its limits that the plan
    exceeds.
    """
    ranks = _check(plan)
    lowering = _Lowering(plan)
    lowering.run()
    gpus = gpus_of(lowering.moves, ranks)
    channels = max((block.channel + 1 for gpu in gpus for block in gpu), default=1)
    made = MscclAlgorithm(
        name, plan.contract.collective, protocol, channels, lowering.values.chunks,
        tuple(lowering.gpu(rank, blocks) for rank, blocks in enumerate(gpus)),
    )  # fmt: skip
    if problems := limit_problems(made):
        raise StrategyError(problems)
    return made


def _check(plan: Plan) -> int:
    """The number of ranks; StrategyError for what MSCCL cannot do."""
    faults = []
    contract = plan.contract
    if contract.collective not in _COLLECTIVES:
        faults.append(f"MSCCL gets {', '.join(_COLLECTIVES)}, and this is {contract.collective}")
    if plan.machines > 1 or len(plan) > _MOST_OPS:
        faults.append(f"a plan of {len(plan) * plan.machines} ops is too large for MSCCL")
    if plan.executor.any():
        faults.append("NCCL carries it out itself; MSCCL takes other algorithms, such as ring")
    ranks = len(frozenset[int]().union(*contract.sets))
    if others := [plan.devices[d] for d in np.unique(plan.device) if d >= ranks]:
        faults.append(f"it needs {', '.join(others[:3])}; MSCCL has GPUs only")
    kinds = {Kind(int(kind)) for kind in np.unique(plan.kind)}
    if Kind.SCALE in kinds:
        faults.append("MSCCL divides nothing; leave out +mean")
    if Kind.CAST in kinds:
        faults.append("MSCCL casts nothing; leave out fp16 and bf16")
    if (plan.arg[plan.kind == Kind.INPUT] == ZEROS).any():
        faults.append("it pads tensors with zeros, which MSCCL cannot")
    if faults:
        raise StrategyError(faults)
    return ranks


class _Lowering:
    """Places values and emits moves, op by op."""

    def __init__(self, plan: Plan) -> None:
        self.values = PlanChunks(plan)
        self.sum_of, self.base_of = self.values.sums()
        self.device: list[int] = plan.device.tolist()
        self.source: list[int] = plan.source.tolist()
        self.buffer = "o" if plan.contract.collective == "all_gather" else "i"
        self.moves: list[Move] = []
        self.at: dict[Content, ChunkPlace] = {}
        self.arrived: dict[Content, Move] = {}
        self.home: list[dict[int, Content]] = [{} for _ in plan.devices]
        self.scratch = [0] * len(plan.devices)
        self.sends: list[Move] = []
        self.receives: list[Move] = []
        self.busy: set[tuple[int, int, int]] = set()
        self.first_of_round = 0

    def gpu(self, rank: int, blocks: tuple[ThreadBlock, ...]) -> MscclGpu:
        """A GPU with the chunks that it uses."""
        chunks = {self.buffer: self.values.chunks}
        return MscclGpu(chunks.get("i", 0), chunks.get("o", 0), self.scratch[rank], blocks)

    def run(self) -> None:
        """Emit the moves of all ops."""
        emit = {Kind.INPUT: self._input, Kind.COPY: self._copy, Kind.ADD: self._add,
                Kind.OUTPUT: self._output}  # fmt: skip
        for op, kind in enumerate(self.values.kind):
            if kind in (Kind.ADD, Kind.OUTPUT):
                self._end_round(op)
            if kind in emit:
                emit[kind](op)
        self._end_round(len(self.values.kind))

    def _input(self, op: int) -> None:
        for content in self.values.contents[op]:
            self._hold(op, content, ChunkPlace(self.buffer, content[1]))

    def _copy(self, op: int) -> None:
        """Send, and receive or add to what is there."""
        values, own = self.values, self.values.contents[op]
        [read] = values.parts(op)
        connection = self.source[op], self.device[op], values.channel[op]
        if connection in self.busy or any(maker >= self.first_of_round for maker, _ in read):
            self._end_round(op)
        self.busy.add(connection)
        source = [self.at[content] for content in read]
        total = self.sum_of.get(op)
        if total is None:
            places = self._room(op, own)
            self._transfer(op, "r", source, places, own)
        else:
            base = values.contents[total]
            places = [self._of_sum(total, i) for i in range(len(base))]
            self._transfer(op, "rrc", source, places, base)

    def _of_sum(self, total: int, i: int) -> ChunkPlace:
        """Where chunk i of a sum is made while its copies arrive: in the place of its base."""
        content = self.values.contents[total][i]
        if content not in self.at:
            self._hold(total, content, self.at[self.base_of[total][i]])
        return self.at[content]

    def _add(self, op: int) -> None:
        """Add to a place whose value nobody needs any more, or to a copy."""
        values, own = self.values, self.values.contents[op]
        parts = list(values.parts(op))
        if op in self.base_of:
            base = self.base_of[op]
            rest = [part for part in parts if part != base]
            rest = [part for part in rest if self.sum_of.get(part[0][0] if part else -1) != op]
            places = [self._of_sum(op, i) for i in range(len(own))]
        else:
            free = [part for part in parts if all(values.is_free(each, op) for each in part)]
            base = max(free or parts[:1], key=self._at_home)
            rest = [part for part in parts if part is not base]
            places = [self.at[content] for content in base] if free else self._room(op, own)
            if not free:
                self._local(op, "cpy", base, places)
            for content, place in zip(own, places, strict=True):
                self._hold(op, content, place)
        for part in rest:
            self._local(op, "re", part, places)
        for content, old in zip(own, base, strict=True):
            if move := self.arrived.get(content) or self.arrived.get(old):
                self.arrived[content] = move

    def _output(self, op: int) -> None:
        """Bring home what is elsewhere."""
        own = [content for content in self.values.contents[op] if not self._is_home(content)]
        self._local(op, "cpy", own, [ChunkPlace(self.buffer, chunk) for _, chunk in own])

    def _is_home(self, content: Content) -> bool:
        return self.at[content] == ChunkPlace(self.buffer, content[1])

    def _at_home(self, part: Sequence[Content]) -> int:
        return sum(self._is_home(content) for content in part)

    def _room(self, op: int, own: Sequence[Content]) -> list[ChunkPlace]:
        """Places for a new value: at home where nobody needs what is there, else in scratch."""
        home = self.home[self.device[op]]
        places = []
        for content in own:
            held = home.get(content[1])
            if held is None or self.values.is_free(held, op - 1):
                place = ChunkPlace(self.buffer, content[1])
            else:
                place = ChunkPlace("s", self.scratch[self.device[op]])
                self.scratch[self.device[op]] += 1
            self._hold(op, content, place)
            places.append(place)
        return places

    def _hold(self, op: int, content: Content, place: ChunkPlace) -> None:
        self.at[content] = place
        if place == ChunkPlace(self.buffer, content[1]):
            self.home[self.device[op]][content[1]] = content

    def _transfer(
        self, op: int, kind: str, source: Sequence[ChunkPlace], target: Sequence[ChunkPlace],
        own: Sequence[Content],
    ) -> None:  # fmt: skip
        """Send runs of chunks, and receive each at once."""
        gpu, peer, channel = self.device[op], self.source[op], self.values.channel[op]
        for first, count in _runs(source, target):
            ends = source[first], target[first]
            self.sends.append(Move(peer, "s", *ends, count, channel, gpu))
            local = target[first] if kind == "rrc" else ends[0]
            move = Move(gpu, kind, local, target[first], count, channel, peer)
            self.receives.append(move)
            self.arrived.update(dict.fromkeys(own[first : first + count], move))

    def _end_round(self, op: int) -> None:
        """Emit the sends, then the receives of a round; a message of several runs goes run by run,
        as the connection holds one.
        """
        seen: set[tuple[int, int, int]] = set()
        late: list[Move] = []
        for send, receive in zip(self.sends, self.receives, strict=True):
            connection = send.gpu, send.peer, send.channel
            if connection in seen:
                late += [send, receive]
            else:
                self.moves.append(send)
            seen.add(connection)
        kept = set(late)
        self.moves += [receive for receive in self.receives if receive not in kept] + late
        self.sends, self.receives, self.busy, self.first_of_round = [], [], set(), op

    def _local(
        self, op: int, kind: str, part: Sequence[Content], target: Sequence[ChunkPlace]
    ) -> None:
        """Copy or add runs of chunks, in the thread block that received the last of them."""
        source = [self.at[content] for content in part]
        for first, count in _runs(source, target):
            near = self.arrived.get(part[first])
            ends = source[first], target[first]
            self.moves.append(Move(self.device[op], kind, *ends, count, near=near))


def _runs(source: Sequence[ChunkPlace], target: Sequence[ChunkPlace]) -> Iterator[tuple[int, int]]:
    """The first and the number of chunks that lie one after another on both sides."""
    first = 0
    for i in range(1, len(source) + 1):
        count = i - first
        if (
            i == len(source)
            or count == MOST_COUNT
            or source[i] != source[first].after(count)
            or target[i] != target[first].after(count)
        ):
            yield first, count
            first = i
