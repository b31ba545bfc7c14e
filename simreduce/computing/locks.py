"""Files that others may hold or have put there first: no link is followed, one at a time writes.

A lock beside a file is dropped by the system when the process ends.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from simreduce.errors import InputError

_SCRATCH = ".simreduce"
"""The end of the names of folders that go at the end."""

NO_LOCK = (errno.ELOOP, errno.EINVAL)
"""Numbers of the errors that say that something else has the name of a lock."""


def open_plain(path: str, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of the plain file at `path`. OSError, and no wait, for anything else."""
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):  # few systems have all
        flags |= getattr(os, name, 0)
    try:
        number = os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "is a link, not a file") from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "is no plain file")
    return number


def open_lock(path: str, mode: int = 0o666) -> int:
    """Return a descriptor of the lock file at `path`, which is made with `mode` if it is missing.

    It changes nothing of what is there. OSError also for a file with a second name, which may be a
    file of ours that another user has linked.
    """
    number = open_plain(path, os.O_RDWR | os.O_CREAT, mode)
    if os.fstat(number).st_nlink > 1:
        os.close(number)
        raise OSError(errno.EINVAL, "is no lock: the file has other names")
    return number


@contextmanager
def scratch_folder(prefix: str, where: Path | None = None) -> Iterator[str]:
    """A folder in `where`, by default the system's for such, that goes at the end.

    It is locked until then, so the next one with this prefix removes what a killed process left,
    and nothing of another name: a user may have folders in `where`.
    """
    where = where or Path(tempfile.gettempdir())
    for place in where.glob(f"{prefix}*{_SCRATCH}"):
        with ExitStack() as stack:
            if _holds(stack, place):
                shutil.rmtree(place, ignore_errors=True)
    with ExitStack() as stack:
        while True:
            name = tempfile.mkdtemp(_SCRATCH, prefix, where)
            stack.callback(shutil.rmtree, name, ignore_errors=True)
            if _holds(stack, Path(name)) is not False and os.path.isdir(name):  # noqa: PTH112
                break  # else somebody has just removed it
        yield name


def _holds(stack: ExitStack, place: Path) -> bool | None:
    """Whether a folder of ours could be locked for the stack; None where there are no locks."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows

        number = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (ImportError, AttributeError):
        return None
    except OSError:
        return False
    stack.callback(os.close, number)
    if os.fstat(number).st_uid != os.geteuid():
        return False
    with suppress(BlockingIOError):
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


_PATIENCE = 3.0
"""Seconds that a lock is waited for: a sweep that was just killed is still being cleared away."""
_PAUSE = 0.05
_LONGEST = 20
"""Characters of a lock file are fewer."""


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of the file at `path`.

    InputError if another process has it, or if its file cannot be written.

    It is a record lock, which processes that this one starts do not inherit. Where the system has
    none, it locks nothing: two sweeps then do some cells twice, and keep one row of each.
    """
    name, until = f"{path}.lock", time.monotonic() + _PATIENCE
    with ExitStack() as held:
        try:
            while (holder := _take(name, held)) is not None:
                if time.monotonic() > until:
                    by = f" (process {holder})" if holder.isdecimal() else ""
                    raise InputError(f"{path}: another sweep is writing it{by}")
                time.sleep(_PAUSE)
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in NO_LOCK:
                why = f"{name} {why}; remove it"
            raise InputError(f"{path}: cannot be written: {why}") from None
        yield


def _take(name: str, held: ExitStack) -> str | None:
    """None if the lock is ours until `held` ends, else who has it."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    with ExitStack() as ours:
        number = open_lock(name)
        ours.callback(os.close, number)
        try:
            fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = _read(number).strip()
            lacking = error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
            return None if lacking else text or "?"
        text = _read(number)
        if text and not (text.isdecimal() and len(text) < _LONGEST):
            raise OSError(errno.EINVAL, "is no lock of a sweep")
        # Whoever held it may have removed the file that is open here.
        same = False
        with suppress(OSError):
            same = os.path.samestat(os.fstat(number), Path(name).lstat())
        if not same:
            return "?"
        os.ftruncate(number, 0)
        with suppress(OSError):  # a full disk: only the name of the holder is lost
            os.pwrite(number, str(os.getpid()).encode(), 0)
        held.push(ours.pop_all())
        held.callback(_remove, name)
    return None


def _remove(name: str) -> None:
    with suppress(OSError):
        Path(name).unlink()


def _read(number: int) -> str:
    return os.read(number, _LONGEST).decode("ascii", "replace")
