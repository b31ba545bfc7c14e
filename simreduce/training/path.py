"""The critical path of a step: the chain of passes and transfers that its end waits for.

The run says of each node which one's end let it begin (`Ran.cause`). Back from the node that ends
last, these are the path. Something else may have held up a node that was under way already, such as
kernels the sums in their queue: it then goes on from what ended last before. Pieces follow each
other without a gap, so their seconds add up to the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from simreduce.training.executions import COLLECTIVE, COMPUTE, FORWARD
from simreduce.training.executor import Place, Ran
from simreduce.training.step import Bucket, PathPiece, lane

LAUNCH, READ, TRANSFER, TURN, WAIT = "launch", "read", "transfer", "turn", "wait"
"""Kinds of pieces besides passes and the update. In a `turn`, ready gradients wait to be sent, as
for Horovod's cycle.
"""

STAGES = "between stages"
"""The name of sends from one pipeline stage to another."""

SAME = 1e-9
"""Part of a step within which two instants are one."""


def run_path(
    ran: Sequence[Ran], last: Place | None = None, begin: float = 0.0,
    buckets: Mapping[int, Bucket] = MappingProxyType({}),
    since: Mapping[int, float] = MappingProxyType({}),
) -> tuple[PathPiece, ...]:  # fmt: skip
    """The critical path from `begin` on to the end of the node that is `last`, in order of time.

    `buckets` are what nodes transfer, and `since` is when they went on after others had held them
    up, both by the identity of the node. Without a `last` node, it is the one that ends last.
    Nodes are in the order in which they `ran` to their ends.
    """
    if not ran:
        return ()
    done = {(each.rank, each.number): each for each in ran}
    now = done[last] if last else max(ran, key=lambda each: each.end)
    pieces, at, ends = list[PathPiece](), now.end, [each.end for each in ran]
    near = SAME * (at - begin)

    def add(kind: str, name: str, start: float, bucket: Bucket | None = None) -> float:
        start = max(start, begin)
        if at > start:
            pieces.append(PathPiece(kind, name, start - begin, at - begin, bucket))
        return start

    while True:
        bucket = buckets.get(id(now.node))
        start = min(since.get(id(now.node), now.since), at)
        at = add(*_what(now, bucket), start, bucket)
        if at <= begin + near:
            break
        before = done.get(now.cause) if now.cause and start <= now.since else None
        if before is None:
            before = _last_before(ran, ends, start, near)
        at = min(at, add(WAIT, "", before.end if before else begin))
        if before is None:
            break
        now = before
    return tuple(reversed(pieces))


def _last_before(
    ran: Sequence[Ran], ends: Sequence[float], start: float, near: float
) -> Ran | None:
    """Of what began before `start` and ended by then, the one that ended last, the first of equal
    ones; `ran` is in order of its `ends`.
    """
    found: Ran | None = None
    for place in range(bisect_right(ends, start + near) - 1, -1, -1):
        each = ran[place]
        if found and each.end < found.end:
            break
        if each.begin < start:
            found = each
    return found


def _what(each: Ran, bucket: Bucket | None) -> tuple[str, str]:
    """The kind and the name of a node's piece."""
    node = each.node
    if node.kind == COMPUTE:
        return node.phase or FORWARD, "" if node.name == node.phase else node.name
    if node.phase == READ:
        return READ, node.name
    return TRANSFER, lane(bucket) if bucket else node.lane if node.kind == COLLECTIVE else STAGES


def seconds_by_kind(pieces: Sequence[PathPiece]) -> list[tuple[str, str, float, int]]:
    """(kind, lane, seconds, pieces), most seconds first; passes and updates have no lane."""
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for each in pieces:
        key = (each.kind, each.name if each.kind in (TRANSFER, TURN) else "")
        seconds, count = sums.get(key, (0.0, 0))
        sums[key] = seconds + each.seconds, count + 1
    return sorted(
        ((kind, name, seconds, count) for (kind, name), (seconds, count) in sums.items()),
        key=lambda row: (-row[2], row[:2]),
    )
