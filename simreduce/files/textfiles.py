"""Text files that users name: read whole, or refused with the file and the reason."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from simreduce.errors import InputError, why_no_path


def exists(text: str) -> bool:
    """Whether something is at the path `text`; False too for what cannot be a path."""
    return os.path.exists(text)  # noqa: PTH110 - Path.exists raises for names that no file can have


def is_file(text: str) -> bool:
    """Whether a file, not a folder or a pipe, is at the path `text`; False likewise."""
    return os.path.isfile(text)  # noqa: PTH113 - likewise


MOST_BYTES = 64 << 20
"""No file that a person writes is larger; a device such as /dev/zero has no end."""


_HELD = re.compile(r"/dev/(std(in|out|err)|fd/\d+)|/proc/(self|\d+)/fd/\d+")


def is_held(path: str) -> bool:
    """Whether a path means a file that a process holds open, such as a shell's `<(...)`.

    Other names below /proc, such as /proc/self/cwd/FILE, mean what any path means.
    """
    return _HELD.fullmatch(path) is not None


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file; OSError also if it has more than `most` bytes or is a named pipe.

    Nothing is read of a file that is too large. Devices have `MOST_BYTES` at most. A pipe that the
    process holds, such as a shell's `<(...)`, is read like a file.
    """
    content: bytes | None
    with _open(path) as file:
        found = os.fstat(file.fileno())
        most = min(most, MOST_BYTES) if stat.S_ISCHR(found.st_mode) else most
        size = found.st_size if stat.S_ISREG(found.st_mode) else 0
        too_large = size > most
        # `read` takes the memory first. Files of /proc say that they have no byte.
        content = b"" if too_large else file.read((size or most) + 1)
    if content is None:  # a terminal on which nobody types
        raise OSError(errno.EAGAIN, "nothing is there")
    if too_large or len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most >> 20} MiB, or without an end")
    return content


def _open(path: Path) -> IO[bytes]:
    """Open a file to read; OSError for named pipes and sockets, which others may never write."""
    if is_held(str(path)):
        return path.open("rb")
    waits = getattr(os, "O_NONBLOCK", 0)  # not for the writer of a pipe
    file = os.fdopen(os.open(path, os.O_RDONLY | waits | getattr(os, "O_BINARY", 0)), "rb")
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        file.close()
        raise OSError(errno.ESPIPE, "is a pipe, not a file")
    return file


def read_start(path: Path, count: int) -> bytes:
    """The first bytes of a file; OSError as of `read_bytes`."""
    with _open(path) as file:
        return file.read(count) or b""


_REASONS = {
    errno.ENOENT: "there is no such file",
    errno.ENOTDIR: "there is no such file",
    errno.EISDIR: "is a directory, not a file",
    errno.ESPIPE: "is a pipe, not a file",
    errno.EACCES: "cannot be read: you may not (see its permissions)",
}


def reason(error: OSError) -> str:
    """Why a file cannot be read, in words that go on from its name."""
    return _REASONS.get(error.errno or 0) or f"cannot be read: {error.strerror or error}"


def read_text(path: Path, refuse: type[InputError], name: str = "") -> str:
    """The text of a UTF-8 file, called `name` in faults; raises `refuse` if it cannot be read."""
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
        raise refuse(f"{name!r}: cannot be read: {why_no_path(str(path), error)}") from None


MOST_TOML = 4 << 20
"""Characters of the longest TOML document: the parser takes seconds for it."""
MOST_DEPTH = 64
"""The most parts of a dotted key, and the most levels of nested brackets."""
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


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table and of the tables in it, by dotted key.

    TOML lets keys be written both ways.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = flatten(value) if isinstance(value, dict) else None
        found |= {f"{key}.{name}": each for name, each in inner.items()} if inner else {key: value}
    return found
