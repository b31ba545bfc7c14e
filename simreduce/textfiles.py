"""Text files that users name: read whole, or refused with the file and the reason."""

from __future__ import annotations

import csv
import errno
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simreduce.errors import InputError, did_you_mean, shown


def exists(text: str) -> bool:
    """Whether something is at the path `text`; False too for what cannot be a path."""
    return os.path.exists(text)  # noqa: PTH110 - Path.exists raises for names that no file can have


MOST_BYTES = 64 << 20
"""No file that a person writes is larger; a device such as /dev/zero has no end."""


def read_bytes(path: Path) -> bytes:
    """The content of a file; OSError also if there is more of it than `MOST_BYTES`."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, "more than 64 MiB, or without an end")
    return content


_REASONS = {
    errno.ENOENT: "there is no such file",
    errno.ENOTDIR: "there is no such file",
    errno.EISDIR: "is a directory, not a file",
    errno.EACCES: "cannot be read: you may not (see its permissions)",
}


def reason(error: OSError) -> str:
    """Why a file cannot be read, in words that go on from its name."""
    return _REASONS.get(error.errno or 0) or f"cannot be read: {error.strerror or error}"


def read_text(path: Path, refuse: type[InputError], name: str = "") -> str:
    """The text of a UTF-8 file, which faults call `name`; raises `refuse` when it cannot be read."""
    name = name or str(path)
    try:
        content = read_bytes(path)
        # Editors on Windows begin a file with a byte order mark.
        return content.decode("utf-8-sig")
    except OSError as error:
        raise refuse(f"{name}: {reason(error)}") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise refuse(f"{name}: line {line} is not UTF-8 text") from None
    except ValueError as error:  # a name with a NUL or a lone surrogate
        raise refuse(f"{name!r}: cannot be read: {error}") from None


MOST_TOML = 4 << 20
"""Characters of the longest TOML document: the parser takes seconds for it."""
MOST_DEPTH = 64
"""Parts of the longest dotted key, and brackets that stand one inside the other."""
_TOKEN = re.compile(
    r'''(?P<text>"""(?:[^"\\]|\\.|"{1,2}(?!"))*+(?:""")?'''
    r"""|'{3}(?:[^']|'{1,2}(?!'))*+(?:'{3})?"""
    r"""|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?|\#[^\n]*+)"""
    r"""|(?P<end>[=,\n][=,\s]*+)|[.\[\]{}]""",
    re.DOTALL,
)


def parse_toml(source: str, content: str, refuse: type[InputError]) -> dict[str, Any]:
    """Parse a TOML document; raises `refuse` with `source` and the place when it is none.

    The document is bounded first: the parser takes time and memory by the square of a key's parts.
    """
    if len(content) > MOST_TOML:
        raise refuse(f"{source}: more than {MOST_TOML >> 20} MiB of TOML")
    dots = depth = 0
    for token in _TOKEN.finditer(content):
        mark = content[token.start()]
        if token["end"]:
            dots = 0
        elif mark == ".":
            dots += 1
        elif mark in "[{":
            depth, dots = depth + 1, 0
        elif mark in "]}":
            depth, dots = max(depth - 1, 0), 0
        if dots > MOST_DEPTH or depth > MOST_DEPTH:
            line = content.count("\n", 0, token.start()) + 1
            raise refuse(f"{source}: line {line}: nested too deeply, more than {MOST_DEPTH} levels")
    try:
        return tomllib.loads(content)
    except ValueError as error:  # TOMLDecodeError, and whole numbers with thousands of digits
        raise refuse(f"{source}: not valid TOML: {error}") from None


def csv_rows(
    source: str,
    content: str,
    keys: Sequence[str],
    example: str,
    refuse: type[InputError],
    problems: list[str],
) -> list[tuple[str, dict[str, str]]]:
    """(`line 3`, its cells by column) of a CSV file whose first line names columns, of `keys`;
    `example` is such a line. Empty lines, and those that begin with #, count for nothing. Lines
    that are no rows are added to `problems`, and left out. Raises `refuse` if that first line is
    wrong, with all of them.
    """
    lines = [
        (i, line)
        for i, line in enumerate(content.split("\n"), 1)
        if line.strip() and line[0] != "#"
    ]
    if not lines:
        raise refuse(f"{source}: empty; the first line names the columns: {example}")
    faults: list[str] = []
    (place, header), *rows = [(f"line {i}", _fields(source, i, line, faults)) for i, line in lines]
    of_header = [
        *_unknown(source, place, header, keys),
        *(f"{source}: {place}: two columns {k!r}" for k in keys if header.count(k) > 1),
    ]
    faults += [
        *of_header,
        *(
            f"{source}: {place}: {len(row)} {'field' if len(row) == 1 else 'fields'} where the header has {len(header)}"
            for place, row in rows
            if row and len(row) != len(header)
        ),
    ]
    if of_header or not header:
        raise refuse([*problems, *faults])
    problems += faults
    return [
        (place, dict(zip(header, row, strict=True)))
        for place, row in rows
        if len(row) == len(header)
    ]


def toml_rows(
    source: str,
    document: Mapping[str, Any],
    name: str,
    keys: Sequence[str],
    what: str,
    problems: list[str],
) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The title ("" if it has none), and (`name[3]`, the table) of a TOML file of `[[name]]` tables
    with `keys`. `what` is what a table has. What is not so is added to `problems`.
    """
    document = dict(document)
    tables = document.pop(name, None)
    title = document.pop("title", "")
    if not isinstance(title, str):
        problems.append(f"{source}: title: expected text, not {shown(title)}")
        title = ""
    problems += [f"{source}: unknown key {k!r}{did_you_mean(k, ['title', name])}" for k in document]
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        problems.append(f"{source}: {name}: expected [[{name}]] tables with {what}")
        tables = []
    rows = [(f"{name}[{i}]", table) for i, table in enumerate(tables)]
    for place, table in rows:
        problems += _unknown(source, place, table, keys)
    return title, rows


def _fields(source: str, number: int, line: str, problems: list[str]) -> list[str]:
    """The fields of one line (a quoted field ends where it began); none after a fault."""
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        problems.append(f"{source}: line {number}: {error}")
        return []


def _unknown(source: str, place: str, given: Iterable[str], keys: Sequence[str]) -> list[str]:
    return [
        f"{source}: {place}: unknown key {k!r}{did_you_mean(k, keys)}"
        for k in given
        if k not in keys
    ]


def dotted(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table and of the tables in it, by dotted key: TOML lets keys be written both
    ways.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = dotted(value) if isinstance(value, dict) else None
        found |= {f"{key}.{name}": each for name, each in inner.items()} if inner else {key: value}
    return found


def toml_text(value: object) -> str:
    """A TOML value: a basic string, or true and false."""
    if isinstance(value, bool):
        return str(value).lower()
    escaped = "".join(
        {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}.get(
            c, c if c.isprintable() else f"\\U{ord(c):08x}"
        )
        for c in str(value)
    )
    return f'"{escaped}"'
