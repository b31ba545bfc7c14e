"""Keras models by what users have of them: a name of keras.applications, a function of their own, a
saved file.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from traceback import walk_tb
from typing import Any
from zipfile import is_zipfile

from tensorflow import keras

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.textfiles import reason

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_OURS = ("simreduce", "simreduce_validate", "__main__")


def load(text: str, shape: tuple[int | None, ...] | None) -> Any:
    """The model that `text` names; an application is made for inputs of `shape`, if that is given.
    Its weights are of no interest.

    Raises InputError if there is none, and for errors of the user's own code.
    """
    if text.endswith((".keras", ".h5")) or Path(text).exists():
        return _saved(text)
    if ":" in text:
        return _made(text)
    builders = applications()
    if text not in builders:
        raise InputError(
            f"no Keras model {quote(text)}{did_you_mean(text, builders)}; a name of "
            f"keras.applications, a function as "
            "PACKAGE.MODULE:FUNCTION, or a file that ends in .keras"
        )
    return builders[text](weights=None, **({} if shape is None else {"input_shape": shape}))


def applications() -> Mapping[str, Callable[..., Any]]:
    """The models of keras.applications, by name."""
    return {
        name: builder
        for name, builder in vars(keras.applications).items()
        if inspect.isfunction(builder) and "weights" in inspect.signature(builder).parameters
    }


def _saved(text: str) -> Any:
    try:
        Path(text).open("rb").close()
    except OSError as error:
        raise InputError(f"{text}: {reason(error)}") from None
    if text.endswith(".keras") and not is_zipfile(text):
        raise InputError(
            f"{text}: is no model that Keras has saved: a .keras file is a zip archive"
        )
    try:
        return keras.models.load_model(text, compile=False)
    except Exception as error:  # noqa: BLE001 - whatever Keras stumbles over is in the file
        raise InputError(f"{text}: Keras cannot load it: {_words(error)}") from None


def _made(text: str) -> Any:
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
    made = getattr(found, name)
    if isinstance(made, keras.Model):
        return made
    if not callable(made):
        raise InputError(
            f"{text}: is {quote(made)}, neither a keras.Model nor a function that returns one"
        )
    try:
        inspect.signature(made).bind()
    except TypeError as error:
        raise InputError(f"{text}: it is called without arguments: {error}") from None
    except ValueError:
        pass  # it does not say what it takes
    with theirs(text):
        model = made()
    if not isinstance(model, keras.Model):
        raise InputError(f"{text}: gives {quote(model)}, which is no keras.Model")
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
        raise InputError(f"{text}: {place}: {type(error).__name__}: {_words(error)}") from None


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


def _words(error: BaseException) -> str:
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
