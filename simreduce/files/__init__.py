"""Files that users, other programs and simreduce write: formats, tables, outputs.

Text files that users name: read whole, or refused with the reason; written whole or not at all.

The content goes to a temporary file in the same folder, which then replaces the file. Whatever ends
the writer (a full disk, Ctrl-C, `kill -9`) leaves the old file as it was, and of two writers the
last one to finish wins. `write_folder` does so for a folder of files. Devices and pipes are written
directly. `-` is stdout, which only the command line writes to.

Who names a link of their own, such as `latest.json`, means the file behind it: the link stays, and
that file is replaced. A link that another user made is refused: in a folder such as `/tmp` it may
lead to any file of ours. (The system's own protection does not see who resolves links by hand.) So
is a link to a folder on the way, if everybody may make one there and the folder is not that user's
too: who names a place in a user's folder trusts them.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gzip
import os
import re
import shutil
import stat
import tomllib
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, Literal

from simreduce.errors import InputError, InternalError, why_no_path


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
    """The text of a file in UTF-8, or in UTF-16 that says so; `name` is its name in faults. Raises
    `refuse` if it cannot be read.
    """
    name = name or str(path)
    try:
        content = read_bytes(path)
        # Editors on Windows begin a file with a byte order mark, and so does PowerShell's `>`.
        wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return content.decode("utf-16" if wide else "utf-8-sig")
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


STDOUT = "-"

# Below, os.path replaces Path, which raises for names that no file can have.


def check_place(path: str) -> None:
    """Raises InputError if no file can be written at `path`, before the work for it starts."""
    if not path:
        raise InputError("the name of the file to write is empty; - stands for stdout")
    if path != STDOUT and (fault := _fault(path)):
        raise InputError(f"{path}: cannot be written: {fault}")


def _fault(path: str) -> str:
    """Why no file can be written at `path`, "" if one can."""
    if os.path.isdir(path):  # noqa: PTH112
        return "it is a folder"
    exists = False
    try:
        place = behind_links(path)
        folder = os.path.dirname(place) or "."  # noqa: PTH120
        os.stat(folder)  # noqa: PTH116
        with contextlib.suppress(FileNotFoundError):
            exists = bool(os.stat(path))  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return "there is no such folder"
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # a NUL
        return why_no_path(path, error)
    may = os.access(path, os.W_OK) if exists else True
    if may and not _is_direct(path):
        may = os.access(folder, os.W_OK)  # the file is replaced by a new one
    return "" if may else "you may not (see its permissions)"


def write_file(path: str, pieces: Iterable[str | bytes]) -> None:
    """Write a file from its pieces, as UTF-8; gzip it if its name ends in .gz.

    Equal pieces make equal files. A link of the user's own stays, and the file that it leads to is
    replaced. Raises InputError if the file cannot be written.
    """
    _write_all({path: pieces})


def write_folder(path: str, files: Mapping[str, str | bytes]) -> list[str]:
    """Write files to a folder, which is made if it is not there. Returns their paths.

    A new folder appears with all of its files. In a folder that is there, the first file is
    replaced when all are complete; what else it has stays. InputError if that cannot be done.
    """
    places = {os.path.join(path, name): [content] for name, content in files.items()}  # noqa: PTH118
    if os.path.isdir(path):  # noqa: PTH112
        for place in places:
            check_place(place)
        _write_all(places)
        return [*places]
    beside = _temporary(os.path.abspath(path))  # noqa: PTH100
    try:
        os.mkdir(beside)  # noqa: PTH102
        _write_all({os.path.join(beside, name): [files[name]] for name in files})  # noqa: PTH118
        os.rename(beside, path)  # noqa: PTH104
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return [*places]


def _write_all(files: Mapping[str, Iterable[str | bytes]]) -> None:
    """Write files from their pieces. All are complete before one replaces what was there."""
    written: dict[str, str] = {}
    try:
        for path, pieces in files.items():
            place, compress = behind_links(path), path.endswith(".gz")
            if _is_direct(place):
                with open(place, "wb") as file:  # noqa: PTH123
                    _write_pieces(file, pieces, compress=compress)
                continue
            written[place] = _temporary(place)
            with open(written[place], "xb") as file:  # noqa: PTH123
                _copy_permissions(place, file.fileno())
                _write_pieces(file, pieces, compress=compress)
                file.flush()
                os.fsync(file.fileno())
        # One call: no signal is handled between its steps.
        deque(map(os.replace, written.values(), written), maxlen=0)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        for name in written.values():
            with contextlib.suppress(OSError):
                os.unlink(name)  # noqa: PTH108


def _write_pieces(file: IO[bytes], pieces: Iterable[str | bytes], *, compress: bool) -> None:
    content = (  # what has no UTF-8, such as bytes of a file's name, is escaped
        piece.encode(errors="backslashreplace") if isinstance(piece, str) else piece
        for piece in pieces
    )
    if compress:
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
            compressed.writelines(content)
    else:
        file.writelines(content)


_MOST_LINKS = 40
"""Links that Linux follows, one to the next."""


def behind_links(path: str) -> str:
    """The file that a link leads to, and every other path itself.

    OSError if another user made the link: only this one and root say what is replaced.
    """
    if is_held(path):
        return path
    for _ in range(_MOST_LINKS):
        _check_folders(os.path.dirname(path))  # noqa: PTH120
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return path
        if not stat.S_ISLNK(found.st_mode):
            return path
        if _is_of_another(found):
            raise OSError(errno.EPERM, f"another user ({found.st_uid}) made this link; name a file")
        path = os.path.join(os.path.dirname(path), os.readlink(path))  # noqa: PTH115, PTH118, PTH120
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _is_of_another(found: os.stat_result) -> bool:
    return os.name == "posix" and found.st_uid not in (0, os.geteuid())


def _check_folders(folder: str) -> None:
    """OSError if a link on the way to a folder was made by another user in a folder that is not
    that user's and that everybody may write to, as `/tmp` is.
    """
    at, left, links = "/" if folder.startswith("/") else ".", folder.split("/")[::-1], 0
    while left and os.name == "posix":
        step = os.path.join(at, left.pop())  # noqa: PTH118
        try:
            found = os.lstat(step)
        except FileNotFoundError:
            return
        if not stat.S_ISLNK(found.st_mode):
            at = step
            continue
        holder = os.stat(at)  # noqa: PTH116
        open_to_all = holder.st_mode & stat.S_IWOTH and found.st_uid != holder.st_uid
        if open_to_all and _is_of_another(found):
            raise OSError(errno.EPERM, f"another user ({found.st_uid}) made the link {step}")
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(step)  # noqa: PTH115
        at = "/" if target.startswith("/") else at
        left += target.split("/")[::-1]


def _is_direct(path: str) -> bool:
    """Whether `path` names something other than a plain file: a device, a pipe, a stream."""
    if is_held(path):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except (OSError, ValueError):
        return False


def _temporary(path: str) -> str:
    """A new name in the folder of a path."""
    name = f".simreduce-{os.getpid()}-{os.urandom(8).hex()}.tmp"
    return os.path.join(os.path.dirname(path), name)  # noqa: PTH118, PTH120


def _copy_permissions(source: str, number: int) -> None:
    """Give an open file the owner and mode of `source`, if there is one, as far as allowed."""
    try:
        old = os.stat(source)  # noqa: PTH116
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError):
        os.fchown(number, old.st_uid, old.st_gid)
    with contextlib.suppress(OSError):
        os.fchmod(number, stat.S_IMODE(old.st_mode))


@cache
def data_dir(kind: Literal["topologies", "scenarios"]) -> Path:
    """The folder of shipped TOML files of one kind.

    A wheel carries it as `simreduce/_data/KIND`; a source tree or an editable install has it beside
    the package.
    """
    package = Path(str(files("simreduce")))
    for folder in (package / "_data" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise InternalError(f"the installation of simreduce lacks its {kind}; reinstall it")
