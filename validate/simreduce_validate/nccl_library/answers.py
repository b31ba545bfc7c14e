"""What NCCL's library said of a machine, and files of it.

A file holds the answers of one version, one JSON object a line, with the keys of `LibraryAnswer`.
Channels that follow each other with the same row have it once, with their number:
`[2, [0, 1, 2, 3]]`. Calls are columns of one collective, and `null` stands where a version does not
say something.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

Rows = tuple[tuple[int, ...], ...]
"""GPUs or ranks of each channel."""


@dataclass(frozen=True, slots=True)
class AnsweredGraph:
    """What the library's search found: a pattern, and for each channel the GPUs in order, and the
    numbers of the NICs before and after them, none on one node.

    Speeds are GB/s of a channel. `crosses` says whether a ring may leave by another NIC than it
    came by.
    """

    pattern: str
    channels: int
    speed_intra: float
    speed_inter: float
    types: str
    crosses: bool
    same_channels: bool
    gpus: Rows
    nics: Rows


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call: what was chosen for it, and what would be launched on the first GPU.

    Costs, by `ring+ll`, and the estimate are in microseconds.
    """

    collective: str
    nbytes: int
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    blocks: int | None = None
    threads: int | None = None
    estimate_us: float | None = None
    costs_us: Mapping[str, float] = field(default_factory=dict)


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number of a version such as 2.30.7."""
    major, minor, *_ = map(int, version.split("."))
    return major, minor


@dataclass(frozen=True, slots=True)
class LibraryAnswer:
    """All that the library said of a machine, in the words of its log.

    `machine` counts nodes, as in `dgx-h100x2`; `asked` is a date. Parents are those of the first
    node's ranks, -1 for none. Of the table the values are microseconds and GB/s, to one decimal.
    """

    machine: str
    version: str
    settings: Mapping[str, str]
    asked: str
    widest_gb_per_s: float
    total_gb_per_s: float
    graphs: tuple[AnsweredGraph, ...]
    rings: Rows
    tree_parents: Rows
    nvls_channels: int | None
    p2p_channels: int | None
    p2p_channels_per_peer: int | None
    table: Mapping[str, Mapping[str, tuple[float, float]]]
    calls: tuple[AnsweredCall, ...]

    @property
    def release(self) -> tuple[int, int]:
        """The version as our settings name it."""
        return release_of(self.version)


_COLUMNS = ("nbytes", "algorithm", "protocol", "channels", "blocks", "threads", "estimate_us")
_RUNS = ("rings", "tree_parents")


def _runs(rows: Rows) -> list[tuple[int, tuple[int, ...]]]:
    return [(len([*equal]), row) for row, equal in groupby(rows)]


def _rows(runs: Iterable[tuple[int, Sequence[int]]]) -> Rows:
    return tuple(tuple(row) for count, row in runs for _ in range(count))


def _record(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def write_answer(answer: LibraryAnswer) -> str:
    """The line of an answer in the file of its version."""
    found = _record(answer)
    del found["version"]
    found["graphs"] = [
        {**_record(graph), "gpus": _runs(graph.gpus), "nics": _runs(graph.nics)}
        for graph in answer.graphs
    ]
    found |= {name: _runs(found[name]) for name in _RUNS}
    found["calls"] = {
        name: _columns([*calls]) for name, calls in groupby(answer.calls, lambda c: c.collective)
    }
    return json.dumps(found, separators=(",", ":")) + "\n"


def _columns(calls: Sequence[AnsweredCall]) -> dict[str, Any]:
    columns: dict[str, Any] = {n: [getattr(call, n) for call in calls] for n in _COLUMNS}
    pairs = dict.fromkeys(pair for call in calls for pair in call.costs_us)
    columns["costs_us"] = {pair: [call.costs_us.get(pair) for call in calls] for pair in pairs}
    return columns


def read_answers(path: Path) -> Iterator[LibraryAnswer]:
    """The answers of a file, which is named for the version: `2.30.7.jsonl`."""
    for line in path.read_text("utf-8").splitlines():
        yield _read(json.loads(line), path.name.removesuffix(".jsonl"))


def _read(found: dict[str, Any], version: str) -> LibraryAnswer:
    found["graphs"] = tuple(
        AnsweredGraph(**{**each, "gpus": _rows(each["gpus"]), "nics": _rows(each["nics"])})
        for each in found["graphs"]
    )
    found |= {name: _rows(found[name]) for name in _RUNS}
    found["table"] = {
        name: {pair: tuple(cell) for pair, cell in row.items()}
        for name, row in found["table"].items()
    }
    found["calls"] = tuple(
        AnsweredCall(
            name,
            **{each: columns[each][i] for each in _COLUMNS},
            costs_us={p: v[i] for p, v in columns["costs_us"].items() if v[i] is not None},
        )
        for name, columns in found["calls"].items()
        for i in range(len(columns["nbytes"]))
    )
    return LibraryAnswer(version=version, **found)
