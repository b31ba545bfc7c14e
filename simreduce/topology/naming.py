"""Names of nodes and the order people expect of them."""

from __future__ import annotations

import re

from simreduce.errors import quote

MOST_NAMES = 4096
"""Upper limit of the names of a range."""

_RANGE = re.compile(
    r"(?P<head>[^\[\]]*)\[(?P<first>[0-9]{1,18})-(?P<last>[0-9]{1,18})(:(?P<step>[0-9]{1,"
    r"18}))?\](?P<tail>[^\[\]]*)"
)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts gpu2 before gpu10; distinct names have distinct keys."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return (*((int(p), "") if p[0] in "0123456789" else (-1, p) for p in parts), (-2, name))


def expand_range(text: str) -> list[str]:
    """Return the names in `gpu[0-7]` or `cpu[0-34:2]` (every second).

    A text without brackets is one name. Raises `ValueError` when the brackets hold anything else,
    or too many names.
    """
    if "[" not in text and "]" not in text:
        return [text]
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{quote(text)}: a range is written like gpu[0-7] or cpu[0-34:2]")
    first, last, step = int(match["first"]), int(match["last"]), int(match["step"] or 1)
    if last < first or step < 1:
        raise ValueError(
            f"{quote(text)} stands for no names: a range goes from the lower number to the higher"
        )
    numbers = range(first, last + 1, step)
    if len(numbers) > MOST_NAMES:
        words = f"{len(numbers)} names, and a range for {MOST_NAMES} at most"
        raise ValueError(f"{quote(text)} stands for {words}")
    return [f"{match['head']}{number}{match['tail']}" for number in numbers]


def pair_names(ends: list[str], others: list[str]) -> list[tuple[str, str]]:
    """Pairs of the names of two ranges: each of the longer with its share of the shorter, in
    blocks.

    gpu[0-7] and plx[0-3] pair gpu0 and gpu1 with plx0, gpu2 and gpu3 with plx1, and so on; one name
    pairs with all. Raises `ValueError` unless one length divides the other.
    """
    longer = max(len(ends), len(others))
    if longer % len(ends) or longer % len(others):
        raise ValueError(
            f"{len(ends)} and {len(others)} names do not pair: one must be a multiple of the other"
        )
    share, other_share = longer // len(ends), longer // len(others)
    return [(ends[i // share], others[i // other_share]) for i in range(longer)]


_PLACES = re.compile(r"(?P<head>[^\[\],]*)(\[(?P<numbers>[0-9,-]+)\](?P<tail>[^\[\],]*))?(?:,|$)")


def expand_hosts(text: str) -> list[str]:
    """The names in a host list as Slurm writes it, `n[0-3,07],login`, in the order given.

    Leading zeros stay. Raises `ValueError` for other brackets, empty names, and too many names.
    """
    found: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _PLACES.match(text, at)
        if match is None or not match[0].rstrip(",").strip():
            raise ValueError(f"{quote(text)}: hosts are written like n[0-3,7],n12")
        at = match.end()
        head, numbers, tail = match["head"].strip(), match["numbers"], match["tail"] or ""
        for part in numbers.split(",") if numbers else ():
            first, dash, last = part.partition("-")
            ends = (first, last) if dash else (first, first)
            if not all(end.isdecimal() and len(end) < 10 for end in ends):
                raise ValueError(f"{quote(text)}: {quote(part)} is no number or range")
            low, high = map(int, ends)
            if not 0 <= high - low < MOST_NAMES - len(found):
                raise ValueError(f"{quote(text)}: {part} stands for no names, or for too many")
            found += [f"{head}{n:0{len(first)}}{tail}" for n in range(low, high + 1)]
        if not numbers:
            found.append(head)
    return found
