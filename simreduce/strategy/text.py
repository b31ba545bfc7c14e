"""A strategy as users type it: `SPEC[+PACKER][+mean]`, for example `hierarchical_copy+packs=8` or `ring+ddp`."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.algorithms import ALGORITHMS
from simreduce.errors import StrategyError, did_you_mean
from simreduce.layouts import Layout
from simreduce.packing import PACKERS, NoPacking, Packer
from simreduce.strategy.automatic import AUTOMATIC, resolve
from simreduce.strategy.spec import Range, parse_spec

_FLAGS = ("mean",)


@dataclass(frozen=True, slots=True)
class Strategy:
    """What to do with a gradient list. `spec` and `packing` are the two halves of `text`.

    A rule that looks at the layout first (`AUTOMATIC`) is its own spec and has no ranges before it is `resolved`.
    """

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
    if spec not in AUTOMATIC:
        try:
            ranges = parse_spec(spec, (*ALGORITHMS, *AUTOMATIC))
        except StrategyError as error:
            problems += error.problems
    packer: Packer = NoPacking()
    packing, mean = "none", False
    for option in options:
        key, equals, value = option.partition("=")
        if key == "mean" and not equals:
            mean = True
        elif key in PACKERS:
            if packing != "none":
                problems.append(f"{text}: two packers, +{packing} and +{option}; give one")
            packing = option
            try:
                packer = PACKERS[key](value if equals else None)
            except StrategyError as error:
                problems += [f"{text}: {p}" for p in error.problems]
        else:
            known = [*PACKERS, *_FLAGS]
            near = did_you_mean(key, known) or f"; known: {', '.join('+' + k for k in known)}"
            problems.append(f"{text}: unknown option +{option}{near}")
    if packing != "none" and spec in AUTOMATIC:
        problems.append(f"{text}: {spec} chooses its own packing; leave out +{packing}")
    rules = [r.algorithm for r in ranges if r.algorithm in AUTOMATIC]
    problems += [
        f"{text}: {rule} is a whole strategy: it takes no shards and no other ranges" for rule in rules
    ]
    if problems:
        raise StrategyError(problems)
    return Strategy(text.strip(), spec, packing, tuple(ranges), packer, mean)


def resolved(strategy: Strategy, layout: Layout) -> Strategy:
    """`strategy`; if it is one of the rules of `AUTOMATIC`, the strategy that the rule chooses on `layout`."""
    if strategy.spec not in AUTOMATIC:
        return strategy
    return parse_strategy(resolve(strategy.spec, layout) + "+mean" * strategy.mean)
