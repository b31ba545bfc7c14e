"""Tables: their keys as data, and reading them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from simreduce.errors import InputError, did_you_mean
from simreduce.files.formats.faults import Faults, inside
from simreduce.files.formats.kinds import ValueKind, refusal

T = TypeVar("T")


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


Check = Callable[[FieldValues, Faults, str], None]
"""Notes the faults of keys that do not go together, in the table at a path."""


class Format:
    """A table, or a file, with declared keys."""

    def __init__(self, name: str, about: str, *fields: Field, check: Check | None = None) -> None:
        self.name, self.about, self.fields = name, about, fields
        self._check = check
        self.keys = tuple(field.key for field in fields)

    def __getitem__(self, key: str) -> Field:
        return next(field for field in self.fields if field.key == key)

    def read(self, value: object, faults: Faults, path: str = "") -> FieldValues:
        """Return the values of a table, and note each fault at `path` and its key."""
        table = take_table(value, faults, path)
        faults.unknown(path, table, self.keys)
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
        near = did_you_mean(key, fields) or f"; known keys: {', '.join(fields)}"
        raise InputError(f"unknown key{near}")
    kind = field.kind
    return field_at(rest, kind.form, *kind.others) if dot and isinstance(kind, TableOf) else field


def take_table(value: object, faults: Faults, path: str) -> dict[str, Any]:
    """Return `value` if it is a table; else note a fault and return an empty one."""
    if isinstance(value, dict):
        return value
    faults.add(path, refusal("a table", value))
    return {}


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
        found: dict[str, T] = {}
        for key, each in value.items():
            if self.known and key not in self.known:
                continue
            taken = self.kind.take(each, faults, inside(path, key))
            if taken is not None:
                found[key] = taken
        return found
