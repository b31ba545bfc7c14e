"""Text files that users name: read whole, or refused with the file and the reason."""

from __future__ import annotations

import errno
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simreduce.errors import InputError


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


def read_text(path: Path, refuse: type[InputError]) -> str:
    """The text of a UTF-8 file; raises `refuse` when it cannot be read."""
    try:
        return read_bytes(path).decode("utf-8")
    except OSError as error:
        raise refuse(f"{path}: {reason(error)}") from None
    except UnicodeDecodeError as error:
        raise refuse(f"{path}: not UTF-8 text (byte {error.start})") from None
    except ValueError as error:  # a name with a NUL or a lone surrogate
        raise refuse(f"{str(path)!r}: cannot be read: {error}") from None


def parse_toml(source: str, content: str, refuse: type[InputError]) -> dict[str, Any]:
    """The document that `content` is; raises `refuse` with `source` and the place when it is not TOML."""
    try:
        return tomllib.loads(content)
    except RecursionError:
        raise refuse(f"{source}: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, and whole numbers with thousands of digits
        raise refuse(f"{source}: {error}") from None


def dotted(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table and of the tables in it, by dotted key: TOML lets keys be written both ways."""
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
