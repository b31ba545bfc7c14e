"""From moves in order to thread blocks: which share one, which fuse, which wait for which."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from simreduce.planners.msccl.algorithm import KINDS, ChunkPlace, Step, ThreadBlock

_NOWHERE = ChunkPlace("i", -1), ChunkPlace("o", -1)
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
    by_gpu: list[list[Move]] = [[] for _ in range(ranks)]
    for move in moves:
        by_gpu[move.gpu].append(move)
    return [_blocks(of_gpu) for of_gpu in by_gpu]


def _blocks(moves: Sequence[Move]) -> tuple[ThreadBlock, ...]:
    writers = _order(moves)
    keys = _assign(moves, writers)
    numbers = {key: i for i, key in enumerate(dict.fromkeys(sorted(keys.values())))}
    block = {move: numbers[keys[move]] for move in moves}
    _drop_implied(moves, block)
    inside: dict[int, list[Move]] = defaultdict(list)
    for move in moves:
        inside[block[move]].append(move)
    fused = {number: _fuse(inside[number]) for number in numbers.values()}
    told = {move for each in moves for move in each.after}
    places: dict[Move, tuple[int, int]] = {}
    for number, groups in fused.items():
        at = 0
        for group in groups:
            at += max(sum(len(move.after) for move in group) - 1, 0)
            places.update(dict.fromkeys(group, (number, at)))
            at += 1
    found = []
    for (channel, receive, send), number in numbers.items():
        steps = [step for group in fused[number] for step in _steps(group, places, told)]
        found.append(ThreadBlock(send, receive, channel, tuple(steps)))
    return tuple(found)


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
                earlier = (each for each in read.pop(target, []) if each is not move)
                move.after.update(earlier)
                if target in written and written[target] is not move:
                    move.after.add(written[target])
                written[target] = move
    return writers


Key = tuple[int, int, int]
"""A thread block: its channel, and whom it receives from and sends to."""

_LOCAL: Key = (0, -1, -1)


def _assign(moves: Sequence[Move], writers: Mapping[Move, Move]) -> dict[Move, Key]:
    """The thread block of every move. What passes through a GPU is received and sent by one thread
    block, so that the two may fuse.
    """
    passes: Counter[Key] = Counter()
    sides: set[tuple[int, int, bool]] = set()
    for move in moves:
        if move.peer >= 0:
            sides.add((move.channel, move.peer, move.sends))
        writer = writers.get(move) if move.sends else None
        if writer and writer.peer >= 0 and writer.channel == move.channel:
            passes[move.channel, writer.peer, move.peer] += 1
    of_side: dict[tuple[int, int, bool], Key] = {}
    for key, _ in sorted(passes.items(), key=lambda each: (-each[1], each[0])):
        channel, receive, send = key
        both = (channel, receive, False), (channel, send, True)
        if not any(side in of_side for side in both):
            of_side.update(dict.fromkeys(both, key))
    for channel, peer, sends in sides:
        alone = (channel, -1, peer) if sends else (channel, peer, -1)
        of_side.setdefault((channel, peer, sends), alone)
    keys: dict[Move, Key] = {}
    for move in moves:
        if move.peer >= 0:
            keys[move] = of_side[move.channel, move.peer, move.sends]
        else:
            keys[move] = keys.get(move.near, _LOCAL) if move.near else _LOCAL
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
    extra = len(first.after) - len(waits)
    assert not extra  # noqa: S101 - of one thread block only the last is waited for
    nops = [Step("nop", *_NOWHERE, 0, wait) for wait in waits[:-1]]
    last = waits[-1] if waits else None
    return [*nops, Step(kind, first.source, first.target, first.count, last, tells)]
