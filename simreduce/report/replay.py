"""`simreduce replay`: a recorded run on another machine, as text and as a document."""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import Any, NamedTuple

from simreduce import units
from simreduce.engine.setup import Setup
from simreduce.files import tables
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    MICROSECONDS,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    or_null,
)
from simreduce.files.tables import Column
from simreduce.report.blocks import first_rows
from simreduce.report.headings import CALIBRATION_KEY, NCCL_KEY
from simreduce.report.topo import topology_keys
from simreduce.training.executor import Movement
from simreduce.training.recorded import Replay

_MOST = 30


class Replayed(NamedTuple):
    """A recorded run on the machine of `setup`, whose collectives run by `strategy`."""

    found: Replay
    setup: Setup
    strategy: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Equal collectives, those with most time in all first, with means of their calls."""
        kinds: dict[tuple[str, int, int], list[Movement]] = {}
        for one in self.found.moved:
            kinds.setdefault((one.collective, one.nbytes, len(one.group)), []).append(one)
        rows = []
        for (collective, nbytes, ranks), calls in kinds.items():
            known = [call.recorded for call in calls if call.recorded is not None]
            whole = fsum(call.end - call.met for call in calls)
            rows.append(
                {
                    "collective": collective,
                    "nbytes": nbytes,
                    "ranks": ranks,
                    "calls": len(calls),
                    "each": whole / len(calls),
                    "waits": fsum(call.met - call.arrived for call in calls) / len(calls),
                    "recorded": fsum(known) / len(known) if known else None,
                    "total": len(calls) * (whole / len(calls)),
                }
            )
        return sorted(rows, key=lambda row: (-row["total"], row["collective"], row["nbytes"]))


def replay_text(replayed: Replayed) -> str:
    """Header, the run, a row for equal collectives."""
    found, setup, strategy = replayed
    execution, machine = found.execution, setup.topology
    recorded = units.plural(len(execution.nodes), "recorded rank")
    nodes = units.plural(sum(map(len, execution.nodes.values())), "node")
    facts = [
        ("trace", f"{recorded} of {execution.world}, {nodes}"),
        *(("", note) for note in execution.notes),
        ("topology", f"{machine.name}: {machine.title}, {machine.digest}"),
        ("strategy", strategy),
        ("nccl", setup.nccl.text),
        ("", setup.nominal([strategy])),
        ("calibration", tables.label(setup.calibration.name, setup.calibration.title)),
        ("disturbed", setup.disturbed),
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
    rows = [_ROW.row(row) for row in replayed.rows]
    lines += ["", *first_rows(_ROW.table(rows), _MOST)]
    return "\n".join(lines)


_ROW = Record(
    "collective",
    "Equal collectives, or equal sends with their receives.",
    Key("collective", TEXT, "What is done.", column=Column("collective", left=True)),
    Key(
        "size_bytes", BYTES, "The tensor.", "nbytes",
        column=Column("size", show=units.format_size),
    ),
    Key("ranks", COUNT, "Ranks that take part.", column=Column("ranks", spare=3)),
    Key("calls", COUNT, "How many.", column=Column("calls")),
    Key(
        "seconds", SECONDS, "One, from when its last rank is there; the mean.", "each",
        column=Column("each", show=units.format_duration),
    ),
    Key(
        "wait_seconds", SECONDS, "From its first rank to its last; the mean.", "waits",
        column=Column("waits", spare=2, show=units.format_duration),
    ),
    Key(
        "recorded_seconds", or_null(SECONDS),
        "The shortest time that a rank recorded, the mean; null without one.", "recorded",
        column=Column("recorded", spare=1, show=units.format_duration),
    ),
    Key(
        "total_us", MICROSECONDS, "All calls.", "total", column=Column("all", "(ms)"),
        written=False,
    ),
)  # fmt: skip
REPLAY = Document(
    "replay",
    "`simreduce replay --json`: a recorded run on another machine.",
    Key("trace", TEXT, "What was recorded, and by what.", "found.execution.source"),
    Key(
        "recorded_ranks", list_of(COUNT), "Ranks with a recording.",
        lambda replayed: sorted(replayed.found.execution.nodes),
    ),
    Key("ranks", COUNT, "All ranks of the run.", "found.execution.world"),
    *topology_keys("setup.topology"),
    Key("strategy", TEXT, "How collectives run."),
    replace(NCCL_KEY, get="setup.nccl.text"),
    replace(CALIBRATION_KEY, get="setup.calibration.name"),
    Key(
        "notes", list_of(TEXT), "What the recording lacks, and what was assumed.",
        "found.execution.notes",
    ),
    Key("seconds", SECONDS, "The run, from begin to end.", "found.seconds"),
    Key(
        "recorded_seconds", or_null(SECONDS), "The recorded run; null if that is not known.",
        "found.execution.recorded",
    ),
    Key(
        "compute_seconds", SECONDS, "Compute of the recorded rank with most exposed time.",
        "found.computed",
    ),
    Key(
        "exposed_seconds", SECONDS, "Waiting and communication of that rank, without compute.",
        "found.exposed",
    ),
    Key(
        "collectives", list_of(_ROW), "What ranks exchange, that with most time first.", "rows"
    ),
)  # fmt: skip
"""Of `Replayed`."""
