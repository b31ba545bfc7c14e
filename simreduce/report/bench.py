"""`simreduce bench`: nccl-tests' table and its two documents, ours and theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import simreduce
from simreduce import dtypes
from simreduce.report.busbw import algbw, busbw
from simreduce.tune.bench import DIVIDED, BenchRow, Stuck, Tried

_TYPES = {"float32": "float", "float16": "half", "float64": "double", "bfloat16": "bfloat16"}
_HEADER = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong   floor  transfers  algorithm, busiest link",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)",
)  # fmt: skip


def folded_lines(rows: Sequence[BenchRow | Stuck]) -> list[str]:
    """What a reader must know of rows for which one of many equal machines was simulated."""
    done, _ = _parted(rows)
    found = dict.fromkeys((r.machines, r.proved_on) for r in done if r.machines > 1)
    some = (
        "" if all(r.machines > 1 for r in done) else " (where the whole plan is too large to hold)"
    )
    return [
        f"folded{some}: one of {machines} equal machines is simulated; #wrong is proved on {proved_on} of them"
        for machines, proved_on in found
    ]


def bench_table(
    rows: Sequence[BenchRow | Stuck], ranks: int, about: Sequence[str], *, complete: bool = True
) -> str:
    """nccl-tests' columns in its places; ours to the right of them. What is not `complete` was
    stopped.
    """
    lines = [*(f"# {line}" for line in about), *_HEADER]
    lines += [_line(r, ranks) for r in rows]
    done, stuck = _parted(rows)
    wrong = sum(r.wrong for r in done)
    lines.append(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    if stuck:
        lines.append(f"# Can never finish     : {len(stuck)} FAILED")
    lines.append(f"# Avg bus bandwidth    : {_best_average(done, ranks)}")
    if not complete:
        lines.append("# stopped before all sizes were simulated")
    return "\n".join(lines)


def _parted(rows: Sequence[BenchRow | Stuck]) -> tuple[list[BenchRow], list[Stuck]]:
    """What ends, and what never does."""
    return [r for r in rows if isinstance(r, BenchRow)], [r for r in rows if isinstance(r, Stuck)]


def _line(r: BenchRow | Stuck, ranks: int) -> str:
    asked = f"{r.nbytes:12d}  {_count(r, ranks):12d}  {_type(r):>8}  {r.redop:>6}  {r.root:6d}  "
    if isinstance(r, Stuck):
        return f"{asked}{'-':>7}  {'-':>6}  {'-':>6}  {'-':>6}  {'-':>6}  {'-':>9}  {r.algorithm} failed: {r.reason}"
    return (
        f"{asked}{_cell(r.seconds * 1e6):>7}  "
        f"{_cell(algbw(r.nbytes, r.seconds) / 1e9, 6):>6}  {_cell(busbw(r.nbytes, r.seconds, ranks, r.collective) / 1e9, 6):>6}  "
        f"{r.wrong:6d}  {_cell(r.floor_seconds * 1e6):>6}  {r.transfers:9d}  "
        f"{r.algorithm}" + (f", {r.link} {r.link_share:.0%}" if r.link else "")
    )


def _count(row: Tried, ranks: int) -> int:
    """nccl-tests' count: the elements of one rank's part where ranks have parts."""
    return row.count // ranks if row.collective in DIVIDED else row.count


def _type(row: Tried) -> str:
    name = dtypes.NAMES[row.dtype]
    return _TYPES.get(name, name)


def _cell(value: float, width: int = 7) -> str:
    """Two decimals, fewer when the cell is full."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return text


def _best_average(rows: Sequence[BenchRow], ranks: int) -> str:
    """nccl-tests' last figure. An average over several algorithms would describe none of them: the
    highest is told.
    """
    names = list(dict.fromkeys(r.algorithm for r in rows))
    found = {name: _average([r for r in rows if r.algorithm == name], ranks) for name in names}
    best = max(found, key=found.__getitem__, default="")
    several = f" ({best}, the highest of {len(names)} algorithms)" if len(names) > 1 else ""
    return f"{found.get(best, 0.0):g}{several}"


def _average(rows: Sequence[BenchRow], ranks: int) -> float:
    return (
        sum(busbw(r.nbytes, r.seconds, ranks, r.collective) for r in rows) / len(rows) / 1e9
        if rows
        else 0.0
    )


def bench_document(
    rows: Sequence[BenchRow | Stuck], ranks: int, topology: str, runtime: str, calibration: str,
    collective: str = "all_reduce", disturbance: str = "", *, complete: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The keys that others may rely on, in a fixed order. What can never finish is no row, as it
    has no time.
    """
    done, stuck = _parted(rows)
    return {
        "command": "bench",
        "version": simreduce.__version__,
        "topology": topology,
        "ranks": ranks,
        "runtime": runtime,
        "calibration": calibration,
        "collective": collective,
        "disturbance": disturbance,
        "rows": [
            {
                "size_bytes": r.nbytes,
                "count": _count(r, ranks),
                "type": _type(r),
                "redop": r.redop,
                "algorithm": r.algorithm,
                "time_us": r.seconds * 1e6,
                "algbw_gb_per_s": algbw(r.nbytes, r.seconds) / 1e9,
                "busbw_gb_per_s": busbw(r.nbytes, r.seconds, ranks, r.collective) / 1e9,
                "wrong": r.wrong,
                "floor_us": r.floor_seconds * 1e6,
                "bottleneck": r.link,
                "transfers": r.transfers,
                "folded_machines": r.machines,
            }
            for r in done
        ],
        "failed": [
            {"size_bytes": r.nbytes, "algorithm": r.algorithm, "reason": r.reason} for r in stuck
        ],
        "complete": complete,
    }


def nccl_tests_document(
    rows: Sequence[BenchRow | Stuck],
    ranks: int,
    args: Sequence[str],
    topology: str,
    began: str,
    ended: str,
) -> dict[str, Any]:
    """The shape of nccl-tests' `-J` file, times in microseconds; what can never finish is left out.
    A simulation knows no difference between out of place and in place, and the algorithm, which
    theirs does not name, is a key of ours.
    """
    done, _ = _parted(rows)
    results = [
        {
            "size": r.nbytes,
            "count": _count(r, ranks),
            "type": _type(r),
            "redop": r.redop,
            "root": r.root,
            "algorithm": r.algorithm,
            "out_of_place": _block(r, ranks),
            "in_place": _block(r, ranks),
        }
        for r in done
    ]
    wrong = sum(r.wrong for r in done)
    return {
        "version": f"simreduce {simreduce.__version__}",
        "start_time": began,
        "args": list(args),
        "config": {"topology": topology, "simulated": True},
        "devices": [{"rank": i} for i in range(ranks)],
        "results": results,
        "end_time": ended,
        "out_of_bounds": {"count": wrong, "okay": wrong == 0},
        "average_bus_bandwidth": {"bandwidth": _average(done, ranks)},
    }


def _block(r: BenchRow, ranks: int) -> dict[str, float | int]:
    return {
        "time": r.seconds * 1e6,
        "alg_bw": algbw(r.nbytes, r.seconds) / 1e9,
        "bus_bw": busbw(r.nbytes, r.seconds, ranks, r.collective) / 1e9,
        "nwrong": r.wrong,
    }
