"""A switch in user space: every port has a rate each way, and every packet a delay. For kernels
that have no netem.

What a port sends waits in a queue for each destination, then is delayed, then waits at the
destination's port in a queue for each source. A port serves its queues in turn, a packet at a time,
so pairs share it fairly. The second port begins with a packet before the first is done with it, as
early as it can without waiting for the rest: alone, a packet takes the slower port and the delay.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from simreduce_validate.running.links import SMALL

_LARGEST = 65536
_AT_ONCE = 32
"""Packets that are read from one device before others have their turn."""

_SLEEP = 0.05
_SET_TIMERSLACK = 29


@dataclass
class PortDirection:
    """One direction of a port: packets leave it at `rate` bytes/s, from its queues in turn."""

    rate: float
    leave: Callable[[float, int, bytes], None]
    """Given the time at which a packet will have left, its key, and the packet."""
    queues: dict[int, deque[bytes]] = field(default_factory=dict)
    turn: deque[int] = field(default_factory=deque)
    """The keys of queues that hold something, in the order in which they are served."""
    busy: bool = False


class Switch:
    """The lines of all ports, and what is due. Time is passed in, so that lateness of this process
    costs no rate.
    """

    def __init__(
        self, rates: Sequence[float], delay: float, deliver: Callable[[int, bytes], None]
    ) -> None:
        """`deliver` gets a port and a packet that has arrived there. Rates in bytes/s, `delay` in
        seconds.
        """
        self._delay = delay
        self._deliver = deliver
        self._due: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self._rates = rates
        ports = range(len(rates))
        self._into = [PortDirection(rates[port], self._receiver(port)) for port in ports]
        self._out = [PortDirection(rates[port], self._sender(port)) for port in ports]

    def send(self, now: float, source: int, target: int, packet: bytes) -> None:
        """A packet comes from port `source` for port `target`."""
        if len(packet) < SMALL:
            self._at(now + self._delay, self._small, target, packet)
        else:
            self._enqueue(self._out[source], now, target, packet)

    def advance(self, now: float) -> float:
        """Do what is due until `now`; the time of what is due next, infinite if nothing is."""
        due = self._due
        while due and due[0][0] <= now:
            when, _, action, arguments = heapq.heappop(due)
            action(when, *arguments)
        return due[0][0] if due else float("inf")

    def _at(self, when: float, action: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heapq.heappush(self._due, (when, self._count, action, arguments))

    def _enqueue(self, line: PortDirection, now: float, key: int, packet: bytes) -> None:
        queue = line.queues.setdefault(key, deque())
        if not queue:
            line.turn.append(key)
        queue.append(packet)
        if not line.busy:
            self._serve(line, now)

    def _serve(self, line: PortDirection, now: float) -> None:
        line.busy = bool(line.turn)
        if line.busy:
            key = line.turn.popleft()
            queue = line.queues[key]
            packet = queue.popleft()
            if queue:
                line.turn.append(key)
            done = now + len(packet) / line.rate
            line.leave(done, key, packet)
            self._at(done, self._next, line)

    def _next(self, now: float, line: PortDirection) -> None:
        self._serve(line, now)

    def _sender(self, source: int) -> Callable[[float, int, bytes], None]:
        def leave(done: float, target: int, packet: bytes) -> None:
            ahead = len(packet) / max(self._rates[source], self._rates[target])
            self._at(done + self._delay - ahead, self._come, source, target, packet)

        return leave

    def _come(self, now: float, source: int, target: int, packet: bytes) -> None:
        self._enqueue(self._into[target], now, source, packet)

    def _receiver(self, target: int) -> Callable[[float, int, bytes], None]:
        return lambda done, _source, packet: self._at(done, self._small, target, packet)

    def _small(self, _now: float, target: int, packet: bytes) -> None:
        self._deliver(target, packet)


def forward(
    ends: Sequence[int], addresses: Sequence[bytes], rates: Sequence[float], delay: float
) -> None:
    """Pass IPv4 packets on between TUN devices, for ever. `addresses` are those of the ports, four
    bytes each.
    """
    ctypes.CDLL(None).prctl(_SET_TIMERSLACK, 1000, 0, 0, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    port = {address: i for i, address in enumerate(addresses)}
    number = {end: i for i, end in enumerate(ends)}

    def deliver(target: int, packet: bytes) -> None:
        with suppress(BlockingIOError):
            os.write(ends[target], packet)

    switch = Switch(rates, delay, deliver)
    while True:
        wait = min(max(switch.advance(time.monotonic()) - time.monotonic(), 0.0), _SLEEP)
        ready, _, _ = select.select(ends, [], [], wait)
        for end in ready:
            for _ in range(_AT_ONCE):
                try:
                    packet = os.read(end, _LARGEST)
                except BlockingIOError:
                    break
                target = port.get(packet[16:20])
                if target is not None and packet[0] >> 4 == 4:
                    switch.send(time.monotonic(), number[end], target, packet)
