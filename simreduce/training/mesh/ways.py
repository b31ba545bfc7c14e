"""The ways of a mesh: which ranks work on which part of a model, and what does not fit.

Ranks lie on a mesh as Megatron-LM's do (`megatron/core/parallel_state.py`): the first axis of the
`order` is the one of neighbours. Attention and what is plain divide the ranks of a stage into
tensor (tp), context (cp) and data parallel ones (dp). Experts divide the same ranks anew: into
tensor parallel ones of an expert (etp), experts' ranks (ep) and replicas of those (edp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from simreduce.errors import InputError, did_you_mean
from simreduce.files.formats import Faults

AXES = TP, CP, EP, DP, PP = ("tp", "cp", "ep", "dp", "pp")
ETP = "etp"
ORDER = "-".join(AXES)
"""Megatron-LM's default order: tensor parallel ranks are neighbours, stages are far apart."""
REPLICAS_FAR = "tp-cp-ep-pp-dp"
"""Stages are nearer than replicas: Megatron-LM's `--use-tp-pp-dp-mapping`."""
MOST_WAYS = 1 << 20


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ways of each axis. `dp` counts all replicas of what is no expert, so that `ep` divides
    `dp` x `cp` x `tp` / `etp`.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    etp: int = 0
    order: str = ORDER

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_tensor(self) -> int:
        """Ranks that share an expert: as many as share all else, unless stated."""
        return self.etp or self.tp

    @property
    def expert_data(self) -> int:
        """Replicas of each expert."""
        return self.tp * self.cp * self.dp // (self.expert_tensor * self.ep)

    @property
    def text(self) -> str:
        """As users write it: `tp=8,pp=4,dp=8`."""
        ways = {TP: self.tp, PP: self.pp, CP: self.cp, EP: self.ep, DP: self.dp}
        shown = [f"{key}={count}" for key, count in ways.items() if count > 1]
        if self.etp and self.etp != self.tp:
            shown.append(f"{ETP}={self.etp}")
        return ",".join(shown) or "dp=1"

    @property
    def name(self) -> str:
        """Its ways, and the order unless that is the usual one."""
        return self.text if self.order == ORDER else f"{self.text} order={self.order}"

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """The ranks that differ in these axes only, group by group in the order of their first."""
        return _groups(self._sizes(expert=False), axes)

    def expert_groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """As `groups`, where `dp` are replicas of an expert and `tp` share one."""
        return _groups(self._sizes(expert=True), axes)

    def stage_of(self, rank: int) -> int:
        """The place of a rank in its pipeline, from 0."""
        below = 1
        for axis, size in self._sizes(expert=False):
            if axis == PP:
                return rank // below % size
            below *= size
        return 0

    def _sizes(self, *, expert: bool) -> tuple[tuple[str, int], ...]:
        plain = {TP: self.tp, CP: self.cp, EP: 1, DP: self.dp, PP: self.pp}
        anew = {TP: self.expert_tensor, CP: 1, EP: self.ep, DP: self.expert_data, PP: self.pp}
        sizes = anew if expert else plain
        return tuple((axis, sizes[axis]) for axis in self.order.split("-"))


@lru_cache(maxsize=256)
def _groups(
    sizes: tuple[tuple[str, int], ...], axes: tuple[str, ...]
) -> tuple[tuple[int, ...], ...]:
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(size for _, size in sizes)):
        left, place = rank, []
        for axis, size in sizes:
            if axis not in axes:
                place.append(left % size)
            left //= size
        found.setdefault(tuple(place), []).append(rank)
    return tuple(sorted(map(tuple, found.values())))


def read_mesh(text: str, order: str = ORDER) -> Mesh:
    """The mesh of `tp=8,pp=4`, with `dp` 0 if it is not stated. InputError lists every fault."""
    faults, ways = Faults("mesh"), dict[str, int]()
    known = (*AXES, ETP)
    for part in text.split(","):
        key, _, value = (each.strip() for each in part.partition("="))
        if key not in known:
            near = did_you_mean(key, known) or f"; known are {', '.join(known)}"
            faults.add("", f"unknown axis {key!r}{near}")
        elif key in ways:
            faults.add("", f"{key} is given twice")
        elif not value.isdecimal() or not 1 <= int(value[:9]) <= MOST_WAYS:
            faults.add("", f"{key} must be a whole number from 1 to {MOST_WAYS}, got {value!r}")
        else:
            ways[key] = int(value)
    faults.raise_any()
    return Mesh(**{DP: 0, **ways}, order=order)


def read_order(text: str) -> str:
    """The order of all axes; ValueError for others."""
    if sorted(text.split("-")) != sorted(AXES):
        raise ValueError(f"must have each of {', '.join(AXES)} once, such as {ORDER}")
    return text


def nearest_divisors(count: int, wanted: int) -> str:
    """The divisors of `count` next to `wanted`, as words."""
    all_of_them = [d for d in range(1, count + 1) if count % d == 0]
    below = [d for d in all_of_them if d < wanted][-1:]
    above = [d for d in all_of_them if d > wanted][:1]
    return " or ".join(map(str, [*below, *above]))


def check_divides(faults: Faults, place: str, ways: int, what: str, count: int) -> None:
    """Note that `ways` do not divide `count` things evenly, with those nearby that do."""
    if count % ways:
        near = nearest_divisors(count, ways)
        faults.add(place, f"{ways} ways do not share {count} {what} evenly; {near} do")


def legal_ways(counts: Sequence[int], most: int) -> list[int]:
    """The ways up to `most` that divide all of the counts."""
    return [d for d in range(1, most + 1) if not any(count % d for count in counts)]


def fill(mesh: Mesh, ranks: int) -> Mesh:
    """The mesh with as many replicas as the machine has room for.

    InputError if the others do not divide its ranks, or if a stated `dp` does not.
    """
    each = mesh.tp * mesh.cp * mesh.pp
    if mesh.dp and mesh.ranks == ranks:
        return mesh
    if mesh.dp or ranks % each:
        stated = f"{mesh.text} needs {mesh.ranks} GPUs" if mesh.dp else f"tp x cp x pp is {each}"
        near = nearest_divisors(ranks, each)
        hint = f"; leave dp out: dp={ranks // each}" if mesh.dp and not ranks % each else ""
        raise InputError(
            f"mesh: {stated}, and the machine has {ranks}"
            + (hint or f"; products of {near} divide them")
        )
    return Mesh(mesh.tp, mesh.cp, mesh.ep, ranks // each, mesh.pp, mesh.etp, mesh.order)
