"""`simreduce bench -J FILE`: the document that nccl-tests writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simreduce.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    INTEGER,
    MICROSECONDS,
    TEXT,
    Key,
    Record,
    list_of,
)
from simreduce.report.bench import Row, average_busbw, count_of, split_stuck, type_of
from simreduce.tune.bench import BenchRow
from simreduce.tune.busbw import algbw, busbw
from simreduce.version import __version__

_BLOCK = Record(
    "block",
    "Times and rates, as nccl-tests has them.",
    Key("time", MICROSECONDS, "One collective."),
    Key("alg_bw", GB_PER_SECOND, "Size over time."),
    Key("bus_bw", GB_PER_SECOND, "Algbw times nccl-tests' factor."),
    Key("nwrong", COUNT, "Elements whose result is wrong."),
)
NCCL_TESTS = Record(
    "bench-nccl-tests",
    "`simreduce bench -J FILE`: the format of nccl-tests' `-J`, without plans that never finish. "
    "The key `algorithm` is ours.",
    Key("version", TEXT, "`simreduce` and its version."),
    Key("start_time", TEXT, "When the command began, in UTC, as ISO 8601 has it."),
    Key("args", list_of(TEXT), "The arguments of the command."),
    Key(
        "config",
        Record(
            "config",
            "The machine.",
            Key("topology", TEXT, "Its name."),
            Key("simulated", FLAG, "True: no device ran."),
        ),
        "What ran.",
    ),
    Key("devices", list_of(Record("device", "A GPU.", Key("rank", COUNT, "Its rank."))), "GPUs."),
    Key(
        "results",
        list_of(
            Record(
                "result",
                "A strategy at a size.",
                Key("size", BYTES, "The tensor."),
                Key("count", COUNT, "Elements, counted as nccl-tests does."),
                Key("type", TEXT, "The type of its elements."),
                Key("redop", TEXT, "The reduction, or `none`."),
                Key("root", INTEGER, "The root's rank; -1 for collectives without one."),
                Key("algorithm", TEXT, "The strategy."),
                Key("out_of_place", _BLOCK, "Results in other memory."),
                Key("in_place", _BLOCK, "The same: a simulation does not tell them apart."),
            )
        ),
        "Every row, size by size.",
    ),
    Key("end_time", TEXT, "When the command ended."),
    Key(
        "out_of_bounds",
        Record(
            "out_of_bounds",
            "Wrong results of all rows.",
            Key("count", COUNT, "Wrong elements."),
            Key("okay", FLAG, "Whether there are none."),
        ),
        "Whether results are right.",
    ),
    Key(
        "average_bus_bandwidth",
        Record(
            "average_bus_bandwidth",
            "The mean of all rows.",
            Key("bandwidth", GB_PER_SECOND, "Busbw; 0 without rows."),
        ),
        "The mean busbw.",
    ),
)


def nccl_tests_document(
    rows: Sequence[Row],
    ranks: int,
    args: Sequence[str],
    topology: str,
    began: str,
    ended: str,
) -> dict[str, Any]:
    """nccl-tests' `-J` file, without plans that never finish: `NCCL_TESTS`.

    Out of place and in place are the same in a simulation. nccl-tests' file names no algorithm:
    that key is ours.
    """
    done, _ = split_stuck(rows)
    results = [
        {
            "size": r.nbytes,
            "count": count_of(r, ranks),
            "type": type_of(r),
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
        "version": f"simreduce {__version__}",
        "start_time": began,
        "args": list(args),
        "config": {"topology": topology, "simulated": True},
        "devices": [{"rank": i} for i in range(ranks)],
        "results": results,
        "end_time": ended,
        "out_of_bounds": {"count": wrong, "okay": wrong == 0},
        "average_bus_bandwidth": {"bandwidth": average_busbw(done, ranks)},
    }


def _block(r: BenchRow, ranks: int) -> dict[str, float | int]:
    return {
        "time": r.seconds * 1e6,
        "alg_bw": algbw(r.nbytes, r.seconds) / 1e9,
        "bus_bw": busbw(r.nbytes, r.seconds, ranks, r.collective) / 1e9,
        "nwrong": r.wrong,
    }
