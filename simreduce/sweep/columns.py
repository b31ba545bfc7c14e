"""What each value of a row is: its unit, its type in a database and its key in documents.

It stands apart from `rows`, so that a better sentence changes no digest.
"""

from __future__ import annotations

from simreduce.formats.documents import (
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    PER_SECOND,
    RATIO,
    SECONDS,
    TEXT,
    Key,
    Record,
    one_of,
)
from simreduce.sweep.rows import DONE, FAILED, KILLED, REFUSED, STUCK, TOO_LARGE

WAITING = "waiting"
"""The state of a cell without a row."""
COLUMNS = Record(
    "row",
    "A cell: the values of its keys, its figures, and where they come from.",
    Key(
        "state",
        one_of(DONE, REFUSED, TOO_LARGE, STUCK, KILLED, FAILED, WAITING),
        "`done`; or why there is no answer.",
    ),
    Key("reason", TEXT, 'Why there is no answer; "" for one that is done or waits.'),
    Key(
        "seconds",
        SECONDS,
        "The reduction, the training step, or the mean of synchronous replicas' updates.",
    ),
    Key(
        "low",
        SECONDS,
        "The lower end of its 80 % interval; of a step, of its exposed communication.",
    ),
    Key("high", SECONDS, "The upper end of that interval."),
    Key("chosen", TEXT, "The strategy with its chunk size."),
    Key("method", TEXT, "The method of the training step."),
    Key("runtime", TEXT, "The system that runs it."),
    Key("ranks", COUNT, "GPUs that take part."),
    Key("nbytes", BYTES, "All gradients, or the tensor."),
    Key("algbw", BYTES_PER_SECOND, "Size over time."),
    Key("busbw", BYTES_PER_SECOND, "Algbw times nccl-tests' factor."),
    Key("floor", SECONDS, "The least time that any schedule takes."),
    Key("bound", TEXT, "The busiest link or lane, or what a step waits for."),
    Key("bound_share", RATIO, "The part of the time in which that is busy."),
    Key("link", TEXT, "The link or memory that a step's transfers need for the longest."),
    Key("compute", SECONDS, "The compute of a step."),
    Key("exposed", SECONDS, "Communication that no compute hides."),
    Key("communication", SECONDS, "When at least one transfer is in flight."),
    Key("update", SECONDS, "The update of the variables."),
    Key("launch", SECONDS, "The cost of starting a step."),
    Key("efficiency", RATIO, "What GPUs do together over what they would do singly."),
    Key("samples_per_second", PER_SECOND, "Samples of all GPUs."),
    Key(
        "gradients_per_second", PER_SECOND, "Of synchronous replicas: gradients that enter updates."
    ),
    Key(
        "dropped", RATIO, "Of synchronous replicas: gradients that no update has, as a part of all."
    ),
    Key("memory", BYTES, "What a GPU holds at most."),
    Key("transfers", COUNT, "Copies between devices."),
    Key("wrong", COUNT, "Elements whose sum is wrong."),
    Key("machines", COUNT, "Equal machines of which one was simulated for all; 1: none."),
    Key("topology", TEXT, "The name of the machine."),
    Key("topology_digest", TEXT, "Names the machine's content."),
)
"""What each column is, with its unit; null where a figure does not apply."""
UNITS = {key.name: key.kind.unit for key in COLUMNS.keys if key.kind.unit not in ("", "1")}
"""Units of the columns that have one."""
_TYPES = {"string": "TEXT", "integer": "INTEGER", "number": "REAL"}
TYPES = {key.name: _TYPES[key.kind.schema.get("type", "string")] for key in COLUMNS.keys}
"""Types of the columns in a database."""
