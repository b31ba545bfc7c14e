"""How sure a prediction of NCCL is: intervals made of the errors of published times.

The errors are log(predicted / published) by constants that were fitted without the machine. What
is weighed is machines: each counts once for a collective, a link and a band of sizes, however many
times were published of it.

Kinds of machine of which nothing was published differ by more than those, as the model itself was
made with those in view. Their intervals are made of errors by constants of the generations before
and after a machine's own, as if neither its site nor anything of its generation had been measured.
Few machines were measured in most cells, so errors of other cells count as well, the less the
farther away. The ends are the 10 % and the 90 % quantile of these errors, and farther out where few
machines say less of the next one: of m machines, each tail is 10 % less the m-th part.

Two predictions of one machine err together. In published tables, errors of two sizes that NCCL
sends by one algorithm and protocol differ by a factor of 1.10 (80 % of all pairs) one octave apart,
1.15 two, 1.24 four, and 1.42 from ten on, where they know as little of each other as errors of
other machines. By another algorithm or protocol, it is 1.4 to 1.6 at any distance. So the
variogram of errors over octaves is linear: `correlation` has it, and `difference_error` says how
far off a difference is (`tests/study/accuracy/pairs.py` has the pairs).
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import AnyInts, Floats

SHIPPED = resources.files("simreduce") / "files" / "calibrations"
GENERATION, ELSEWHERE = "errors.csv", "errors-elsewhere.csv"
"""Errors by constants of the machine's generation, and by those of the generations beside it.
A library's files begin with its name.
"""
MACHINE = "errors-calibrated.csv"
"""Errors by constants that are fitted to three sizes of the table."""
SIZES = (0, 64 << 10, 1 << 20, 8 << 20, (64 << 20) + 1)
"""Bytes at which another band begins."""
SURE = 0.8
"""Share of the times that an interval is to cover."""
OTHER_NET = "other_net"
"""The link of networks with software of their own, read off few tables: EFA, Slingshot, TCP."""
_FAMILY = {
    "all_reduce": 0,
    "reduce": 1,
    "broadcast": 1,
    "all_gather": 2,
    "reduce_scatter": 2,
    "all_to_all": 3,
    "send_receive": 3,
}
COLLECTIVES = tuple(_FAMILY)
_BAND, _COLLECTIVE, _FAMILIES, _LINK, _REACHES, _NETWORKS = 0.4, 0.3, 0.2, 0.5, 0.1, 0.03
"""Weights of an error in another cell: for each band of sizes between them, and where the
collective, its family, the link, what the link joins, or the kind of network differs. Chosen for
the lowest interval score on machines that were left out (Gneiting and Raftery 2007, section 6.2);
twice or half as much changes the score by 2 % at most.
"""
_OCTAVES = 8.0
"""Octaves between two sizes whose errors are not correlated. With 8, intervals of differences cover
83 % of those in tables of sites that were left out, of sizes one octave apart as of sizes eight
apart; with 12, 80 % by these constants, and less where constants are fitted to a log.
"""


@dataclass(frozen=True, slots=True)
class Errors:
    """log(predicted / published) of one table's times in the band that begins at `size` bytes.

    `kind` is the kind of its nodes, as `Setup.node_kind` says it. `site` is who measured it, and
    others who measured the same machines. `misfit` is of constants that were fitted to some of the
    table's times: how far off these were before.
    """

    table: str
    machine: str
    collective: str
    link: str
    size: int
    errors: tuple[float, ...]
    kind: str = ""
    site: str = ""
    generation: str = ""
    misfit: float | None = None

    def of(self, names: Collection[str]) -> bool:
        """Whether its machine, its site or its generation is among these."""
        return self.machine in names or self.site in names or self.generation in names


_TEXTS = ("table", "machine", "kind", "site", "generation", "collective", "link")
_HEAD = (*_TEXTS, "size_bytes", "misfit", "errors")
_FITS = 0.1
"""What is left at other sizes grows with the misfit; that of a perfect fit is as of this one."""


def read_errors(text: str) -> tuple[Errors, ...]:
    """The errors of a CSV, as `write_errors` makes it."""
    rows = csv.DictReader(io.StringIO(text))
    return tuple(
        Errors(
            **{name: row[name] for name in _TEXTS},
            size=int(row["size_bytes"]),
            misfit=float(row["misfit"]) if row["misfit"] else None,
            errors=tuple(float(error) for error in row["errors"].split()),
        )
        for row in rows
    )


def write_errors(found: Iterable[Errors]) -> str:
    """The errors as CSV, to three digits."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_HEAD)
    for row in found:
        errors = " ".join(f"{error:.3f}" for error in row.errors)
        misfit = "" if row.misfit is None else f"{row.misfit:.3f}"
        table.writerow((*(getattr(row, name) for name in _TEXTS), row.size, misfit, errors))
    return text.getvalue()


@cache
def published_errors(file: str = GENERATION, library: str = "nccl") -> tuple[Errors, ...]:
    """The errors of a library that come with simreduce."""
    return read_errors((SHIPPED / f"{library}-{file}").read_text("utf-8"))


@cache
def is_known(
    kind: str, link: str, without: frozenset[str] = frozenset(), library: str = "nccl"
) -> bool:
    """Whether times of a kind of node over a kind of link were published, by others than these."""
    rows = published_errors(library=library)
    return any((row.kind, row.link) == (kind, link) and not row.of(without) for row in rows)


def band_of(nbytes: int) -> int:
    """The place of a size among the bands."""
    return int(np.searchsorted(SIZES, nbytes, "right")) - 1


class Spread:
    """Intervals made of some errors, of each as a part of what its misfit lets expect."""

    def __init__(self, found: Sequence[Errors]) -> None:
        each = [(row, error) for row in found for error in row.errors]
        self._errors = np.array([error / _expected(row.misfit) for row, error in each])
        self._bands = np.array([band_of(row.size) for row, _ in each], dtype=np.int64)
        self._collectives = [row.collective for row, _ in each]
        self._links = [row.link for row, _ in each]
        self._machines = np.unique([row.machine for row, _ in each], return_inverse=True)[1]
        self._weights = _one_for_each_machine(found)

    def ends(
        self, collective: str, link: str, nbytes: int, misfit: float | None = None
    ) -> tuple[float, float]:
        """The ends of the 80 % interval, as factors of the prediction, which is always inside."""
        weights = self._weights * _BAND ** abs(self._bands - band_of(nbytes))
        weights *= _each(self._collectives, {c: _near(collective, c) for c in _FAMILY})
        weights *= _each(self._links, {k: _near_link(link, k) for k in {*self._links}})
        ends = ends_of(self._errors, weights, self._machines)
        low, high = (end * _expected(misfit) for end in ends)
        return min(math.exp(-low), 1.0), max(math.exp(-high), 1.0)


def _expected(misfit: float | None) -> float:
    """To what errors at other sizes are in proportion; 1 if nothing was fitted."""
    return 1.0 if misfit is None else misfit + _FITS


def ends_of(errors: Floats, weights: Floats, machines: AnyInts) -> tuple[float, float]:
    """The error above which 10 % are, and that below which 10 % are, of weighted errors of some
    `machines`: farther out where few say less of the next one.
    """
    tail = (1 - SURE) / 2 * (1 - 1 / _count(machines, weights))
    return weighted_quantile(errors, weights, 1 - tail), weighted_quantile(errors, weights, tail)


def _count(machines: AnyInts, weights: Floats) -> float:
    """How many machines of equal weights would say as much: (sum w)^2 / sum w^2."""
    each = np.bincount(machines, weights)
    return float(each.sum() ** 2 / (each**2).sum())


def _each(names: Sequence[str], values: dict[str, float]) -> Floats:
    return np.array([values[name] for name in names])


def _near(a: str, b: str) -> float:
    if a == b:
        return 1.0
    return _COLLECTIVE if _FAMILY[a] == _FAMILY[b] else _FAMILIES


def _near_link(a: str, b: str) -> float:
    if a == b:
        return 1.0
    if OTHER_NET in (a, b):
        return _NETWORKS
    return _REACHES if "net" in (a, b) else _LINK


def _one_for_each_machine(found: Sequence[Errors]) -> Floats:
    """Weights of errors that sum to 1 over each cell of each machine."""
    tables = Counter((row.machine, row.collective, row.link, row.size) for row in found)
    return np.array([
        1 / len(row.errors) / tables[row.machine, row.collective, row.link, row.size]
        for row in found
        for _ in row.errors
    ])  # fmt: skip


def weighted_quantile(values: Floats, weights: Floats, part: float) -> float:
    """The weighted quantile, with straight lines between the middles of the weights."""
    order = np.argsort(values, kind="stable")  # or equal errors lie as each processor sorts them
    weight = weights[order]
    place = np.cumsum(weight) - weight / 2
    return float(np.interp(part * weight.sum(), place, values[order]))


@lru_cache(maxsize=128)
def _spread_without(names: frozenset[str], file: str, library: str) -> Spread:
    rows = published_errors(file, library)
    return Spread([row for row in rows if not row.of(names)] or rows)


@lru_cache(maxsize=4096)
def _ends(
    collective: str,
    link: str,
    band: int,
    without: frozenset[str],
    file: str,
    misfit: float | None,
    library: str,
) -> tuple[float, float]:
    return _spread_without(without, file, library).ends(collective, link, SIZES[band], misfit)


def spread(
    collective: str,
    link: str,
    nbytes: int,
    without: frozenset[str] = frozenset(),
    file: str = GENERATION,
    misfit: float | None = None,
    library: str = "nccl",
) -> tuple[float, float]:
    """The ends of the 80 % interval, as factors of the prediction: 0.9 and 1.2, perhaps.

    `file` names the `library`'s published errors to use: the errors of constants fitted like the
    ones that made the prediction. Errors of the machines, sites and generations `without` are left
    out.
    With `MACHINE`, the interval is in proportion to what the log's `misfit` lets expect.
    """
    return _ends(collective, link, band_of(nbytes), without, file, misfit, library)


class NcclCall(NamedTuple):
    """A call of NCCL in a time, and the seconds of that time that hang on it.

    The errors of its seconds are within `factor`, up or down, with 80 %.
    """

    collective: str
    algorithm: str
    protocol: str
    nbytes: int
    seconds: float
    factor: float = 1.0


def correlation(calls: Sequence[NcclCall]) -> Floats:
    """The correlation of the errors of each call with those of each other one."""
    octaves = np.log2([max(call.nbytes, 1) for call in calls])
    hows = np.unique([call[:3] for call in calls], axis=0, return_inverse=True)[1].ravel()
    near = 1.0 - abs(octaves[:, None] - octaves) / _OCTAVES
    return np.where(hows[:, None] == hows, near.clip(0.0), 0.0)


def difference_error(one: Sequence[NcclCall], other: Sequence[NcclCall]) -> float:
    """Seconds within which the difference of two predictions of one machine is, with 80 %."""
    calls = [*one, *(call._replace(seconds=-call.seconds) for call in other)]
    if not calls:
        return 0.0
    each = np.array([call.seconds * math.log(call.factor) for call in calls])
    return math.sqrt(max(float(each @ correlation(calls) @ each), 0.0))
