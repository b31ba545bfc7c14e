"""The all-reduce spec of tf_cnn_benchmarks: `alg[#shards]{:limit:alg[#shards]}`.

`pscpu:32k:xring` sends gradients of at most 32 x 1024 *elements* to pscpu and the rest to xring.
The grammar is that of `allreduce.py`; simreduce's own algorithms extend only the set of names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from simreduce.errors import StrategyError, did_you_mean

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
        shards = _integer(pieces[1]) if len(pieces) > 1 else 1
        if shards is None:
            problems.append(f"all_reduce_spec ({spec}) contains non-integer #shards {pieces[1]}")
        value = _limit(limit)
        if value is None:
            problems.append(
                f"all_reduce_spec ({spec}) contains non-integer range {limit} "
                "(a limit is a number of elements, with a suffix K, k, M, G or T)"
            )
        ranges.append(Range(pieces[0], shards or 0, value if value is not None else 0))
    if problems:
        raise StrategyError(problems)
    return ranges


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _limit(text: str) -> int | None:
    match = _WITH_SUFFIX.fullmatch(text)
    if match is None:
        return _integer(text)
    number = _integer(match.group(1))
    return None if number is None else number * int(1024 ** _SUFFIX[match.group(2)])


def assign(ranges: list[Range], sizes: list[int]) -> list[list[int]]:
    """For every range, the gradients it takes (indices, ascending): elements <= limit, in the order
    of the ranges.
    """
    left = list(range(len(sizes)))
    taken = []
    for limit in (r.limit for r in ranges):
        fits = [i for i in left if limit < 0 or sizes[i] <= limit]
        taken.append(fits)
        chosen = set(fits)
        left = [i for i in left if i not in chosen]
    return taken
