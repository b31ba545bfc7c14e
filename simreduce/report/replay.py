"""`simreduce replay`: a recorded run on another machine, as text and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Any, NamedTuple

from simreduce import tables, units
from simreduce.formats.documents import (
    BYTES,
    COUNT,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    or_null,
)
from simreduce.report.heads import CALIBRATION_KEY, TOPOLOGY_KEYS
from simreduce.setup import Setup
from simreduce.tables import Table
from simreduce.training.replay import Moved, Replay

_COLUMNS = tables.columns(
    "collective|size|ranks|calls|each|waits|recorded|all",
    units="|||||||(ms)",
    left="collective",
    spare="ranks|waits|recorded",
)
_MOST = 30


class _Row(NamedTuple):
    """Equal collectives: `each` seconds from when all are there, `waits` for the last rank, and
    what was `recorded`, on average.
    """

    collective: str
    nbytes: int
    ranks: int
    calls: int
    each: float
    waits: float
    recorded: float | None

    @property
    def total(self) -> float:
        return self.calls * self.each


def replay_text(found: Replay, setup: Setup, algorithm: str) -> str:
    """Header, the run, a row for equal collectives."""
    execution, machine = found.execution, setup.topology
    recorded = units.plural(len(execution.nodes), "recorded rank")
    nodes = units.plural(sum(map(len, execution.nodes.values())), "node")
    facts = [
        ("trace", f"{recorded} of {execution.world}, {nodes}"),
        *(("", note) for note in execution.notes),
        ("topology", f"{machine.name}: {machine.title}, {machine.digest}"),
        ("strategy", algorithm),
        ("calibration", tables.label(setup.calibration.name, setup.calibration.title)),
        ("disturbed", setup.disturbance.text),
    ]
    took, hidden = units.format_duration(found.seconds), units.format_duration(found.exposed)
    lines = [
        *tables.header(execution.source, facts),
        f"{took}: {units.format_duration(found.computed)} of compute, and {hidden} of waiting and",
        "communication that no compute hides, of the recorded rank with most of that",
    ]
    if (before := execution.recorded) is not None and before > 0:
        change = found.seconds / before - 1
        lines.append(f"recorded: {units.format_duration(before)}; here {change:+.1%}")
    rows = _rows(found.moved)
    cells = tuple(
        (
            row.collective,
            units.format_size(row.nbytes),
            str(row.ranks),
            str(row.calls),
            units.format_duration(row.each),
            units.format_duration(row.waits),
            "-" if row.recorded is None else units.format_duration(row.recorded),
            f"{row.total * 1e3:.3f}",
        )
        for row in rows[:_MOST]
    )
    lines += ["", *Table(_COLUMNS, cells).lines(indent=2)]
    if len(rows) > _MOST:
        lines.append(f"  and {units.plural(len(rows) - _MOST, 'other row')} with less: see --json")
    return "\n".join(lines)


REPLAY = Document(
    "replay",
    "`simreduce replay --json`: a recorded run on another machine.",
    Key("trace", TEXT, "What was recorded, and by what."),
    Key("recorded_ranks", list_of(COUNT), "Ranks with a recording."),
    Key("ranks", COUNT, "All ranks of the run."),
    *TOPOLOGY_KEYS,
    Key("strategy", TEXT, "How collectives run."),
    CALIBRATION_KEY,
    Key("notes", list_of(TEXT), "What the recording lacks, and what was assumed."),
    Key("seconds", SECONDS, "The run, from begin to end."),
    Key("recorded_seconds", or_null(SECONDS), "The recorded run; null if that is not known."),
    Key("compute_seconds", SECONDS, "Compute of the recorded rank with most exposed time."),
    Key("exposed_seconds", SECONDS, "Waiting and communication of that rank, without compute."),
    Key(
        "collectives",
        list_of(
            Record(
                "collective",
                "Equal collectives, or equal sends with their receives.",
                Key("collective", TEXT, "What is done."),
                Key("size_bytes", BYTES, "The tensor."),
                Key("ranks", COUNT, "Ranks that take part."),
                Key("calls", COUNT, "How many."),
                Key("seconds", SECONDS, "One, from when its last rank is there; the mean."),
                Key("wait_seconds", SECONDS, "From its first rank to its last; the mean."),
                Key(
                    "recorded_seconds",
                    or_null(SECONDS),
                    "The shortest time that a rank recorded, the mean; null without one.",
                ),
            )
        ),
        "What ranks exchange, that with most time first.",
    ),
)


def replay_document(found: Replay, setup: Setup, algorithm: str) -> dict[str, Any]:
    """The document of `--json`: `REPLAY`."""
    execution = found.execution
    return {
        **REPLAY.head(),
        "trace": execution.source,
        "recorded_ranks": sorted(execution.nodes),
        "ranks": execution.world,
        "topology": setup.topology.name,
        "topology_digest": setup.topology.digest,
        "strategy": algorithm,
        "calibration": setup.calibration.name,
        "notes": list(execution.notes),
        "seconds": found.seconds,
        "recorded_seconds": execution.recorded,
        "compute_seconds": found.computed,
        "exposed_seconds": found.exposed,
        "collectives": [
            {
                "collective": row.collective,
                "size_bytes": row.nbytes,
                "ranks": row.ranks,
                "calls": row.calls,
                "seconds": row.each,
                "wait_seconds": row.waits,
                "recorded_seconds": row.recorded,
            }
            for row in _rows(found.moved)
        ],
    }


def _rows(moved: Sequence[Moved]) -> list[_Row]:
    """Those with most time in all first."""
    kinds: dict[tuple[str, int, int], list[Moved]] = {}
    for one in moved:
        kinds.setdefault((one.collective, one.nbytes, len(one.group)), []).append(one)
    rows = []
    for (collective, nbytes, ranks), calls in kinds.items():
        known = [call.recorded for call in calls if call.recorded is not None]
        rows.append(
            _Row(
                collective,
                nbytes,
                ranks,
                len(calls),
                fsum(call.end - call.met for call in calls) / len(calls),
                fsum(call.met - call.arrived for call in calls) / len(calls),
                fsum(known) / len(known) if known else None,
            )
        )
    return sorted(rows, key=lambda row: (-row.total, row.collective, row.nbytes))
