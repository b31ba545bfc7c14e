r"""The one way to read what users write: files, tables in them, and options.

A `Format` declares the keys of a table as data. From it come reading with every fault at once, the
JSON Schema that editors use, and the tables of the reference. Each format is in the folder that
owns its values; `simreduce.report.schemas` lists them all.

>>> STEP = Format(
...     "step",
...     "A training step.",
...     Field("batch", whole(1, 512), "Samples per GPU.", required=True),
...     Field("update", DURATION, "Time to update the variables, once a step.", default=0.0),
... )
>>> faults = Faults("mine.toml")
>>> STEP.read({"batch": 0, "updaet": "2 ms"}, faults, "step")["update"]
0.0
>>> print(*faults.problems, sep="\n")
mine.toml: step.updaet: unknown key (did you mean 'update'?)
mine.toml: step.batch: must be a whole number from 1 to 512, got 0
"""

from simreduce.files.formats.fields import (
    ANYTHING,
    BANDWIDTH,
    DURATION,
    FLAG,
    LATENCY,
    LINE,
    PLACES,
    RATE,
    SIZE,
    TEXT,
    WORK,
    Field,
    FieldValues,
    Format,
    ListOf,
    MapOf,
    OneOrMore,
    Scalar,
    TableOf,
    TablesOf,
    ValueKind,
    choice,
    field_at,
    json_schema,
    number,
    quantity,
    text_of,
    whole,
)
from simreduce.files.formats.syntax import Faults, inside, read_csv, toml_text

__all__ = [
    "ANYTHING",
    "BANDWIDTH",
    "DURATION",
    "FLAG",
    "LATENCY",
    "LINE",
    "PLACES",
    "RATE",
    "SIZE",
    "TEXT",
    "WORK",
    "Faults",
    "Field",
    "FieldValues",
    "Format",
    "ListOf",
    "MapOf",
    "OneOrMore",
    "Scalar",
    "TableOf",
    "TablesOf",
    "ValueKind",
    "choice",
    "field_at",
    "inside",
    "json_schema",
    "number",
    "quantity",
    "read_csv",
    "text_of",
    "toml_text",
    "whole",
]
