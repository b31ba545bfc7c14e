"""Logs of measurements: nccl-tests, OSU's micro-benchmarks and copies between GPUs, amid what
launchers print, or as JSON of `-J`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any

from simreduce.errors import CalibrationError, quote
from simreduce.files.formats.syntax import Faults, read_json
from simreduce.files.launchers import without_mark

_TITLES = {
    "Unidirectional P2P=Disabled": ("one_way", False),
    "Unidirectional P2P=Enabled": ("one_way", True),
    "Bidirectional P2P=Disabled": ("both_ways", False),
    "Bidirectional P2P=Enabled": ("both_ways", True),
    "P2P=Disabled Latency": ("latency", False),
    "P2P=Enabled Latency": ("latency", True),
}
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
ROW = re.compile(r"^\s*\d{1,18}\s+\d{1,18}\s+[a-z][a-z0-9_]{2,15}(\s|$)")
"""How a line of nccl-tests begins: size, count and type. What follows may be damaged."""
_MOST_GPUS = 256
_MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class MeasuredMatrix:
    """One matrix of p2pBandwidthLatencyTest, in bytes/s or seconds; None on the diagonal.

    `kind` is one_way, both_ways or latency. `reads`: the receiving GPU drove the copies.
    """

    kind: str
    peer_access: bool
    reads: bool
    rows: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One line of nccl-tests, out of place: bytes, seconds, bytes/s; `collective` is "" where the
    log does not say which.
    """

    size: int
    count: int
    dtype: str
    redop: str
    time: float
    algbw: float
    busbw: float
    collective: str = ""


NVBANDWIDTH = re.compile(r"^memcpy CE GPU\(row\) (->|<-) GPU\(column\) bandwidth", re.MULTILINE)
"""What nvbandwidth (0.8) prints above a matrix of copies between GPUs, all with peer access: the
arrow says which way they go.
"""
_ONE_WAY = re.compile(r"Running (device_to_device_memcpy_(read|write)_ce)\.")


def _read_nvbandwidth(lines: Sequence[str], faults: Faults) -> Iterator[MeasuredMatrix]:
    """Matrices of copies in one direction; those of other tests are left out."""
    running = None
    for number, line in enumerate(lines):
        running = (_ONE_WAY.match(line) or running) if line.startswith("Running ") else running
        title = NVBANDWIDTH.match(line)
        if not title or not running:
            continue
        # Its heads have no corner, and its diagonals no figures.
        head = ["GPU", *lines[number + 1].split()] if number + 1 < len(lines) else []
        table = (line.replace("N/A", "-") for line in lines[number + 2 : number + 1 + len(head)])
        rows, fault = _matrix([" ".join(head), *table])
        if faults.check(not fault, f"line {number + 1}", fault):
            scaled = [tuple(cell and cell * 1e9 for cell in row) for row in rows]
            sent = tuple(scaled) if title[1] == "->" else tuple(zip(*scaled, strict=True))
            yield MeasuredMatrix("one_way", True, running[2] == "read", sent)
        running = None


def read_p2p_test(text: str, name: str) -> tuple[MeasuredMatrix, ...]:
    """The matrices of a log, or of nvbandwidth's; CPU latencies are left out.

    Raises `CalibrationError` with every fault.
    """
    faults = Faults(name)
    lines = text.splitlines()
    found = [*_read_nvbandwidth(lines, faults)]
    for number, line in enumerate(lines):
        title = next((key for key in _TITLES if key in line), None)
        if title is None or "Matrix" not in line:
            continue
        kind, peers = _TITLES[title]
        rows, fault = _matrix(lines[number + 1 : number + 2 + _MOST_GPUS])
        if not faults.check(not fault, f"line {number + 1}", fault):
            continue
        scale = 1e-6 if kind == "latency" else 1e9
        scaled = tuple(
            tuple(None if i == j or cell is None else cell * scale for j, cell in enumerate(row))
            for i, row in enumerate(rows)
        )
        found.append(MeasuredMatrix(kind, peers, "(P2P Reads)" in line, scaled))
    faults.check(
        found or faults.problems, "", "no matrix of p2pBandwidthLatencyTest or nvbandwidth in it"
    )
    faults.check(
        len({len(matrix.rows) for matrix in found}) <= 1,
        "",
        "the matrices are not of the same number of GPUs",
    )
    faults.raise_any(CalibrationError)
    return tuple(found)


def _matrix(lines: Sequence[str]) -> tuple[list[list[float | None]], str]:
    """The rows below a title, and what is wrong with them."""
    head = lines[0].split() if lines else []
    size = len(head) - 1
    if (
        not head
        or head[0] not in ("D\\D", "GPU", "CPU")
        or head[1:] != [str(i) for i in range(size)]
    ):
        return [], "no row of GPU numbers below the title"
    if head[0] == "CPU":
        return [], "this is the CPU's latency"
    rows: list[list[float | None]] = []
    for i in range(size):
        fields = lines[i + 1].split() if i + 1 < len(lines) else []
        wrong = [cell for cell in fields[1:] if not _NUMBER.fullmatch(cell) and cell != "-"]
        if len(fields) != size + 1 or fields[0] != str(i) or wrong:
            return [], f"row {i} must be its number and {size} numbers" + (
                f", not {quote(wrong[0])}" if wrong else ""
            )
        rows.append([None if cell == "-" else float(cell) for cell in fields[1:]])
    return rows, "" if rows else "an empty matrix"


def read_nccl_tests(
    text: str, name: str, note: Callable[[str], None] | None = None
) -> tuple[MeasuredRow, ...]:
    """Read the table of an nccl-tests program.

    A line that another process wrote into is left out where there is a `note` to take. Raises
    `CalibrationError` when there is no table or a line is damaged.
    """
    faults = Faults(name)
    found: list[MeasuredRow] = []
    heads = re.findall(r"^#.*\bcount\s+type\b.*", text, re.MULTILINE)
    has_root = any("root" in head for head in heads)  # since version 2.9
    counts_wrong = any("#wrong" in head for head in heads)  # before, an error
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        numbered = len(fields) >= 8 and fields[0].isascii() and fields[0].isdigit()
        if not (numbered or ROW.match(line)):
            continue
        # size count type redop root time algbw busbw ...; all_gather and others print none, or
        # nothing, as redop.
        rest = fields[2:]
        words = [cell for cell in rest[:2] if not _is_number(cell)]
        numbers = rest[len(words) :]
        if not heads:  # time, algbw, busbw, #wrong once or twice, and before them the root
            has_root = len(numbers) % 2 == 1 or numbers[:1] == ["-1"]
            counts_wrong = (
                numbers[-1:] != [] and re.fullmatch("[0-9]+|N/A", numbers[-1]) is not None
            )
        numbers = numbers[has_root:]
        torn = len(numbers) < 3 or any(
            re.search(r"[A-Za-z]", each) for each in numbers[:3] if each not in _NO_TIMES
        )
        if torn and note:
            note(f"{name}: line {number} is torn and left out: {quote(line.strip())}")
            continue
        if (
            len(numbers) < 3
            or not all(map(_is_number, numbers[:3]))
            or not words
            or any(word.strip("-") in ("nan", "inf") for word in words)
            or not fields[1].isdigit()
            or len(fields[0]) > 18
            or len(fields[1]) > 18
        ):
            faults.add(f"line {number}", f"not a line of nccl-tests: {quote(line.strip())}")
            continue
        time, algbw, busbw = (float(cell) for cell in numbers[:3])
        if not faults.check(
            time > 0 and algbw >= 0 and busbw >= 0, f"line {number}", f"a time of {numbers[0]} us"
        ):
            continue
        # With -c 0 nothing is checked.
        if counts_wrong and (numbers[3:4] or ["0"])[0].strip("0") not in ("", "N/A"):
            faults.add(f"line {number}", f"{quote(numbers[3])} wrong elements")
            continue
        found.append(
            MeasuredRow(
                size=int(fields[0]),
                count=int(fields[1]),
                dtype=words[0],
                redop=words[1] if len(words) > 1 else "none",
                time=time * 1e-6,
                algbw=algbw * 1e9,
                busbw=busbw * 1e9,
            )
        )
        if not faults.check(len(found) <= _MOST_ROWS, "", f"more than {_MOST_ROWS} lines"):
            break
    faults.check(found or faults.problems, "", "no line of nccl-tests in it")
    faults.raise_any(CalibrationError)
    return tuple(found)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,9})?(e[+-]?[0-9]{1,2})?", text) is not None


_NO_TIMES = ("nan", "-nan", "inf", "-inf", "N/A")
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
_TORN = re.compile(r"\s+\d+[A-Za-z]\S*:\d+:\d+ .*NCCL INFO")
"""A size that NCCL's own line follows."""
_CUT = re.compile(r"\d{1,18}\s+\d{1,18}\s*")
"""A row that ends after its size and count."""
_OTHERS = ("gather", "scatter", "hypercube")
"""Programs of collectives that have no name here."""
_CONFIG = ("nthreads", "ngpus", "iterations")


@dataclass(frozen=True, slots=True)
class NcclTestsLog:
    """One log. `collective` is "" and counts are 0 where it does not say them. `programs` are the
    names of programs that it has, such as `all_reduce_perf`.

    `ranks` are on `hosts`, in `processes` of `nthreads` threads, which drive `ngpus` GPUs each. A
    time is of one of `iterations` calls in a row. Sizes that are `of_one_rank` are a part of those
    of nccl-tests, one of as many as there are ranks.
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
    of_one_rank: bool = False

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


def read_nccl_logs(
    text: str, name: str, note: Callable[[str], None] | None = None
) -> tuple[NcclTestsLog, ...]:
    """The logs of programs in one file, one after the other; OSU's tables are logs, too. Lines that
    are torn are left out and given to `note`. Raises `CalibrationError` when there is no table.
    """
    if text.lstrip().startswith("{"):
        return (_read_json(text, name),)
    if OSU.search(text):
        return _read_osu([_strip(line) for line in text.splitlines()], name, note)
    parts, running = [list[str]()], ""
    for number, whole in enumerate(text.splitlines()):
        line = _strip(whole)
        if note and (_TORN.match(whole) or _CUT.fullmatch(line)):
            note(f"{name}: line {number + 1} is torn and left out: {quote(whole.strip())}")
        found = _PROGRAM.search(line)
        if found and found[1] in (*COLLECTIVES, *_OTHERS) and found[1] != running:
            if running:
                parts.append([""] * number)
            running = found[1]
        parts[-1].append(line)
    tables = [part for part in parts if any(map(ROW.match, part))] or parts[:1]
    return tuple(_read_log(part, name, note) for part in tables)


OSU = re.compile(r"# OSU (?P<library>\w+)(?P<memory>-\w+)? (?P<what>\w.*?) Test\b")
"""The title of a table of OSU's micro-benchmarks (mvapich.cse.ohio-state.edu/benchmarks, 5.3 to
7.5); without `memory`, the memory of hosts is sent. `-f` adds columns, and 7.2 the datatype.
"""
_OSU_COLLECTIVES = {
    "Allreduce Latency": "all_reduce",
    "Allgather Latency": "all_gather",
    "Reduce_scatter Latency": "reduce_scatter",
    "Broadcast Latency": "broadcast",
    "Reduce Latency": "reduce",
    "All-to-All Personalized Exchange Latency": "all_to_all",
}
_OF_ONE_RANK = ("all_gather", "all_to_all")
"""OSU's size is what a rank gives to all, or to each other; nccl-tests' is what it holds."""
_OSU_TYPES = {"INT": "int32", "DOUBLE": "double"}
_LATENCY = re.compile(r"(Avg )?Lat(ency)?\((us|ms)\)")


def _read_osu(
    lines: Sequence[str], name: str, note: Callable[[str], None] | None
) -> tuple[NcclTestsLog, ...]:
    """Every table, each time of one call: OSU has a barrier between calls."""
    faults, logs, rows = Faults(name), list[NcclTestsLog](), list[MeasuredRow]()
    place, scale, collective, dtype = 0, 0.0, "", "float"
    for number, line in enumerate(lines, 1):
        cells = line.split()
        if title := OSU.match(line):
            rows, place, dtype = [], 0, "float"
            collective = _OSU_COLLECTIVES.get(title["what"], "")
            known = faults.check(
                collective, f"line {number}", f"{quote(title[0])} is no collective that is known"
            ) and faults.check(
                title["memory"] or title["library"] != "MPI",
                f"line {number}",
                "is of the memory of hosts; bring what it prints with -d cuda",
            )
            if title["library"] == "MPI" and known and note:
                note(f"{name}: is of MPI, whose times NCCL's constants are fitted to")
        elif line.startswith("# Datatype:"):
            dtype = _OSU_TYPES.get(cells[-1].strip(".").removeprefix("MPI_"), "float")
        elif line.startswith("# Size"):
            heads = re.split(r"\s{2,}", line.lstrip("# ").replace("Size ", "Size  ", 1))
            found = [i for i, head in enumerate(heads) if _LATENCY.fullmatch(head)]
            if faults.check(found, f"line {number}", "has no column of latencies in us or ms"):
                place, scale = found[0], 1e-3 if "(ms)" in heads[found[0]] else 1e-6
                log = NcclTestsLog(
                    name, collective, (f"osu_{collective}",), 0, 0, 0, (), 0, 0, 1,
                    collective in _OF_ONE_RANK,
                )  # fmt: skip
                logs.append(log)
        elif place and line[:1].isdigit():
            if len(cells) <= place or not (cells[0].isdecimal() and _is_number(cells[place])):
                (note or partial(faults.add, f"line {number}"))(
                    f"{name}: line {number} is torn and left out: {quote(line)}"
                )
                continue
            size, time = int(cells[0]), float(cells[place]) * scale
            if faults.check(time > 0, f"line {number}", f"a time of {cells[place]}"):
                rate = size / time
                rows.append(MeasuredRow(size, size // 4, dtype, "sum", time, rate, 0.0, collective))
                logs[-1] = replace(logs[-1], rows=tuple(rows))
    faults.check(
        any(log.rows for log in logs) or faults.problems, "", "no line of OSU's tables in it"
    )
    faults.raise_any(CalibrationError)
    return tuple(log for log in logs if log.rows)


def has_rows(text: str) -> bool:
    """Whether a text is of nccl-tests: its heading, or rows alone as people paste them."""
    return bool(
        re.search(r"\bbusbw\b", text)
        or any(
            ROW.match(line) and len(line.split()) >= 8 for line in map(_strip, text.splitlines())
        )
    )


def _read_log(lines: Sequence[str], name: str, note: Callable[[str], None] | None) -> NcclTestsLog:
    # Lines keep their numbers.
    table = "\n".join(line if line.startswith("#") or ROW.match(line) else "" for line in lines)
    found = [match.groups() for line in lines if (match := _RANK.search(line))]
    programs = [match[1] for line in lines for match in [_PROGRAM.search(line)] if match]
    collective = next((COLLECTIVES[each] for each in programs if each in COLLECTIVES), "")
    rows = read_nccl_tests(table, name, note)
    return NcclTestsLog(
        name,
        collective,
        tuple(f"{each}_perf" for each in dict.fromkeys(programs)),
        len({rank for rank, _, _ in found}),
        len({host for _, _, host in found}),
        len({(pid, host) for _, pid, host in found}),
        tuple(replace(row, collective=collective) for row in rows),
        *read_launch(table),
    )


def _strip(line: str) -> str:
    """A line without what launchers put before it."""
    return without_mark(line, lambda rest: rest.startswith("#") or ROW.match(rest) is not None)


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
