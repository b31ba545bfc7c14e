"""Reads what p2pBandwidthLatencyTest and nccl-tests print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.errors import CalibrationError, quote
from simreduce.files.formats import Faults

_TITLES = {
    "Unidirectional P2P=Disabled": ("one_way", False, False),
    "Unidirectional P2P=Enabled": ("one_way", True, False),
    "Bidirectional P2P=Disabled": ("both_ways", False, False),
    "Bidirectional P2P=Enabled": ("both_ways", True, False),
    "P2P=Disabled Latency": ("latency", False, False),
    "P2P=Enabled Latency": ("latency", True, False),
}
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
ROW = re.compile(r"^\s*\d{1,18}\s+\d{1,18}\s+[a-z][a-z0-9_]{2,15}(\s|$)")
"""How a line of nccl-tests begins: size, count and type. What follows may be damaged."""
_MOST_GPUS = 256
_MOST_ROWS = 100_000

Rows = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class MeasuredMatrix:
    """One matrix of p2pBandwidthLatencyTest, in bytes/s or seconds; None on the diagonal.

    `kind` is one_way, both_ways or latency. `reads`: the receiving GPU drove the copies.
    """

    kind: str
    peer_access: bool
    reads: bool
    rows: Rows


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One line of nccl-tests, out of place: bytes, seconds, bytes/s."""

    size: int
    count: int
    dtype: str
    redop: str
    time: float
    algbw: float
    busbw: float


def read_p2p_test(text: str, name: str) -> tuple[MeasuredMatrix, ...]:
    """The matrices of a log; CPU latencies are left out.

    Raises `CalibrationError` with every fault.
    """
    faults = Faults(name)
    found: list[MeasuredMatrix] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        title = next((key for key in _TITLES if key in line), None)
        if title is None or "Matrix" not in line:
            continue
        kind, peers, _ = _TITLES[title]
        rows, fault = _matrix(lines[number + 1 : number + 2 + _MOST_GPUS])
        if fault:
            faults.add(f"line {number + 1}", fault)
            continue
        scale = 1e-6 if kind == "latency" else 1e9
        scaled = tuple(
            tuple(None if i == j or cell is None else cell * scale for j, cell in enumerate(row))
            for i, row in enumerate(rows)
        )
        found.append(MeasuredMatrix(kind, peers, "(P2P Reads)" in line, scaled))
    if not found and not faults.problems:
        faults.add("", "no matrix of p2pBandwidthLatencyTest in it")
    if len({len(matrix.rows) for matrix in found}) > 1:
        faults.add("", "the matrices are not of the same number of GPUs")
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


def read_nccl_tests(text: str, name: str) -> tuple[MeasuredRow, ...]:
    """Read the table of an nccl-tests program.

    Raises `CalibrationError` when there is none or a line is damaged.
    """
    faults = Faults(name)
    found: list[MeasuredRow] = []
    has_root = re.search(r"^#.*\broot\b", text, re.MULTILINE) is not None  # since version 2.9
    counts_wrong = re.search(r"^#.*\s#wrong", text, re.MULTILINE) is not None  # before, an error
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        numbered = len(fields) >= 8 and fields[0].isascii() and fields[0].isdigit()
        if not (numbered or ROW.match(line)):
            continue
        # size count type redop root time algbw busbw ...; all_gather and others print none, or
        # nothing, as redop.
        rest = [cell for cell in fields[2:] if cell != "N/A"]
        words = [cell for cell in rest[:2] if not _is_number(cell)]
        numbers = rest[len(words) + has_root :]
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
        if time <= 0 or algbw < 0 or busbw < 0:
            faults.add(f"line {number}", f"a time of {numbers[0]} us")
            continue
        if counts_wrong and "".join(numbers[3:4]).strip("0"):
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
        if len(found) > _MOST_ROWS:
            faults.add("", f"more than {_MOST_ROWS} lines")
            break
    if not found and not faults.problems:
        faults.add("", "no line of nccl-tests in it")
    faults.raise_any(CalibrationError)
    return tuple(found)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,9})?(e[+-]?[0-9]{1,2})?", text) is not None
