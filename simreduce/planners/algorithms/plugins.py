"""Algorithms of other packages, found by their entry points."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.metadata import entry_points

GROUP = "simreduce.algorithms"

_unloaded: dict[str, str] = {}
_warned: set[str] = set()


def load_plugins() -> None:
    """Import what other packages name as entry points, whose planners register themselves."""
    for entry in entry_points(group=GROUP):
        try:
            # Not `entry.load()`: the module may be what imports us, and is half done then.
            import_module(entry.module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it does wrong, exits included
            words = f"{type(error).__name__}: {' '.join(str(error).split())}"
            _unloaded[entry.name] = f"{entry.value} cannot be imported: {words}"


def why_unloaded(name: str) -> str:
    """Why the plug-in of that name is no algorithm; "" if there is none or it was imported."""
    return _unloaded.get(name, "")


def warn_of_unloaded() -> None:
    """Warn once, in a line, of each plug-in that cannot be imported."""
    for name, why in _unloaded.items():
        if name not in _warned:
            _warned.add(name)
            # At no line of a file, so that none is printed after it.
            warnings.warn_explicit(f"algorithm {name}: {why}", UserWarning, "simreduce", 0)
