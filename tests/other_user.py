"""Another user of this computer, who leaves traps where ours works.

Only root can act as somebody else, so these tests run where the tests are root. Elsewhere each of
them says in the summary that it was left out.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER = 65534
"""`nobody` of most systems; its number is all that matters."""

needs_root = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0,
    reason="left out: an attack by another user, whom only root can play",
)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder like `/tmp`: everybody adds files to it, and nobody replaces another's."""
    with tempfile.TemporaryDirectory(prefix="simreduce-shared-") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def as_other(act: Callable[[], object]) -> None:
    """Do something as another user, in a process of its own, and wait for its end."""
    with meanwhile(act):
        pass


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Do something as another user, who then waits and holds what it took until the block ends."""
    done, doing = os.pipe()
    waits, ends = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            os.close(ends)
            act()
            os.write(doing, b".")
            os.read(waits, 1)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(doing)
    os.close(waits)
    try:
        assert os.read(done, 1) == b".", "the other user could not do it"
        yield
    finally:
        os.close(done)
        os.close(ends)
        os.waitpid(child, 0)
