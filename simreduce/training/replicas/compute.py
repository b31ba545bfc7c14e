"""The key `compute` of `[replicas]`: a time, or a table with a distribution of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simreduce.files.formats import (
    DURATION,
    Faults,
    Field,
    Format,
    ListOf,
    ValueKind,
    choice,
    inside,
    number,
)
from simreduce.training.distributions import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    Lognormal,
    Normal,
    Pareto,
    Uniform,
)


def _time(key: str, about: str) -> Field:
    return Field(key, DURATION, about, required=True)


def _form(name: str, about: str, *fields: Field) -> Format:
    return Format(name, about, Field("distribution", _NAME, "Its name.", required=True), *fields)


def _empirical(times: list[float]) -> Distribution:
    return Empirical(tuple(times))


_NAMES = ("constant", "uniform", "normal", "lognormal", "exponential", "pareto", "trace")
_NAME = choice(_NAMES, "distribution")
_MEAN, _SD = _time("mean", "The mean."), _time("sd", "The standard deviation.")
DISTRIBUTIONS: Mapping[str, tuple[Callable[..., Distribution], Format]] = {
    form.name: (make, form)
    for make, form in (
        (Constant, _form("constant", "Always the same time.", _time("seconds", "The time."))),
        (Uniform, _form("uniform", "Equally likely times.", _time("low", "The least."),
                        _time("high", "The greatest."))),
        (Normal, _form("normal", "Normally distributed times above 0 s.", _MEAN, _SD)),
        (Lognormal, _form("lognormal", "Times whose logarithm is normal.", _MEAN, _SD)),
        (Exponential, _form("exponential", "Exponentially distributed times, after a least one.",
                            _MEAN, Field("least", DURATION, "The least.", 0.0))),
        (Pareto, _form("pareto", "Times with a heavy tail.", _time("least", "The least."),
                       Field("shape", number(0.0), "The exponent of the tail.", required=True))),
        (_empirical, _form("trace", "Any of some measured times, equally likely.",
                           Field("times", ListOf(DURATION), "The times.", required=True))),
    )
}  # fmt: skip
"""Distributions by name; the keys after the first are their arguments, in order."""


class ComputeTime(ValueKind[Distribution]):
    """A time, or a table with a distribution."""

    def __init__(self) -> None:
        schema = {"anyOf": [DURATION.schema, {"type": "object", "required": ["distribution"]}]}
        super().__init__('a time such as "120 ms", or a table with a distribution', schema)

    def take(self, value: object, faults: Faults, path: str) -> Distribution | None:
        """Read either; None if it has a fault."""
        if not isinstance(value, dict):
            seconds = DURATION.take(value, faults, path)
            return None if seconds is None else Constant(seconds)
        name = _NAME.take(value.get("distribution"), faults, inside(path, "distribution"))
        if name is None:
            return None
        make, form = DISTRIBUTIONS[name]
        before = len(faults.problems)
        values = form.read(value, faults, path)
        if len(faults.problems) > before:
            return None
        arguments: list[Any] = [values[key] for key in form.keys[1:]]
        return faults.attempt(path, make, *arguments)
