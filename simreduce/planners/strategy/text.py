"""A strategy as users type it: `SPEC[+PACKER][+chunk=BYTES][+mean]`, for example
`hierarchical_copy+packs=8`, `ring+ddp` or `chain+chunk=1MiB`. NCCL's also say how NCCL does it:
`nccl:tree+ll128+channels=16`.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from simreduce import units
from simreduce.errors import StrategyError, did_you_mean, quote
from simreduce.files.formats import Faults
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.planners.layouts import OPEN, Decision, Layout
from simreduce.planners.packing import LISTS, PACKERS, DdpBuckets, Fusion, NoPacking, Packer
from simreduce.planners.strategy.automatic import AUTOMATIC
from simreduce.planners.strategy.spec import Range, parse_spec

ALL = "all"
"""In a list of strategies: every one."""

_OTHERS = ("chunk=BYTES", "mean")

_PROTOCOLS = ("simple", "ll", "ll128")
"""NCCL's."""

_MOST_CHANNELS = 64
"""NCCL's MAXCHANNELS."""

_OPEN = re.compile(
    "|".join(rf"\+{key}=[^,+]*(,[^,+]*){{0,{commas - 1}}}$" for key, commas in LISTS.items())
)
"""The end of a strategy with a packer in whose value a comma may follow."""

SUMMING = ("all_reduce", "reduce_scatter", "reduce")
"""The collectives that add."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How to pack and move a gradient list; `spec` and `packing` are the two halves of `text`.

    `chunk` is the most bytes that a pipeline sends as one piece, 0 for no limit. `nccl` is the
    protocol and the number of channels of NCCL, where they are given. `library` is rccl where the
    text names it for nccl, as AMD's GPUs have it. A rule that looks at the layout first
    (`AUTOMATIC`) is its own spec and has no ranges before `resolve`.
    """

    text: str
    spec: str
    packing: str
    ranges: tuple[Range, ...]
    packer: Packer
    mean: bool = False
    chunk: int = 0
    collective: str = "all_reduce"
    nccl: Decision = OPEN
    library: str = ""

    def __str__(self) -> str:
        return self.text

    @property
    def by_nccl(self) -> bool:
        """Whether NCCL moves every byte: that of DDP or Horovod, which give it their buckets, or by
        itself; or kernels do, which have switches sum or read the memory of peers, as no copy of
        TensorFlow does. NCCL within tasks only, or called by TensorFlow's packers, is not.
        """
        library = isinstance(self.packer, (DdpBuckets, Fusion))
        catalogue = COLLECTIVES[self.collective]
        summed = any(catalogue[r.algorithm].kernel for r in self.ranges)
        alone = isinstance(self.packer, NoPacking) and self.reduced_by_nccl
        return library or summed or alone

    @property
    def reduced_by_nccl(self) -> bool:
        """Whether all its collectives are NCCL's own, whoever packs."""
        return {r.algorithm.partition(":")[0] for r in self.ranges} == {"nccl"}

    @property
    def algorithm(self) -> str:
        """NCCL's algorithm where it is named, for all sizes; else ""."""
        names = {r.algorithm.partition(":") for r in self.ranges}
        return next(iter(names))[2] if len(names) == 1 and self.reduced_by_nccl else ""

    @property
    def is_nominal(self) -> bool:
        """Whether no published times were compared with an algorithm of it: CollNet, PAT."""
        return any(r.algorithm in ("nccl:collnet", "nccl:pat") for r in self.ranges)

    @property
    def pipelined(self) -> bool:
        """Whether one of its algorithms sends chunks."""
        return any(COLLECTIVES[self.collective][r.algorithm].pipelined for r in self.ranges)


def parse_strategy(text: str, collective: str = "all_reduce") -> Strategy:
    """Read a strategy for a collective; StrategyError lists everything that is wrong with it."""
    check_collective(collective)
    if not text.strip():
        raise StrategyError("an empty strategy")
    rules = AUTOMATIC if collective == "all_reduce" else {}
    spec, *options = text.strip().split("+")
    spec, library = _of_library(spec)
    faults = Faults()
    ranges: list[Range] = []
    if others := _collectives_of(spec, collective):
        faults.add(text, f"it does {' and '.join(others)}, and this is {collective}")
    elif spec not in rules:
        try:
            catalogue = COLLECTIVES[collective]
            names: ChainMap[str, Any] = ChainMap(catalogue, {**rules})
            ranges = parse_spec(spec, names, hint=lambda name: catalogue.hint(name, rules))
        except StrategyError as error:
            name = "strategy" if collective == "all_reduce" else collective
            for problem in error.problems:
                faults.add("", problem.replace("all_reduce_spec", name, 1))
    packer: Packer = NoPacking()
    packing, mean, chunk, nccl = "none", False, 0, OPEN
    for option in options:
        key, equals, value = option.partition("=")
        if key == "mean" and not equals:
            mean = True
        elif key == "chunk" and equals:
            chunk = faults.attempt(f"{text}: +{option}", _read_chunk, value) or 0
        elif option in _PROTOCOLS and not nccl.protocol:
            nccl = nccl._replace(protocol=option)
        elif key == "channels" and equals and not nccl.channels:
            channels = faults.attempt(f"{text}: +{option}", _read_channels, value) or 0
            nccl = nccl._replace(channels=channels)
        elif key in PACKERS:
            if packing != "none":
                faults.add(text, f"two packers, +{packing} and +{option}; give one")
            packing = option
            packer = faults.attempt(text, PACKERS[key], value if equals else None) or packer
        else:
            by_nccl = [*_PROTOCOLS, "channels=N"] if spec.startswith("nccl") else []
            known = [*PACKERS, *_OTHERS, *by_nccl]
            near = did_you_mean(key, known) or f"; known: {', '.join('+' + k for k in known)}"
            faults.add(text, f"unknown option +{option}{near}")
    if collective != "all_reduce":
        if packing != "none":
            words = "packs gradients for an all-reduce, and this is"
            faults.add(text, f"+{packing} {words} {collective}")
        if len(ranges) > 1:
            faults.add(text, f"ranges of sizes are for an all-reduce, and this is {collective}")
        if mean and collective not in SUMMING:
            faults.add(text, f"{collective} sums nothing that +mean could divide")
    if packing != "none" and spec in AUTOMATIC:
        faults.add(text, f"{spec} chooses its own packing; leave out +{packing}")
    for name in [r.algorithm for r in ranges if r.algorithm in AUTOMATIC]:
        faults.add(text, f"{name} is a whole strategy: it takes no shards and no other ranges")
    if not others and nccl != OPEN and not any(r.algorithm.startswith("nccl") for r in ranges):
        faults.add(text, f"protocols and channels are NCCL's; {spec} has none")
    faults.raise_any(StrategyError)
    return Strategy(
        text.strip(), spec, packing, tuple(ranges), packer, mean, chunk, collective, nccl, library
    )


def _collectives_of(spec: str, collective: str) -> list[str]:
    """The collectives of an algorithm that does others than this one; empty for any other spec, and
    for pairs.
    """
    if "/" in spec:
        return []
    does = [name for name, catalogue in COLLECTIVES.items() if spec.partition("#")[0] in catalogue]
    return [] if collective in does else does


def _of_library(spec: str) -> tuple[str, str]:
    """A spec with nccl in the place of rccl, and which of the two it said: AMD's library has the
    name of NVIDIA's in all frameworks.
    """
    named = re.fullmatch(r"rccl((?![A-Za-z_]).*)?", spec)
    return (f"nccl{named[1] or ''}", "rccl") if named else (spec, "")


def check_library(strategy: Strategy, layout: Layout) -> None:
    """StrategyError if the strategy names a library that the GPUs do not run."""
    if strategy.library not in ("", layout.rules.library):
        raise StrategyError(f"{strategy.text}: rccl runs on AMD's GPUs; here it is nccl")


def _read_channels(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_CHANNELS:
        raise ValueError(f"must be 1 to {_MOST_CHANNELS} channels")
    return int(text)


def _read_chunk(text: str) -> int:
    if (size := units.cli_size(text)) < 1:
        raise ValueError("a chunk has at least 1 byte")
    return size


def check_collective(name: str) -> str:
    """The name of a collective; StrategyError names the nearest."""
    if not isinstance(name, str):
        words = f"expected one of {', '.join(COLLECTIVES)}"
        raise TypeError(f"collective: {words}, got {type(name).__name__} {quote(name)}")
    if name not in COLLECTIVES:
        near = did_you_mean(name, COLLECTIVES) or f"; one of {', '.join(COLLECTIVES)}"
        raise StrategyError(f"collective: unknown {name!r}{near}")
    return name


def split_strategies(text: str, collective: str = "all_reduce") -> list[str]:
    """The texts of `A,B`. A comma in the value of a packer parts nothing, unless a strategy follows
    it.

    >>> split_strategies("ring+small=64K,10,direct+repack=8,fp16+mean")
    ['ring+small=64K,10', 'direct+repack=8,fp16+mean']
    """
    found: list[str] = []
    for part in text.split(","):
        if found and _OPEN.search(found[-1]) and not _is_strategy(part, collective):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def misplaced(texts: Iterable[str]) -> list[str]:
    """Return the faults of a list of strategies as a list, whatever the strategies are.

    They are `ALL` beside others, and a strategy that is there twice.
    """
    times = Counter(text.strip() for text in texts)
    problems = [f'"{ALL}" stands alone'] if ALL in times and len(times) > 1 else []
    return problems + [
        f"{text} stands there {units.plural(n, 'time')}" for text, n in times.items() if n > 1
    ]


def _is_strategy(text: str, collective: str) -> bool:
    if text == ALL:
        return True
    try:
        parse_strategy(text, collective)
    except StrategyError:
        return False
    return True


def resolve(strategy: Strategy, layout: Layout) -> Strategy:
    """`strategy`; if it is one of the rules of `AUTOMATIC`, the strategy that the rule chooses on
    `layout`.
    """
    if strategy.spec not in AUTOMATIC:
        return strategy
    return parse_strategy(AUTOMATIC[strategy.spec](layout) + "+mean" * strategy.mean)
