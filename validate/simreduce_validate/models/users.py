"""Models that functions of the user's own return, and errors in the user's own code."""

from __future__ import annotations

import importlib
import inspect
import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from traceback import walk_tb
from typing import Any

from simreduce.errors import InputError, did_you_mean, quote

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_OURS = ("simreduce", "simreduce_validate", "__main__")


def made(text: str, kind: type, called: str) -> Any:
    """What the function PACKAGE.MODULE:FUNCTION returns, which must be of `kind`, as users call it.

    Raises InputError if there is none, and for errors of the user's own code.
    """
    if not _FUNCTION.fullmatch(text):
        raise InputError(f"{text}: write PACKAGE.MODULE:FUNCTION")
    module, _, name = text.partition(":")
    with theirs(text):
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # something that the module itself imports
            raise InputError(
                f"{text}: there is no module {error.name!r} here or in what is installed"
            ) from None
    if not hasattr(found, name):
        raise InputError(f"{text}: {module} has no {name!r}{did_you_mean(name, vars(found))}")
    function = getattr(found, name)
    if isinstance(function, kind):
        return function
    if not callable(function):
        raise InputError(
            f"{text}: is {quote(function)}, neither a {called} nor a function that returns one"
        )
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"{text}: it is called without arguments: {error}") from None
    except ValueError:
        pass  # it does not say what it takes
    with theirs(text):
        model = function()
    if not isinstance(model, kind):
        raise InputError(f"{text}: gives {quote(model)}, which is no {called}")
    return model


@contextmanager
def theirs(text: str) -> Iterator[None]:
    """What is raised in the user's own code, that of the function `text`, becomes an InputError
    that says where.
    """
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        place = _place(error, text.partition(":")[0])
        if place is None:
            raise
        raise InputError(f"{text}: {place}: {type(error).__name__}: {words(error)}") from None


def _place(error: BaseException, module: str) -> str | None:
    """The last line of the user's on the way to an error: in the package of `module`, or in no
    library.
    """
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    package = module.partition(".")[0]
    for frame, line in reversed([*walk_tb(error.__traceback__)]):
        file, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        own = name.partition(".")[0] == package
        if own or not (file.startswith(("<", *_LIBRARIES)) or name.partition(".")[0] in _OURS):
            return f"{file}:{line}, in {frame.f_code.co_name}"
    return None


def words(error: BaseException) -> str:
    """What it says, in one line; where Keras says at length what it was doing, that and what went
    wrong there.
    """
    lines = [
        line.strip()
        for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()
        if line.strip()
    ]
    first, *others = lines or [type(error).__name__]
    if first.startswith("Exception encountered"):
        said = [*takewhile(lambda line: not line.startswith("Arguments received"), others)]
        first = " ".join([first, *said[-1:]])
    return first[:500]
