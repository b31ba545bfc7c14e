"""The grid of a sweep: the values of keys as people write them, and which combinations are tried.

A key has a list, a range or an interval of values:

* `1,2,4` or `ring;nccl+small=65536,10`: a list; with `;`, commas belong to the values
* `1..64`: every whole number; `1..64+8`: every eighth from 1; `1..64*2`: doubled each time
* `8M..1G*2`, `100..400TFLOP/s+100`: numbers with a unit
* `0.5..2.0`: an interval, for `--sample` only; with whole ends, every whole number between

The TOML file of a sweep, and planning its cells.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, log2, prod
from pathlib import Path
from typing import Any

import numpy as np

from simreduce import units
from simreduce.errors import InputError, cut, quote
from simreduce.files import flatten, is_file, parse_toml, read_text
from simreduce.files.formats import (
    ANYTHING,
    LINE,
    Field,
    Format,
    ListOf,
    MapOf,
    TableOf,
    choice,
    whole,
)
from simreduce.files.formats.syntax import Faults
from simreduce.planners.algorithms import NAMES
from simreduce.planners.strategy import split_strategies
from simreduce.study.sweep import KINDS, REPLICAS
from simreduce.study.sweep.question import SweepQuestion, clashes, read_question
from simreduce.study.sweep.store import Planned
from simreduce.study.tune.sizes import ROOTED

RANDOM, SOBOL = SAMPLES = ("random", "sobol")
MOST_CELLS = 10_000_000
"""Cells of the largest sweep."""
MOST_SOBOL = 64
"""Keys of a Sobol sample: beyond, its points are spread no better than random ones."""
MOST_VALUES = 100_000
"""Values of the longest list."""
SIZES = ("size", "bytes")
"""Keys whose numbers are sizes."""
_STRATEGIES = ("strategy", "algo")
_WITH_COMMAS = ("mesh",)
"""Keys whose values have commas, so that only `;` separates them."""
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_RANGE = re.compile(
    rf"\s*({_NUMBER})\s*([A-Za-z/]*)\s*\.\.\s*({_NUMBER})\s*([A-Za-z/]*)\s*"
    rf"(?:([*+])\s*({_NUMBER})\s*([A-Za-z/]*))?\s*"
)


@dataclass(frozen=True, slots=True)
class NumberInterval:
    """Any number from `low` to `high`, of a unit."""

    low: Fraction
    high: Fraction
    unit: str = ""

    def at(self, share: float) -> float | str:
        """The value at a share of the way, from 0 to 1."""
        value = float(self.low) + float(self.high - self.low) * share
        return f"{value!r}{self.unit}" if self.unit else value


Choices = tuple[Any, ...] | NumberInterval
"""The values that a key may have."""


def parse_values(key: str, given: object) -> tuple[Choices, list[str]]:
    """The values of a key that can be read, and what is wrong with the others."""
    if not isinstance(given, list):
        try:
            given = _split(key, given) if isinstance(given, str) else [given]
        except ValueError as error:
            return (), [str(error)]
    if not given:
        return (), ["needs at least one value"]
    found: list[Any] = []
    problems: list[str] = []
    seen: Counter[str] = Counter()
    for each in given:
        try:
            part = _parse(key, each) if isinstance(each, str) else (each,)
        except ValueError as error:
            problems.append(str(error))
            continue
        if isinstance(part, NumberInterval):
            if len(given) == 1:
                return part, []
            problems.append("an interval stands alone; a range of it has a step, as 1..2+0.5")
        else:
            found += [value for value in part if not seen[repr(value)]]
            seen.update(map(repr, part))
    problems += [f"{cut(text)} is given twice" for text, times in seen.items() if times > 1]
    if len(found) > MOST_VALUES:
        problems.append(f"{len(found):,} values are more than {MOST_VALUES:,}")
    return tuple(found), problems


def last_part(key: str) -> str:
    """`size` of `traffic.backup.size`, whose values are written alike wherever it stands."""
    return key.rpartition(".")[2]


def _split(key: str, text: str) -> list[str]:
    key = last_part(key)
    if ";" in text:
        parts = text.split(";")
    elif key in _STRATEGIES:
        parts = split_strategies(text, "all_reduce")
    else:
        parts = [text] if key in _WITH_COMMAS else text.split(",")
    parts = [part.strip() for part in parts]
    if "" in parts:
        raise ValueError(f"an empty value in {quote(text)}")
    return parts


def _parse(key: str, text: str) -> Choices:
    if (match := _RANGE.fullmatch(text)) is None:
        return (parse_scalar(key, text),)
    low, unit, high, unit_high, sign, step, unit_step = match.groups()
    if last_part(key) in SIZES:
        return _sizes(text, low + unit, high + unit_high, sign, (step or "") + (unit_step or ""))
    unit = unit or unit_high
    if unit_high not in ("", unit) or (unit_step or "") not in ("", unit):
        raise ValueError(f"{quote(text)}: both ends need the same unit")
    ends, whole = (Fraction(low), Fraction(high)), not unit and "." not in f"{low}{high}{step}"
    if sign is None and (unit or "." in low + high):
        _check(text, *ends)
        return NumberInterval(*ends, unit)
    found = _steps(text, *ends, sign or "+", Fraction(step or 1))
    numbers = [int(n) if whole or (unit and n.denominator == 1) else float(n) for n in found]
    return tuple(f"{number!r}{unit}" if unit else number for number in numbers)


def _sizes(text: str, low: str, high: str, sign: str | None, step: str) -> Choices:
    if sign is None:
        raise ValueError(f"{quote(text)} needs a step, as {text}*2 or {text}+1M")
    by = Fraction(step) if sign == "*" else Fraction(units.cli_size(step))
    found = _steps(text, Fraction(units.cli_size(low)), Fraction(units.cli_size(high)), sign, by)
    return tuple(int(each) for each in found)


def _check(text: str, low: Fraction, high: Fraction) -> None:
    if high < low:
        raise ValueError(f"{quote(text)} ends before it begins")


def _steps(text: str, low: Fraction, high: Fraction, sign: str, step: Fraction) -> list[Fraction]:
    _check(text, low, high)
    if step <= (1 if sign == "*" else 0) or (sign == "*" and not low):
        words = "a factor above 1, and a start above 0" if sign == "*" else "a step above 0"
        raise ValueError(f"{quote(text)} needs {words}")
    found = [low]
    while (following := found[-1] * step if sign == "*" else found[-1] + step) <= high:
        if len(found) == MOST_VALUES:
            raise ValueError(f"{quote(text)} has more than {MOST_VALUES:,} values")
        found.append(following)
    return found


def parse_scalar(key: str, text: str) -> Any:
    """A number where the text is one, else the text; bytes for sizes."""
    key = last_part(key)
    if key in SIZES:
        return units.cli_size(text)
    if key in _STRATEGIES:
        return text
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?[0-9]{1,18}\.[0-9]{1,18}", text) else text


@dataclass(frozen=True, slots=True)
class Sample:
    """So many points, `by` which rule, from a seed."""

    by: str
    count: int
    seed: int = 0


def combine(
    over: Mapping[str, Choices], zipped: Sequence[Sequence[str]], sample: Sample | None
) -> list[dict[str, Any]]:
    """The settings of every cell of a design without faults, equal points of a sample once.

    Keys that are `zipped` advance together.
    """
    groups = _groups(over, zipped)
    number = {key: i for i, group in enumerate(groups) for key in group}
    if sample:
        points = [
            {key: _value_at(values, point[number[key]]) for key, values in over.items()}
            for point in _points(sample, len(groups))
        ]
        return list({repr(settings): settings for settings in points}.values())
    lists = {key: values for key, values in over.items() if not isinstance(values, NumberInterval)}
    return [
        {key: values[places[number[key]]] for key, values in lists.items()}
        for places in itertools.product(*(range(_length(over, group)) for group in groups))
    ]


def check_design(
    over: Mapping[str, Choices], zipped: Sequence[Sequence[str]], sample: Sample | None
) -> list[str]:
    """Return faults where keys do not go together. A key without values has faults elsewhere."""
    problems = []
    seen: set[str] = set()
    for keys in zipped:
        problems += [f"zip: {key} has no values" for key in keys if key not in over]
        problems += [f"zip: {key} is in two of them" for key in keys if key in seen]
        seen.update(keys)
        if len(set(keys)) < 2:
            problems.append(f"zip: {', '.join(keys)}: name two keys or more")
        lengths = {key: _length(over, (key,)) for key in keys if over.get(key)}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} {count}" for key, count in lengths.items())
            problems.append(f"zip: lists of one length go side by side, and there are {counts}")
        problems += [
            f"zip: {key} is an interval" for key in lengths if isinstance(over[key], NumberInterval)
        ]
    if sample:
        return problems
    problems += [
        f"{key}: an interval has no end of values; give a step, as 1..2+0.5, or --sample"
        for key, values in over.items()
        if isinstance(values, NumberInterval)
    ]
    total = 1 if problems else prod(_length(over, group) for group in _groups(over, zipped))
    if total > MOST_CELLS:
        problems.append(f"{total:,} cells are more than {MOST_CELLS:,}; try --sample")
    return problems


def _groups(over: Mapping[str, Choices], zipped: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Keys that advance together, each key in one group, in the order of `over`."""
    group_of = {key: tuple(keys) for keys in zipped for key in keys}
    return list(dict.fromkeys(group_of.get(key, (key,)) for key in over))


def _length(over: Mapping[str, Choices], group: Sequence[str]) -> int:
    values = over[group[0]]
    return 0 if isinstance(values, NumberInterval) else len(values)


def _value_at(values: Choices, share: float) -> Any:
    """The value at a share of the way through all, from 0 to 1."""
    if isinstance(values, NumberInterval):
        return values.at(float(share))
    return values[min(int(share * len(values)), len(values) - 1)]


def _points(sample: Sample, dimensions: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Points of the unit cube."""
    if sample.by == RANDOM:
        return np.random.default_rng(sample.seed).random((sample.count, dimensions))
    if dimensions > MOST_SOBOL:
        raise InputError(f"a Sobol sample of {dimensions} keys: at most {MOST_SOBOL}; try random")
    from scipy.stats import qmc  # noqa: PLC0415 - takes a second to import

    points = qmc.Sobol(dimensions, seed=np.random.default_rng(sample.seed)).random_base2(
        ceil(log2(max(sample.count, 1)))
    )
    return np.asarray(points[: sample.count], np.float64)


SAMPLE = Format(
    "sample",
    "Some of the combinations instead of all.",
    Field("by", choice(SAMPLES, "sample"), "`random`, or `sobol`, which spreads evenly.", SOBOL),
    Field("count", whole(1, 10_000_000, "cells"), "How many.", required=True),
    Field("seed", whole(0, 2**63 - 1), "Where the sample starts.", 0),
)
SWEEP = Format(
    "sweep",
    "What to vary of a question.",
    Field("question", LINE, "A scenario, or a machine for one collective.", required=True),
    Field("title", LINE, "The title of reports.", default_words="the file's name"),
    Field("kind", choice(KINDS, "kind"), "`bench` for a machine; `step` for a scenario with"
          " `[step]`, `replicas` for one with `[replicas]`, `jobs` for one with `[[job]]`, else"
          " `run`.",
          default_words="by the question"),
    Field("over", MapOf(ANYTHING, key="KEY"), "Keys and their values: a list, or text such as"
          ' `"1..64*2"`.', required=True),
    Field("set", MapOf(ANYTHING, key="KEY"), "Keys that all cells have."),
    Field("zip", ListOf(ListOf(LINE, 2)), "Lists of keys whose values go side by side.",
          default_words="none: all combinations"),
    Field("sample", TableOf(SAMPLE), "Some of the combinations instead of all."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Specification:
    """A sweep before it is planned."""

    question: SweepQuestion
    title: str
    over: Mapping[str, Choices]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    zipped: Sequence[Sequence[str]] = ()
    sample: Sample | None = None

    def plan(self) -> list[Planned]:
        """Every place of the sweep; what cannot be at a place is said there."""
        return [self._planned(each) for each in combine(self.over, self.zipped, self.sample)]

    def check(self, faults: Faults) -> None:
        """Note every unknown or repeated key, and every value that no place could have."""
        values = {
            f"over.{key}": each if isinstance(each, tuple) else (each.at(0.0),)
            for key, each in self.over.items()
        } | {f"set.{key}": (value,) for key, value in self.fixed.items()}
        attempts = {
            place: faults.attempt(place, self.question.key_of, place.partition(".")[2])
            for place in values
        }
        keys = {place: key for place, key in attempts.items() if key is not None}
        collectives = [
            value
            for place, key in keys.items()
            for value in values[place]
            if key == "collective" and value in NAMES
        ]
        for place, key in keys.items():
            for value in values[place]:
                faults.attempt(place, self.question.check, key, value, collectives)
        faults.check(
            "root" not in keys.values() or {*collectives} & {*ROOTED},
            "",
            f"root: only {' and '.join(ROOTED)} have one; give collective too",
        )
        faults.add("", *clashes(keys))
        disturbed = {*keys.values(), *self.question.document.get("disturb", {})}
        faults.check(
            "seed" not in keys.values() or "jitter" in disturbed,
            "",
            "seed: only jitter draws from it; give jitter too"
            f"{', or replicas.seed' if self.question.kind == REPLICAS else ''}",
        )

    def _planned(self, settings: Mapping[str, Any]) -> Planned:
        try:
            return Planned(settings, self.question.cell({**self.fixed, **settings}))
        except InputError as error:
            return Planned(settings, None, "; ".join(error.problems))

    @property
    def document(self) -> dict[str, Any]:
        """The form that databases keep, as JSON values."""
        return {
            "question": self.question.name,
            "kind": self.question.kind,
            "title": self.title,
            "over": {key: _shown(values) for key, values in self.over.items()},
            "set": dict(self.fixed),
            "zip": [list(keys) for keys in self.zipped],
            "sample": self.sample and [self.sample.by, self.sample.count, self.sample.seed],
        }


def _shown(values: Choices) -> Any:
    if isinstance(values, tuple):
        return list(values)
    return f"{float(values.low)}..{float(values.high)}{values.unit}"


def is_sweep(text: str) -> bool:
    """Whether `text` is the file of a sweep."""
    path = Path(text)
    try:
        if path.suffix != ".toml" or not is_file(text):
            return False
        return "over" in parse_toml(text, read_text(path, InputError), InputError)
    except (InputError, OSError, ValueError):
        return False


def read_specification(
    text: str,
    over: Mapping[str, object],
    fixed: Mapping[str, object],
    zipped: Sequence[Sequence[str]] = (),
    sample: Sample | None = None,
    kind: str | None = None,
) -> Specification:
    """The sweep of the file `text`, or of a scenario or machine.

    What is given besides is added, or replaces what the file says. InputError lists every fault.
    """
    values: dict[str, Any] = {"over": {}, "set": {}, "zip": [], "sample": None, "title": None}
    name, asked = text, text
    faults = Faults()
    if is_sweep(text):
        faults = Faults(text)
        values = dict(
            SWEEP.read(parse_toml(text, read_text(Path(text), InputError), InputError), faults)
        )
        asked, name = values["question"] or "", Path(text).stem
        kind = kind or values["kind"]
        near = Path(text).parent / asked
        asked = str(near) if asked.endswith(".toml") and is_file(str(near)) else asked
        if values["sample"] and not sample:
            found = values["sample"]
            sample = Sample(found["by"], found["count"] or 1, found["seed"])
    question = faults.attempt("", read_question, asked, kind) if asked else None
    # What is given besides replaces what the file says of a key, whether it varies there or not.
    wanted = {k: v for k, v in flatten(values["over"] or {}).items() if k not in fixed} | dict(over)
    held = {k: v for k, v in flatten(values["set"] or {}).items() if k not in over} | dict(fixed)
    if not wanted and not faults.problems:
        faults.add("" if is_sweep(text) else text, "nothing varies; give --over KEY=VALUES")
    own: dict[str, Choices] = {}
    unread: dict[str, Choices] = {}  # their lists have no length yet
    for key, given in wanted.items():
        own[key], problems = parse_values(key, given)
        faults.add(f"over.{key}", *problems)
        unread |= {key: ()} if problems else {}
    pairs = zipped or values["zip"] or ()
    faults.add("", *check_design(own | unread, pairs, sample))
    if question is None:
        raise InputError(faults.problems)
    found = Specification(question, values["title"] or name, own, held, pairs, sample)
    found.check(faults)
    return faults.require(found)
