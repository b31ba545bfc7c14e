"""Micro-plans: small plans, each of whose times says something of few constants.

All are plans like others: proved, emitted, checked and timed as those of strategies are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simreduce.dtypes import SIZES
from simreduce.plan import Contract, Plan, PlanBuilder, Promise, Value

FLOAT32, FLOAT16 = 0, 1
Pair = tuple[int, int]
"""Source and target, as devices of the plan."""


@dataclass(frozen=True, slots=True)
class Micro:
    """`name` says what it does, `nbytes` is the size of its values."""

    name: str
    nbytes: int
    plan: Plan


class _MicroBuilder:
    """A plan of float32 values of one size, each at addresses of its own."""

    def __init__(self, devices: Sequence[str], nbytes: int) -> None:
        self.b = PlanBuilder(devices)
        self.nbytes = nbytes
        self.elements = nbytes // SIZES[FLOAT32]
        self._promises: list[Promise] = []
        self.contributors = 0
        self._top = 0

    def interval(self) -> Pair:
        """Addresses that nothing else has."""
        self._top += self.elements
        return self._top - self.elements, self._top

    def given(self, device: int, interval: Pair) -> Value:
        """A contributor of its own, on `device`."""
        self.contributors += 1
        return self.b.input(device, *interval, FLOAT32, contributor=self.contributors - 1)

    def keep(self, value: Value, members: Iterable[int], divisor: int = 1) -> None:
        """Promise a value as a result."""
        self.b.output(value)
        promise = Promise(
            value.device, value.lo, value.hi, value.dtype, frozenset(members), divisor
        )
        self._promises.append(promise)

    def keep_parts(self, value: Value, parts: Sequence[Value]) -> None:
        """Promise a value whose parts are of the last contributors, one each."""
        self.b.output(value)
        first = self.contributors - len(parts)
        self._promises += [
            Promise(value.device, part.lo, part.hi, part.dtype, frozenset([first + i]))
            for i, part in enumerate(parts)
        ]

    def done(self, name: str) -> Micro:
        return Micro(name, self.nbytes, self.b.finish(Contract.of("none", self._promises)))


def flight(devices: Sequence[str], path: Sequence[int], nbytes: int, times: int = 1) -> Micro:
    """One value along the devices of `path`; `times` such values at once."""
    write = _MicroBuilder(devices, nbytes)
    for number in range(times):
        value = write.given(path[0], write.interval())
        write.keep(write.b.walk(value, path[1:])[-1], [number])
    hops = ">".join(devices[i] for i in (path if len(path) < 5 else path[:2]))
    if len(path) >= 5:
        hops += f">... {len(path) - 1} hops"
    return write.done(hops + (f" {times} times" if times > 1 else ""))


def crossing(devices: Sequence[str], pairs: Sequence[Pair], nbytes: int, name: str = "") -> Micro:
    """A value of its own from the source to the target of every pair, all at once."""
    write = _MicroBuilder(devices, nbytes)
    for number, (source, target) in enumerate(pairs):
        write.keep(write.b.copy(write.given(source, write.interval()), target), [number])
    return write.done(name or ", ".join(f"{devices[a]}>{devices[b]}" for a, b in pairs))


def relay(devices: Sequence[str], first: int, second: int, third: int, nbytes: int) -> Micro:
    """Two values from `first` to `second`, of which the first to leave goes on to `third`: 2 units
    of time if they go one after another, 3 if they share the way, as both are then there after 2.

    Which leaves first is settled by small messages back and forth: one before the first, two before
    the second. At the start of a step the order would be that in which the receiver happened to ask
    for them.
    """
    write = _MicroBuilder(devices, nbytes)
    b = write.b
    ball = write.given(first, (0, 1))
    there = write.given(first, write.interval()), write.given(first, write.interval())
    sent = []
    for value in there:
        ball = b.walk(ball, (second, first))[-1]
        sent.append(b.copy(b.hold(value, [ball.op]), second))
    write.keep(b.copy(sent[0], third), [1])
    write.keep(sent[1], [2])
    return write.done(f"{devices[first]}>{devices[second]} twice, then >{devices[third]}")


def sums(
    devices: Sequence[str], on: Sequence[int], length: int, nbytes: int, terms: int = 2
) -> Micro:
    """On each of the devices `on`, `length` sums of `terms` values one after another."""
    write = _MicroBuilder(devices, nbytes)
    for device in on:
        interval = write.interval()
        many = 1 + length * (terms - 1)
        given = [write.given(device, interval) for _ in range(many)]
        total = given[0]
        for i in range(1, many, terms - 1):
            total = write.b.add([total, *given[i : i + terms - 1]])
        write.keep(total, range(write.contributors - many, write.contributors))
    where = f" on {len(on)} devices" if len(on) > 1 else ""
    return write.done(f"{length} sums of {terms}{where}")


def joins(devices: Sequence[str], on: int, count: int, nbytes: int, pieces: int = 4) -> Micro:
    """On one device, `count` values joined of so many pieces each."""
    write = _MicroBuilder(devices, nbytes)
    for _ in range(count):
        lo, hi = write.interval()
        edges = [lo + (hi - lo) * i // pieces for i in range(pieces + 1)]
        parts = [write.given(on, part) for part in pairwise(edges)]
        write.keep_parts(write.b.concat(parts), parts)
    return write.done(f"{count} values joined of {pieces}")


def cuts(devices: Sequence[str], on: int, count: int, nbytes: int) -> Micro:
    """On one device, a value cut into `count` pieces by ops of their own. Pieces that are no whole
    blocks of 64 bytes are copied, others share its memory.
    """
    write = _MicroBuilder(devices, nbytes)
    lo, hi = write.interval()
    value = write.given(on, (lo, hi))
    edges = [lo + (hi - lo) * i // count for i in range(count + 1)]
    for part in pairwise(edges):
        write.keep(write.b.slice(value, *part), [0])
    return write.done(f"a value cut into {count}")


def signals(devices: Sequence[str], first: int, second: int, count: int, nbytes: int) -> Micro:
    """Two values cut into `count` pieces, one on each of two devices. A piece on the second waits
    for the same piece on the first without reading it: a message for each, all at once.
    """
    write = _MicroBuilder(devices, nbytes)
    spans = [write.interval() for _ in range(2)]
    near, far = (write.given(on, span) for on, span in zip((first, second), spans, strict=True))
    edges = [nbytes // SIZES[FLOAT32] * i // count for i in range(count + 1)]
    for lo, hi in pairwise(edges):
        told = write.b.slice(near, spans[0][0] + lo, spans[0][0] + hi)
        write.keep(told, [0])
        kept = write.b.slice(far, spans[1][0] + lo, spans[1][0] + hi, after=[told.op])
        write.keep(kept, [1])
    return write.done(f"{count} messages {devices[first]}>{devices[second]}")


def to_and_fro(first: int, second: int, hops: int) -> list[int]:
    """The path of a value that goes there and back, so many hops in all."""
    return [(first, second)[i % 2] for i in range(hops + 1)]


def around(count: int, times: int = 1) -> Iterator[Pair]:
    """Pairs of ranks: each sends to the next, then to the one after, and so on, `times` in all for
    each.
    """
    for step in range(times):
        for rank in range(count):
            yield rank, (rank + 1 + step % (count - 1)) % count


def scales(devices: Sequence[str], on: int, count: int, nbytes: int) -> Micro:
    """On one device, `count` values halved."""
    write = _MicroBuilder(devices, nbytes)
    for number in range(count):
        write.keep(write.b.scale(write.given(on, write.interval()), 2), [number], 2)
    return write.done(f"{count} values halved")


def casts(devices: Sequence[str], on: int, count: int, nbytes: int) -> Micro:
    """On one device, `count` values made half as wide."""
    write = _MicroBuilder(devices, nbytes)
    for number in range(count):
        write.keep(write.b.cast(write.given(on, write.interval()), FLOAT16), [number])
    return write.done(f"{count} values made float16")
