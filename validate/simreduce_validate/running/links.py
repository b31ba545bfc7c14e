"""Links of known rate and delay between workers, and the machine that they make.

Every worker has a port on one switch. A port carries its rate in each direction, counted as the
wire counts it, headers included, so that a transfer gets a little less: its `goodput`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import simreduce as sr
from simreduce import units
from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults
from simreduce.planners.layouts import Layout
from simreduce.topology import Cable, Node, NodeKind, Topology, build

HEADERS = 20 + 20 + 12
"""Bytes of a packet that are not data: IPv4, TCP, TCP's timestamps."""

CABLE = "cable"
"""The class of link between workers."""

SMALL = 512
"""Bytes of a packet, a power of two, below which it goes first: acknowledgements and requests, no
data that matters.
"""

ETHERNET = 14
"""Bytes that a packet is longer on an Ethernet link, as the kernel counts (no preamble, no
checksum).
"""

MOST_PORTS = 64
SLOWEST, FASTEST = 1e6 / 8, 5e9 / 8
"""Bytes/s that a port may be set to. Below, timers of TCP decide; above, cores do not keep up: two
shared ones carried 2 Gbit/s, and 93 % of 5.
"""
LONGEST = 1.0
"""Seconds of the longest delay."""


@dataclass(frozen=True, slots=True)
class Links:
    """`ports` workers round a switch. `rate` is that of every port and direction in bytes/s, `slow`
    that of single ports, and `delay` the seconds from one worker to another besides the time that
    the bytes take.

    Without a delay, packets are shaped by the kernel; with one, by a switch of our own, as kernels
    often have no netem.
    """

    ports: int
    rate: float
    delay: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError with every setting that is out of range."""
        problems = []
        if not 2 <= self.ports <= MOST_PORTS:
            problems.append(f"{self.ports} ports: 2 to {MOST_PORTS} workers stand round a switch")
        problems += [
            f"--slow-port {port}: there is no such port; choose from 0 to {self.ports - 1}"
            for port in self.slow
            if not 0 <= port < self.ports
        ]
        for option, rate in (
            ("--rate", self.rate),
            *((f"--slow-port {p}", r) for p, r in self.slow.items()),
        ):
            if not SLOWEST <= rate <= FASTEST:
                problems.append(
                    f"{option}: {rate * 8e-6:g} Mbit/s; links are shaped to 1 Mbit/s up to 5 Gbit/s"
                )
        if not 0.0 <= self.delay <= LONGEST:
            problems.append(f"--delay: {self.delay:g} s; choose from 0 to {LONGEST:g} s")
        if problems:
            raise InputError(problems)

    @property
    def own_switch(self) -> bool:
        """Whether packets pass through our own switch instead of the kernel's shaping."""
        return self.delay > 0.0

    @property
    def mtu(self) -> int:
        """Bytes of a packet: large ones for our switch, whose cost is by the packet."""
        return 9000 if self.own_switch else 1500

    @property
    def efficiency(self) -> float:
        """Data in what a port carries: 1448 of 1514 bytes on Ethernet; our own switch sees no
        Ethernet header.
        """
        wire = self.mtu + (0 if self.own_switch else ETHERNET)
        return (self.mtu - HEADERS) / wire

    def rate_of(self, port: int) -> float:
        """Bytes/s that a port is set to, headers included."""
        return self.slow.get(port, self.rate)

    def goodput(self, port: int) -> float:
        """Bytes/s of data that a port can carry."""
        return self.rate_of(port) * self.efficiency

    @property
    def names(self) -> tuple[str, ...]:
        """The workers, by port."""
        return tuple(f"worker{i}" for i in range(self.ports))

    @property
    def text(self) -> str:
        """The links in words, for reports."""
        slow = "".join(
            f", port {port} {rate * 8e-6:g} Mbit/s" for port, rate in sorted(self.slow.items())
        )
        delay = f", {self.delay * 1e3:g} ms" if self.delay else ""
        how = "switch of our own" if self.own_switch else "veth and htb"
        rates = f"{self.rate * 8e-6:g} Mbit/s{slow}{delay}"
        return f"{self.ports} ports of {rates} ({how}, mtu {self.mtu})"

    def machine(self) -> Topology:
        """The machine to simulate: each worker is the CPU of its own machine."""
        return self._star("cpu", [str(port) for port in range(self.ports)])

    def layout(self) -> Layout:
        """What planners see: the workers as ranks of one task, with the same links."""
        return sr.layout(self._star("gpu", ["0"] * self.ports))

    def _star(self, kind: NodeKind, machines: list[str]) -> Topology:
        nodes = [
            Node(name, kind, machine=machine, transit=False)
            for name, machine in zip(self.names, machines, strict=True)
        ]
        cables = [
            Cable(
                name,
                "switch0",
                CABLE,
                1,
                self.rate_of(port),
                self.goodput(port),
                self.delay / 2,
                holds_lane=False,
            )
            for port, name in enumerate(self.names)
        ]
        nodes.append(Node("switch0", "switch", machine=""))
        return build(f"shaped:{self.ports}", "workers on shaped links", self.text, nodes, cables)


def read_links(
    topology: str,
    rate: str | None,
    delay: str | None = None,
    slow: tuple[str, ...] | list[str] = (),
) -> Links:
    """The links of `switch:4` with `--rate 200mbit --delay 5ms --slow-port 2=100mbit`.

    Raises InputError with every fault.
    """
    faults = Faults()
    match = re.fullmatch(r"switch:([0-9]{1,4})", topology.strip())
    if match is None:
        form = "write switch:N, for so many workers"
        faults.add(topology, f"--backend shaped makes the links itself; {form}")
    bytes_per_s = None
    if rate is None:
        faults.add("--backend shaped", "--rate is missing, such as --rate 200mbit")
    else:
        bytes_per_s = faults.attempt("--rate", _rate, rate)
    seconds = 0.0
    if delay not in (None, "0"):
        seconds = faults.attempt("--delay", units.duration, delay) or 0.0
    ports: dict[int, float] = {}
    for text in slow:
        port, equals, value = text.partition("=")
        option = f"--slow-port {text}"
        if not equals or not port.isdecimal():
            faults.add(option, "a port and its rate, such as 2=100mbit")
        elif int(port) in ports:
            faults.add(option, f"port {int(port)} is given twice")
        elif (found := faults.attempt(option, _rate, value)) is not None:
            ports[int(port)] = found
    # Values that could not be read are replaced by harmless ones, so that the rest is checked.
    count = int(match[1]) if match else MOST_PORTS
    links = faults.attempt("", Links, count, bytes_per_s or FASTEST, seconds, ports)
    if faults.problems or links is None:
        raise InputError(faults.problems)
    return links


def _rate(text: str) -> float:
    """Bytes/s of `200 Mbit/s`, or `200mbit` as tc writes it."""
    if match := re.fullmatch(r"\s*([0-9.]+)\s*([kmg])bit\s*", text, re.IGNORECASE):
        prefix = match[2].lower() if match[2] in "kK" else match[2].upper()
        text = f"{match[1]} {prefix}bit/s"
    return units.bandwidth(text)
