"""A lock beside a file, so that one sweep at a time writes it; the system drops it with us."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from simreduce.computing.own_files import NO_LOCK, open_lock
from simreduce.errors import InputError

_PATIENCE = 3.0
"""Seconds that a lock is waited for: a sweep that was just killed is still being cleared away."""
_PAUSE = 0.05
_LONGEST = 20
"""Characters of a lock file are fewer."""
_NOT_SUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


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
            return None if error.errno in _NOT_SUPPORTED else _read(number).strip() or "?"
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
