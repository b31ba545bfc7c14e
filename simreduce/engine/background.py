"""Traffic of others: flows between devices that come at random while plans run."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf, log

import numpy as np
import simpy

from simreduce.computing.arrays import Floats, uniform
from simreduce.engine.bounds import resource_seconds
from simreduce.engine.fabric import Fabric
from simreduce.engine.lowering import Lowered, lower
from simreduce.engine.runtime import IDEAL
from simreduce.errors import did_you_mean
from simreduce.plan import Contract, Plan, PlanBuilder
from simreduce.topology import Topology
from simreduce.units import format_size

MOST_MESSAGES = 20_000
"""Upper limit of messages that are simulated; a thousand take about a second."""
_SHORTEST = 1e-12
"""Seconds that a message takes at least."""


class _Arrival(simpy.Timeout):
    """The time to the next flow."""


def _wrong_pairs(topology: Topology, pairs: Sequence[tuple[str, str]]) -> list[str]:
    nodes = topology.nodes
    problems = [
        f"{topology.name}: no device {name!r}{did_you_mean(name, nodes)}"
        for name in dict.fromkeys(name for pair in pairs for name in pair)
        if name not in nodes
    ]
    return problems + [f"traffic from {a!r} to itself" for a, b in pairs if a == b]


class TrafficFlows:
    """Flows of traffic on a fabric; `needed` are the seconds at full rate that those sent so far
    need of every link.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.needed = np.zeros(len(fabric.resources.names))
        self._known: dict[tuple[str, str], tuple[Plan, Lowered, Floats]] = {}

    def send(self, source: str, target: str, nbytes: int) -> simpy.Event:
        """Send bytes from one device to another; the event is their arrival."""
        plan, lowered, each = self._of(source, target)
        lowered = replace(lowered, amount=np.array([0.0, float(nbytes)]))
        self.needed += each * nbytes
        return self.fabric.submit(plan, lowered=lowered, background=True)

    def _of(self, source: str, target: str) -> tuple[Plan, Lowered, Floats]:
        if (source, target) not in self._known:
            at, b = self.fabric, PlanBuilder((source, target))
            b.copy(b.input(0, 0, 1), 1)
            plan = b.finish(Contract.of("traffic", []))
            lowered = lower(plan, at.topology, IDEAL, at.calibration, at.resources)
            byte = replace(lowered, amount=np.array([0.0, 1.0]))
            each = resource_seconds(byte, at.resources.best)
            self._known[source, target] = plan, lowered, each
        return self._known[source, target]

    def offered(self, pairs: Sequence[tuple[str, str]], rate: float) -> tuple[float, str]:
        """The largest part of a link's rate that so many bytes/s between each pair need, and which
        link that is.
        """
        each = sum((self._of(*pair)[2] for pair in pairs), np.zeros_like(self.needed))
        place = int(each.argmax())
        return float(each[place]) * rate, self.fabric.resources.names[place]

    def in_turn(self, pairs: Sequence[tuple[str, str]], nbytes: int) -> float:
        """Messages of so many bytes a second, if each pair sends the next when the one before has
        arrived and nobody else sends.
        """
        known = [self._of(*pair) for pair in pairs]
        busy = sum((each for _, _, each in known), np.zeros_like(self.needed)) * nbytes
        seconds = (
            max(
                float(lowered.by_op.latency.sum() + each.max() * nbytes),
                float(busy[each > 0].max()),
            )
            for _, lowered, each in known
        )
        return sum(1.0 / max(each, _SHORTEST) for each in seconds)

    def over(self, until: simpy.Event) -> bool:
        """Whether nobody is left to disturb: `until` has happened, or no event but traffic's is to
        come and no plan can go on. What is under way then moves on to its end.
        """
        return until.triggered or not self.fabric.busy(_Arrival)


@dataclass(frozen=True, slots=True)
class Stream:
    """Traffic of one kind: messages of `nbytes` between `pairs`, from `start` on in seconds.

    With a `rate`, in bytes/s of all pairs together, they come at random times, by a Poisson
    process. With a `period` in seconds, every pair sends one at once each time. With neither, every
    pair sends the next when the one before has arrived, as fast as links allow. Messages take links
    and latency, but no lanes.
    """

    name: str
    pairs: tuple[tuple[str, str], ...]
    nbytes: int
    rate: float | None = None
    period: float | None = None
    start: float = 0.0
    seed: int = 0
    place: str = ""
    """The table of a file that says so, for faults."""

    def problems(self, flows: TrafficFlows) -> list[str]:
        """Pairs that are not there, or offer a link more than it carries, which would pile up."""
        if problems := _wrong_pairs(flows.fabric.unfolded(), self.pairs):
            return [self._fault("", problem) for problem in problems]
        if self.period is None and self.rate is None:
            return []
        each = self.nbytes / self.period if self.period else (self.rate or 0.0) / len(self.pairs)
        part, link = flows.offered(self.pairs, each)
        if part <= 1.0:
            return []
        words = f"offers {link} {part:.0%} of what it carries, which would pile up"
        words += "; without rate and every, it is as fast as can be"
        return [self._fault("rate" if self.period is None else "every", words)]

    def messages(self, flows: TrafficFlows, seconds: float) -> float:
        """How many it sends in the first `seconds`, about."""
        if self.rate is not None:
            per_second = self.rate / self.nbytes
        elif self.period is not None:
            per_second = len(self.pairs) / max(self.period, _SHORTEST)
        else:
            per_second = flows.in_turn(self.pairs, self.nbytes)
        return per_second * max(seconds - self.start, 0.0)

    def too_many(self, count: float) -> str:
        """The fault of so many messages."""
        key, change = "size", "a larger size, or a rate,"
        if self.rate is not None:
            change = "a larger size or a lower rate"
        elif self.period is not None:
            key, change = "every", "a longer time between bursts"
        words = f"about {count:,.0f} messages of {format_size(self.nbytes)} while the jobs run, and"
        words += f" at most {MOST_MESSAGES:,} are simulated; {change} makes fewer"
        return self._fault(key, words)

    def _fault(self, key: str, words: str) -> str:
        place = f"{self.place}.{key}" if self.place and key else self.place
        return f"{place or self.name}: {words}"

    def send_on(self, flows: TrafficFlows, until: simpy.Event) -> None:
        """Begin to send, until that has happened; if there are no `problems`."""
        env = flows.fabric.env
        if self.rate is not None:
            env.process(self._late(env, self._by_rate(flows, until)))
        elif self.period is not None:
            env.process(self._late(env, self._by_period(flows, until)))
        else:
            for pair in self.pairs:
                env.process(self._late(env, self._in_turn(flows, pair, until)))

    def _late(
        self, env: simpy.Environment, sending: Generator[simpy.Event, None, None]
    ) -> Generator[simpy.Event, None, None]:
        if self.start > 0.0:
            yield _Arrival(env, self.start)
        yield from sending

    def _by_rate(
        self, flows: TrafficFlows, until: simpy.Event
    ) -> Generator[simpy.Event, None, None]:
        rate = (self.rate or 0.0) / self.nbytes
        if not (rate and self.pairs):
            return
        for flow in count():
            gap, which, _ = uniform(self.seed, 3 * flow, 3).tolist()
            yield _Arrival(flows.fabric.env, -log(1.0 - gap) / rate)
            if flows.over(until):
                return
            flows.send(*self.pairs[int(which * len(self.pairs))], self.nbytes)

    def _by_period(
        self, flows: TrafficFlows, until: simpy.Event
    ) -> Generator[simpy.Event, None, None]:
        while not flows.over(until):
            for source, target in self.pairs:
                flows.send(source, target, self.nbytes)
            yield _Arrival(flows.fabric.env, self.period or inf)

    def _in_turn(
        self, flows: TrafficFlows, pair: tuple[str, str], until: simpy.Event
    ) -> Generator[simpy.Event, None, None]:
        while not flows.over(until):
            yield flows.send(*pair, self.nbytes)


def excess_messages(streams: Sequence[tuple[Stream, TrafficFlows]], seconds: float) -> list[str]:
    """The faults of streams, if more messages come in so many seconds than can be simulated."""
    counts = [stream.messages(flows, seconds) for stream, flows in streams]
    if sum(counts) <= MOST_MESSAGES:
        return []
    # Whoever sends at least its even share.
    least = sum(counts) / len(counts)
    found = zip(streams, counts, strict=True)
    return [stream.too_many(count) for (stream, _), count in found if count >= least]
