"""How to reduce: packer and size ranges, as text and as a value; `compile` makes the plan.

A strategy as users type it: `SPEC[+PACKER][+chunk=BYTES][+mean]`, for example
`hierarchical_copy+packs=8`, `ring+ddp` or `chain+chunk=1MiB`. NCCL's also say how NCCL does it:
`nccl:tree+ll128+channels=16`.

The all-reduce spec of tf_cnn_benchmarks: `alg[#shards]{:limit:alg[#shards]}`.

`pscpu:32k:xring` sends gradients of at most 32 x 1024 *elements* to pscpu and the rest to xring.
The grammar is that of `allreduce.py`; simreduce's own algorithms extend only the set of names.

The `all_reduce_spec` of MultiWorkerAllReduce (TensorFlow 1.12 cross_tower_ops.py, 1.14
cross_device_ops.py).

The strategies that TensorFlow chooses by itself, by the name of what chooses.

A choice is a rule from a layout to the text of another strategy. Peer access is taken to be a
direct link, which is where the driver reports it.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simreduce import units
from simreduce.errors import StrategyError, did_you_mean, near_or_all, quote, refuse
from simreduce.files.formats.syntax import Faults
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.planners.layouts import OPEN, Decision, Layout
from simreduce.planners.packing import LISTS, PACKERS, DdpBuckets, Fusion
from simreduce.planners.packing.arrangement import NoPacking, Packer

UPSTREAM = (
    "nccl",
    "nccl/xring",
    "nccl/rechd",
    "nccl/pscpu",
    "xring",
    "pscpu",
    "psgpu",
    "pscpu/pscpu",
    "collective",
)
"""The names that tf_cnn_benchmarks takes."""

NO_LIMIT = -1

_SUFFIX = {"K": 1, "k": 1, "M": 2, "G": 3, "T": 4}
_WITH_SUFFIX = re.compile(r"(\d+)([KkMGT])")


class Range(NamedTuple):
    """One range of sizes: gradients of at most `limit` elements (NO_LIMIT: all that are left)."""

    algorithm: str
    shards: int = 1
    limit: int = NO_LIMIT

    def __str__(self) -> str:
        return self.algorithm if self.shards == 1 else f"{self.algorithm}#{self.shards}"


def parse_all_reduce_spec(spec: str, *, faithful: bool = False) -> list[Range]:
    """`parse_all_reduce_spec` of tf_cnn_benchmarks.

    A shard count that is no number is a ValueError like the other faults; upstream's (`faithful`)
    is a TypeError, as its message is built wrongly.

    >>> parse_all_reduce_spec("pscpu:2k:xring#2")
    [Range(algorithm='pscpu', shards=1, limit=2048), Range(algorithm='xring', shards=2, limit=-1)]
    """
    try:
        return parse_spec(spec, UPSTREAM, strict=False)
    except StrategyError as error:
        if faithful and "non-integer #shards" in error.problems[0]:
            raise TypeError("not enough arguments for format string") from None
        raise


def parse_spec(
    spec: str,
    algorithms: Collection[str],
    *,
    strict: bool = True,
    hint: Callable[[str], str] | None = None,
) -> list[Range]:
    """The ranges of `spec`, whose algorithms must be among `algorithms`; every fault is raised at
    once.

    `strict` refuses a second `#` in a range; upstream takes no notice of it. `hint` says, after an
    unknown name, what to type instead; without one it is the nearest of `algorithms`, or all of
    them.
    """
    fields = spec.split(":")
    for i in reversed(range(len(fields) - 1)):
        if f"{fields[i]}:{fields[i + 1].partition('#')[0]}" in algorithms:
            fields[i : i + 2] = [":".join(fields[i : i + 2])]
    if len(fields) % 2 == 0:
        named = [name for name in algorithms if ":" in name]
        near = did_you_mean(spec, named) if _limit(fields[1]) is None else ""
        raise StrategyError(
            f"all_reduce_spec not well formed: {spec}{near}: after a ':' come a limit, another ':' "
            "and an algorithm, as in 'pscpu:32k:xring'"
        )
    problems: list[str] = []
    ranges = []
    for text, limit in zip(fields[::2], [*fields[1::2], str(NO_LIMIT)], strict=True):
        pieces = text.split("#")
        if pieces[0] not in algorithms:
            near = hint(pieces[0]) if hint else did_you_mean(pieces[0], algorithms)
            instead = near or f"; known: {', '.join(algorithms)}"
            problems.append(f"all_reduce_spec ({spec}) contains invalid alg {pieces[0]}{instead}")
        if strict and len(pieces) > 2:
            problems.append(f"all_reduce_spec ({spec}) has more than one # in {text}")
        shards, value = _integer(pieces[1]) if len(pieces) > 1 else 1, _limit(limit)
        if shards is None:
            problems.append(f"all_reduce_spec ({spec}) contains non-integer #shards {pieces[1]}")
        if value is None:
            problems.append(
                f"all_reduce_spec ({spec}) contains non-integer range {limit} "
                "(a limit is a number of elements, with a suffix K, k, M, G or T)"
            )
        ranges.append(Range(pieces[0], shards or 0, value or 0))
    refuse(problems, StrategyError)
    return ranges


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _limit(text: str) -> int | None:
    match = _WITH_SUFFIX.fullmatch(text)
    number = _integer(match[1] if match else text)
    return number * int(1024 ** _SUFFIX[match[2]]) if match and number is not None else number


def assign(ranges: list[Range], sizes: list[int]) -> list[list[int]]:
    """For every range, the gradients it takes (indices, ascending): elements <= limit, in the order
    of the ranges.
    """
    left = list(range(len(sizes)))
    taken = []
    for limit in (r.limit for r in ranges):
        taken.append([i for i in left if limit < 0 or sizes[i] <= limit])
        left = sorted({*left} - {*taken[-1]})
    return taken


DEFAULT = ("pscpu/pscpu", 2, NO_LIMIT)
"""The spec that MultiWorkerAllReduce uses if none is given."""


def parse_multi_worker_spec(value: object, *, faithful: bool = False) -> list[Range]:
    """The ranges of `(alg[, shards[, limit]])`, of a list of such tuples, or of the name of one
    algorithm.

    A name is taken whole: the grammar of tf_cnn_benchmarks' specs (`pscpu#2`) is not applied, and
    names are checked only when something is reduced. Anything else is a StrategyError, with every
    fault; upstream reads it as no range at all (`faithful`), which fails at the first reduction.

    >>> parse_multi_worker_spec([("pscpu", 2, 2048), ("xring",)])
    [Range(algorithm='pscpu', shards=2, limit=2048), Range(algorithm='xring', shards=1, limit=-1)]
    """
    if isinstance(value, str):
        return [Range(value)]
    if not isinstance(value, tuple | list):
        if faithful:
            return []
        raise StrategyError(
            f"all_reduce_spec {value!r}: a name, a tuple (alg, shards, limit) or a list of such "
            "tuples is expected"
        )
    ranges: list[Range] = []
    problems: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, tuple):
            problems.append(f"A tuple is expected for all_reduce spec: {item!r}")
        elif not 1 <= len(item) <= len(Range._fields):
            problems.append(
                f"Too many elements in the all_reduce_spec tuple: {item!r} (1 to 3 are expected)"
            )
        elif not isinstance(item[0], str) or not all(type(number) is int for number in item[1:]):
            problems.append(
                f"all_reduce_spec tuple {item!r}: a name and up to two whole numbers are expected"
            )
        else:
            ranges.append(Range(*item))
    refuse(problems, StrategyError)
    return ranges


DGX1_PEERS: tuple[frozenset[int], ...] = tuple(
    frozenset(row)
    for row in (
        (1, 2, 3, 4), (0, 2, 3, 5), (0, 1, 3, 6), (0, 1, 2, 7),
        (0, 5, 6, 7), (1, 4, 6, 7), (2, 4, 5, 7), (3, 4, 5, 6),
    )
)  # fmt: skip
"""The peers of every GPU of a DGX-1 (TensorFlow 1.14 cross_device_ops.py, `_has_dgx1_like_links`).
"""


def has_dgx1_like_links(peers: Sequence[Collection[int]]) -> bool:
    """Whether the first 8 rows equal `DGX1_PEERS`, each with or without the device itself.

    The position of a row says which device it is. Rows beyond 8 are not looked at.
    """
    if len(peers) < len(DGX1_PEERS):
        return False
    rows = zip(peers, DGX1_PEERS, strict=False)
    return all(set(row) - {i} == known for i, (row, known) in enumerate(rows))


def choose_the_best(layout: Layout, requested: int | None = None) -> str:
    """TensorFlow 1.12 and 1.14 (`choose_the_best`), for `requested` devices of the layout; all
    unless given.

    Fewer devices than requested, or one that is no GPU: reduce to one device. Links like a DGX-1's:
    hierarchical copy in as many packs as there are devices. Else NCCL in one pack. With several
    workers, 1.12 takes MultiWorkerAllReduce with its default spec.
    """
    if (requested is not None and requested > layout.n) or _cpus(layout):
        return "reduce_to_one"
    if len(layout.tasks) > 1:
        return "pscpu/pscpu#2"
    peers = [{j for j, lanes in enumerate(row) if lanes} for row in layout.links]
    return f"hierarchical_copy+packs={layout.n}" if has_dgx1_like_links(peers) else "nccl+packs=1"


def select_cross_device_ops(layout: Layout) -> str:
    """TensorFlow 2 (`select_cross_device_ops`): NcclAllReduce in one pack if all devices are GPUs,
    else to one device.

    The links play no part any more.
    """
    return "reduce_to_one" if _cpus(layout) else "nccl+packs=1"


def mirrored_strategy(layout: Layout) -> str:
    """TensorFlow 2 (`MirroredStrategy` without cross_device_ops): CollectiveAllReduce.

    By NCCL on GPUs, as a ring on CPUs, and in one pack, the default `bytes_per_pack` of 0 (inside
    `tf.function`; eager mode takes one collective per gradient). GPUs and CPUs together are reduced
    to one device.
    """
    cpus = _cpus(layout)
    if 0 < cpus < layout.n:
        return "reduce_to_one"
    return "collective+bucket=0" if cpus else "nccl+bucket=0"


def _cpus(layout: Layout) -> int:
    return sum(rank in layout.hosts for rank in layout.ranks)


INTENDED = ("pscpu/pscpu",)
"""Algorithms whose quirk is tf_cnn_benchmarks' alone: TensorFlow's MultiWorkerAllReduce takes the
first k CPUs.
"""

AUTOMATIC: Mapping[str, Callable[[Layout], str]] = {
    "choose_the_best": choose_the_best,
    "select_cross_device_ops": select_cross_device_ops,
    "mirrored_strategy": mirrored_strategy,
}
"""Every rule by the name users type in the place of a spec."""


def tensorflow_choice(layout: Layout) -> dict[str, str]:
    """Return the choice of every rule on `layout`, by the rule's name."""
    return {name: rule(layout) for name, rule in AUTOMATIC.items()}


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
        summed = any(COLLECTIVES[self.collective][r.algorithm].kernel for r in self.ranges)
        return library or summed or (isinstance(self.packer, NoPacking) and self.reduced_by_nccl)

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
            words = f"two packers, +{packing} and +{option}; give one"
            faults.check(packing == "none", text, words)
            packing = option
            packer = faults.attempt(text, PACKERS[key], value if equals else None) or packer
        else:
            of_nccl = [*_PROTOCOLS, "channels=N"] if spec.startswith("nccl") else []
            known = [*PACKERS, *_OTHERS, *of_nccl]
            near = did_you_mean(key, known) or f"; known: {', '.join('+' + k for k in known)}"
            faults.add(text, f"unknown option +{option}{near}")
    packs, another = packing != "none", collective != "all_reduce"
    by_nccl = any(r.algorithm.startswith("nccl") for r in ranges)
    for broken, why in (
        (another and packs,
         f"+{packing} packs gradients for an all-reduce, and this is {collective}"),
        (another and len(ranges) > 1,
         f"ranges of sizes are for an all-reduce, and this is {collective}"),
        (another and mean and collective not in SUMMING,
         f"{collective} sums nothing that +mean could divide"),
        (packs and spec in AUTOMATIC, f"{spec} chooses its own packing; leave out +{packing}"),
        *((r.algorithm in AUTOMATIC,
           f"{r.algorithm} is a whole strategy: it takes no shards and no other ranges")
          for r in ranges),
        (not others and nccl != OPEN and not by_nccl,
         f"protocols and channels are NCCL's; {spec} has none"),
    ):  # fmt: skip
        faults.check(not broken, text, why)
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
        raise StrategyError(
            f"collective: unknown {name!r}{near_or_all(name, COLLECTIVES, '; one of ')}"
        )
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
    try:
        return text == ALL or bool(parse_strategy(text, collective))
    except StrategyError:
        return False


def resolve(strategy: Strategy, layout: Layout) -> Strategy:
    """`strategy`; if it is one of the rules of `AUTOMATIC`, the strategy that the rule chooses on
    `layout`.
    """
    if strategy.spec not in AUTOMATIC:
        return strategy
    return parse_strategy(AUTOMATIC[strategy.spec](layout) + "+mean" * strategy.mean)
