"""Reads whole logs of nccl-tests: text amid what mpirun prints, or the JSON of `-J`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from simreduce.engine.calibrate.measured import MeasuredRow, read_nccl_tests
from simreduce.errors import CalibrationError

_PREFIX = re.compile(r"^(\[[^\]]{1,40}\](<std(out|err)>)?:?|[\w.-]{1,64}:|<std(out|err)>:?)\s*")
"""A prefix that mpirun (`[1,0]<stdout>:`), srun (`0:`) or pdsh (`node1:`) puts before a line."""
_ROW = re.compile(
    r"^\d{1,18}\s+\d{1,18}\s+[a-z][a-z0-9_]{2,15}\s+(([a-z]{3,9}|N/A)\s+)?(-?\d{1,4}\s+)?\d+(\.\d+)?"
    r"\s+\d+(\.\d+)?\s+\d"
)
_RANK = re.compile(r"Rank\s+(\d{1,6})\b.{0,60}?\b[Pp]id\s+(\d{1,10})\s+on\s+(\S{1,80})\s")
_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf\b")
_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_receive",
}
"""Our names of the programs."""


@dataclass(frozen=True, slots=True)
class NcclTestsLog:
    """One log. `collective` is "" and counts are 0 where it does not say them.

    `ranks` are on `hosts`, in `processes`.
    """

    name: str
    collective: str
    ranks: int
    hosts: int
    processes: int
    rows: tuple[MeasuredRow, ...]


def read_nccl_log(text: str, name: str) -> NcclTestsLog:
    """The log of one program of nccl-tests; raises `CalibrationError` when it has no table."""
    if text.lstrip().startswith("{"):
        return _read_json(text, name)
    lines = [_strip(line) for line in text.splitlines()]
    table = "\n".join(line for line in lines if line.startswith("#") or _ROW.match(line))
    found = [match.groups() for line in lines if (match := _RANK.search(line))]
    programs = [match[1] for line in lines for match in [_PROGRAM.search(line)] if match]
    return NcclTestsLog(
        name,
        next((_COLLECTIVES[each] for each in programs if each in _COLLECTIVES), ""),
        len({rank for rank, _, _ in found}),
        len({host for _, _, host in found}),
        len({(pid, host) for _, pid, host in found}),
        read_nccl_tests(table, name),
    )


def _strip(line: str) -> str:
    """A line without what launchers put before it."""
    line = line.strip()
    while not line.startswith("#") and not _ROW.match(line) and (match := _PREFIX.match(line)):
        line = line[match.end() :]
    return line


def _read_json(text: str, name: str) -> NcclTestsLog:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise CalibrationError(f"{name}: line {error.lineno}: {error.msg}") from None
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not results:
        raise CalibrationError(f"{name}: has no results of nccl-tests")
    rows = tuple(_row(result, f"{name}: results[{i}]") for i, result in enumerate(results))
    devices = document.get("devices")
    devices = [each for each in devices or () if isinstance(each, dict)]
    hosts = [str(each.get("hostname", "")) for each in devices]
    args = document.get("args")
    program = PurePath(str(args[0])).name if isinstance(args, list) and args else ""
    match = _PROGRAM.search(program)
    return NcclTestsLog(
        name,
        _COLLECTIVES.get(match[1], "") if match else "",
        len(devices),
        len(set(hosts)),
        len({(each.get("pid"), host) for each, host in zip(devices, hosts, strict=True)}),
        rows,
    )


def _row(result: Any, place: str) -> MeasuredRow:
    try:
        out = result["out_of_place"]
        time, algbw, busbw = (float(out[key]) for key in ("time", "alg_bw", "bus_bw"))
        row = MeasuredRow(
            int(result["size"]), int(result["count"]), str(result["type"]),
            str(result.get("redop", "none")), time * 1e-6, algbw * 1e9, busbw * 1e9,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise CalibrationError(f"{place}: is no result of nccl-tests") from None
    if not (0 < row.time < 1e9 and 0 < row.size < 1 << 60):
        raise CalibrationError(f"{place}: {row.size} bytes in {time} us")
    return row
