"""JSON and XML of unknown origin, read with limits on size and depth, and TOML, written.

TOML has plain values in the order given, lists wrapped, tables under their headers.

The parser is expat of Python's standard library. It refuses a document type before it reads its
content. Without one, XML has five entities only and cannot refer to other files.

`Faults` is the one collector of faults: a reader notes each with its place and goes on. The first
line of a CSV file names its columns.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from simreduce.errors import (
    InputError,
    InternalError,
    cut,
    did_you_mean,
    escape,
    near_or_all,
    nearest,
    quote,
)
from simreduce.files import MOST_BYTES, MOST_DEPTH
from simreduce.units import plural

P = ParamSpec("P")
T = TypeVar("T")

MOST_FAULTS = 1000
_LONGEST_SOURCE = 4096
"""Characters of the longest path that Linux opens; a longer one names no file and is cut."""


def inside(path: str, key: str) -> str:
    """The path of a key in what is at `path`: a table, or a line of a CSV file."""
    if not path:
        return key
    return f"{path}: {key}" if path.startswith("line ") else f"{path}.{key}"


class Faults:
    """The faults found so far, as `source: path: text`.

    `origin` maps a dotted path to the file that wrote it, where that is another than `source`.
    `options` maps a key to the option that gave it, which then replaces the whole place.
    """

    def __init__(
        self,
        source: str = "",
        origin: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.problems: list[str] = []
        self._source = source if len(source) <= _LONGEST_SOURCE else cut(source)
        self._origin = origin or {}
        self._options = options or {}

    def add(self, path: str, *texts: object) -> None:
        """Note faults at a dotted path, "" for the whole source."""
        for text in texts:
            if len(self.problems) < MOST_FAULTS:
                places = (*self._place(path), str(text))
                self.problems.append(": ".join(escape(place) for place in places if place))
            elif len(self.problems) == MOST_FAULTS:
                source = f"{self._source}: " if self._source else ""
                self.problems.append(f"{source}there are more faults than these {MOST_FAULTS}")

    def check(self, fine: object, path: str, text: object) -> bool:
        """Return whether something is `fine`, and note a fault at a dotted path if not."""
        if not fine:
            self.add(path, text)
        return bool(fine)

    def add_broken(self, path: str, rules: Iterable[tuple[str, object, str]]) -> None:
        """Note each rule that is broken in what is at `path`: its key, whether it is, and why."""
        for key, broken, why in rules:
            self.check(not broken, inside(path, key), why)

    def _place(self, path: str) -> tuple[str, str]:
        stem = path
        while stem:
            if stem in self._options:
                return self._options[stem], ""
            if stem in self._origin:
                return self._origin[stem], path
            cut_at = max(stem.rfind("."), stem.rfind("["))
            stem = stem[:cut_at] if cut_at > 0 else ""
        return self._source, path

    def unknown(self, path: str, keys: Iterable[str], known: Iterable[str]) -> None:
        """Note each of `keys` that is not `known`, with the nearest that is."""
        known = tuple(known)
        for key in (key for key in keys if key not in known):
            self.add(inside(path, key), f"unknown key{near_or_all(key, known, '; known keys: ')}")

    def respell(
        self, path: str, table: Mapping[str, T], needed: Sequence[str], others: Sequence[str] = ()
    ) -> dict[str, T]:
        """The table of a foreign format with keys that are misspelt put right, each noted.

        Only `needed` keys that the table lacks can be meant, and not by `others` that the format
        has. Keys that are like none stay: the format may have more than we know.
        """
        found = dict(table)
        for key in table:
            lacking = [each for each in needed if each not in found]
            near = "" if key in needed or key in others else nearest(key, lacking)
            if near:
                self.add(inside(path, key), f"unknown key (did you mean {near!r}?)")
                found[near] = found.pop(key)
        return found

    def attempt(
        self, path: str, load: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Return what `load` returns, or note its faults at `path` and return None."""
        try:
            return load(*args, **kwargs)
        except InputError as error:
            self.add(path, *error.problems)
        except ValueError as error:
            self.add(path, error)
        return None

    def raise_any(self, refuse: type[InputError] = InputError) -> None:
        """Raise `refuse` with every fault, if there is one."""
        if self.problems:
            raise refuse(self.problems)

    def require(self, value: T | None, refuse: type[InputError] = InputError) -> T:
        """The value of an `attempt`; `refuse` with every fault if there is one."""
        self.raise_any(refuse)
        assert value is not None  # noqa: S101 - an attempt without a fault has a value
        return value


def read_csv(
    content: str, keys: Sequence[str], example: str, faults: Faults, refuse: type[InputError]
) -> list[tuple[str, dict[str, str]]]:
    """Return (`line 3`, its cells by column) of each row.

    The first line names columns, of `keys`; `example` is such a line. Empty lines and those that
    begin with # do not count. A line that is no row is a fault. Raises `refuse` with every fault if
    the first line is wrong.
    """
    before = len(faults.problems)
    lines = [
        (f"line {i}", line)
        for i, line in enumerate(content.split("\n"), 1)
        if line.strip() and line[0] != "#"
    ]
    if not lines:
        faults.add("", f"empty; the first line names the columns: {example}")
        faults.raise_any(refuse)
    (place, header), *rows = [(place, _cells(faults, place, line)) for place, line in lines]
    damaged = len(faults.problems)
    if header and not any(key in keys or did_you_mean(key, keys) for key in header):
        del faults.problems[before:]
        faults.add(place, f"no columns; expected a CSV file that begins with {example}")
        faults.raise_any(refuse)
    faults.unknown(place, header, keys)
    for key in keys:
        faults.check(header.count(key) < 2, place, f"two columns {key!r}")
    wrong_header = not header or len(faults.problems) > damaged
    for where, row in rows:
        if row and len(row) != len(header):
            words = f"{plural(len(row), 'field')} where the header has {len(header)}"
            faults.add(where, words)
    if wrong_header:
        faults.raise_any(refuse)
    return [
        (where, dict(zip(header, row, strict=True)))
        for where, row in rows
        if len(row) == len(header)
    ]


def _cells(faults: Faults, place: str, line: str) -> list[str]:
    """The cells of one line, in which a quoted cell must end; none after a fault."""
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        faults.add(place, error)
        return []


_SHOWN = 1000
"""Digits of a number in a message at most."""


def read_json(
    text: str | bytes,
    where: str,
    refuse: type[InputError] = InputError,
    *,
    most: int = MOST_BYTES,
    twice: bool = False,
    finite: bool = True,
) -> Any:
    """The value of a JSON document; raises `refuse` with `where` and the reason if it is none.

    A document has `most` characters and `MOST_DEPTH` levels at most, no number that is not finite
    where all must be `finite`, and no key twice in an object, unless `twice`: then the last one
    counts.
    """
    if len(text) > most:
        raise refuse(f"{where}: more than {most >> 20} MiB of JSON")
    try:
        found = json.loads(
            text, parse_constant=_number if finite else None,
            parse_float=_number if finite else None, parse_int=_integer,
            object_pairs_hook=None if twice else _once,
        )  # fmt: skip
        too_deep = _is_too_deep(found)
    except RecursionError:
        too_deep = True
    except ValueError as error:
        raise refuse(f"{where}: {error}") from None
    if too_deep:
        raise refuse(f"{where}: nested too deeply, more than {MOST_DEPTH} levels")
    return found


def _number(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text[:_SHOWN]} is no number of JSON")


def _integer(text: str) -> int:
    _number(text)  # or it is above every figure
    return int(text)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {quote(counts.most_common(1)[0][0])} stands twice in an object")
    return found


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [e for each in level for e in (each.values() if isinstance(each, dict) else each)]
    return True


MOST_CHARACTERS = 4 << 20
MOST_ELEMENTS = 50_000
MOST_ATTRIBUTES = 64


@dataclass(slots=True)
class Element:
    """A tag with its attributes and what is inside it; `line` is where it begins.

    Text between tags is dropped.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Its place in faults: `line 12`."""
        return f"line {self.line}"

    def get(self, name: str, default: str = "") -> str:
        """An attribute, without the blanks around it."""
        return self.attributes.get(name, default).strip()

    def all(self, tag: str) -> list[Element]:
        """The children with this tag."""
        return [child for child in self.children if child.tag == tag]


def read_xml(text: str, name: str, error_type: type[InputError] = InputError) -> Element:
    """The root of a document; raises an `error_type` with the line of what is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise error_type(f"{name}: more than {MOST_CHARACTERS >> 20} MiB of XML")
    if "\0" in text:
        raise error_type(f"{name}: not XML: it holds a zero byte")
    from xml.parsers import expat  # noqa: PLC0415 - few commands read XML

    parser = expat.ParserCreate("utf-8")
    root = Element("", {}, 0)
    open_tags = [root]
    count = 0

    def refuse(*_: object) -> None:
        raise error_type(
            f"{name}: line {parser.CurrentLineNumber}: a document type or an entity is declared; "
            "remove it: such files are not read"
        )

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if (
            count > MOST_ELEMENTS
            or len(open_tags) > MOST_DEPTH
            or len(attributes) > MOST_ATTRIBUTES
        ):
            raise error_type(
                f"{name}: line {line}: more than {MOST_ELEMENTS} elements, {MOST_DEPTH} one "
                "inside the other or "
                f"{MOST_ATTRIBUTES} attributes"
            )
        element = Element(tag, attributes, line)
        open_tags[-1].children.append(element)
        open_tags.append(element)

    def end(_: str) -> None:
        open_tags.pop()

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.UnparsedEntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = lambda *_: 0
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    try:
        parser.Parse(text.encode("utf-8", "surrogatepass"), True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise error_type(
            f"{name}: line {error.lineno}: not well-formed XML: {reason}; begins with "
            f"{quote(text[:40])}"
        ) from None
    return root.children[0]


_WIDTH = 100
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def toml_text(document: Mapping[str, object], comments: Iterable[str] = ()) -> str:
    """Return the text of a document, lines of `comments` first.

    A list of tables becomes `[[tables]]`; a list inside one of these has its tables inline. Keys of
    None are left out.
    """
    head = [f"# {comment}".rstrip() for comment in comments]
    return "\n".join([*head, *_table(document, "")]) + "\n"


def _table(table: Mapping[str, object], path: str) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lists = {k: v for k, v in table.items() if not path and _is_tables(v)}
    for key, value in table.items():
        if key not in inner and key not in lists and value is not None:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        name = f"{path}.{_key(key)}" if path else _key(key)
        if not value or any(not isinstance(each, Mapping) for each in value.values()):
            yield from ("", f"[{name}]")
        yield from _table(value, name)
    for key, tables in lists.items():
        for each in tables if isinstance(tables, list) else ():
            yield from ("", f"[[{_key(key)}]]", *_table(each, _key(key)))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _string(text: str) -> str:
    return (
        '"'
        + "".join(_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
        + '"'
    )


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        given = (f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{ {', '.join(given)} }}"
    if isinstance(value, list | tuple):
        return _list([_value(each) for each in value], each_alone=_is_tables(value))
    if isinstance(value, str):
        return _string(value)
    raise InternalError(f"TOML cannot say {value!r}")


def _list(items: list[str], *, each_alone: bool) -> str:
    """One line if it fits, else a line for every few."""
    if sum(len(item) + 2 for item in items) <= _WIDTH and not each_alone:
        return f"[{', '.join(items)}]"
    lines: list[str] = []
    for item in items:
        if lines and not each_alone and len(lines[-1]) + len(item) + 2 <= _WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"  {item},")
    return "\n".join(["[", *lines, "]"])
