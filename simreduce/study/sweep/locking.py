"""A lock beside a file, so that one sweep at a time writes it; the system drops it with us."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import IO

from simreduce.computing.locks import NO_LOCK, open_lock
from simreduce.errors import InputError

_PATIENCE = 3.0
"""Seconds that a lock is waited for: a sweep that was just killed is still being cleared away."""
_PAUSE = 0.05
_LONGEST = 20
"""Characters of a lock file are fewer."""
_NOT_SUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class Lock:
    """The lock of the file at `path`, from the start until `release`.

    InputError if another process has it, or if its file cannot be written.

    It is a record lock, which processes that this one starts do not inherit. Where the system has
    none, it locks nothing: two sweeps then do some cells twice, and keep one row of each.
    """

    def __init__(self, path: str) -> None:
        self._name = f"{path}.lock"
        self._file: IO[str] | None = None
        until = time.monotonic() + _PATIENCE
        try:
            while (holder := self._take()) is not None:
                if time.monotonic() > until:
                    by = f" (process {holder})" if holder.isdecimal() else ""
                    raise InputError(f"{path}: another sweep is writing it{by}")
                time.sleep(_PAUSE)
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in NO_LOCK:
                why = f"{self._name} {why}; remove it"
            raise InputError(f"{path}: cannot be written: {why}") from None

    def _take(self) -> str | None:
        """None if the lock is ours, else who has it."""
        try:
            import fcntl  # noqa: PLC0415 - not on Windows
        except ImportError:
            return None
        number = open_lock(self._name)
        file = os.fdopen(number, "r+", encoding="ascii", errors="replace")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = file.read(_LONGEST).strip()
            file.close()
            if error.errno in _NOT_SUPPORTED:
                return None
            return holder or "?"
        if not _is_process(file.read(_LONGEST)):
            file.close()
            raise OSError(errno.EINVAL, "is no lock of a sweep")
        # Whoever held it may have removed the file that is open here.
        same = False
        with contextlib.suppress(OSError):
            same = os.path.samestat(os.fstat(file.fileno()), Path(self._name).lstat())
        if not same:
            file.close()
            return "?"
        file.seek(0)
        file.truncate()
        with contextlib.suppress(OSError):  # a full disk: only the name of the holder is lost
            file.write(str(os.getpid()))
            file.flush()
        self._file = file
        return None

    def release(self) -> None:
        """Let others have it."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            Path(self._name).unlink()
        with contextlib.suppress(OSError):
            self._file.close()
        self._file = None


def _is_process(text: str) -> bool:
    """Whether a lock file has nothing in it, or the number of a process."""
    return not text or (text.isdecimal() and len(text) < _LONGEST)
