"""Collectives of MPI between hosts, alone and while an incast runs beside them, as CRAB measures
them (github.com/HLC-Lab/CRAB).

Half of the nodes run a collective, one rank each; the others, every second node, all send 2 MiB to
one of them, over and over (`benchmarks/blink/noise_incast.cpp`). All-to-all starts all its sends at
once (`a2a_comm_only.cpp`), all-gather is a ring of MPI_Sendrecv (`agtr_comm_only.cpp`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from simreduce.errors import InputError, quote
from simreduce.files.formats import LINE, Faults, Field, Format, choice, text_of
from simreduce.files.formats.rows import read_csv
from simreduce.files.published.reading import text_of_rows

SOURCE = "github.com/HLC-Lab/CRAB @ 128fea7e52, data/backup, December 2025"
"""Where the shipped times come from."""

ALL_TO_ALL, ALL_GATHER = "all_to_all", "all_gather"
_VICTIMS = {"a2a_comm_only": ALL_TO_ALL, "agtr_comm_only": ALL_GATHER}
_BESIDE = "Inc-Congested"
INCAST_BYTES = 2 << 20
"""Bytes of each message of the incast."""


class CongestedCall(NamedTuple):
    """A collective of `ranks` of the `nodes` of a system: seconds `alone` and `beside` an incast of
    the others, in the median. `nbytes` are of each pair of an all-to-all, and of all ranks of an
    all-gather.
    """

    system: str
    collective: str
    nodes: int
    ranks: int
    nbytes: int
    alone: float
    beside: float

    @property
    def slowdown(self) -> float:
        """How many times as long it takes beside the incast."""
        return self.beside / self.alone


def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,11}", text):
        raise ValueError(f"must be a whole number from 1, got {quote(text)}")
    return int(text)


def _microseconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) or not float(text):
        raise ValueError(f"must be a time in us, such as 12.5, got {quote(text)}")
    return float(text) * 1e-6


_COUNT = text_of(_count, "a whole number from 1", "32")
ROW = Format(
    "row",
    "A collective that was timed.",
    Field("system", LINE, "The system.", required=True),
    Field("case", LINE, f"What runs: with {_BESIDE!r} in it, an incast too.", required=True),
    Field("nodes", _COUNT, "Nodes in all.", required=True),
    Field("victim_nodes", _COUNT, "Nodes of the collective.", required=True),
    Field("victim", choice(list(_VICTIMS), "benchmark"), "The benchmark.", required=True),
    Field("msg_size_bytes", _COUNT, "Of all-to-all of each pair, of all-gather in all.",
          required=True),
    Field("median_avg_us", text_of(_microseconds, "a time in us", "12.5"),
          "The median of the ranks' mean time.", required=True),
)  # fmt: skip
_MORE = (
    "ppn", "split", "layout", "samples", "p90_avg_us", "p99_avg_us", "median_max_us", "p99_max_us",
    "run", "source",
)  # fmt: skip
"""Columns that may be there, and are not read."""


def congested_calls(file: str = "") -> Sequence[CongestedCall]:
    """The calls in a file, or those that are shipped, that were timed both ways. InputError lists
    every fault.
    """
    faults = Faults(file)
    content = text_of_rows(file, "congestion.csv")
    lines = read_csv(content, (*ROW.keys, *_MORE), ",".join(ROW.keys), faults, InputError)
    found: dict[tuple[str, str, int, int, int], dict[bool, float]] = {}
    for place, row in lines:
        values = ROW.read({key: row[key] for key in ROW.keys if key in row}, faults, place)
        if values.faulty or None in values.values():
            continue
        key = (
            values["system"], _VICTIMS[values["victim"]], values["nodes"], values["victim_nodes"],
            values["msg_size_bytes"],
        )  # fmt: skip
        if not 1 < values["victim_nodes"] < values["nodes"] - 1:
            words = f"must leave 2 or more of the {values['nodes']} nodes to the incast"
            faults.add(place, f"victim_nodes: {words}, and be 2 or more, got {key[3]}")
            continue
        beside = _BESIDE in values["case"]
        if beside in found.setdefault(key, {}):
            with_it = (
                f"with {_BESIDE!r} in its case" if beside else f"without {_BESIDE!r} in its case"
            )
            faults.add(place, f"times a call again {with_it}, which says what runs beside it")
        found[key][beside] = values["median_avg_us"]
    faults.raise_any()
    both = {key: times for key, times in found.items() if len(times) == 2}
    if not both:
        words = f"no call is timed both alone and, with {_BESIDE!r} in its case, beside an incast"
        raise InputError(f"{file}: {words}")
    return [CongestedCall(*key, times[False], times[True]) for key, times in sorted(both.items())]
