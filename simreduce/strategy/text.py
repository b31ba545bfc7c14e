"""A strategy as users type it: `SPEC[+packs=K][+mean]`, for example `hierarchical_copy+packs=8`."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.algorithms import ALGORITHMS
from simreduce.errors import StrategyError, did_you_mean
from simreduce.packing import PACKERS, NoPacking, Packer
from simreduce.strategy.spec import Range, parse_spec

_FLAGS = ("mean",)


@dataclass(frozen=True, slots=True)
class Strategy:
    """What to do with a gradient list. `spec` and `packing` are the two halves of `text`."""

    text: str
    spec: str
    packing: str
    ranges: tuple[Range, ...]
    packer: Packer
    mean: bool = False

    def __str__(self) -> str:
        return self.text


def parse_strategy(text: str) -> Strategy:
    """Read a strategy; StrategyError lists everything that is wrong with it."""
    spec, *options = text.strip().split("+")
    problems: list[str] = []
    ranges: list[Range] = []
    try:
        ranges = parse_spec(spec, ALGORITHMS)
    except StrategyError as error:
        problems += error.problems
    packer: Packer = NoPacking()
    packing, mean = "none", False
    for option in options:
        key, equals, value = option.partition("=")
        if key == "mean" and not equals:
            mean = True
        elif key in PACKERS and equals:
            if packing != "none":
                problems.append(f"{text}: two packers, +{packing} and +{option}; give one")
            packing = option
            try:
                packer = PACKERS[key](value)
            except StrategyError as error:
                problems += [f"{text}: {p}" for p in error.problems]
        else:
            known = [*(f"{k}=" for k in PACKERS), *_FLAGS]
            near = did_you_mean(option, known) or f"; known: {', '.join('+' + k for k in known)}"
            problems.append(f"{text}: unknown option +{option}{near}")
    if problems:
        raise StrategyError(problems)
    return Strategy(text.strip(), spec, packing, tuple(ranges), packer, mean)
