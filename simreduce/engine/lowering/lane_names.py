"""The lanes of many calls at once.

Calls that differ in the names of nodes only are looked at together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Ints, row_starts
from simreduce.engine.lowering.signatures import Signatures
from simreduce.engine.runtime import Call, Runtime, named_lanes
from simreduce.plan import Executor, Kind
from simreduce.topology import Node

_ENDS = ("\0a", "\0b", "\0m", "\0n")
"""Placeholders for the names of the source, of the target, and of their machines."""

_NAMED = re.compile("(\0[abmn])")


def number_alike(
    signatures: Signatures,
    far: Bools,
    nodes: Sequence[Node],
    runtime: Runtime,
    numbers: dict[str, int],
) -> tuple[Ints, Ints, Ints]:
    """Return where the lanes of each call begin and end, how many are no pipes, and their numbers.

    The first call is left out. A lane's number is found by its name in `numbers`, which is given
    the new ones in order.
    """
    names, ends = _ends(signatures, nodes)
    which, calls = _classes(signatures, far[1:], nodes, runtime, ends)
    found = [named_lanes(call, runtime) for call in calls]
    early, late = (np.array([len(each[i]) for each in found])[which] for i in (0, 1))
    start = row_starts(early + late)
    text = np.zeros(start[-1], dtype=np.int32)
    used = np.full((len(_ENDS), start[-1]), -1, dtype=np.int32)
    texts: dict[str, int] = {}
    order = np.argsort(which, kind="stable")
    edges = row_starts(np.bincount(which, minlength=len(found)))
    for i, each in enumerate(found):
        members = order[edges[i] : edges[i + 1]]
        for place, name in enumerate((*each[0], *each[1])):
            at = start[members] + place
            text[at] = texts.setdefault(name, len(texts))
            for end, mark in enumerate(_ENDS):
                if mark in name:
                    used[end, at] = ends[end][members]
    return start, early, _number(text, used, list(texts), names, numbers)


def _ends(signatures: Signatures, nodes: Sequence[Node]) -> tuple[list[str], tuple[Ints, ...]]:
    """Return names, and by call the places in them of its two nodes and their machines.

    The first call is left out.
    """
    source, target, away = signatures.source[1:], signatures.target[1:], signatures.away[1:]
    place: dict[str, int] = {}
    name = np.array([place.setdefault(node.name, len(place)) for node in nodes])
    machine = np.array([place.setdefault(node.machine, len(place)) for node in nodes])
    here, there = machine[source], machine[target]
    names = list(place)
    for call in np.flatnonzero((away > 1) & (here != there)).tolist():
        far = f"{names[here[call]]}+{away[call]}"
        if far not in place:
            place[far] = len(names)
            names.append(far)
        there[call] = place[far]
    return names, (name[source], name[target], here, there)


def _classes(
    signatures: Signatures,
    far: Bools,
    nodes: Sequence[Node],
    runtime: Runtime,
    ends: tuple[Ints, ...],
) -> tuple[Ints, list[Call]]:
    """Return the class of every call but the first, and a call of each class.

    The call's nodes have `_ends` for names where the class is of several nodes.
    """
    executor, kind, source, target, channel = (column[1:] for column in signatures[:5])
    plain = (executor != Executor.TF) | runtime.plain
    place: dict[Node, int] = {}
    like = np.array(
        [place.setdefault(replace(node, name="", machine=""), len(place)) for node in nodes]
    )
    near, joined = ends[0] == ends[1], ends[2] == ends[3]
    sides = (np.where(plain, like[end], len(nodes) + end) for end in (source, target))
    key = _key([executor, kind, channel, far.astype(np.int8), near, joined, *sides])
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    calls = []
    for i in first.tolist():
        here, there = nodes[source[i]], nodes[target[i]]
        if plain[i]:
            a, b, m, n = _ENDS
            here = replace(here, name=a, machine=m)
            there = replace(there, name=a if near[i] else b, machine=m if joined[i] else n)
        role = Executor(executor[i]), Kind(kind[i])
        calls.append(Call(*role, here, there, int(channel[i]), bool(far[i])))
    return which, calls


def _number(
    text: AnyInts,
    used: AnyInts,
    texts: Sequence[str],
    names: Sequence[str],
    numbers: dict[str, int],
) -> Ints:
    """The number of every lane, given by the place of its text and of the names in it."""
    _, first, which = np.unique(_key([text, *used]), return_index=True, return_inverse=True)
    found = np.empty(len(first), dtype=object)
    for i, each in enumerate(texts):
        some = np.flatnonzero(text[first] == i)
        found[some] = list(_write(each, used[:, first[some]], names))
    number = np.empty(len(first), dtype=np.int64)
    order = np.argsort(first)
    number[order] = [numbers.setdefault(name, len(numbers)) for name in found[order]]
    return number[which]


def _write(text: str, used: AnyInts, names: Sequence[str]) -> Iterator[str]:
    """The text with names in it, for each column of `used`."""
    columns = [
        [names[i] for i in used[_ENDS.index(part)].tolist()] if part in _ENDS else repeat(part)
        for part in _NAMED.split(text)
    ]
    return ("".join(parts) for _, *parts in zip(range(used.shape[1]), *columns, strict=False))


def _key(columns: Sequence[AnyInts]) -> Ints:
    """A number for each row of the columns; equal rows have equal ones."""
    key, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        least = int(column.min(initial=0))
        many = int(column.max(initial=0)) - least + 1
        if size * many > np.iinfo(np.int64).max:
            key = np.unique(key, return_inverse=True)[1]
            size = len(key)
        key, size = key * many + (column - least), size * many
    return key
