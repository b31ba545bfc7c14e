"""Groups of names that links join, however many links lie between."""

from __future__ import annotations

from collections.abc import Iterable


def joined(names: Iterable[str], pairs: Iterable[Iterable[str]]) -> list[set[str]]:
    """The connected parts of `names` and of what the pairs name, in the order of their firsts."""
    # Not networkx's: it takes long to load, and most machines do without.
    near: dict[str, list[str]] = {name: [] for name in names}
    for a, b in pairs:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    parts: list[set[str]] = []
    seen: set[str] = set()
    for name in near:
        if name in seen:
            continue
        part, left = {name}, [name]
        while left:
            new = {other for other in near[left.pop()] if other not in part}
            part |= new
            left += new
        seen |= part
        parts.append(part)
    return parts
