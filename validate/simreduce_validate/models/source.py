"""Keras models by what users have of them: a name of keras.applications, a function of their own, a saved file."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorflow import keras

from simreduce.errors import InputError, did_you_mean, shown


def load(text: str, shape: tuple[int | None, ...] | None) -> Any:
    """The model that `text` names; an application is made for inputs of `shape`, if that is given. Its weights are of no interest.

    InputError for what is none. What the user's own code raises passes through.
    """
    if text.endswith((".keras", ".h5")) or Path(text).exists():
        return _saved(text)
    if ":" in text:
        return _made(text)
    builders = applications()
    if text not in builders:
        raise InputError(
            f"no Keras model {shown(text)}{did_you_mean(text, builders)}; a name of keras.applications, a function as "
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
        return keras.models.load_model(text, compile=False)
    except (ValueError, OSError, TypeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"{text}: Keras cannot load it: {lines[0]}") from None


def _made(text: str) -> Any:
    module, _, name = text.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
        raise InputError(f"{text}: there is no module {error.name!r} here or in what is installed") from None
    if not hasattr(found, name):
        raise InputError(f"{text}: {module} has no {name!r}{did_you_mean(name, vars(found))}")
    made = getattr(found, name)
    model = made if isinstance(made, keras.Model) else made()
    if not isinstance(model, keras.Model):
        raise InputError(f"{text}: gives {shown(model)}, which is no keras.Model")
    return model
