"""Reads whole logs of nccl-tests: text amid what mpirun prints, or the JSON of `-J`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from simreduce.engine.calibrate.measured import ROW, MeasuredRow, read_nccl_tests
from simreduce.errors import CalibrationError
from simreduce.files.formats.json import read_json

_PREFIX = re.compile(r"^(\[[^\]]{1,40}\](<std(out|err)>)?:?|[\w.-]{1,64}:|<std(out|err)>:?)\s*")
"""A prefix that mpirun (`[1,0]<stdout>:`), srun (`0:`) or pdsh (`node1:`) puts before a line."""
_RANK = re.compile(r"Rank\s+(\d{1,6})\b.{0,60}?\b[Pp]id\s+(\d{1,10})\s+on\s+(\S{1,80})\s")
_LAUNCH = re.compile(
    r"^# nThread (\d{1,6}) nGpus (\d{1,6})\b.* warmup iters: \d+ iters: (\d{1,9})\b", re.MULTILINE
)
_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf\b")
COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_receive",
}
"""Our names of the programs."""
_CONFIG = ("nthreads", "ngpus", "iterations")


@dataclass(frozen=True, slots=True)
class NcclTestsLog:
    """One log. `collective` is "" and counts are 0 where it does not say them. `programs` are the
    names of programs that it has, such as `all_reduce_perf`.

    `ranks` are on `hosts`, in `processes` of `nthreads` threads, which drive `ngpus` GPUs each. A
    time is of one of `iterations` calls in a row.
    """

    name: str
    collective: str
    programs: tuple[str, ...]
    ranks: int
    hosts: int
    processes: int
    rows: tuple[MeasuredRow, ...]
    nthreads: int = 0
    ngpus: int = 0
    iterations: int = 0

    @property
    def gpus_of_a_thread(self) -> int:
        """GPUs that one thread drives; 0 where each GPU has a process or a thread."""
        alone = self.processes and self.ranks // self.processes
        found = self.ngpus or alone
        return found if found > 1 else 0


def read_launch(text: str) -> tuple[int, int, int]:
    """The threads of a process, the GPUs of a thread and the iterations by a log's header; 0, 0, 0
    without one.
    """
    found = _LAUNCH.search(text)
    nthreads, ngpus, iterations = map(int, found.groups()) if found else (0, 0, 0)
    return nthreads, ngpus, iterations


def read_nccl_log(text: str, name: str) -> NcclTestsLog:
    """The log of one program of nccl-tests; raises `CalibrationError` when it has no table."""
    if text.lstrip().startswith("{"):
        return _read_json(text, name)
    lines = [_strip(line) for line in text.splitlines()]
    # Lines keep their numbers.
    table = "\n".join(line if line.startswith("#") or ROW.match(line) else "" for line in lines)
    found = [match.groups() for line in lines if (match := _RANK.search(line))]
    programs = [match[1] for line in lines for match in [_PROGRAM.search(line)] if match]
    return NcclTestsLog(
        name,
        next((COLLECTIVES[each] for each in programs if each in COLLECTIVES), ""),
        tuple(f"{each}_perf" for each in dict.fromkeys(programs)),
        len({rank for rank, _, _ in found}),
        len({host for _, _, host in found}),
        len({(pid, host) for _, pid, host in found}),
        read_nccl_tests(table, name),
        *read_launch(table),
    )


def _strip(line: str) -> str:
    """A line without what launchers put before it."""
    line = line.strip()
    while not line.startswith("#") and not ROW.match(line) and (match := _PREFIX.match(line)):
        line = line[match.end() :]
    return line


def _read_json(text: str, name: str) -> NcclTestsLog:
    document = read_json(text, f"{name}: is no JSON", CalibrationError)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not results:
        raise CalibrationError(f"{name}: has no results of nccl-tests")
    rows = tuple(_row(result, f"{name}: results[{i}]") for i, result in enumerate(results))
    devices = document.get("devices")
    devices = [each for each in devices or () if isinstance(each, dict)]
    hosts = [str(each.get("hostname", "")) for each in devices]
    pids = zip([each.get("pid") for each in devices], hosts, strict=True)
    processes = len({(pid, host) for pid, host in pids if pid is not None})
    args = document.get("args")
    config = document.get("config")
    launch = [config.get(key, 0) for key in _CONFIG] if isinstance(config, dict) else []
    if any(type(each) is not int or each < 0 for each in launch):
        raise CalibrationError(f"{name}: config: {', '.join(_CONFIG)} must be counts")
    program = PurePath(str(args[0])).name if isinstance(args, list) and args else ""
    match = _PROGRAM.search(program)
    return NcclTestsLog(
        name,
        COLLECTIVES.get(match[1], "") if match else "",
        (program,) if program else (),
        max(len(devices), processes * math.prod(launch[:2])),  # a line of each process
        len({*hosts} - {""}),
        processes,
        rows,
        *launch,
    )


def _row(result: Any, place: str) -> MeasuredRow:
    try:
        out = result["out_of_place"]
        time, algbw, busbw = (float(out[key]) for key in ("time", "alg_bw", "bus_bw"))
        wrong = int(out.get("nwrong") or 0)
        row = MeasuredRow(
            int(result["size"]), int(result["count"]), str(result["type"]),
            str(result.get("redop", "none")), time * 1e-6, algbw * 1e9, busbw * 1e9,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise CalibrationError(f"{place}: is no result of nccl-tests") from None
    if wrong:
        raise CalibrationError(f"{place}: {wrong} wrong elements")
    rates = 0 <= row.algbw < math.inf and 0 <= row.busbw < math.inf
    if not (rates and 0 < row.time < 1e9 and 0 < row.size < 1 << 60):
        raise CalibrationError(f"{place}: {row.size} bytes in {time} us")
    return row
