r"""Declarations of each figure that simreduce writes or shows: a `Key` says it once.

A key has a name, a kind with its unit, and a sentence. `get` says where its value comes from, in SI
units: the path of attributes, by default its own name, or a function. The kind turns that into the
unit of the document. A key with a `column` appears in tables as well. From the same keys come the
document, its JSON Schema, the reference, and the tables of terminals, pages and notebooks.

>>> from types import SimpleNamespace as Value
>>> ROW = Record(
...     "row", "A size.",
...     Key("place", COUNT, "From 1.", PLACE, column=Column("#")),
...     Key("size_bytes", BYTES, "The tensor.", "nbytes", column=Column("size", "(B)")),
...     Key("time_us", MICROSECONDS, "One call.", "seconds", column=Column("time", "(ms)")),
...     Key("rate", BYTES_PER_SECOND, "Size over time.", lambda row: row.nbytes / row.seconds),
...     Key("share", RATIO, "Part of the whole.", get_in=lambda row, all: row.nbytes / all.nbytes),
... )
>>> TIMES = Document(
...     "times", "Times of tensors.",
...     Key("machine", TEXT, "Its name.", "setup.machine.name"),
...     Key("rows", list_of(ROW), "Every size."),
... )
>>> rows = [Value(nbytes=64, seconds=1e-3), Value(nbytes=192, seconds=1.5e-3)]
>>> times = Value(nbytes=256, setup=Value(machine=Value(name="dgx1v")), rows=rows)
>>> document = TIMES.write(times)
>>> {**document, "version": "", "rows": document["rows"][0]}  # doctest: +NORMALIZE_WHITESPACE
{'command': 'times', 'version': '', 'schema': 'times/1', 'machine': 'dgx1v',
 'rows': {'place': 1, 'size_bytes': 64, 'time_us': 1000.0, 'rate': 64000.0, 'share': 0.25}}
>>> print("\n".join(ROW.table(document["rows"]).lines()))
#  size   time
    (B)   (ms)
1    64  1.000
2   192  1.500
>>> output_schema(TIMES)["$defs"]["row"]["properties"]["size_bytes"]
{'type': 'integer', 'unit': 'B', 'description': 'The tensor. In bytes.'}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from simreduce.files.formats import DRAFT
from simreduce.files.tables import Column, Table, table_of
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


_JSON: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "string": ("text", (str,)),
    "boolean": ("true or false", (bool,)),
    "number": ("a number", (int, float)),
    "integer": ("a whole number", (int,)),
    "null": ("null", (type(None),)),
}
"""The words and the types of values by their name in JSON Schema."""


class Misfit(NamedTuple):
    """A place in a document, `rows[2].time_us`, and what must be there."""

    place: str
    words: str


class KeyKind:
    """A kind of value that simreduce writes, with its words for people and its JSON Schema.

    `unit` is the unit of its numbers, however deep they are nested; `records` are the objects in
    it. `turn` makes the written value of one in SI units; without it, both are the same.
    """

    def __init__(
        self,
        words: str,
        schema: Mapping[str, Any],
        unit: str = "",
        records: tuple[Record, ...] = (),
        turn: Callable[[Any], Any] | None = None,
    ) -> None:
        self.words, self.schema, self.unit, self.records = words, schema, unit, records
        self._turn = turn

    def write(self, value: Any, around: Any = None, place: int = 0) -> Any:  # noqa: ARG002 - only records need them
        """Return the written value.

        `around` is the value of the record that contains it, and `place` its place in a list, from
        1.
        """
        return self._turn(value) if self._turn else value

    def misfits(self, value: Any, place: str = "") -> Iterator[Misfit]:
        """Yield where a value that was read is not of this kind."""
        known = self.schema.get("type", "string" if self.schema.keys() & {"const", "enum"} else ())
        kinds = [_JSON[name] for name in ([known] if isinstance(known, str) else known)]
        if kinds and not any(type(value) in types for _, types in kinds):
            yield Misfit(place, " or ".join(words for words, _ in kinds))
        elif value not in self.schema.get("enum", (value,)):
            yield Misfit(place, self.words)
        elif "minimum" in self.schema and value < self.schema["minimum"]:
            yield Misfit(place, f"at least {self.schema['minimum']}")
        elif "exclusiveMinimum" in self.schema and value <= self.schema["exclusiveMinimum"]:
            yield Misfit(place, f"above {self.schema['exclusiveMinimum']}")


ITSELF, PLACE = ".", "#"
"""The `get` of a key whose value is that of its record, or its place in a list, from 1."""

ABSENT = object()
"""The result of `get` for an optional key that is missing."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of an object, and `about` its value a sentence or two.

    An `optional` key may be missing.

    `get` is a path of attributes, keys or places, such as `setup.machine.name`, a function of the
    value, or `ITSELF` or `PLACE`; without it, the path is the key's name. Attributes of None are
    None. Instead, `get_in` takes two values: the record's own and that of the record around it.
    `column` is the key's column in a table; several are for several media. A key that is not
    `written` appears in tables only. With `null_as`, its value is null exactly where the value of
    that key is.
    """

    name: str
    kind: KeyKind
    about: str
    get: str | Callable[[Any], Any] = ""
    optional: bool = False
    column: Column | tuple[Column, ...] = ()
    get_in: Callable[[Any, Any], Any] | None = None
    written: bool = True
    null_as: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of this key."""
        return self.column if isinstance(self.column, tuple) else (self.column,)

    def find(self, value: Any, around: Any = None, place: int = 0) -> Any:
        """The value of this key in SI units; `ABSENT` for an optional key that `value` lacks."""
        if self.get == PLACE:
            return place
        if self.get == ITSELF:
            return value
        if self.get_in:
            return self.get_in(value, around)
        if callable(self.get):
            return self.get(value)
        for name in (self.get or self.name).split("."):
            value = None if value is None else _part(value, name, optional=self.optional)
        return value

    def read(self, value: Any, around: Any = None, place: int = 0) -> Any:
        """The written value of this key; `ABSENT` for an optional key that `value` lacks."""
        found = self.find(value, around, place)
        inner = around if self.get == ITSELF else value
        return found if found is ABSENT else self.kind.write(found, inner)


def _part(value: Any, name: str, *, optional: bool) -> Any:
    if name.isdigit():
        return value[int(name)]
    if isinstance(value, Mapping):
        return value.get(name, ABSENT) if optional else value[name]
    return getattr(value, name, ABSENT) if optional else getattr(value, name)


class Record(KeyKind):
    """An object with declared keys. Keys that a user chose have values of the kind `others`.

    Its table has the columns of its keys, those named in `order` first.
    """

    def __init__(
        self, name: str, about: str, *keys: Key, others: KeyKind | None = None, order: str = ""
    ) -> None:
        super().__init__(f"`{name}`", {"$ref": f"#/$defs/{name}"}, records=(self,))
        self.name, self.about, self.others = name, about, others
        self.keys = tuple(key for key in keys if key.written)
        self._all = {key.name: key for key in keys}
        first = order.split()
        names = [*first, *(key.name for key in keys if key.name not in first)]
        self._columns = [(name, column) for name in names for column in self._all[name].columns]

    def write(self, value: Any, around: Any = None, place: int = 0) -> dict[str, Any]:
        """The object of a value, with the keys in their order."""
        found = ((key.name, key.read(value, around, place)) for key in self.keys)
        return {name: written for name, written in found if written is not ABSENT}

    def misfits(self, value: Any, place: str = "") -> Iterator[Misfit]:
        """Yield values of other kinds. Keys may be missing, and others may be there."""
        if not isinstance(value, Mapping):
            yield Misfit(place, "an object")
            return
        for key in self.keys:
            if key.name in value:
                at = f"{place}.{key.name}".lstrip(".")
                yield from key.kind.misfits(value[key.name], at)
                other = value.get(key.null_as, value[key.name])
                if key.null_as and (value[key.name] is None) != (other is None):
                    yield Misfit(at, f"null exactly where {key.null_as} is")

    def names(self) -> set[str]:
        """The names of its keys, and of those of the objects in it."""
        return {key.name for each in (self, *inside([self]).values()) for key in each.keys}

    def row(self, value: Any, around: Any = None, place: int = 0) -> dict[str, Any]:
        """The object of a value for a table, with the keys that no document has."""
        found = ((name, key.read(value, around, place)) for name, key in self._all.items())
        return {name: written for name, written in found if written is not ABSENT}

    def rows(self, name: str, value: Any) -> tuple[Record, list[dict[str, Any]]]:
        """The record of the objects that a key lists, and these for its table."""
        (record,), found = self._all[name].kind.records, self._all[name].find(value)
        return record, [record.row(each, value, place) for place, each in enumerate(found, 1)]

    def columns(self, on: str = "text") -> list[tuple[str, Column]]:
        """The names of keys and their columns in a table; `on` is `text` or `html`."""
        return [each for each in self._columns if each[1].on in ("", on)]

    def table(self, rows: Iterable[Mapping[str, Any]], *, on: str = "text") -> Table:
        """The table of written rows, which may lack keys; `on` is `text` or `html`."""
        return table_of(self.columns(on), rows)


class Document(Record):
    """The document that a command prints with `--json`.

    `command` is the name unless it is given. `number` is the version of the schema: it rises when a
    key goes or changes its meaning, not when one comes.
    """

    def __init__(
        self, name: str, about: str, *keys: Key, command: str = "", number: int = 1
    ) -> None:
        self.command, self.id = command or name, f"{name}/{number}"
        first = (
            Key("command", one_of(self.command), "The command.", lambda _: self.command),
            Key("version", TEXT, "The version of simreduce.", lambda _: __version__),
            Key(
                "schema", one_of(self.id), "The name of this schema, and its number.",
                lambda _: self.id,
            ),
        )  # fmt: skip
        super().__init__(name, about, *first, *keys)

    def head(self) -> dict[str, Any]:
        """The first keys of a document."""
        return {"command": self.command, "version": __version__, "schema": self.id}


def keys_of(attribute: str, *keys: Key) -> tuple[Key, ...]:
    """The keys of an attribute, in the record of what has it; no table shows them there."""

    def found_by(key: Key) -> Callable[[Any, Any], Any]:
        return lambda value, around: key.find(getattr(value, attribute), around)

    return tuple(replace(key, get="", get_in=found_by(key), column=()) for key in keys)


def unwritten(*keys: Key) -> tuple[Key, ...]:
    """The keys, for tables only."""
    return tuple(replace(key, written=False) for key in keys)


class Lines:
    """A file of JSON Lines: each line is one of these records."""

    def __init__(self, name: str, about: str, *records: Record) -> None:
        self.name, self.about, self.records = name, about, records


Output = Record | Lines

ANYTHING = KeyKind("any value", {})
PLAIN = KeyKind("text, number, flag or null", {"type": ["string", "number", "boolean", "null"]})
TEXT = KeyKind("text", {"type": "string"})
FLAG = KeyKind("true or false", {"type": "boolean"})
COUNT = KeyKind("whole number", {"type": "integer", "minimum": 0})
INTEGER = KeyKind("whole number", {"type": "integer"})
BYTES = KeyKind("whole number", {"type": "integer", "unit": "B"}, "B")


def number_in(unit: str, turn: Callable[[Any], Any] | None = None) -> KeyKind:
    """A number in a unit of `UNITS`; `turn` makes it of one in SI units."""
    return KeyKind("number", {"type": "number", "unit": unit}, unit, turn=turn)


def positive(kind: KeyKind) -> KeyKind:
    """A number of this kind above 0."""
    schema = {**kind.schema, "exclusiveMinimum": 0}
    return KeyKind(f"{kind.words} above 0", schema, kind.unit, turn=kind.write)


RATIO = number_in("1")
MICROSECONDS = number_in("us", lambda seconds: seconds * 1e6)
SECONDS = number_in("s")
GB_PER_SECOND = number_in("GB/s", lambda rate: rate / 1e9)
BYTES_PER_SECOND = number_in("B/s")
PER_SECOND = number_in("1/s")


def one_of(*values: str) -> KeyKind:
    """One of these words."""
    schema = {"const": values[0]} if len(values) == 1 else {"enum": list(values)}
    return KeyKind(" or ".join(f"`{value}`" for value in values), schema)


def or_null(kind: KeyKind) -> KeyKind:
    """A value of this kind, or null."""
    schema = {**kind.schema}
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    else:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return _Optional(f"{kind.words} or null", schema, kind)


def list_of(kind: KeyKind, exactly: int = 0, least: int = 0) -> KeyKind:
    """A list of values of this kind, perhaps `exactly` so many, or at the `least` so many."""
    bounds = {"minItems": exactly or least, "maxItems": exactly}
    schema = {"type": "array", "items": kind.schema, **{k: n for k, n in bounds.items() if n}}
    words = f"list of at least {least}" if least else "list"
    words = f"list of {exactly}" if exactly else words
    return _ListOf(f"{words}: {kind.words}", schema, kind)


def map_of(kind: KeyKind) -> KeyKind:
    """An object whose keys are names, with values of this kind; written from a mapping or pairs."""
    schema = {"type": "object", "additionalProperties": kind.schema}
    return _MapOf(f"by name: {kind.words}", schema, kind)


class _Of(KeyKind):
    """A kind whose values hold values of another kind."""

    def __init__(self, words: str, schema: Mapping[str, Any], kind: KeyKind) -> None:
        super().__init__(words, schema, kind.unit, kind.records)
        self.inner = kind


class _Optional(_Of):
    def write(self, value: Any, around: Any = None, place: int = 0) -> Any:
        return None if value is None else self.inner.write(value, around, place)

    def misfits(self, value: Any, place: str = "") -> Iterator[Misfit]:
        if value is not None:
            yield from self.inner.misfits(value, place)


class _ListOf(_Of):
    def write(self, value: Any, around: Any = None, place: int = 0) -> Any:  # noqa: ARG002
        return [self.inner.write(each, around, i) for i, each in enumerate(value, 1)]

    def misfits(self, value: Any, place: str = "") -> Iterator[Misfit]:
        least, most = self.schema.get("minItems", 0), self.schema.get("maxItems", math.inf)
        if not isinstance(value, list) or not least <= len(value) <= most:
            yield Misfit(place, f"a {self.words.partition(':')[0]}")
            return
        for i, each in enumerate(value):
            yield from self.inner.misfits(each, f"{place}[{i}]")


class _MapOf(_Of):
    def write(self, value: Any, around: Any = None, place: int = 0) -> Any:
        return {name: self.inner.write(each, around, place) for name, each in dict(value).items()}

    def misfits(self, value: Any, place: str = "") -> Iterator[Misfit]:
        if not isinstance(value, Mapping):
            yield Misfit(place, "an object")
            return
        for name, each in value.items():
            yield from self.inner.misfits(each, f"{place}.{name}")


def output_schema(output: Output) -> dict[str, Any]:
    """The JSON Schema of an output."""
    if isinstance(output, Lines):
        found = {record.name: record for record in output.records} | inside(output.records)
        whole = {"description": output.about, "oneOf": [each.schema for each in output.records]}
    else:
        found, whole = inside([output]), _object(output)
    title = output.id if isinstance(output, Document) else output.name
    definitions = {name: _object(record) for name, record in found.items()}
    return {
        "$schema": DRAFT,
        "title": title,
        **whole,
        **({"$defs": definitions} if definitions else {}),
    }


def _kinds(record: Record) -> list[KeyKind]:
    return [*(key.kind for key in record.keys), *([record.others] if record.others else [])]


def inside(records: Iterable[Record]) -> dict[str, Record]:
    """The objects in others, however deep, by name."""
    found: dict[str, Record] = {}
    for inner in (r for record in records for kind in _kinds(record) for r in kind.records):
        found |= {inner.name: inner, **inside([inner])}
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
