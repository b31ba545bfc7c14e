"""Reading `NAME:SIZE,key=value,...`: its parts, and its settings with every fault at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from simreduce.errors import TopologyError, cut, quote
from simreduce.files.formats import BANDWIDTH, LATENCY, Scalar, choice
from simreduce.files.formats.syntax import Faults
from simreduce.topology.elements import DEFAULT_BANDWIDTH, DEFAULT_LATENCY, Cable, Node
from simreduce.topology.routing.rules import RoutingRule
from simreduce.topology.routing.switching import (
    CHOICES,
    CONGESTIONS,
    DEFAULT,
    HASHED,
    ISOLATED,
    Switching,
)
from simreduce.units import plural

T = TypeVar("T")

DEVICES_LIMIT = 1 << 14
"""Every node and link of what is loaded is held, and most plans grow with the square of the ranks.
"""

FOLDED_LIMIT = 1 << 20
"""Equal machines on one switch; one is simulated for all."""

WHOLE_LIMIT = 1 << 17
"""Devices on one switch, for those who ask for nothing but plans that can be held, or on a fat
tree, whose routes are arithmetic.
"""


@dataclass(frozen=True, slots=True)
class Inline:
    """The parts of an inline topology: the name before `:` or `x`, the size, the settings."""

    text: str
    name: str
    size: str
    settings: Mapping[str, str]
    problems: tuple[str, ...]


def split_inline(text: str, separator: str) -> Inline | None:
    """The parts of `NAME:SIZE,...` (separator ":") or `MACHINExN,...` (separator "x"); None for
    another shape.
    """
    head, *fields = text.split(",")
    pattern = r"([^:]*):(.*)" if separator == ":" else r"(.+)x([0-9]+)"
    match = re.fullmatch(pattern, head.strip(), re.DOTALL)
    if match is None:
        return None
    settings: dict[str, str] = {}
    problems = []
    for field in fields:
        key, equals, value = (part.strip() for part in field.partition("="))
        if not (key and equals and value):
            problems.append(f"{cut(text)}: {quote(field.strip())} must be key=value")
        elif key in settings:
            problems.append(f"{cut(text)}: {cut(key)} is given twice")
        else:
            settings[key] = value
    return Inline(text, match[1].strip(), match[2].strip(), settings, tuple(problems))


_YES_NO = choice(("yes", "no"), "answer")


def too_many(count: int, what: str, limit: int = DEVICES_LIMIT) -> str:
    """The fault of a machine that is larger than the limits, with both of these."""
    return (
        f"{count} {what} are more than can be simulated: at most {limit} devices one by "
        f"one, or {FOLDED_LIMIT} equal machines on one switch with `bench`"
    )


_RATIO = r"[0-9]{1,9}(\.[0-9]{1,9})?"


class InlineSettings:
    """The settings of one inline topology. Each reader notes a fault and goes on with a harmless
    value; a shape reads all that it needs, then calls `check`, then builds.
    """

    def __init__(
        self, inline: Inline, values: Mapping[str, str | int], limit: int = DEVICES_LIMIT
    ) -> None:
        self.limit = limit
        self.faults = Faults(inline.text)
        self.faults.problems.extend(inline.problems)
        self.values = values
        self._size = inline.size

    def check(self) -> None:
        """Raise `TopologyError` with all faults, if there are any."""
        self.faults.raise_any(TopologyError)

    def read(self, key: str, kind: Scalar[T], default: T) -> T:
        """The value of a setting."""
        if key not in self.values:
            return default
        found = kind.take(self.values[key], self.faults, key)
        return default if found is None else found

    def bandwidth(self) -> float:
        """Bytes/s of `bandwidth=`, per cable and direction."""
        return self.read("bandwidth", BANDWIDTH, DEFAULT_BANDWIDTH)

    def latency(self, key: str = "latency", default: float = DEFAULT_LATENCY) -> float:
        """Seconds of a setting; 0 needs no unit."""
        return 0.0 if self.values.get(key) in ("0", 0) else self.read(key, LATENCY, default)

    def size(self, limit: int, what: str = "devices") -> int:
        """A size from 1 to `limit`."""
        text = self._size
        if not self.faults.check(
            re.fullmatch(r"[0-9]{1,9}", text),
            "",
            f"{quote(text)} is not a number of {what} from 1 to {limit}",
        ):
            return 1
        return self._check_count(int(text), limit, what)

    def _check_count(self, count: int, limit: int, what: str = "devices", key: str = "") -> int:
        if count < 1:
            self.faults.add(key, f"0 {what}; at least 1 is needed")
        elif count > limit:
            words = f"{count} {what} are more than the {limit} of this shape"
            self.faults.add(key, words if limit < DEVICES_LIMIT else too_many(count, what, limit))
        return min(max(count, 1), limit)

    def sizes(self, key: str = "") -> tuple[int, ...]:
        """Parse `AxB` or `AxBxC`: sizes of at least 1, `DEVICES_LIMIT` devices in all.

        The text is the topology's size, or with `key` a setting that must be there.
        """
        text = str(self.values.get(key, "")) if key else self._size
        if not self.faults.check(
            text or not key, key, f"must be given as AxB or AxBxC, such as {key}=2x2"
        ):
            return (1, 1)
        if not self.faults.check(
            re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9}){1,2}", text),
            key,
            f"{quote(text)} is not a size AxB or AxBxC",
        ):
            return (1, 1)
        sizes = tuple(int(size) for size in text.split("x"))
        count = math.prod(sizes)
        return sizes if self._check_count(count, DEVICES_LIMIT, key=key) == count else (1, 1)

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        words = f"a whole number from {low} to {high}"
        return self._plain(key, default, "[0-9]{1,18}", int, lambda n: low <= n <= high, words)

    def ratio(self, key: str) -> Fraction:
        """A number above 0, such as 2 or 1.5; 1 unless stated."""
        words = "a number above 0, such as 2 or 1.5"
        return self._plain(key, Fraction(1), _RATIO, Fraction, lambda ratio: ratio > 0, words)

    def _plain(
        self, key: str, default: T, form: str, read: Callable[[str], T], fits: Callable[[T], bool],
        words: str,
    ) -> T:  # fmt: skip
        """A number without a unit, written in the `form` of a regular expression."""
        if key not in self.values:
            return default
        text = str(self.values[key])
        if re.fullmatch(form, text) and fits(found := read(text)):
            return found
        self.faults.add(key, f"must be {words}, got {quote(self.values[key])}")
        return default

    def flag(self, key: str) -> bool:
        """`yes` or `no`, the default."""
        return self.read(key, _YES_NO, "no") == "yes"

    def switching(self, default: Switching = DEFAULT) -> Switching:
        """What switches do: `equal_cost=`, and the others of `KEYS`."""
        rule = self.read("equal_cost", choice(CHOICES, "rule"), default.choice)
        for key in ("seed", "queue_pairs"):
            self.faults.check(
                key not in self.values or ("equal_cost" in self.values and rule == HASHED),
                key,
                "needs equal_cost=hashed",
            )
        congestion = self.read("congestion", choice(CONGESTIONS, "congestion"), default.congestion)
        words = "a number from 0 to 1"
        congested = self._plain(
            "congested", default.congested, _RATIO, float, lambda part: part <= 1.0, words
        )
        isolated = self.values.get("congestion", default.congestion) == ISOLATED
        self.faults.check(
            "congested" not in self.values or not isolated,
            "congested",
            "needs congestion=tree or congestion=lossy",
        )
        fresh = "equal_cost" in self.values
        return Switching(
            rule,
            self.whole("seed", 0 if fresh else default.seed, 0, 10**18 - 1),
            self.whole("queue_pairs", 1 if fresh else default.queue_pairs, 1, 128),
            congestion,
            congested,
        )


CABLES_LIMIT = 1 << 20
"""Upper limit of the cables of a network, because all of them are held in memory."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes and cables in the order of their ids, a line that describes them, and how traffic goes
    if not by search.
    """

    title: str
    nodes: list[Node]
    cables: list[Cable]
    rule: RoutingRule | None = None


Join = Callable[[Node, Node], Cable]
"""The cable from a host, or a switch, to a switch."""


class NetworkParts(NamedTuple):
    """The switches of a network, its cables, and the rule for its routes."""

    switches: list[Node]
    cables: list[Cable]
    rule: RoutingRule


class Blueprint(Protocol):
    """A network of hosts that are still to be placed: GPUs or NICs."""

    @property
    def title(self) -> str:
        """Its description, after `on`."""

    @property
    def cables(self) -> int:
        """The number of cables, including the cables of hosts."""

    def wire(
        self, nodes: Sequence[Node], hosts: Sequence[int], first: int, join: Join
    ) -> NetworkParts:
        """Lay the network over the `hosts`, places in `nodes` in the order of their ports.

        A host beyond its size has a port too. Switches come after all `nodes`, the cables after
        `first` others.
        """


Read = Callable[[InlineSettings, int, int], Blueprint]
"""Makes a network of the settings, for so many machines with so many hosts each.

Hosts are NICs, or GPUs of a textbook.
"""


def textbook(settings: InlineSettings, read: Read, limit: int = DEVICES_LIMIT) -> Shape:
    """GPUs as the hosts, and the host `cpu0` with one more port; half of the latency is on each
    cable.
    """
    bandwidth, latency = settings.bandwidth(), settings.latency()
    count = settings.size(max(limit, settings.limit))
    network = read(settings, count, 1)
    return over_gpus(settings, network, count, lambda a, b: cable(a, b, bandwidth, latency / 2))


def over_gpus(settings: InlineSettings, network: Blueprint, count: int, join: Join) -> Shape:
    """A network with so many GPUs as its hosts, and the host `cpu0` with one more port."""
    places = seat_devices(settings, count)
    check_cables(settings, network)
    settings.check()
    nodes = ends(count)
    wired = network.wire(nodes, [*places, count], 0, join)
    return Shape(
        f"{plural(count, 'device')} on {network.title}",
        [*nodes, *wired.switches],
        wired.cables,
        wired.rule,
    )


def check_cables(settings: InlineSettings, network: Blueprint) -> None:
    """Note a fault for a network with too many cables to hold."""
    settings.faults.check(
        network.cables <= CABLES_LIMIT,
        "",
        f"{network.cables} cables in the network are more than the {CABLES_LIMIT} that can be held",
    )


def ends(count: int) -> list[Node]:
    """GPUs gpu0, gpu1, ... and the host cpu0, which forwards nothing."""
    return [
        *(Node(f"gpu{i}", "gpu", transit=False) for i in range(count)),
        Node("cpu0", "cpu", transit=False),
    ]


def switches(name: str, count: int, *, reduces: bool = False) -> list[Node]:
    """Switches outside of all machines, numbered from 0."""
    return [Node(f"{name}{i}", "switch", machine="", reduces=reduces) for i in range(count)]


def cable(a: Node, b: Node, bandwidth: float, latency: float) -> Cable:
    """A cable of a textbook network: a sender is free once its message is on the wire."""
    return Cable(a.name, b.name, "cable", 1, bandwidth, bandwidth, latency, holds_lane=False)


def seat_devices(settings: InlineSettings, count: int) -> list[int]:
    """`shuffle=SEED`: the GPU that sits at each of `count` places, the GPU of that number unless
    stated.
    """
    seed = settings.whole("shuffle", 0, 0, 2**63 - 1)
    if "shuffle" not in settings.values:
        return list(range(count))
    return [int(gpu) for gpu in np.random.default_rng(seed).permutation(count)]
