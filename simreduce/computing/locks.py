"""Files in folders where another user may have put something first: no link is followed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

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
