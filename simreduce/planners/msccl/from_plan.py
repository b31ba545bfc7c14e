"""From a plan to an algorithm of MSCCL.

Every value gets a place. Address c of the input and of the result is chunk c of one buffer (calls
are in place), its *home*; what cannot be there while another value still needs the home is in
scratch. A copy becomes a send and a receive. If one sum is all that reads it, the receive adds it
at once (`rrc`), where the other operand lies. `blocks` makes thread blocks of the moves.

Moves come in the plan's order. Of a round of copies, no two on one connection, all sends come
before the receives: so what one round receives and the next sends is one step. Every thread block
runs in that order, no step waits for a later one, and no send finds its connection full. So nothing
can wait in a circle, with one message in flight on a connection.

The values of a plan are held by chunk: what makes them, who reads them, and which copies can be
added as they arrive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from simreduce.computing import grouped
from simreduce.errors import StrategyError, refuse
from simreduce.plan import ZEROS, Kind, Plan
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.msccl import (
    KINDS,
    MOST_COUNT,
    ChunkPlace,
    MscclAlgorithm,
    MscclGpu,
    Step,
    ThreadBlock,
    limit_problems,
)

Content: TypeAlias = tuple[int, int]
"""The op that makes a chunk's value, and which chunk."""

_VIEWS = (Kind.SLICE, Kind.CONCAT, Kind.OUTPUT)
_READERS = (Kind.COPY, Kind.ADD, Kind.OUTPUT)


class PlanChunks:
    """A plan in chunks: `unit` elements each, `chunks` of them."""

    def __init__(self, plan: Plan) -> None:
        edges = np.unique(np.concatenate([plan.lo, plan.hi]))
        self.unit = max(int(np.gcd.reduce(edges)), 1)
        self.chunks = int(edges[-1]) // self.unit
        self.lo: list[int] = (plan.lo // self.unit).tolist()
        self.hi: list[int] = (plan.hi // self.unit).tolist()
        self.kind = [Kind(kind) for kind in plan.kind.tolist()]
        self.reads = [plan.operands_of(op) for op in range(len(plan))]
        self.channel = _channels(plan)
        self.contents: list[list[Content]] = []
        self.readers: dict[Content, list[int]] = defaultdict(list)
        for op, kind in enumerate(self.kind):
            own = range(self.lo[op], self.hi[op])
            seen = (content for read in self.reads[op] for content in self.contents[read])
            found = (
                {each[1]: each for each in seen} if kind in _VIEWS else {c: (op, c) for c in own}
            )
            self.contents.append([found[c] for c in own])
            if kind in _READERS:
                for content in {content for part in self.parts(op) for content in part}:
                    self.readers[content].append(op)

    def parts(self, op: int) -> Iterator[list[Content]]:
        """Yield the contents of each operand that an op reads."""
        for read in self.reads[op]:
            first = self.lo[read]
            yield self.contents[read][self.lo[op] - first : self.hi[op] - first]

    def is_free(self, content: Content, op: int) -> bool:
        """Whether op `op` is the last that reads this."""
        readers = self.readers.get(content)
        return not readers or (readers[-1] <= op and self.kind[readers[-1]] != Kind.OUTPUT)

    def sums(self) -> tuple[dict[int, int], dict[int, list[Content]]]:
        """Copies that are added as they arrive, with their sums; and by sum what they are added to.

        Such a copy is read by the sum only. It is added to an operand that was made before it, and
        that nobody else reads from then on.
        """
        sum_of: dict[int, int] = {}
        base_of: dict[int, list[Content]] = {}
        for op, kind in enumerate(self.kind):
            if kind != Kind.ADD:
                continue
            parts = list(self.parts(op))
            alone = [copy for part in parts if (copy := self._copy_alone(part, op)) is not None]
            for part in sorted(parts, key=_made):
                late = [copy for copy in alone if copy > _made(part)]
                readers = {reader for content in part for reader in self.readers[content]} - {op}
                if late and max(readers, default=-1) < min(late):
                    base_of[op] = part
                    sum_of |= dict.fromkeys(late, op)
                    break
        return sum_of, base_of

    def _copy_alone(self, part: list[Content], op: int) -> int | None:
        """The copy that makes all of a part, if only op `op` reads it."""
        makers = {maker for maker, _ in part}
        copy = next(iter(makers), -1)
        whole = (self.lo[copy], self.hi[copy]) == (self.lo[op], self.hi[op])
        alone = len(makers) == 1 and all(self.readers[content] == [op] for content in part)
        return copy if alone and whole and self.kind[copy] == Kind.COPY else None


def _made(part: Iterable[Content]) -> int:
    return max((maker for maker, _ in part), default=-1)


def _channels(plan: Plan) -> list[int]:
    """The channel of each op, from 0 on without gaps."""
    found = np.where(plan.stream == NO_STREAM, 0, plan.stream // len(plan.devices))
    copies = plan.kind == Kind.COPY
    numbers: list[int] = np.where(
        copies, np.searchsorted(np.unique(found[copies]), found), 0
    ).tolist()
    return numbers


_NO_CHUNKS = ChunkPlace("i", -1), ChunkPlace("o", -1)
_FUSED = {"r": "rcs", "rrc": "rrcs"}


@dataclass(slots=True, eq=False)
class Move:
    """A step before it has a thread block. Sends and receives have a `peer` and a `channel`; a
    local move is done in the thread block of the move `near`, if that is given.
    """

    gpu: int
    kind: str
    source: ChunkPlace
    target: ChunkPlace
    count: int
    channel: int = 0
    peer: int = -1
    near: Move | None = None
    after: set[Move] = field(default_factory=set)

    @property
    def sends(self) -> bool:
        """Whether it sends to its peer."""
        return KINDS[self.kind].sends


def gpus_of(moves: Iterable[Move], ranks: int) -> list[tuple[ThreadBlock, ...]]:
    """The thread blocks of every GPU for its moves, given in an order in which they can run."""
    by_gpu = grouped((move.gpu, move) for move in moves)
    return [_blocks(by_gpu.get(gpu, ())) for gpu in range(ranks)]


def _blocks(moves: Sequence[Move]) -> tuple[ThreadBlock, ...]:
    keys = _assign(moves, _order(moves))
    numbers = {key: i for i, key in enumerate(sorted({*keys.values()}))}
    block = {move: numbers[keys[move]] for move in moves}
    _drop_implied(moves, block)
    inside = grouped((block[move], move) for move in moves)
    fused = {number: _fuse(inside[number]) for number in numbers.values()}
    told = {move for each in moves for move in each.after}
    places: dict[Move, tuple[int, int]] = {}
    for number, groups in fused.items():
        at = 0
        for group in groups:
            at += max(sum(len(move.after) for move in group) - 1, 0)
            places.update(dict.fromkeys(group, (number, at)))
            at += 1
    return tuple(
        ThreadBlock(
            send,
            receive,
            channel,
            tuple(step for group in fused[number] for step in _steps(group, places, told)),
        )
        for (channel, receive, send), number in numbers.items()
    )


def _order(moves: Sequence[Move]) -> Mapping[Move, Move]:
    """Note whom each move must come after, because they touch the same chunk; the move that wrote
    what each send sends.
    """
    written: dict[ChunkPlace, Move] = {}
    read: dict[ChunkPlace, list[Move]] = defaultdict(list)
    writers: dict[Move, Move] = {}
    for move in moves:
        action = KINDS[move.kind]
        for i in range(move.count):
            source, target = move.source.after(i), move.target.after(i)
            if action.reads_source:
                read[source].append(move)
                if source in written:
                    move.after.add(written[source])
                    writers[move] = written[source]
            if action.writes:
                earlier = {*read.pop(target, []), written.get(target, move)}
                move.after |= earlier - {move}
                written[target] = move
    return writers


Key = tuple[int, int, int]
"""A thread block: its channel, and whom it receives from and sends to."""

_LOCAL: Key = (0, -1, -1)


def _assign(moves: Sequence[Move], writers: Mapping[Move, Move]) -> Mapping[Move | None, Key]:
    """The thread block of every move. What passes through a GPU is received and sent by one thread
    block, so that the two may fuse.
    """
    sent = ((move, writer) for move in moves if move.sends and (writer := writers.get(move)))
    passes = Counter(
        (move.channel, writer.peer, move.peer)
        for move, writer in sent
        if writer.peer >= 0 and writer.channel == move.channel
    )
    of_side: dict[tuple[int, int, bool], Key] = {}
    for key, _ in sorted(passes.items(), key=lambda each: (-each[1], each[0])):
        channel, receive, send = key
        both = (channel, receive, False), (channel, send, True)
        if not any(side in of_side for side in both):
            of_side.update(dict.fromkeys(both, key))
    for move in (each for each in moves if each.peer >= 0):
        ends = (-1, move.peer) if move.sends else (move.peer, -1)
        of_side.setdefault((move.channel, move.peer, move.sends), (move.channel, *ends))
    keys: dict[Move | None, Key] = {}
    for move in moves:
        side = (move.channel, move.peer, move.sends)
        keys[move] = of_side[side] if move.peer >= 0 else keys.get(move.near, _LOCAL)
    return keys


def _drop_implied(moves: Sequence[Move], block: Mapping[Move, int]) -> None:
    """Drop from `after` what the order of thread blocks and other waits imply."""
    place: dict[Move, int] = {}
    known: dict[int, dict[int, int]] = defaultdict(dict)
    knew: dict[Move, dict[int, int]] = {}
    for number, move in enumerate(moves):
        place[move] = number
        clock = known[block[move]]
        needed = set()
        for other in sorted(move.after, key=lambda each: -place[each]):
            if clock.get(block[other], -1) < place[other]:
                needed.add(other)
                for key, at in knew[other].items():
                    clock[key] = max(clock.get(key, -1), at)
        clock[block[move]] = number
        knew[move] = dict(clock)
        move.after = needed


def _fuse(moves: Sequence[Move]) -> list[list[Move]]:
    """Moves of a thread block, with a receive and the send of what it received as one."""
    groups: list[list[Move]] = []
    for move in moves:
        last = groups[-1] if groups else []
        if (
            len(last) == 1
            and last[0].kind in _FUSED
            and move.kind == "s"
            and (move.source, move.count) == (last[0].target, last[0].count)
            and not move.after
        ):
            last.append(move)
        else:
            groups.append([move])
    return groups


def _steps(
    group: Sequence[Move], places: Mapping[Move, tuple[int, int]], told: set[Move]
) -> list[Step]:
    """A step, after a nop for each wait but one."""
    first = group[0]
    kind = _FUSED[first.kind] if len(group) > 1 else first.kind
    waits = sorted({places[other] for other in first.after})
    tells = any(move in told for move in group)
    nops = [Step("nop", *_NO_CHUNKS, 0, wait) for wait in waits[:-1]]
    last = waits[-1] if waits else None
    return [*nops, Step(kind, first.source, first.target, first.count, last, tells)]


_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
_MOST_OPS = 50_000


def algorithm_of(plan: Plan, name: str) -> MscclAlgorithm:
    """The algorithm by Simple, for calls in place, that does what a plan of one tensor does.

    Raises `StrategyError` with what MSCCL has no step for, or with its limits that the plan
    exceeds.
    """
    ranks = _check(plan)
    lowering = _Lowering(plan)
    lowering.run()
    gpus = gpus_of(lowering.moves, ranks)
    channels = max((block.channel + 1 for gpu in gpus for block in gpu), default=1)
    made = MscclAlgorithm(
        name, plan.contract.collective, "Simple", channels, lowering.values.chunks,
        tuple(lowering.gpu(rank, blocks) for rank, blocks in enumerate(gpus)),
    )  # fmt: skip
    refuse(limit_problems(made), StrategyError)
    return made


def _check(plan: Plan) -> int:
    """The number of ranks; StrategyError for what MSCCL cannot do."""
    collective, size = plan.contract.collective, len(plan) * plan.machines
    ranks = len(frozenset[int]().union(*plan.contract.sets))
    others = [plan.devices[d] for d in np.unique(plan.device) if d >= ranks]
    limits = (
        (
            collective not in _COLLECTIVES,
            f"MSCCL gets {', '.join(_COLLECTIVES)}, and this is {collective}",
        ),
        (
            plan.machines > 1 or len(plan) > _MOST_OPS,
            f"a plan of {size} ops is too large for MSCCL",
        ),
        (
            plan.executor.any(),
            "NCCL carries it out itself; MSCCL takes other algorithms, such as ring",
        ),
        (others, f"it needs {', '.join(others[:3])}; MSCCL has GPUs only"),
        ((plan.kind == Kind.SCALE).any(), "MSCCL divides nothing; leave out +mean"),
        ((plan.kind == Kind.CAST).any(), "MSCCL casts nothing; leave out fp16 and bf16"),
        (
            (plan.arg[plan.kind == Kind.INPUT] == ZEROS).any(),
            "it pads tensors with zeros, which MSCCL cannot",
        ),
    )
    refuse((fault for breaks, fault in limits if breaks), StrategyError)
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
            self._transfer(op, "r", source, self._room(op, own), own)
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
            base = max(free or parts[:1], key=lambda part: sum(map(self._is_home, part)))
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

    def _room(self, op: int, own: Sequence[Content]) -> list[ChunkPlace]:
        """Places for a new value: at home where nobody needs what is there, else in scratch."""
        home = self.home[self.device[op]]
        places = []
        for content in own:
            held = home.get(content[1])
            place = ChunkPlace(self.buffer, content[1])
            if held is not None and not self.values.is_free(held, op - 1):
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
            local = ends[1] if kind == "rrc" else ends[0]
            move = Move(gpu, kind, local, ends[1], count, channel, peer)
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
            near, ends = self.arrived.get(part[first]), (source[first], target[first])
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
