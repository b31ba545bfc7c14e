"""Reads tables of published timings from TOML, and shipped rows from CSV.

The shipped files lie in `tables/`, one for each publication. Whole tables are held out: no constant
that simreduce ships was fitted to a held table. docs/accuracy.md lists the few things of the model
that were chosen with a view to one.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from simreduce import dtypes
from simreduce.errors import InputError
from simreduce.files.formats import (
    FLAG,
    LINE,
    Faults,
    Field,
    FieldValues,
    Format,
    ListOf,
    TablesOf,
    choice,
    text_of,
    whole,
)
from simreduce.files.textfiles import parse_toml, read_text

LAUNCHERS = ("gpu", "process")
"""One process for each GPU, or one process for all GPUs of a machine."""
RCCL = "RCCL"
"""The library of tables that are compared by themselves."""
ITERATIONS = 20
"""Calls in a row that nccl-tests times by default."""
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_receive",
)
"""Those of nccl-tests. In `send_receive` every rank sends to the next one."""


def _row(text: str) -> tuple[int, float]:
    """`1024 9.4` as bytes and seconds."""
    size, _, time = text.partition(" ")
    if not size.isdecimal() or len(size) > 15 or not time.replace(".", "", 1).isdecimal():
        raise ValueError(f"must be bytes and microseconds, such as 1024 9.4, got {text!r}")
    if not int(size) or not float(time):
        raise ValueError(f"bytes and microseconds must be above 0, got {text!r}")
    return int(size), float(time) * 1e-6


_TABLE = Format(
    "tables",
    "One collective on one machine, over sizes.",
    Field("name", LINE, "Name of the table.", required=True),
    Field("source", LINE, "Where it is published.", required=True),
    Field("topology", LINE, "The machine, as commands take it.", required=True),
    Field("gpus", whole(1), "Use the first GPUs of every machine only.", default_words="all"),
    Field("collective", choice(COLLECTIVES, "collective"), "The collective.", required=True),
    Field("type", text_of(dtypes.code, "a type of element", "float"), "Type of the elements.", 0,
          default_words="`float`"),
    Field("nccl", LINE, "Version of NCCL.", "", default_words="unknown"),
    Field("settings", ListOf(LINE), "Environment variables of NCCL, as `NAME=VALUE`."),
    Field("library", LINE, "What reduced, if not NCCL. RCCL is compared by itself, others are"
          " only shown.", ""),
    Field("launcher", choice(LAUNCHERS, "launcher"), "What each process drives: one `gpu`, or all"
          " of a machine in one `process`.", "gpu"),
    Field("iterations", whole(1), "Calls in a row between two looks at the clock.",
          ITERATIONS),
    Field("held", FLAG, "Keep the table out of every fit.", default=False),
    Field("note", LINE, "What else the source says.", ""),
    Field("times", ListOf(text_of(_row, "bytes and microseconds", "1024 9.4"), 1),
          "Bytes of the whole tensor as nccl-tests counts them, and microseconds, out of place.",
          required=True),
)  # fmt: skip
PUBLISHED = Format(
    "published",
    "Published timings of collectives.",
    Field("title", LINE, "Which machines.", ""),
    Field("tables", TablesOf(_TABLE), "The timings.", required=True),
)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One collective on one machine. `times` are bytes of the whole tensor, and seconds.

    `gpus` counts the GPUs of each machine that take part; None means all. `held` tables take part
    in no fit.
    """

    name: str
    source: str
    topology: str
    gpus: int | None
    collective: str
    dtype: int
    nccl: str
    settings: tuple[str, ...]
    library: str
    launcher: str
    held: bool
    note: str
    times: tuple[tuple[int, float], ...]
    iterations: int = ITERATIONS

    @property
    def compared(self) -> bool:
        """Whether its times are compared with predictions."""
        return self.library in ("", RCCL)

    @property
    def version(self) -> tuple[int, int] | None:
        """NCCL's version, its first two numbers; None if they are not known."""
        major, _, rest = self.nccl.partition(".")
        minor = rest.partition(".")[0]
        known = major.isdecimal() and minor.isdecimal()
        return (int(major), int(minor)) if known else None

    @property
    def site(self) -> str:
        """Who measured: the repository or the title of the source."""
        first = self.source.partition(" ")[0]
        return first if "/" in first else self.source.partition(",")[0]

    @property
    def iterations_timed(self) -> int:
        """Return the iterations until all GPUs are done.

        0 if the time is rank 0's alone, as of old versions of nccl-tests with a process for each
        GPU.
        """
        alone = self.launcher == "gpu" and self.version is not None and self.version < (2, 10)
        return 0 if alone else self.iterations


def read_published(source: str, content: str) -> tuple[PublishedTable, ...]:
    """The tables in the text of a file; raises InputError with every fault."""
    faults = Faults(source)
    tables = PUBLISHED.read(parse_toml(source, content, InputError), faults)["tables"] or []
    for i, name in enumerate(names := [values["name"] for values in tables]):
        if name in names[:i]:
            faults.add(f"tables[{i}].name", f"there is a table {name!r} already")
    faults.raise_any()
    return tuple(_table(values) for values in tables)


def _table(values: FieldValues) -> PublishedTable:
    lists = {key: tuple(values[key] or ()) for key in ("settings", "times")}
    rest = {("dtype" if key == "type" else key): value for key, value in values.items()}
    return PublishedTable(**{**rest, **lists})


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Every shipped table, by file and in the order of each."""
    folder = resources.files(__package__) / "tables"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=str)
    return tuple(
        table for file in files for table in read_published(file.name, file.read_text("utf-8"))
    )


def shipped_rows(name: str) -> Iterator[dict[str, str]]:
    """The rows of a shipped CSV."""
    yield from csv.DictReader(text_of_rows("", name).splitlines())


def text_of_rows(file: str, shipped: str) -> str:
    """The text of a user's CSV; without one, of the one that is shipped."""
    if file:
        return read_text(Path(file), InputError)
    return resources.files(__package__).joinpath(shipped).read_text("utf-8")
