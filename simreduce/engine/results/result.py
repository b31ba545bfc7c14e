"""The result of a simulation.

It is a value that tables, traces and reports are made from, and that survives JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from math import inf, isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from simreduce import units
from simreduce.engine.results.path import CriticalPath, PathOp, parts
from simreduce.engine.submission import Timeline
from simreduce.files.formats.json import read_json
from simreduce.plan import Kind, Plan

Array = npt.NDArray[Any]

_COLUMNS = {
    "kind": np.int8, "source": np.int32, "device": np.int32, "nbytes": np.int64,
    "ready": np.float64, "start": np.float64, "finish": np.float64, "blame": np.int32,
}  # fmt: skip
_PATH_DTYPES = {"Ints": np.int64, "Floats": np.float64}


@dataclass(frozen=True, slots=True)
class Use:
    """How busy a link, a memory or a lane was: `share` of the whole time, from 0 to 1.

    A lane itself moves no bytes. To NCCL's bytes on a link its flags are added, and what its
    protocol loses there.
    """

    name: str
    share: float
    nbytes: float = 0.0


ROUNDED = 1e-9
"""A run that is faster than a floor by less than this, relatively, meets it."""


@dataclass(frozen=True, slots=True)
class Floors:
    """Seconds that no prediction can be below, each for its own reason.

    The first three are of this plan, with what its runtime costs. `cut` and `hardware` are of links
    alone, for any algorithm on the plan's devices: bytes over cuts, and these, ports and latencies.
    """

    critical_path: float
    resource: float
    lane: float
    cut: float
    hardware: float

    @property
    def seconds(self) -> float:
        """The highest of them."""
        return max(self.critical_path, self.resource, self.lane, self.hardware)

    def under(self, seconds: float, *, exact: bool = True) -> Floors:
        """The floors of a run of so many seconds.

        A floor that is higher by rounding alone becomes `seconds`.

        A run adds up the same times as a floor does, but rounds elsewhere: what is due within 4 ulp
        happens at one instant, and levels within 1e-12 are one level. `ROUNDED` has room for a
        million such instants in a row. Where ops may end early, so may the run.
        """
        near = seconds * (1.0 + ROUNDED) if exact else inf
        met = {f.name: seconds for f in fields(self) if seconds < getattr(self, f.name) <= near}
        return replace(self, **met)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """The prediction for one plan on one machine. Times in seconds from the plan's submission."""

    seconds: float
    topology: str
    topology_digest: str
    runtime: str
    calibration: str
    digested: Plan | str  # the plan, or its digest if the result was read from JSON
    transfers: int
    floors: Floors
    links: tuple[Use, ...]  # directed links and memories, busiest first
    lanes: tuple[Use, ...]  # busiest first
    devices: tuple[str, ...]
    kind: Array
    source: Array
    device: Array
    nbytes: Array
    ready: Array
    start: Array
    finish: Array
    blame: Array
    path: CriticalPath
    begun: Array | None = None  # when ops got their pipes, as in `Timeline`
    disturbance: str = ""  # in words

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    @property
    def headline(self) -> str:
        """How long the plan takes, where, and what is busiest."""
        took = units.format_duration(self.seconds)
        busy = f", busiest {self.bottleneck} {self.links[0].share:.0%}" if self.links else ""
        moved = units.plural(self.transfers, "transfer")
        return f"{took} on {self.topology} ({self.runtime}, {self.calibration}), {moved}{busy}"

    @property
    def plan_digest(self) -> str:
        """The digest of the plan."""
        return self.digested if isinstance(self.digested, str) else self.digested.digest

    @property
    def timeline(self) -> Timeline:
        """When each op was ready, started and was done. `pipe_blame` is not kept."""
        return Timeline(self.ready, self.start, self.finish, self.blame, self.begun)

    @property
    def bottleneck(self) -> str:
        """The busiest link; "" when nothing moved."""
        return self.links[0].name if self.links else ""

    def critical_path(self) -> list[PathOp]:
        """The chain of ops that the end waited for, first to last.

        Each began when the one before let it.

        The seconds of all their parts add up to `seconds`.
        """
        ops = self.path.op
        finish = self.finish[ops]
        kinds = [Kind(k).name for k in self.kind[ops].tolist()]
        return [
            PathOp(op, self.describe(op), begun, done, begun - free, tuple(own))
            for op, free, begun, done, own in zip(
                ops.tolist(), self.path.stood.tolist(), self.path.begin.tolist(), finish.tolist(),
                parts(self.path, finish, kinds), strict=True,
            )
        ]  # fmt: skip

    def describe(self, op: int) -> str:
        """`COPY gpu0 -> gpu1 4096 B`."""
        kind, target = Kind(int(self.kind[op])).name, self.devices[self.device[op]]
        where = f"{self.devices[self.source[op]]} -> {target}" if kind == "COPY" else target
        return f"{kind} {where} {int(self.nbytes[op])} B"

    def to_json(self) -> str:
        """One JSON document; `Result.from_json` gives the same value back, bit for bit."""
        names = ["plan_digest" if f.name == "digested" else f.name for f in fields(self)]
        document = {name: getattr(self, name) for name in names}
        if self.begun is not None:
            document["begun"] = [None if isnan(time) else time for time in self.begun.tolist()]
        return json.dumps(document, separators=(",", ":"), default=_plain)

    @staticmethod
    def from_json(text: str) -> Result:
        """The inverse of `to_json`."""
        document = read_json(text, "result", most=len(text), finite=False)
        document["digested"] = document.pop("plan_digest")
        for name, dtype in _COLUMNS.items():
            document[name] = np.array(document[name], dtype=dtype)
        if document["begun"] is not None:
            document["begun"] = np.array(document["begun"], dtype=np.float64)  # null is NaN
        document["floors"] = Floors(**document["floors"])
        document["links"] = tuple(Use(**u) for u in document["links"])
        document["lanes"] = tuple(Use(**u) for u in document["lanes"])
        document["devices"] = tuple(document["devices"])
        path = document["path"]
        columns: dict[str, Any] = {
            f.name: np.array(path[f.name], dtype=_PATH_DTYPES[str(f.type)])
            for f in fields(CriticalPath)
            if f.name != "names"
        }
        document["path"] = CriticalPath(**columns, names=tuple(path["names"]))
        return Result(**document)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same fields, bit for bit."""
        return self is other or (isinstance(other, Result) and self.to_json() == other.to_json())

    def __hash__(self) -> int:
        return hash((self.plan_digest, self.topology_digest, self.seconds))


def _plain(value: Any) -> Any:
    """An array as a list, a dataclass as a table."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {f.name: getattr(value, f.name) for f in fields(value)}
