"""Files in folders where another user may have put something first: no link is followed."""

from __future__ import annotations

import errno
import os
import stat

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
