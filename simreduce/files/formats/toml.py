"""Writing TOML: plain values in the order given, lists wrapped, tables under their headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from simreduce.errors import InternalError

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
