"""A result file: what it ran on, then every prediction, then every sample as it was taken.

JSON Lines, one document a line, whose `record` says what it is:

    {"record": "run", "format": 1, "provenance": {...}}
    {"record": "candidate", "id": 0, "algorithm": "ring", "predicted_us": 65780.1, ...}
    {"record": "candidate", "id": 7, "then_us": 479.3, "beside": [1048576], ...}
    {"record": "predicted", "candidates": 8}
    {"record": "settled", "id": 0, "steps": 0}
    {"record": "sample", "id": 0, "round": 0, "us": 82010.4}
    {"record": "checked", "id": 0, "faults": []}
    {"record": "end"}

All predictions are on the disk before `ResultWriter` can take a sample. A run that is killed leaves
what it had: lines are only appended, and a last line that was cut is not read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.errors import InputError
from simreduce.files import read_text
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    MICROSECONDS,
    TEXT,
    Key,
    Lines,
    Record as RecordOf,
    list_of,
    one_of,
    or_null,
)
from simreduce.files.formats.syntax import read_json
from simreduce_validate.measuring.provenance import PROVENANCE

FORMAT = 1


def _line(record: str, about: str, *keys: Key) -> RecordOf:
    return RecordOf(record, about, Key("record", one_of(record), "What the line is."), *keys)


_ID = Key("id", COUNT, "The candidate, from 0.")
RECORD = Lines(
    "validate-record",
    "The file of `simreduce validate --out`, and those beside a calibration: JSON Lines. All "
    "predictions stand before the first sample. A run that was killed has no `end`.",
    _line(
        "run",
        "The first line.",
        Key("format", COUNT, "The format of the file: 1."),
        Key("provenance", PROVENANCE, "What it ran on."),
    ),
    _line(
        "candidate",
        "A candidate before it is measured, or a control: a plan of the calibration.",
        _ID,
        Key("algorithm", TEXT, "The strategy, or the plan of a control."),
        Key("size_bytes", BYTES, "The tensor."),
        Key("count", COUNT, "Its elements."),
        Key("type", TEXT, "The type of its elements."),
        Key("redop", TEXT, "The reduction."),
        Key("plan", TEXT, 'Names the plan; "" for TensorFlow\'s own.'),
        Key("predicted_us", or_null(MICROSECONDS), "The prediction; null without one."),
        Key("repeats", or_null(COUNT), "The candidate that is the same; null for none."),
        Key("then_us", or_null(MICROSECONDS), "Of a control, its time when calibrated; or null."),
        Key("beside", list_of(BYTES), "Of a control, the sizes in whose rounds it is timed."),
    ),
    _line("predicted", "All predictions are made.", Key("candidates", COUNT, "How many.")),
    _line(
        "settled",
        "What a sample of a candidate is.",
        _ID,
        Key("steps", COUNT, "The median of so many steps, after as many; 0: one step."),
    ),
    _line(
        "sample",
        "A sample.",
        _ID,
        Key("round", COUNT, "The round in which it was taken."),
        Key("us", MICROSECONDS, "The time."),
    ),
    _line(
        "checked",
        "What was wrong with the results of a candidate, after its last step.",
        _ID,
        Key("faults", list_of(TEXT), "Every fault."),
    ),
    _line("end", "The last line."),
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A case before it is measured, with its prediction, or None without one.

    `plan` is the plan's digest, "" for a builtin. `repeats` is the place of an earlier candidate
    that is the same. A control has no prediction: `then_us` is its time when the calibration was
    made, and `beside` are the sizes in bytes of the candidates in its rounds.
    """

    algorithm: str
    size_bytes: int
    count: int
    type: str
    redop: str
    plan: str
    predicted_us: float | None
    repeats: int | None = None
    then_us: float | None = None
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ResultWriter:
    """A result file that is being written."""

    _file: IO[str] = field(repr=False)

    def settled(self, candidate: int, steps: int) -> None:
        """A sample of a candidate is the median of so many steps, after as many that do not count;
        if 0, one step.
        """
        self._write({"record": "settled", "id": candidate, "steps": steps})

    def sample(self, candidate: int, number: int, seconds: float) -> None:
        """What a candidate took in a round."""
        self._write({"record": "sample", "id": candidate, "round": number, "us": seconds * 1e6})

    def checked(self, candidate: int, faults: Sequence[str]) -> None:
        """What was wrong with the results of a candidate, after its last step."""
        self._write({"record": "checked", "id": candidate, "faults": list(faults)})

    def _write(self, document: Mapping[str, Any]) -> None:
        # A line at a time, so that nothing but this process's death, in between, cuts one.
        self._file.write(json.dumps(document, allow_nan=False) + "\n")
        self._file.flush()


@dataclass(frozen=True, slots=True)
class RecordedResult:
    """A result file that was read. `seconds` are the samples of each forecast in the order in which
    they were taken, `faults` what was wrong with it, None if the run ended before it was checked;
    `settled` the steps whose median a sample is (see `ResultWriter.settled`), None where the file
    does not say; `complete` says whether it came to its end.
    """

    provenance: Mapping[str, Any]
    forecasts: tuple[Forecast, ...]
    seconds: tuple[Floats, ...]
    faults: tuple[tuple[str, ...] | None, ...]
    complete: bool
    settled: tuple[int | None, ...]


@contextmanager
def open_record(
    path: Path, provenance: Mapping[str, Any], forecasts: Sequence[Forecast]
) -> Iterator[ResultWriter]:
    """Begin a file with all that is known before the measurement. InputError if it is there
    already: no result is overwritten.
    """
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        raise InputError(f"--out {overwrite_fault(path)}") from None
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written: {error.strerror}") from None
    with file:
        record = ResultWriter(file)
        record._write({"record": "run", "format": FORMAT, "provenance": provenance})  # noqa: SLF001 - its own factory
        for number, forecast in enumerate(forecasts):
            record._write({"record": "candidate", "id": number, **asdict(forecast)})  # noqa: SLF001
        record._write({"record": "predicted", "candidates": len(forecasts)})  # noqa: SLF001
        os.fsync(file.fileno())
        yield record
        record._write({"record": "end"})  # noqa: SLF001
        os.fsync(file.fileno())


def overwrite_fault(path: Path | str) -> str:
    """The fault of a result file that exists."""
    return f"{path}: exists, and results are not overwritten"


def read_record(path: Path) -> RecordedResult:
    """What a result file holds. InputError names the line that cannot be read."""
    text = read_text(path, InputError)
    *whole, _cut = text.split("\n")
    documents = [_document(path, number, line) for number, line in enumerate(whole, start=1)]
    if not documents or documents[0].get("record") != "run" or documents[0].get("format") != FORMAT:
        raise InputError(f"{path}:1: is no result file of format {FORMAT}")
    if not isinstance(documents[0].get("provenance"), dict):
        raise InputError(f"{path}:1: run: provenance is missing, or no such value")
    forecasts: list[Forecast] = []
    samples: list[list[float]] = []
    faults: list[tuple[str, ...] | None] = []
    settled: list[int | None] = []
    for number, document in enumerate(documents, start=1):
        kind = document["record"]
        try:
            if kind == "candidate":
                fields = {
                    key: value for key, value in document.items() if key not in ("record", "id")
                }
                forecast = Forecast(**fields)
                forecasts.append(replace(forecast, beside=tuple(forecast.beside)))
                samples.append([])
                faults.append(None)
                settled.append(None)
            elif kind == "settled":
                settled[document["id"]] = int(document["steps"])
            elif kind == "sample":
                if not (document["us"] > 0 and math.isfinite(document["us"])):
                    raise ValueError("a time is above 0")  # noqa: TRY301
                samples[document["id"]].append(document["us"] * 1e-6)
            elif kind == "checked":
                faults[document["id"]] = tuple(document["faults"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(f"{path}:{number}: {kind}: {error}") from None
    return RecordedResult(
        documents[0]["provenance"],
        tuple(forecasts),
        tuple(np.array(each) for each in samples),
        tuple(faults),
        documents[-1]["record"] == "end",
        tuple(settled),
    )


def _document(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = read_json(line, "")
    except InputError:
        raise InputError(f"{path}:{number}: is no JSON document") from None
    if not isinstance(found, dict) or not isinstance(found.get("record"), str):
        raise InputError(f"{path}:{number}: is no document with a `record`")
    return found
