"""Disturbances of a machine: slow devices, scattered costs, links that fail. `CALM` has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from numbers import Real

import numpy as np

from simreduce import units
from simreduce.computing.arrays import Floats, uniform
from simreduce.errors import InputError, did_you_mean, quote
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
            words = "slow: expected factors by device, such as {'gpu3': 1.5}"
            raise TypeError(f"{words}, got {_show_typed(self.slow)}")
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
        problems = [
            f"slow {name}: the factor must be between {1 / SLOWEST:g} and {SLOWEST:g}, not {factor}"
            for name, factor in self.slow.items()
            if not 1 / SLOWEST <= factor <= SLOWEST
        ]
        if not 0.0 <= self.jitter <= 1.0:
            problems.append(f"jitter must be between 0 and 1, not {self.jitter}")
        if not 0.0 <= self.tolerance <= MOST_TOLERANCE:
            problems.append(
                f"tolerance must be between 0 and {MOST_TOLERANCE:g}, not {self.tolerance}"
            )
        for fault in self.faults:
            if not 0.0 <= fault.time < inf:
                problems.append(f"{fault.link}: the time must be 0 s or more, not {fault.time}")
            figure, value = (
                ("factor", fault.factor)
                if fault.bandwidth is None
                else ("bandwidth", fault.bandwidth)
            )
            if not 0.0 <= value < inf:
                problems.append(f"{fault.link}: the {figure} must be 0 or more, not {value}")
        if problems:
            raise InputError(problems)

    def check(self, topology: Topology) -> None:
        """InputError that names every device and link that `topology` lacks."""
        problems = [
            f"{topology.name}: no device {name!r}{did_you_mean(name, topology.nodes)}"
            for name in self.slow
            if name not in topology.nodes
        ]
        for fault in self.faults:
            try:
                find_links(topology, fault.link)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(list(dict.fromkeys(problems)))

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong, be it simulated exactly or not."""
        return replace(self, tolerance=0.0) == CALM

    @property
    def text(self) -> str:
        """The disturbance in words; "" for none."""
        return ", ".join(self._phrases())

    def _phrases(self) -> Iterator[str]:
        for name, factor in self.slow.items():
            if factor != 1.0:
                yield f"{name} {factor:g} times as slow"
        if self.jitter:
            yield f"jitter {self.jitter:.4g} (seed {self.seed})"
        for fault in self.faults:
            yield fault.text
        if self.tolerance:
            yield f"total to {self.tolerance * 100:.4g}%, or exact where messages queue or depend"


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
