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

Tables: their keys as data, how they are read, and their JSON Schemas.

Kinds of single values say how they are read, how editors check them, and words for people.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Any, Generic, Self

from simreduce import units
from simreduce.errors import InputError, near_or_all, quote
from simreduce.files.formats.syntax import Faults, T, inside

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of text, so that a name looks like another one."""


class ValueKind(ABC, Generic[T]):
    """A kind of value that users write; `words` follow "must be"."""

    def __init__(self, words: str, schema: Mapping[str, Any]) -> None:
        self.words = words
        self.schema = schema

    @abstractmethod
    def take(self, value: object, faults: Faults, path: str) -> T | None:
        """Return the value, or note its faults at `path` and return None."""


class Scalar(ValueKind[T]):
    """A single value; `read` raises ValueError with the reason why something is none."""

    def __init__(self, words: str, schema: Mapping[str, Any], read: Callable[[object], T]) -> None:
        super().__init__(words, schema)
        self.read = read

    def take(self, value: object, faults: Faults, path: str) -> T | None:
        """Return the value, or note its fault at `path` and return None."""
        return faults.attempt(path, self.read, value)


def refusal(words: str, value: object, near: str = "") -> ValueError:
    """The fault of a value that is not what `words` say."""
    got = str(value).lower() if isinstance(value, bool) else quote(value)
    return ValueError(f"must be {words}, got {got}{near}")


def _text(value: object, allowed: str) -> str:
    if not isinstance(value, str):
        raise refusal("text", value)
    if any((c < " " and c not in allowed) or "\x7f" <= c <= "\x9f" or c in _BIDI for c in value):
        raise ValueError(f"has a control character, which could hide what it says: {quote(value)}")
    return value


def _free_text(value: object) -> str:
    return _text(str(value) if isinstance(value, date) else value, "\n\t")


ANYTHING: Scalar[Any] = Scalar("any value", {}, lambda value: value)
LINE: Scalar[str] = Scalar("text", {"type": "string"}, lambda value: _text(value, "\t"))
"""One line of text, such as a title or a name."""
TEXT: Scalar[str] = Scalar("text", {"type": ["string", "number"]}, _free_text)
"""Text of any number of lines, or a date."""


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise refusal("true or false", value)


FLAG: Scalar[bool] = Scalar("true or false", {"type": "boolean"}, _flag)


def text_of(read: Callable[[str], T], words: str, example: str = "") -> Scalar[T]:
    """Text that `read` understands, such as the name of a machine."""
    schema = {"type": "string", "examples": [example]} if example else {"type": "string"}
    return Scalar(words, schema, lambda value: read(_text(value, "\n\t")))


def _above_zero(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < 1e9:
            return value
    raise ValueError(f"must be a number above 0, got {quote(text)}")


POSITIVE = text_of(_above_zero, "a number above 0", "4.21")
"""A number in a cell of a CSV file."""


def choice(known: Sequence[str], what: str) -> Scalar[str]:
    """One of some words, each a `what`."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise refusal(f"one of {', '.join(known)}", value)
        if value not in known:
            raise ValueError(f"unknown {what} {quote(value)}{near_or_all(value, known)}")
        return value

    return Scalar(f"one of {', '.join(known)}", {"enum": list(known)}, read)


def whole(least: int, most: int | None = None, what: str = "") -> Scalar[int]:
    """A whole number, `what` it counts."""
    to = "" if most is None else f" to {most}"
    words = f"a whole number {f'of {what} ' if what else ''}from {least}{to}"
    schema = {"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})}

    top = math.inf if most is None else most

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= top:
            return value
        raise refusal(words, value)

    return Scalar(words, schema, read)


def number(least: float, most: float = math.inf, what: str = "") -> Scalar[float]:
    """A number from `least` to `most`, `what` it counts."""
    to = f"from {least:g} to {most:g}" if math.isfinite(most) else f"of at least {least:g}"
    words = f"a number {f'of {what} ' if what else ''}{to}"
    schema = {"type": "number", "minimum": least}
    schema |= {"maximum": most} if math.isfinite(most) else {}

    def read(value: object) -> float:
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and least <= value <= most
            and not (isinstance(value, float) and math.isinf(value))
        ):
            return float(value)
        raise refusal(words, value)

    return Scalar(words, schema, read)


def quantity(
    read: Callable[[object], T],
    words: str,
    examples: Sequence[str],
    limits: tuple[float, float, str] | None = None,
) -> Scalar[T]:
    """Text with a unit, read by a function of `units`; `limits` are in SI units, then in words."""

    def within(value: object) -> T:
        found = read(value)
        if limits and not limits[0] <= found <= limits[1]:  # type: ignore[operator]
            raise refusal(limits[2], value)
        return found

    schema = {"type": "string", "pattern": "[0-9]", "examples": list(examples)}
    return Scalar(f"{words} {limits[2]}" if limits else words, schema, within)


_RATES, _TIMES = ("25 GB/s", "200 Gbit/s"), ("1.5 us", "700 ns", "2 ms")
# Wider than any machine, narrow enough to catch a wrong prefix (25 B/s, 25 s).
BANDWIDTH = quantity(
    units.bandwidth, "a bandwidth", _RATES, (1e3, 1e15, "between 1 kB/s and 1 PB/s")
)
LATENCY = quantity(units.duration, "a time", _TIMES, (0.0, 10.0, "between 0 s and 10 s"))
RATE = quantity(units.bandwidth, "a bandwidth", _RATES)
"""A bandwidth of any size, such as a standard error."""
DURATION = quantity(units.duration, "a time", _TIMES)
SIZE = quantity(units.size, "a size", ("64 MiB", "64 MB"))
WORK = quantity(units.work, "a number of floating-point operations", ("7.7 GFLOP",))


def _places(value: object) -> int | tuple[int, ...]:
    if type(value) is int and value > 0:
        return value
    found: tuple[int, ...] = ()
    if isinstance(value, list | tuple) and all(type(each) is int for each in value):
        found = tuple(value)
    with suppress(ValueError):
        found = tuple(_span(value)) if isinstance(value, str) else found
    if not found:
        raise refusal(PLACES.words, value)
    if min(found) < 0 or len(set(found)) < len(found):
        raise ValueError(f"must name each once, from 0 on, got {value!r}")
    return found


def _span(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        yield from range(int(first), int(last if dash else first) + 1)


PLACES: Scalar[int | tuple[int, ...]] = Scalar(
    'how many, a list such as [0, 2], or text such as "0-3,6"',
    {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "integer"}},
               {"type": "string", "pattern": "[0-9]"}]},
    _places,
)  # fmt: skip
"""Things that are numbered from 0, such as nodes: how many of them, or which."""


class ListOf(ValueKind[list[T]]):
    """A list of values of one kind; `least` of them."""

    def __init__(self, kind: ValueKind[T], least: int = 0) -> None:
        words = f"a list, each {kind.words}"
        super().__init__(words, {"type": "array", "items": kind.schema, "minItems": least})
        self.kind, self._least = kind, least

    def take(self, value: object, faults: Faults, path: str) -> list[T] | None:
        """Read every entry; those with faults are left out."""
        if not isinstance(value, list) or len(value) < self._least:
            faults.add(path, refusal(self.words, value))
            return None
        found = [self.kind.take(each, faults, f"{path}[{i}]") for i, each in enumerate(value)]
        return [each for each in found if each is not None]


class OneOrMore(ValueKind[list[T]]):
    """One value of a kind, or a list of different ones."""

    def __init__(self, kind: ValueKind[T]) -> None:
        many = {"type": "array", "items": kind.schema, "minItems": 1, "uniqueItems": True}
        super().__init__(f"{kind.words}, or a list of them", {"anyOf": [kind.schema, many]})
        self.kind = kind

    def take(self, value: object, faults: Faults, path: str) -> list[T] | None:
        """Read one value, or every value of a list; None if one is wrong or is listed twice."""
        if not isinstance(value, list) or not value:
            one = self.kind.take(value, faults, path)
            return None if one is None else [one]
        found: list[T] = []
        for i, each in enumerate(value):
            taken = self.kind.take(each, faults, f"{path}[{i}]")
            if taken is not None and taken in found:
                faults.add(f"{path}[{i}]", f"{each} stands there twice")
            elif taken is not None:
                found.append(taken)
        return found if len(found) == len(value) else None


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a table, and `about` it one sentence.

    `default` is what its absence means, in words for people where the value needs them
    (`default_words`).
    """

    key: str
    kind: ValueKind[Any]
    about: str
    default: Any = None
    required: bool = False
    default_words: str = ""


class FieldValues(dict[str, Any]):
    """The value of every declared key: the default where the table has none or a faulty one.

    `given` are the keys that the table has, faulty ones included; `faulty` those with faults.
    """

    def __init__(self) -> None:
        super().__init__()
        self.given: set[str] = set()
        self.faulty: set[str] = set()


class Format:
    """A table, or a file, with declared keys. `check` notes the faults of keys that do not go
    together, in the table at a path. `refused` has keys of others, and why there are none here;
    `idle` those on which nothing depends, whatever their values, and why.
    """

    def __init__(
        self, name: str, about: str, *fields: Field,
        check: Callable[[FieldValues, Faults, str], None] | None = None,
        refused: Mapping[str, str] = MappingProxyType({}),
        idle: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.name, self.about, self.fields = name, about, fields
        self._check, self.refused, self.idle = check, refused, idle
        self.keys = tuple(field.key for field in fields)

    def __getitem__(self, key: str) -> Field:
        return next(field for field in self.fields if field.key == key)

    def read(self, value: object, faults: Faults, path: str = "") -> FieldValues:
        """Return the values of a table, and note each fault at `path` and its key."""
        table: Mapping[str, Any] = value if isinstance(value, dict) else {}
        if table is not value:
            faults.add(path, refusal("a table", value))
        for key in table:
            if key in self.refused:
                faults.add(inside(path, key), self.refused[key])
        own = (key for key in table if key not in self.refused and key not in self.idle)
        faults.unknown(path, own, self.keys)
        values = FieldValues()
        for field in self.fields:
            place = inside(path, field.key)
            values[field.key] = field.default
            if field.key in table:
                values.given.add(field.key)
                found = field.kind.take(table[field.key], faults, place)
                if found is None:
                    values.faulty.add(field.key)
                else:
                    values[field.key] = found
            elif field.required:
                faults.add(place, f"missing; must be {field.kind.words}")
        if self._check:
            self._check(values, faults, path)
        return values


def field_at(path: str, *forms: Format) -> Field:
    """The field at a dotted path of a table that has one of these formats. InputError if there is
    none.
    """
    key, dot, rest = path.partition(".")
    fields = {field.key: field for form in reversed(forms) for field in form.fields}
    field = fields.get(key)
    if field is None or (dot and not isinstance(field.kind, TableOf)):
        raise InputError(f"unknown key{near_or_all(key, fields, '; known keys: ')}")
    kind = field.kind
    return field_at(rest, kind.form, *kind.others) if dot and isinstance(kind, TableOf) else field


class TableOf(ValueKind[FieldValues]):
    """A table of a format."""

    def __init__(self, form: Format, *others: Format) -> None:
        super().__init__("a table", {})
        self.form, self.others = form, others
        """What is read, and other formats that may stand there."""

    def take(self, value: object, faults: Faults, path: str) -> FieldValues | None:
        """Read the table; None if it is no table."""
        if isinstance(value, dict):
            return self.form.read(value, faults, path)
        faults.add(path, refusal(self.words, value))
        return None


class TablesOf(ValueKind[list[FieldValues]]):
    """A list of tables of a format: `[[layers]]`."""

    def __init__(self, form: Format) -> None:
        super().__init__(f"[[{form.name}]] tables with {', '.join(form.keys)}", {})
        self.form = form

    def take(self, value: object, faults: Faults, path: str) -> list[FieldValues] | None:
        """Read every table; None if this is no list of tables."""
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            return [self.form.read(each, faults, f"{path}[{i}]") for i, each in enumerate(value)]
        faults.add(path, refusal(self.words, value))
        return None


class MapOf(ValueKind[dict[str, T]]):
    """A table whose keys a user chooses, of `known` if these are given, with values of one kind."""

    def __init__(self, kind: ValueKind[T], known: tuple[str, ...] = (), key: str = "NAME") -> None:
        super().__init__("a table", {})
        self.kind, self.known, self.key = kind, known, key

    def take(self, value: object, faults: Faults, path: str) -> dict[str, T] | None:
        """Read every value that has no fault; None if this is no table."""
        if not isinstance(value, dict):
            faults.add(path, refusal(self.words, value))
            return None
        if self.known:
            faults.unknown(path, value, self.known)
        taken = {
            key: self.kind.take(each, faults, inside(path, key))
            for key, each in value.items()
            if key in (self.known or value)
        }
        return {key: each for key, each in taken.items() if each is not None}


DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(form: Format) -> dict[str, Any]:
    """The JSON Schema of a file.

    It demands no key of files that may extend others: these may have what this one lacks.
    """
    whole = all(field.key != "extends" for field in form.fields)
    return {"$schema": DRAFT, "title": form.name, **_object(form, whole=whole)}


def _object(form: Format, *, whole: bool) -> dict[str, Any]:
    properties = {
        field.key: {
            **_of(field.kind, whole=whole),
            "description": field.about,
            **({"default": field.default} if isinstance(field.default, bool | int | str) else {}),
        }
        for field in form.fields
    }
    properties |= {
        key: {"description": f"Changes nothing: {why}."} for key, why in form.idle.items()
    }
    required = [field.key for field in form.fields if field.required and whole]
    return {
        "description": form.about,
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _of(kind: ValueKind[Any], *, whole: bool) -> dict[str, Any]:
    if isinstance(kind, TableOf):
        found = [_object(form, whole=whole) for form in (kind.form, *kind.others)]
        return {"anyOf": found} if kind.others else found[0]
    if isinstance(kind, TablesOf):
        return {"type": "array", "items": _object(kind.form, whole=whole)}
    if isinstance(kind, ListOf):
        return {**kind.schema, "items": _of(kind.kind, whole=whole)}
    if isinstance(kind, MapOf) and kind.known:
        properties = {key: _of(kind.kind, whole=whole) for key in kind.known}
        return {"type": "object", "properties": properties, "additionalProperties": False}
    if isinstance(kind, MapOf):
        return {"type": "object", "additionalProperties": _of(kind.kind, whole=whole)}
    return dict(kind.schema)


RULE = "1 to 255 letters, digits or any of _ . : / -, the first no -"
_NAME = re.compile(r"(?!-)[A-Za-z0-9_.:/-]{1,255}")


class Name(str):
    """Text that ends no word of a shell, no line of a file and no sentence on a terminal.

    There is no other: InputError for a value that breaks the rule.
    """

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Check a value that somebody else wrote."""
        if not is_name(value):
            raise InputError(f"{quote(value)} is not a name ({RULE})")
        return super().__new__(cls, value)


def is_name(value: object) -> bool:
    """Whether a value may be a name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
