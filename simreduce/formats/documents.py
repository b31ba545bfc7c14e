"""What simreduce writes for programs: the keys of documents as data, each with its unit.

A `Document` stands beside the function that makes it, and gives its first keys. From it come the
JSON Schema and the tables of the reference.

>>> ROW = Record("row", "A size.", Key("size_bytes", BYTES, "The tensor."))
>>> TIMES = Document("times", "Times of a tensor.", Key("rows", list_of(ROW), "Every size."))
>>> {**TIMES.head(), "rows": [{"size_bytes": 64}]}["schema"]
'times/1'
>>> output_schema(TIMES)["$defs"]["row"]["properties"]
{'size_bytes': {'type': 'integer', 'unit': 'B', 'description': 'The tensor. In bytes.'}}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simreduce.formats.schema import DRAFT
from simreduce.version import __version__

UNITS = {
    "1": "",
    "us": "microseconds",
    "s": "seconds",
    "B": "bytes",
    "B/s": "bytes per second",
    "GB/s": "gigabytes (10^9 bytes) per second",
    "1/s": "a number per second",
    "currency": "the currency of the prices",
}
"""The units of numbers, and their words; `1` is a share or a ratio."""


class Kind:
    """A kind of value that simreduce writes, with its words for people and its JSON Schema.

    `unit` is that of its numbers, however deep they stand; `records` are the objects in it.
    """

    def __init__(
        self,
        words: str,
        schema: Mapping[str, Any],
        unit: str = "",
        records: tuple[Record, ...] = (),
    ) -> None:
        self.words, self.schema, self.unit, self.records = words, schema, unit, records


@dataclass(frozen=True, slots=True)
class Key:
    """A key of an object, and `about` its value a sentence or two. An `optional` key may be
    missing.
    """

    name: str
    kind: Kind
    about: str
    optional: bool = False


class Record(Kind):
    """An object with declared keys. Keys that a user chose have values of the kind `others`."""

    def __init__(self, name: str, about: str, *keys: Key, others: Kind | None = None) -> None:
        super().__init__(f"`{name}`", {"$ref": f"#/$defs/{name}"}, records=(self,))
        self.name, self.about, self.keys, self.others = name, about, keys, others


class Document(Record):
    """What `--json` of a command prints.

    `command` is the name unless it is given. `number` is that of the schema: it rises when a key
    goes or changes its meaning, not when one comes.
    """

    def __init__(
        self, name: str, about: str, *keys: Key, command: str = "", number: int = 1
    ) -> None:
        self.command, self.id = command or name, f"{name}/{number}"
        first = (
            Key("command", one_of(self.command), "The command."),
            Key("version", TEXT, "The version of simreduce."),
            Key("schema", one_of(self.id), "The name of this schema, and its number."),
        )
        super().__init__(name, about, *first, *keys)

    def head(self) -> dict[str, Any]:
        """The first keys of a document."""
        return {"command": self.command, "version": __version__, "schema": self.id}


class Lines:
    """A file of JSON Lines: each line is one of these records."""

    def __init__(self, name: str, about: str, *records: Record) -> None:
        self.name, self.about, self.records = name, about, records


Output = Record | Lines

ANYTHING = Kind("any value", {})
PLAIN = Kind("text, number, flag or null", {"type": ["string", "number", "boolean", "null"]})
TEXT = Kind("text", {"type": "string"})
FLAG = Kind("true or false", {"type": "boolean"})
COUNT = Kind("whole number", {"type": "integer", "minimum": 0})
INTEGER = Kind("whole number", {"type": "integer"})
BYTES = Kind("whole number", {"type": "integer", "unit": "B"}, "B")


def number_in(unit: str) -> Kind:
    """A number in a unit of `UNITS`."""
    return Kind("number", {"type": "number", "unit": unit}, unit)


RATIO = number_in("1")
MICROSECONDS = number_in("us")
SECONDS = number_in("s")
GB_PER_SECOND = number_in("GB/s")
BYTES_PER_SECOND = number_in("B/s")
PER_SECOND = number_in("1/s")


def one_of(*values: str) -> Kind:
    """One of these words."""
    schema = {"const": values[0]} if len(values) == 1 else {"enum": list(values)}
    return Kind(" or ".join(f"`{value}`" for value in values), schema)


def or_null(kind: Kind) -> Kind:
    """A value of this kind, or null."""
    schema = {**kind.schema}
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    else:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return Kind(f"{kind.words} or null", schema, kind.unit, kind.records)


def list_of(kind: Kind, exactly: int | None = None) -> Kind:
    """A list of values of this kind, perhaps `exactly` so many."""
    length = {} if exactly is None else {"minItems": exactly, "maxItems": exactly}
    schema = {"type": "array", "items": kind.schema, **length}
    words = "list" if exactly is None else f"list of {exactly}"
    return Kind(f"{words}: {kind.words}", schema, kind.unit, kind.records)


def map_of(kind: Kind) -> Kind:
    """An object whose keys are names, with values of this kind."""
    schema = {"type": "object", "additionalProperties": kind.schema}
    return Kind(f"by name: {kind.words}", schema, kind.unit, kind.records)


def output_schema(output: Output) -> dict[str, Any]:
    """The JSON Schema of an output."""
    if isinstance(output, Lines):
        found = {record.name: record for record in output.records} | _inside(output.records)
        whole = {"description": output.about, "oneOf": [each.schema for each in output.records]}
    else:
        found, whole = _inside([output]), _object(output)
    title = output.id if isinstance(output, Document) else output.name
    definitions = {name: _object(record) for name, record in found.items()}
    return {
        "$schema": DRAFT,
        "title": title,
        **whole,
        **({"$defs": definitions} if definitions else {}),
    }


def _kinds(record: Record) -> list[Kind]:
    return [*(key.kind for key in record.keys), *([record.others] if record.others else [])]


def _inside(records: Iterable[Record]) -> dict[str, Record]:
    """The objects in others, however deep, by name."""
    found: dict[str, Record] = {}
    for inner in (r for record in records for kind in _kinds(record) for r in kind.records):
        found |= {inner.name: inner, **_inside([inner])}
    return found


def _object(record: Record) -> dict[str, Any]:
    return {
        "description": record.about,
        "type": "object",
        "properties": {key.name: _property(key) for key in record.keys},
        "required": [key.name for key in record.keys if not key.optional],
        "additionalProperties": record.others.schema if record.others else False,
    }


def _property(key: Key) -> dict[str, Any]:
    unit = UNITS.get(key.kind.unit)
    return {**key.kind.schema, "description": key.about + (f" In {unit}." if unit else "")}


def output_reference(output: Output) -> str:
    """The reference of an output in Markdown: its keys, then those of the objects in it."""
    if isinstance(output, Lines):
        lines = [f"## {output.name}", "", output.about, ""]
        records = {record.name: record for record in output.records} | _inside(output.records)
    else:
        lines = [f"## {output.name}", "", output.about, "", *_rows(output)]
        records = _inside([output])
    for name, record in records.items():
        lines += [f"### {name}", "", record.about, "", *_rows(record)]
    return "\n".join(lines).rstrip() + "\n"


def _rows(record: Record) -> Iterator[str]:
    yield from ("| key | value | unit | meaning |", "| --- | --- | --- | --- |")
    for key in record.keys:
        unit = "" if key.kind.unit == "1" else key.kind.unit
        about = f"{key.about} May be missing." if key.optional else key.about
        cells = (f"`{key.name}`", key.kind.words, unit, about)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    if record.others:
        yield f"| other names | {record.others.words} | | Chosen by the user. |"
    yield ""
