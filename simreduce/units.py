"""Quantities are SI inside (bytes, seconds, bytes/s); this module reads and writes them at the
edge.

Two dialects of size, as their users expect: on the command line and in specs `64M` is 64 x 2^20
(nccl-tests); in files a unit is spelled out, `64 MiB` is 2^20 and `64 MB` is 10^6. Bandwidth is per
direction and decimal: `25 GB/s`, `200 Gbit/s`. Every reader raises `ValueError` with a message that
shows a valid spelling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence, Sized
from fractions import Fraction

from simreduce.errors import quote

_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+(?:[eE][+-]?[0-9]{1,3})?)"
_QUANTITY = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z/%]*)\s*")

MIB = 1 << 20
"""Bytes."""

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZES = {f"{p}B": f for p, f in {**_DECIMAL, **_BINARY}.items()} | {"KB": 10**3}
_RATES = (
    {f"{p}B/s": float(f) for p, f in {**_DECIMAL, **_BINARY}.items()}
    | {f"{p}bit/s": f / 8 for p, f in _DECIMAL.items()}
    | {f"{p}bps": f / 8 for p, f in _DECIMAL.items()}
)
_FLOPS = {
    f"{p}{unit}": float(f)
    for p, f in (*_DECIMAL.items(), ("P", 10**15))
    for unit in ("FLOP/s", "FLOPS")
}
_WORK = {
    f"{p}{unit}": f for p, f in (*_DECIMAL.items(), ("P", 10**15)) for unit in ("FLOP", "FLOPs")
}
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_CLI_SUFFIX = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


_LONGEST = 100
"""Characters of the longest quantity that is read."""
_LARGEST = 2**63 - 1
"""Bytes of the largest size that is read."""


def _split(text: object, known: Collection[str], what: str, examples: str) -> tuple[str, str]:
    """The number and the unit of a quantity."""
    if not isinstance(text, str):
        raise ValueError(  # noqa: TRY004 - a fault of what a user wrote
            f"{quote(text)} has no unit; write a {what} as text, for example {examples}"
        )
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if not match:
        raise ValueError(f"{quote(text)} is not a {what}; write for example {examples}")
    number, unit = match.groups()
    if not unit and unit not in known:
        raise ValueError(f"{quote(text)} has no unit; write for example {examples}")
    if unit not in known:
        raise ValueError(
            f"{quote(text)}: unknown unit {unit!r} for a {what}; write for example {examples}"
        )
    return number, unit


def read(text: object, table: dict[str, float], what: str, examples: str) -> float:
    """The number of a quantity times the factor of its unit in a table."""
    number, unit = _split(text, table, what, examples)
    value = float(number) * table[unit]
    if not math.isfinite(value):
        raise ValueError(f"{quote(text)} is too large for a {what}")
    return value


def _whole(text: object, number: str, factor: int) -> int:
    """Bytes, without rounding on the way: 1.005 kB are 1005."""
    value = Fraction(number) * factor
    if value > _LARGEST:
        raise ValueError(f"{quote(text)} is too large for a size")
    if value.denominator != 1:
        raise ValueError(f"{quote(text)} is not a whole number of bytes")
    return int(value)


def bandwidth(text: object) -> float:
    """Bytes/s of `25 GB/s`, `200 Gbit/s` or `200 Gbps`; decimal prefixes, per direction."""
    return read(text, _RATES, "bandwidth", "'25 GB/s' or '200 Gbit/s'")


def flops(text: object) -> float:
    """Floating-point operations per second of `15.7 TFLOP/s` or `312 TFLOPS`."""
    return read(text, _FLOPS, "rate of computing", "'6.5 TFLOP/s' or '300 GFLOPS'")


def work(text: object) -> float:
    """Floating-point operations of `236.027904 MFLOP`, rounded once."""
    number, unit = _split(text, _WORK, "number of floating-point operations", "'7.7 GFLOP'")
    value = Fraction(number) * _WORK[unit]
    if value > _LARGEST:
        raise ValueError(f"{quote(text)} is too large for the work on a sample")
    return float(value)


def duration(text: object) -> float:
    """Seconds of `1.5 us`, `700 ns` or `2 ms`."""
    return read(text, _TIMES, "time", "'1.5 us' or '700 ns'")


def size(text: object) -> int:
    """Bytes of `64 MiB` (2^20) or `64 MB` (10^6), as written in files; must be whole."""
    number, unit = _split(text, _SIZES, "size", "'64 MiB' or '64 MB'")
    return _whole(text, number, _SIZES[unit])


def cli_size(text: str) -> int:
    """Bytes of nccl-tests' spelling: a number and one of K M G T in either case, powers of 1024.

    The spelled-out units of files (`64 MiB`, `64MB`) are accepted too and mean what they say there.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match and match.group(2).upper() in _CLI_SUFFIX:
        return _whole(text, match.group(1), _CLI_SUFFIX[match.group(2).upper()])
    if match and match.group(2) in _SIZES:
        return size(text)
    raise ValueError(
        f"{quote(text)} is not a size; write for example '64M', '512K', '64MiB' or '1048576'"
    )


def noun(count: int, word: str, many: str = "") -> str:
    """The word as it stands behind a count: `device`, `devices`."""
    return word if count == 1 else many or f"{word}s"


def plural(count: int, word: str, many: str = "") -> str:
    """`1 device`, `2 devices`."""
    return f"{count} {noun(count, word, many)}"


def first_few(names: Sequence[str], most: int = 3) -> str:
    """`ring, chain, direct and 7 more`: the first names, and how many there are besides."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def and_more(items: Sized, what: str = "") -> str:
    """` (and 3 more pairs)`: how many items there are besides the first, "" if none."""
    return f" (and {len(items) - 1} more{what})" if len(items) > 1 else ""


def format_size(nbytes: float) -> str:
    """`102.2 MB` style: decimal, four significant digits."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(nbytes) >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes:.4g} B"


def format_duration(seconds: float) -> str:
    """`10.02 ms` style: four significant digits in the largest unit that gives at least 1."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def format_bandwidth(rate: float) -> str:
    """`18.3 GB/s` style: decimal, four significant digits."""
    return f"{rate / 1e9:.4g} GB/s"


def share(text: object) -> float:
    """A part of a whole, of text such as `1 %`."""
    return read(text, {"%": 0.01}, "part", "1 %")


def format_share(share: float) -> str:
    """A part of a whole in percent: `1 %`, `0.25 %`."""
    return f"{share * 100:.3g} %"


def exact_size(nbytes: int) -> str:
    """A text that `size` reads as the same number: whole, in the largest binary unit that allows
    it, as `768 KiB`.
    """
    for unit, factor in reversed(_BINARY.items()):
        if nbytes and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}B"
    return f"{nbytes} B"


def short_size(nbytes: int) -> str:
    """A text that `cli_size` reads as the same number: in GB or MB where that is whole, as `25MB`,
    else in the largest binary unit, as `256KiB`.
    """
    for unit in ("GB", "MB"):
        if nbytes and nbytes % _SIZES[unit] == 0:
            return f"{nbytes // _SIZES[unit]}{unit}"
    return exact_size(nbytes).replace(" ", "")


def exact_work(operations: float) -> str:
    """A text that `work` reads as the same number: in MFLOP where that is exact."""
    short = f"{operations / 1e6:.15g} MFLOP"
    return short if work(short) == operations else f"{operations!r} FLOP"


def exact_bandwidth(rate: float) -> str:
    """A text that `bandwidth` reads as the same number: in GB/s where that is exact."""
    short = f"{rate / 1e9:.6g} GB/s"
    return short if bandwidth(short) == rate else f"{rate!r} B/s"


def exact_duration(seconds: float) -> str:
    """A text that `duration` reads as the same number: in us where that is exact."""
    short = f"{seconds * 1e6:.6g} us"
    return short if duration(short) == seconds else f"{seconds!r} s"


def format_rate(per_second: float) -> str:
    """`2651.1` or `0.0234`: one decimal, or three significant digits below 1."""
    return f"{per_second:.1f}" if not 0.0 < per_second < 1.0 else f"{per_second:.3g}"


def format_amount(amount: float) -> str:
    """`12,300` or `1.374`: four significant digits, whole from 10,000 on."""
    if not math.isfinite(amount):
        return "unlimited"
    return f"{amount:,.0f}" if abs(amount) >= 1e4 else f"{amount:.4g}"
