"""The constants of a prediction that no data sheet gives: a value, fitted elsewhere, used by the
engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LinkConstants:
    """Replaces what the topology says of a link class. None keeps the topology's figure."""

    bandwidth: float | None = None  # bytes/s, per lane and direction
    latency: float | None = None  # s


@dataclass(frozen=True, slots=True)
class Processor:
    """The cores that do the ops of devices that are CPUs, and what passes between these.

    The work of an op does not depend on its size: its dispatch, and `message` if it goes to another
    machine. One core moves its bytes at `rates[kind]`; a copy to another machine has the rate of
    `transfer`. A core moves the bytes that an op touches beyond `own_cache` at `past_own` besides.

    An op uses at most one core. All ops share `cores` cores; at most `moving` of them move bytes at
    once. An op within a machine is one flow: its work and its bytes go on together, so a core that
    moves bytes does nothing else, and work waits when the bytes do. Messages are such flows too if
    one computer stands in for all machines and the rate of `transfer` is known. Other messages take
    their turn at the cores for `work / cores` seconds, end their work after `work`, and then move
    their bytes over the network. They and the ops within machines take no cores from each other.

    The `cache` holds the first bytes of a step's values. Ops write the rest to `memory`, which all
    cores share; without a figure it limits nothing. A core's own rate counts its reads.
    """

    cores: float = 1.0
    moving: float = math.inf
    shared: bool = False  # one computer stands in for all machines
    message: float = 0.0  # s of a core
    rates: Mapping[str, float] = field(
        default_factory=dict
    )  # bytes/s read and written; of copies, bytes/s
    own_cache: int = 0  # bytes, of each core
    past_own: float = math.inf  # bytes/s
    cache: int = 0  # bytes, of all
    memory: float = math.inf  # bytes/s written

    def missed(self, nbytes: float) -> float:
        """The part of what is written that does not stay in the cache, if a step's values take so
        many bytes.
        """
        return 1.0 - self.cache / nbytes if nbytes > self.cache else 0.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants by op kind and link class.

    `dispatch[kind]` is what one op of that kind (`copy`, `add`, ...) costs before its latency, in
    seconds, while it holds its lanes; on CPU devices, see `Processor`. `links` is by link class; by
    `CLASS:d2h` or `CLASS:h2d`, its links that lead from GPUs to their host or back; or by the name
    of one link. The narrowest counts. `step` is what a step costs for every machine that takes
    part, in seconds, besides the way to the others and back (see `step_cost`). `provenance` says
    what was measured, where and when; `errors` the standard error of each constant that has one,
    under the name the file gives it. `controls` are no constants: what some of the plans that it
    was learnt from took then, in seconds, by what they do and the bytes of their values, so that
    they can be timed again.
    """

    name: str
    title: str = ""
    dispatch: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, LinkConstants] = field(default_factory=dict)
    step: float = 0.0
    cpu: Processor | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    controls: Mapping[tuple[str, int], float] = field(default_factory=dict)


NOMINAL = Calibration(
    "nominal", "published link rates and latencies, no fitted constant, no dispatch cost"
)
"""The topology's own figures and nothing else."""
