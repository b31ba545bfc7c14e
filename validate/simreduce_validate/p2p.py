"""Published matrices of p2pBandwidthLatencyTest against what simreduce predicts from the machines'
files alone.

    python -m simreduce_validate.p2p

Bandwidths are held to 10 % on the median and 20 % at the 90th percentile, pooled over the matrices
of a machine: both ways and one way, with and without peer access. Left out are the pairs of
`EXCEPTIONS`, with the reason. The matrices of `ALONE` would not pass by themselves. What was fitted
to the very matrix that it is compared with stands in `INFERRED`. Latencies are shown, not held to
anything: the test's include what the host needs to start a copy, which no link has.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby

import simreduce as sr
from simreduce.tune.p2p import Matrix, PeerToPeer, peer_to_peer
from simreduce_validate.machines import MACHINES

MEDIAN, HIGH = 0.10, 0.20
"""The largest error that is accepted of the median pair, and of all but a tenth of them."""


@dataclass(frozen=True, slots=True)
class Exempt:
    """Pairs that are not predicted as closely, and why: those that one of these GPUs is in, of all
    or only without peer access.
    """

    machine: str
    kind: str
    peer_access: bool
    gpus: range
    reason: str
    only_staged: bool = False

    @property
    def case(self) -> tuple[str, str, bool]:
        """What names the matrix."""
        return self.machine, self.kind, self.peer_access


EXCEPTIONS = (
    Exempt(
        "abci-a-8xA100-40g-nvswitch",
        "both_ways",
        peer_access=True,
        gpus=range(4),
        reason="with GPUs 0 to 3 of this node copies reach 407 to 421 GB/s both ways together, "
        "among 4 to 7 they reach 518; the links are not what limits them, as "
        "NCCL's rings send and receive 235 each on such nodes",
    ),
    Exempt(
        "4xA100-SXM4-nv4mesh",
        "both_ways",
        peer_access=False,
        gpus=range(4),
        reason="this board stages no more both ways together (17.7 to 20.2 GB/s) than one way "
        "(16.4 to 18.9); how its GPUs reach the host is not published",
    ),
    Exempt(
        "dgx1-p100",
        "both_ways",
        peer_access=True,
        gpus=range(8),
        only_staged=True,
        reason="with peer access on, the driver of 2017 makes the two copies of pairs without it "
        "one after the other "
        "(9.2 GB/s, and 9.2 one way); with peer access off it does not (17.4, and 10.1)",
    ),
)


ALONE = (
    ("4xA100-SXM4-nv4mesh", "one_way", False),
    ("abci-v-4xV100-16g-nv2mesh", "both_ways", False),
    ("abci-a-8xA100-40g-nvswitch", "both_ways", False),
)
"""Machine, kind and case of peer access of matrices that are off by more than is accepted, but not
with the machine's others.
"""

INFERRED = {
    "2xRTX2080Ti-pcie3-nop2p": "that the switch has eight lanes up follows from these very matrices"
}
"""Machines with figures that a published matrix gave: there, agreement is no evidence."""


@dataclass(frozen=True, slots=True)
class Published:
    """One matrix, in bytes/s or seconds. `reads`: the receiving GPU drives the copies."""

    machine: str
    source: str
    kind: str
    peer_access: bool
    reads: bool
    rows: Matrix


@dataclass(frozen=True, slots=True)
class PairErrors:
    """How far off the predictions of some pairs are: |predicted / measured - 1|."""

    machine: str
    topology: str
    kind: str
    peer_access: bool
    pairs: int
    measured: float
    predicted: float
    median: float
    high: float


@cache
def published() -> tuple[Published, ...]:
    """The matrices that come with the harness."""
    text = (files("simreduce_validate") / "p2p_published.toml").read_text("utf-8")
    found = []
    for entry in tomllib.loads(text)["matrix"]:
        unit = 1e-6 if entry["kind"] == "latency" else 1e9
        rows = tuple(
            tuple(None if cell == "-" else float(cell) * unit for cell in row.split())
            for row in entry["rows"]
        )
        found.append(
            Published(
                machine=entry["machine"],
                source=entry["source"],
                kind=entry["kind"],
                peer_access=entry["peer_access"],
                reads=entry.get("reads", False),
                rows=rows,
            )
        )
    return tuple(found)


@cache
def predicted(machine: str) -> PeerToPeer:
    """The matrices of the shipped machine that stands for a published one."""
    return peer_to_peer(sr.load_topology(MACHINES[machine]))


def exempt(matrix: Published, i: int, j: int) -> bool:
    """Whether `EXCEPTIONS` has this pair of GPUs."""
    return any(
        each.case == (matrix.machine, matrix.kind, matrix.peer_access)
        and (i in each.gpus or j in each.gpus)
        and not (each.only_staged and predicted(matrix.machine).peers[i][j])
        for each in EXCEPTIONS
    )


def pairs(matrix: Published, *, held: bool = False) -> list[tuple[float, float]]:
    """(measured, predicted) of every pair of GPUs; `held`: without those of `EXCEPTIONS`."""
    forecast = predicted(matrix.machine)
    rows: Matrix = getattr(
        forecast.enabled if matrix.peer_access else forecast.disabled, matrix.kind
    )
    return [
        (measured, rows[i][j] or 0.0)
        for i, row in enumerate(matrix.rows)
        for j, measured in enumerate(row)
        if measured is not None and not (held and exempt(matrix, i, j))
    ]


def quantile(values: Iterable[float], share: float) -> float:
    """The least value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def errors(cells: Iterable[tuple[float, float]]) -> list[float]:
    """How far off each prediction is, as a share of what was measured."""
    return [abs(guess / measured - 1) for measured, guess in cells]


def summary(matrices: Sequence[Published], *, held: bool = False) -> PairErrors:
    """One row over the pairs of these matrices, which are of one machine."""
    cells = [cell for matrix in matrices for cell in pairs(matrix, held=held)]
    off = errors(cells)
    first = matrices[0]
    return PairErrors(
        machine=first.machine,
        topology=MACHINES[first.machine],
        kind=first.kind,
        peer_access=first.peer_access,
        pairs=len(cells),
        measured=quantile([measured for measured, _ in cells], 0.5),
        predicted=quantile([guess for _, guess in cells], 0.5),
        median=quantile(off, 0.5),
        high=quantile(off, 0.9),
    )


def by_kind() -> list[PairErrors]:
    """A row for every machine, kind of matrix and case of peer access, exceptions included."""

    def key(matrix: Published) -> tuple[str, str, bool]:
        return matrix.machine, matrix.kind, matrix.peer_access

    return [summary(list(group)) for _, group in groupby(sorted(published(), key=key), key)]


def is_close(row: PairErrors) -> bool:
    """Whether no more is wrong than is accepted."""
    return row.median <= MEDIAN and row.high <= HIGH


def bandwidths(machine: str, *, held: bool) -> PairErrors:
    """All bandwidths of a machine together; `held`: without `EXCEPTIONS`."""
    mine = [each for each in published() if each.machine == machine and each.kind != "latency"]
    return summary(mine, held=held)


def report() -> str:
    """The table, then every machine as a whole, then the exceptions."""
    lines = [
        (
            f"{'machine':27} {'topology':18} {'matrix':9} {'peers':5} {'pairs':>5} "
            f"{'measured':>9} {'predicted':>9} "
            f"{'median':>7} {'90 %':>7}"
        )
    ]
    marked = {each.case for each in EXCEPTIONS}
    for row in by_kind():
        unit = 1e6 if row.kind == "latency" else 1e-9
        place = row.machine, row.kind, row.peer_access
        mark = " *" if place in marked else " +" if place in ALONE else ""
        lines.append(
            f"{row.machine:27} {row.topology:18} {row.kind:9} "
            f"{'on' if row.peer_access else 'off':5} {row.pairs:5} "
            f"{row.measured * unit:9.2f} {row.predicted * unit:9.2f} {row.median:7.1%} "
            f"{row.high:7.1%}{mark}"
        )
    lines += [
        "",
        f"{'all bandwidths of a machine':46} {'all pairs':>19}   {'without exceptions':>22}",
    ]
    for machine in dict.fromkeys(matrix.machine for matrix in published()):
        every, held = bandwidths(machine, held=False), bandwidths(machine, held=True)
        lines.append(
            f"{machine:27} {every.topology:18} {every.pairs:5} {every.median:7.1%} "
            f"{every.high:6.1%}"
            f"   {held.pairs:5} {held.median:7.1%} "
            f"{held.high:7.1%}{' i' if machine in INFERRED else ''}"
        )
    lines += ["", "* exceptions:"]
    for each in EXCEPTIONS:
        staged = ", pairs without peer access" if each.only_staged else ""
        which = f"GPUs {each.gpus[0]} to {each.gpus[-1]}{staged}"
        case = f"{each.kind}, peers {'on' if each.peer_access else 'off'}, {which}"
        lines.append(f"  {each.machine}, {case}: {each.reason}")
    lines += [
        "",
        (
            "+ more than 10 % off on the median or 20 % at the 90th percentile, but not with the "
            "machine's others"
        ),
    ]
    lines += ["", "i inferred:", *(f"  {machine}: {what}" for machine, what in INFERRED.items())]
    lines += [
        "",
        (
            "measured, predicted: of the median pair, GB/s or us; median, 90 %: of |predicted / "
            "measured - 1| over the pairs"
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
