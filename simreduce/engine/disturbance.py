"""Disturbances of a machine: slow devices, scattered costs, links that fail. `CALM` has none.

Users type them as `gpu3=1.5`, `gpu0>gpu3@1ms=0`, `0.1%`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from numbers import Real

import numpy as np

from simreduce import units
from simreduce.computing.arrays import Floats, uniform
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats.syntax import Faults
from simreduce.topology import Topology, find_links


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of what links carry, from `time` on.

    They carry `bandwidth` bytes/s; if that is None, `factor` times what they carry when whole.

    `link` is the name of a directed link (`gpu0>gpu3`), a node (every link from and to it) or a
    link class. A fault of 0 bytes/s cuts off; one that says neither mends.
    """

    time: float
    link: str
    bandwidth: float | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        _expect_number("time", self.time)
        if not isinstance(self.link, str):
            raise TypeError(f"link: expected a link's name, got {_show_typed(self.link)}")
        if self.bandwidth is not None:
            _expect_number("bandwidth", self.bandwidth)
        _expect_number("factor", self.factor)

    @property
    def text(self) -> str:
        """`gpu0>gpu3 at 0% from 1 ms on`."""
        whole = self.bandwidth is None
        rate = (
            f"{self.factor * 100:.4g}%" if whole else units.format_bandwidth(self.bandwidth or 0.0)
        )
        return f"{self.link} at {rate} from {units.format_duration(self.time)} on"


MOST_TOLERANCE = 0.1
"""The largest tolerance: beyond, what is simulated is another plan."""

MOST_IN_TURN = 2
"""The longest chain of messages of plans that a tolerance is for: along longer ones, and in queues,
what ends a little early changes who goes first, and so the whole by any amount.
"""

SLOWEST = 1e6
"""How many times as slow a device may be: what is beyond is a slip."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Slow devices, jitter and faults that disturb a run.

    `slow[device]` multiplies the time of everything that the device does: dispatch of its ops (the
    sender dispatches a COPY), work of its memory, and bytes on the links from and to it. `jitter`
    scatters the dispatch cost and the latency of every op independently, by up to that part, up or
    down; equal `seed` and op give equal jitter. `faults` come at times after the start.

    `tolerance` above 0 makes a simulation approximate, where nothing queues and no chain has more
    than `MOST_IN_TURN` messages: a message may leave its links early by that part of its own time,
    shared out over the chain, and the total is off by about that part at most. All else is exact.
    """

    slow: Mapping[str, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.slow, Mapping):
            raise TypeError(
                "slow: expected factors by device, such as {'gpu3': 1.5}"
                f", got {_show_typed(self.slow)}"
            )
        for name, factor in self.slow.items():
            _expect_number(f"slow {name}", factor)
        _expect_number("jitter", self.jitter)
        _expect_number("tolerance", self.tolerance)
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)):
            raise TypeError(f"seed: expected a whole number, got {_show_typed(self.seed)}")
        if not isinstance(self.faults, Sequence) or not all(
            isinstance(each, Fault) for each in self.faults
        ):
            raise TypeError(f"faults: expected a tuple of Fault, got {_show_typed(self.faults)}")
        faults = Faults()
        for name, factor in self.slow.items():
            faults.check(
                1 / SLOWEST <= factor <= SLOWEST,
                f"slow {name}",
                f"the factor must be between {1 / SLOWEST:g} and {SLOWEST:g}, not {factor}",
            )
        faults.check(
            0.0 <= self.jitter <= 1.0, "", f"jitter must be between 0 and 1, not {self.jitter}"
        )
        faults.check(
            0.0 <= self.tolerance <= MOST_TOLERANCE,
            "",
            f"tolerance must be between 0 and {MOST_TOLERANCE:g}, not {self.tolerance}",
        )
        for fault in self.faults:
            faults.check(
                0.0 <= fault.time < inf,
                fault.link,
                f"the time must be 0 s or more, not {fault.time}",
            )
            figure, value = (
                ("factor", fault.factor)
                if fault.bandwidth is None
                else ("bandwidth", fault.bandwidth)
            )
            faults.check(
                0.0 <= value < inf, fault.link, f"the {figure} must be 0 or more, not {value}"
            )
        faults.raise_any()

    def check(self, topology: Topology) -> None:
        """InputError that names every device and link that `topology` lacks."""
        faults, nodes = Faults(), topology.nodes
        for name in (name for name in self.slow if name not in nodes):
            faults.add(topology.name, f"no device {name!r}{did_you_mean(name, nodes)}")
        for fault in self.faults:
            faults.attempt("", find_links, topology, fault.link)
        if faults.problems:
            raise InputError(list(dict.fromkeys(faults.problems)))

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong, be it simulated exactly or not."""
        return replace(self, tolerance=0.0) == CALM

    @property
    def text(self) -> str:
        """The disturbance in words; "" for none."""
        slow = {name: factor for name, factor in self.slow.items() if factor != 1.0}
        total = f"total to {self.tolerance * 100:.4g}%, or exact where messages queue or depend"
        phrases = [
            *(f"{name} {factor:g} times as slow" for name, factor in slow.items()),
            *[f"jitter {self.jitter:.4g} (seed {self.seed})"] * bool(self.jitter),
            *(fault.text for fault in self.faults),
            *[total] * bool(self.tolerance),
        ]
        return ", ".join(phrases)


def _expect_number(name: str, value: object) -> None:
    """TypeError unless the argument of that name is a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number, got {_show_typed(value)}")


def _show_typed(value: object) -> str:
    return f"{type(value).__name__} {quote(value)}"


CALM = Disturbance()
"""Nothing goes wrong."""


def scatter(seed: int, ops: int) -> tuple[Floats, Floats]:
    """Two numbers in [-1, 1) for each op, made of nothing but the seed and the op's id."""
    numbers = 2.0 * uniform(seed, 0, 2 * ops) - 1.0
    return numbers[0::2], numbers[1::2]


LEAST_RATE, MOST_RATE = 1.0, 1e18
"""Bytes/s of a link that carries anything: what is beyond is a slip."""
LEAST_SHARE = 1e-4
"""Percent of its bandwidth that a link has at least, if any."""


def parse_disturbance(
    faults: Faults,
    dashes: str,
    jitter: str | None,
    seed: int | None,
    slow: Sequence[str],
    fault: Sequence[str],
    tolerance: str | None = None,
) -> Disturbance:
    """Return the disturbance of these texts.

    `faults` notes what is wrong with them, under names that begin with `dashes`.
    """
    slower: dict[str, float] = {}
    for text in slow:
        name, factor = faults.attempt(f"{dashes}slow {text}", _slow, text) or ("", 1.0)
        faults.check(
            name not in slower,
            f"{dashes}slow {text}",
            f"another {dashes}slow slows {name} down; give one factor",
        )
        slower |= {name: factor} if name else {}
    found = [faults.attempt(f"{dashes}fault {text}", _fault, text) for text in fault]
    part = 0.0 if jitter is None else _number(jitter)
    if part is None or not 0.0 <= part <= 1.0:
        faults.add(f"{dashes}jitter {jitter}", "needs a part between 0 and 1")
        part = 0.0
    faults.check(
        seed is None or jitter is not None,
        f"{dashes}seed {seed}",
        f"only {dashes}jitter draws from it; give {dashes}jitter PART too",
    )
    early = 0.0 if tolerance is None else _part(tolerance)
    if early is None or not 0.0 <= early <= MOST_TOLERANCE:
        words = f"needs a part between 0 and {MOST_TOLERANCE:.0%}, as 0.1%"
        faults.add(f"{dashes}tolerance {tolerance}", words)
        early = 0.0
    return Disturbance(slower, part, seed or 0, tuple(filter(None, found)), early)


def _part(text: str) -> float | None:
    """`0.1%` or `0.001`; None if it is neither."""
    number = _number(text.removesuffix("%"))
    return number / 100.0 if number is not None and text.endswith("%") else number


def _slow(text: str) -> tuple[str, float]:
    """`gpu3=1.5`."""
    name, _, number = text.rpartition("=")
    factor = _number(number)
    if not name or factor is None or factor <= 0.0:
        raise ValueError("a device and a factor above 0, such as gpu3=1.5")
    if not 1 / SLOWEST <= factor <= SLOWEST:
        raise ValueError(f"the factor must be between {1 / SLOWEST:g} and {SLOWEST:g}")
    return name, factor


def _fault(text: str) -> Fault:
    """`gpu0>gpu3@1ms=0`, `nvlink2@0=5GB/s`, `gpu3@2ms=50%`."""
    place, _, rate = text.rpartition("=")
    link, _, when = place.rpartition("@")
    if not link or not when or not rate:
        raise ValueError("needs LINK@TIME=BANDWIDTH, such as gpu0>gpu3@1ms=0 or gpu3@2ms=50%")
    time = 0.0 if when == "0" else units.duration(when)
    if rate.endswith("%"):
        return Fault(time, link, factor=_share(rate))
    return Fault(time, link, 0.0 if rate == "0" else _rate(rate))


def _share(rate: str) -> float:
    """`50%` as 0.5."""
    percent = _number(rate[:-1])
    if percent != 0 and (percent is None or not LEAST_SHARE <= percent <= 100):
        raise ValueError(
            f"{rate!r} is not a share of a bandwidth, 0% or {LEAST_SHARE:g}% to 100%; "
            "write for example 50%"
        )
    return percent / 100


def _rate(rate: str) -> float:
    """Bytes/s of `5GB/s`."""
    value = units.bandwidth(rate)
    if value and not LEAST_RATE <= value <= MOST_RATE:
        raise ValueError(f"{rate!r} is no rate of a link: 0, or 1 B/s to 1e9 GB/s")
    return value


def _number(text: str) -> float | None:
    """None for what is no finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
