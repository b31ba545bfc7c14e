"""What kernels lose beside a collective: SMs that its blocks hold, and bandwidth of the memory.

A kernel of NCCL has a block for each channel, and no other kernel shares the SM of such a block. A
kernel of products is a grid of tiles, one at a time on an SM, in rounds. Of what 132 SMs do in two
rounds, 128 may leave two for a third, so few blocks can cost a kernel a whole round, and many cost
it hardly more. Times beside blocks that wait (`simreduce accuracy interference`) look as if, on
GPUs with clusters of blocks (Hopper and later):

- a kernel starts a block on every SM, which keeps its first `OWN` tiles; whoever is free takes the
  others. A block that finds no SM starts when another has ended, and still has its own tiles to do.
- blocks of products come in pairs, both on SMs of one GPC. Blocks of a collective are dealt to the
  GPCs in turn, and of a GPC that is left with an odd number of SMs, one is idle.
- the fewer SMs are busy, the faster they are clocked, as power limits large products.

Elsewhere each tile has a block of its own, which takes the next SM that is free. What moves bytes
has many small blocks and loses nothing to SMs; it shares the memory's bandwidth with what the
collective moves. Copy engines hold no SM, and move as many bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from simreduce.computing import grouped, once

OWN = 2
"""Tiles that a block keeps if it starts late. One says 1.30 where 1.59 was measured, of a
convolution in three rounds beside 4 to 32 blocks; three says 1.89."""
CLOCK = 0.08
"""A kernel that takes so many times the rounds takes that to the power of 1 - CLOCK in time: twice
the rounds took 1.88 times as long."""
SHARED = 0.5
"""The part by which kernels that compute slow down if a collective took all bandwidth."""
GPCS = 8
"""Groups of SMs of large GPUs; a cluster of blocks lies in one."""
_TILES = (
    (256, 128), (128, 256), (192, 192), (192, 128), (128, 192), (128, 128), (128, 64), (64, 128),
)  # fmt: skip
"""Tiles of a product, rows and columns, as cuBLAS's kernels have them."""
_OPERANDS = 12
"""A row or a column that a tile reads takes as long as so many elements of its result."""
_START = 155
"""Inner width of a tile that takes as long as its prologue and epilogue: products of 8,192 x 4,096
reach 523, 603 and 670 TFLOP/s over an inner width of 512, 1,024 and 4,096.
"""
_SPLITS = (1, 2, 4, 8)
"""Into how many parts the inner width may be split, to fill the last wave."""

_QUERIES = 128
"""Tokens of a block of fused attention."""
HEAD = 128
"""The usual width of a head of attention."""
CHANNEL = 20e9
"""Bytes a second that a channel of NCCL moves at most."""
_TRAFFIC = 3
"""Bytes that memory writes and reads for each that arrives: written, read, and the GPU's own with
it (https://github.com/NVIDIA/nccl/issues/1428).
"""
LEAST_SPEED = 0.1
"""The part of their speed that kernels keep, whatever runs beside them."""
_PRODUCTS = 0.7
"""The part of the time that products take of kernels that are not known; others move bytes."""


PRODUCTS, ATTENTION, BYTES = KINDS = ("products", "attention", "bytes")
"""Kernels that compute products, fused attention, and what moves bytes."""


class Beside(NamedTuple):
    """What runs beside kernels: `blocks` that hold an SM each, and what they move through memory in
    bytes a second.
    """

    blocks: int = 0
    moved: float = 0.0


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times as long kernels take beside something.

    The GPU has so many SMs (`units`), and bytes a second of `bandwidth`; `clusters` says whether
    blocks of products come in pairs. Only kernels of one of the `KINDS` are slow if it says which.
    """

    units: int
    bandwidth: float
    clusters: bool
    beside: Beside
    only: str = ""

    def attention(self, tokens: float, heads: float) -> float:
        """Of fused attention of so many tokens, of all sequences, and heads of each."""
        if self.only not in ("", ATTENTION):
            return 1.0
        return self.tiles(ceil(tokens / _QUERIES) * max(round(heads), 1))

    @property
    def _share(self) -> float:
        return min(self.beside.moved / self.bandwidth, 0.9)

    @property
    def moves(self) -> float:
        """Of kernels that move bytes."""
        return 1.0 / (1.0 - self._share) if self.only in ("", BYTES) else 1.0

    def product(self, rows: int, columns: int, inner: float, count: int = 1) -> float:
        """Of `count` products of rows x inner and inner x columns in one kernel."""
        tiles = tiling_of(rows, columns, inner, count, self.units).tiles
        if not self.clusters or self.only not in ("", PRODUCTS):
            return self.unpaired(tiles)
        slots, free = (_pairs(self.units, blocks) for blocks in (0, self.beside.blocks))
        return self._slowed(ceil(tiles / 2), slots, free)

    def unpaired(self, tiles: int) -> float:
        """The same of so many tiles whose blocks do not come in pairs, as those of convolutions."""
        return self.tiles(tiles) if self.only in ("", PRODUCTS) else 1.0

    def tiles(self, count: int) -> float:
        """Of a kernel of so many tiles, each by itself."""
        return self._slowed(count, self.units, self.units - self.beside.blocks)

    def _slowed(self, tiles: int, slots: int, free: int) -> float:
        if not self.beside.blocks or not tiles:
            return 1.0 + SHARED * self._share
        own = OWN if self.clusters else 0
        rounds = rounds_of(tiles, slots, max(free, 1), own) / ceil(tiles / slots)
        return float(rounds ** (1.0 - CLOCK)) * (1.0 + SHARED * self._share)


ALONE = Slowdown(1, 1.0, clusters=False, beside=Beside())
"""Nothing runs beside kernels."""


def slow_typical(slowed: Slowdown) -> float:
    """How many times as long kernels take that are not known."""
    return _PRODUCTS * slowed.product(8192, 4096, 4096) + (1.0 - _PRODUCTS) * slowed.moves


class Channels(NamedTuple):
    """The channels of a collective, and the bytes a second that links of its ranks bring a GPU at
    most, where these are not all ranks. It `brings` a GPU so many; 0: what its channels move.
    """

    number: int
    rate: float = 0.0
    brings: float = 0.0


Flying = tuple[Channels, ...]
"""The collectives that are in flight at once."""
Loses = Callable[[Flying, str], float]
"""By what part of their speed kernels of a phase slow down beside collectives."""
PassSeconds = Callable[[Beside, str], Mapping[str, float]]
"""Seconds of a job's passes beside something, by phase, and as "" of others; if it says a kind,
only its kernels are slow."""


@dataclass(frozen=True, eq=False)
class Law:
    """What `passes` lose beside collectives of NCCL: the times by which they take longer.

    Links bring a GPU `most` bytes a second, in a collective of all ranks `rate`. Collectives over
    equal links share these.
    """

    passes: PassSeconds
    rate: float
    most: float
    _known: dict[tuple[Flying, str], Mapping[str, float]] = field(default_factory=dict, repr=False)

    def __call__(self, flying: Flying, phase: str) -> float:
        """The part of its speed that a phase loses."""
        alone, beside = (self._seconds(each, phase, "") for each in ((), flying))
        return min(1.0 - alone / beside, 1.0 - LEAST_SPEED) if beside else 0.0

    def by_kind(self, flying: Flying, phase: str) -> dict[str, float]:
        """Seconds that kernels of each kind lose of a phase, if the others lose nothing."""
        alone = self._seconds((), phase, "")
        return {kind: self._seconds(flying, phase, kind) - alone for kind in KINDS}

    def beside(self, flying: Flying) -> Beside:
        """What runs beside kernels then."""
        shared = grouped(
            (each.rate or self.rate, each.brings or each.number * CHANNEL) for each in flying
        )
        arrives = sum(min(sum(brought), rate) for rate, brought in shared.items())
        return Beside(sum(each.number for each in flying), _TRAFFIC * min(arrives, self.most))

    def _seconds(self, flying: Flying, phase: str, only: str) -> float:
        found = once(self._known, (flying, only), lambda: self.passes(self.beside(flying), only))
        return found.get(phase, found[""])


def by_share(interference: float, units: int) -> Loses:
    """The same by a number: that times the part of the SMs that the channels hold."""

    def lose(flying: Flying, _: str) -> float:
        held = sum(each.number for each in flying) / units
        return min(interference * held, 1.0 - LEAST_SPEED)

    return lose


class Tiling(NamedTuple):
    """Products in `tiles`, one at a time on an SM, which all take as long as `steps` multiply-adds
    on each SM.
    """

    steps: float
    tiles: int


@lru_cache(maxsize=1 << 14)
def tiling_of(rows: int, columns: int, inner: float, count: int, units: int) -> Tiling:
    """Of tiles of all sizes, with the inner width in one part or several, those that take the
    shortest on so many SMs: what products take, and lose beside a collective, goes by them.
    """

    def options() -> Iterator[Tiling]:
        for high, wide in _TILES:
            whole = ceil(rows / high) * ceil(columns / wide) * count
            each = high * wide + _OPERANDS * (high + wide)
            for parts in _SPLITS:
                tiles = whole * parts
                yield Tiling(ceil(tiles / units) * each * (inner / parts + _START), tiles)

    return min(options())


@lru_cache(maxsize=1 << 14)
def rounds_of(tiles: int, slots: int, free: int, own: int) -> float:
    """Rounds of so many tiles on `slots` of which these are `free`; blocks keep `own` tiles.

    Without tiles of its own, no block starts late. Where blocks need all that is free, one finds no
    place every second time.
    """
    alone = ceil(tiles / slots)
    if not own or free == slots:
        return float(ceil(tiles / free))
    if alone <= own:  # all tiles belong to blocks: there are as few of these as do it in time
        slots = ceil(tiles / alone)
    own, late = min(own, alone), slots - free
    if late == 0:
        return (alone + _late(tiles, max(slots - 1, 1), 1, own)) / 2
    return _late(tiles, free, late, own) if late > 0 else float(alone)


def _late(tiles: int, free: int, late: int, own: int) -> float:
    """Rounds if so many blocks start late: those on `free` slots do all tiles but theirs first.

    `rest` of these slots take one tile more than others, and then each takes late blocks, one after
    another.
    """
    full, rest = divmod(max(tiles - own * late, 0), free)
    return float(full + min(own * ceil((late + rest) / free), 1 + own * ceil(late / free)))


def _pairs(units: int, blocks: int) -> int:
    """Pairs of SMs of one GPC that so many blocks leave; all GPCs have about as many pairs."""
    pairs, more = divmod(units // 2, GPCS)
    taken, rest = divmod(blocks, GPCS)
    left = (2 * (pairs + (i >= GPCS - more)) - taken - (i < rest) for i in range(GPCS))
    return sum(max(sms, 0) // 2 for sms in left)
