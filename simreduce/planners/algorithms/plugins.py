"""Algorithms from outside the package: other packages name them as entry points.

What their planners do wrong is a StrategyError.
"""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType

import numpy as np

from simreduce.errors import InputError, PlanError, StrategyError, quote
from simreduce.plan import PlanBuilder, Value
from simreduce.planners.algorithms.planner import Options, Planner, Results, Tensors
from simreduce.planners.layouts import Layout

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


Choices = Callable[[Layout], Sequence[int]]
_OURS = f"{__name__.partition('.')[0]}."


def guard(planner: Planner, collective: str) -> Planner:
    """The planner, with StrategyError for every fault of its own and of its results."""

    @functools.wraps(planner)
    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        try:
            results = planner(b, layout, [tuple(tensor) for tensor in tensors], options)
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise StrategyError(f"raised {_describe(error)}") from error
        try:
            b.check()
        except (PlanError, TypeError, ValueError) as error:
            raise StrategyError(f"made a faulty plan: {_in_a_line(error)}") from error
        each = layout.n if collective == "all_reduce" else 0
        if wrong := _wrong(results, len(tensors), each, len(b)):
            raise StrategyError(wrong)
        return results

    return plan


def guard_choices(choices: Choices) -> Choices:
    """The shard counts; only 1 where `choices` fails or returns none that are whole numbers."""

    @functools.wraps(choices)
    def choose(layout: Layout) -> Sequence[int]:
        try:
            found = list(choices(layout))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - whatever another package does wrong
            return (1,)
        return found if all(isinstance(each, (int, np.integer)) for each in found) else (1,)

    return choose


def _wrong(results: object, tensors: int, ranks: int, ops: int) -> str:
    """Say what is wrong with a planner's results; `ranks` 0 allows any number per tensor."""
    if not isinstance(results, Sequence):
        return f"must return one list of values per tensor, returned {quote(results)}"
    if len(results) != tensors:
        return f"must return one list of values per tensor: {tensors}, returned {len(results)}"
    for i, values in enumerate(results):
        if not isinstance(values, Sequence):
            return f"must return one list of values per tensor, returned {quote(values)} in it"
        if ranks and len(values) != ranks:
            return (
                f"must return {ranks} values for tensor {i}, one per rank, returned {len(values)}"
            )
        foreign = [v for v in values if not isinstance(v, Value) or not 0 <= v.op < ops]
        if foreign:
            return f"must return values of the builder, returned {quote(foreign[0])} in a list"
    return ""


def _describe(error: BaseException) -> str:
    """`KeyError: 'x' (my_package/mine.py:12)`, in one line."""
    text = _in_a_line(error)
    return f"{type(error).__name__}{': ' * bool(text)}{text}{_place(error.__traceback__)}"


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _place(trace: TracebackType | None) -> str:
    """The last line that is not simreduce's, with as many folders as the module has packages."""
    place = ""
    for frame, line in traceback.walk_tb(trace):
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_OURS):
            path = Path(frame.f_code.co_filename)
            parts = path.parts[-1 - module.count(".") - (path.name == "__init__.py") :]
            place = f" ({'/'.join(parts)}:{line})"
    return place
