"""Users' files, written whole or not at all: a reader never finds a part of one.

The content goes to a temporary file in the same folder, which then replaces the file. Whatever ends
the writer (a full disk, Ctrl-C, `kill -9`) leaves the old file as it was, and of two writers the
last one to finish wins. Devices and pipes are written directly. `-` is stdout, which only the
command line writes to.

Who names a link of their own, such as `latest.json`, means the file behind it: the link stays, and
that file is replaced. A link that another user made is refused: in a folder such as `/tmp` it may
lead to any file of ours. (The system's own protection does not see who resolves links by hand.) So
is a link to a folder on the way, if everybody may make one there and the folder is not that user's
too: who names a place in a user's folder trusts them.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from typing import IO

from simreduce.errors import InputError, why_no_path
from simreduce.files.textfiles import is_held

STDOUT = "-"

# Below, os.path replaces Path, which raises for names that no file can have.


def check_place(path: str) -> None:
    """Raises InputError if no file can be written at `path`, before the work for it starts."""
    if not path:
        raise InputError("the name of the file to write is empty; - stands for stdout")
    if path != STDOUT and (fault := _fault(path)):
        raise InputError(f"{path}: cannot be written: {fault}")


def _encoded(piece: str) -> bytes:
    """Text as UTF-8; what has none, such as bytes of a file's name, is escaped."""
    return piece.encode(errors="backslashreplace")


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
    try:
        place = behind_links(path)
        with _direct(place) if _is_direct(place) else _replacement(place) as file:
            content = (_encoded(piece) if isinstance(piece, str) else piece for piece in pieces)
            if path.endswith(".gz"):
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
                    compressed.writelines(content)
            else:
                file.writelines(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


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


def _direct(path: str) -> IO[bytes]:
    return open(path, "wb")  # noqa: PTH123


@contextlib.contextmanager
def _replacement(target: str) -> Iterator[IO[bytes]]:
    """A temporary file that replaces `target` at the end, and disappears after an exception."""
    temporary, number = _temporary(os.path.dirname(target))  # noqa: PTH120
    try:
        with open(number, "wb") as file:  # noqa: PTH123
            _copy_permissions(target, number)
            yield file
            file.flush()
            os.fsync(number)
        os.replace(temporary, target)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise


def _temporary(folder: str) -> tuple[str, int]:
    """A new file of `folder`, with the permissions that new files get: its name and descriptor."""
    for attempt in itertools.count():
        name = os.path.join(folder, f".simreduce-{os.getpid()}-{attempt}.tmp")  # noqa: PTH118
        with contextlib.suppress(FileExistsError):
            return name, os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    raise AssertionError  # the count has no end


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
