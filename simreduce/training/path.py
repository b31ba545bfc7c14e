"""The critical path of a step: the chain of passes and transfers that its end waits for.

It is read backwards from the end of the step. What ends at an instant lets the next begin: the
layer before on the same device, a transfer that a layer waits for, the gradients of a bucket, or
the transfer before it in the queue. Times that no record explains are waits: of Horovod's gradients
for the next cycle, of kernels for sums in the same queue. Pieces follow each other without a gap,
so their seconds add up to the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from simreduce.training.executions import COLLECTIVE, COMPUTE, SEND, Execution
from simreduce.training.executor import Ran
from simreduce.training.step import Bucket, Span, StepJob, StepPrediction, lane

FORWARD, BACKWARD, UPDATE, LAUNCH, READ, TRANSFER, TURN, WAIT = (
    "forward", "backward", "update", "launch", "read", "transfer", "turn", "wait",
)  # fmt: skip
"""Kinds of pieces. In a `turn`, ready gradients wait to be sent, as for Horovod's cycle."""

STAGES = "between stages"
"""The name of sends from one pipeline stage to another."""

_PASSES = (FORWARD, BACKWARD)

_SAME = 1e-9
"""Part of a step within which two instants are one."""


@dataclass(frozen=True, slots=True)
class PathPiece:
    """A piece of a step's critical path, from `begin` to `end` in seconds of the step.

    `name` is the layer, or the lane of a transfer; `bucket` what is transferred.
    """

    kind: str
    name: str
    begin: float
    end: float
    bucket: Bucket | None = None

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end - self.begin


def step_path(
    step: StepPrediction, job: StepJob, since: Mapping[Bucket, float] = MappingProxyType({})
) -> tuple[PathPiece, ...]:
    """The pieces of a step's critical path, in order of time.

    They add up to the last step that was simulated. `since` is as in `MovedBucket`, where known.
    """
    return tuple(reversed(_Search(step, job, since).run()))


@dataclass(frozen=True, slots=True)
class _Item:
    """A pass or a transfer.

    It could begin at `ready`. One that is `held` was under way before, but something else had its
    queue until `begin`.
    """

    kind: str
    name: str
    ready: float
    begin: float
    end: float
    device: str = ""
    bucket: Bucket | None = None
    held: bool = False


class _Search:
    """Goes back from what ends last."""

    def __init__(self, step: StepPrediction, job: StepJob, since: Mapping[Bucket, float]) -> None:
        self._since = since
        self._whole = step.simulated[-1]
        self._near = self._whole * _SAME
        self._launch, self._update = step.launch, step.update
        self._layers = [layer.name for layer in job.model.layers for _ in layer.gradients]
        items = [*map(_of_span, step.spans), *self._transfers(step)]
        if not job.barrier:  # the step before is still in flight
            items += [_earlier(each, self._whole) for each in items]
        self._items = sorted(items, key=lambda each: each.end)
        self._ends = [each.end for each in self._items]
        self._pieces: list[PathPiece] = []

    def _transfers(self, step: StepPrediction) -> Iterable[_Item]:
        for bucket in step.reads:
            yield _Item(READ, "reads", bucket.ready, bucket.start, bucket.finish, "", bucket)
        last: dict[str, list[float]] = {}
        for span in step.spans:
            if span.backward:
                last.setdefault(span.layer, []).append(span.end)
        for b in step.buckets:
            # One that began with the first device waits for the gradients of the last.
            there = [] if b.collective or not b.gradients else last.get(self._layer(b), [])
            late = max((end for end in there if b.start < end <= b.finish), default=None)
            ready, start = (b.ready, b.start) if late is None else (late, late)
            until = self._since.get(b, start)
            if start < until < b.finish:
                yield _Item(TRANSFER, lane(b), until, until, b.finish, "", b, held=True)
            else:
                yield _Item(TRANSFER, lane(b), ready, start, b.finish, "", b)

    def _layer(self, bucket: Bucket) -> str:
        """The layer whose gradients are ready last."""
        return self._layers[min(bucket.gradients)]

    def run(self) -> list[PathPiece]:
        """The pieces, the last first."""
        at, before = self._whole, None
        while at > self._near:
            item = self._ending(at, before)
            if item is None:
                at, before = self._gap(at, before), None
                continue
            self._add(item.kind, item.name, item.begin, at, item.bucket)
            at, before = item.begin, item
        return self._pieces

    def _add(
        self, kind: str, name: str, begin: float, end: float, bucket: Bucket | None = None
    ) -> None:
        begin = max(begin, 0.0)
        if end > begin:
            self._pieces.append(PathPiece(kind, name, begin, end, bucket))

    def _ending(self, at: float, before: _Item | None) -> _Item | None:
        """Return the item that ends then and lets `before` begin; the likeliest of several."""
        first = bisect_right(self._ends, at - self._near)
        last = bisect_right(self._ends, at + self._near)
        ending = [each for each in self._items[first:last] if each.begin < at - self._near]
        return min(ending, key=lambda each: _distance(each, before), default=None)

    def _gap(self, at: float, before: _Item | None) -> float:
        """Add what is between `at` and what ended before it, and return where that is."""
        if self._launch and at <= self._launch + self._near:
            self._add(LAUNCH, "", 0.0, at)
            return 0.0
        queued = before is not None and before.kind == TRANSFER and before.ready < at - self._near
        begin = max(self._ended(at, before), self._launch)
        if queued:
            begin = max(begin, before.ready) if before else begin
            self._add(TURN, before.name if before else "", begin, at)
        elif self._update and (before is None or (before.kind == TRANSFER and not before.held)):
            begin = max(begin, at - self._update)
            self._add(UPDATE, "", begin, at)
            self._update = 0.0
        else:
            self._add(WAIT, "", begin, at)
        return begin

    def _ended(self, at: float, before: _Item | None) -> float:
        """When something ended for the last time before `at`: before a pass, one of its device."""
        past = self._items[: bisect_right(self._ends, at - self._near)]
        if before is not None and before.kind in _PASSES:
            past = [each for each in past if each.device == before.device]
        return past[-1].end if past else 0.0


def _of_span(span: Span) -> _Item:
    kind = BACKWARD if span.backward else FORWARD
    return _Item(kind, span.layer, span.begin, span.begin, span.end, span.device)


def _earlier(item: _Item, seconds: float) -> _Item:
    """The same of the step before."""
    times = (item.ready - seconds, item.begin - seconds, item.end - seconds)
    return _Item(item.kind, item.name, *times, item.device, item.bucket, item.held)


def _distance(item: _Item, before: _Item | None) -> tuple[bool, float]:
    """How unlikely it is that `item` lets `before` begin: the smaller, the likelier.

    A pass follows a pass of its device, a transfer that was ready earlier one in its queue, else
    what made it ready. Of equals, the one that took longest.
    """
    took = item.begin - item.end
    passes = item.kind in _PASSES
    if before is None:
        return (passes, took)
    if before.kind in _PASSES:
        return (not (passes and item.device == before.device), took)
    queued = before.ready < before.begin
    return (passes == queued, took)


def run_path(execution: Execution, ran: Sequence[Ran]) -> tuple[PathPiece, ...]:
    """The critical path of a run by the edges of its nodes, in order of time.

    What moves begins when the last rank of it is there, and then that rank's nodes count. What a
    node waits for besides is a `wait`.
    """
    places = {id(node): i for nodes in execution.nodes.values() for i, node in enumerate(nodes)}
    done = {(each.rank, places[id(each.node)]): each for each in ran}
    met: dict[object, list[Ran]] = {}
    for each in ran:
        if each.node.kind != COMPUTE:
            met.setdefault(_meeting(execution, each), []).append(each)
    pieces, now = list[PathPiece](), max(ran, key=lambda each: each.end)
    while True:
        node = now.node
        if node.kind == COMPUTE:
            kind, name = node.phase or FORWARD, node.name
        else:
            kind, name = TRANSFER, node.lane if node.kind == COLLECTIVE else STAGES
            end = now.end
            now = max(met[_meeting(execution, now)], key=lambda each: each.begin)
            pieces.append(PathPiece(kind, name, now.begin, end))
        if node.kind == COMPUTE:
            pieces.append(PathPiece(kind, name, now.begin, now.end))
        before = [done[now.rank, i] for i in now.node.after]
        if not before:
            break
        last = max(before, key=lambda each: each.end)
        if last.end < now.begin:
            pieces.append(PathPiece(WAIT, "", last.end, now.begin))
        now = last
    return tuple(each for each in reversed(pieces) if each.seconds > 0.0)


def _meeting(execution: Execution, each: Ran) -> tuple[object, ...]:
    """What tells a collective or a send from others: its end, its ranks, and its name or tag."""
    node = each.node
    if node.kind == COLLECTIVE:
        return each.end, execution.members(node), node.name
    pair = (each.rank, node.peer) if node.kind == SEND else (node.peer, each.rank)
    return each.end, pair, node.tag


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
