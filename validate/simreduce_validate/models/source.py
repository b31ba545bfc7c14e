"""Keras models by what users have of them: a name of keras.applications, a function of their own, a
saved file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from tensorflow import keras

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files import read_start, reason
from simreduce_validate.models.users import made, words


def load(text: str, shape: tuple[int | None, ...] | None) -> Any:
    """The model that `text` names; an application is made for inputs of `shape`, if that is given.
    Its weights are of no interest.

    Raises InputError if there is none, and for errors of the user's own code.
    """
    if text.endswith((".keras", ".h5")) or Path(text).exists():
        return _saved(text)
    if ":" in text:
        return made(text, keras.Model, "keras.Model")
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
        read_start(Path(text), 1)
    except OSError as error:
        raise InputError(f"{text}: {reason(error)}") from None
    if text.endswith(".keras") and not is_zipfile(text):
        raise InputError(
            f"{text}: is no model that Keras has saved: a .keras file is a zip archive"
        )
    try:
        return keras.models.load_model(text, compile=False)
    except Exception as error:  # noqa: BLE001 - whatever Keras stumbles over is in the file
        raise InputError(f"{text}: Keras cannot load it: {words(error)}") from None
