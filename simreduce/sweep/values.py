"""The values of a key as people write them: lists, ranges, intervals.

* `1,2,4` or `ring;nccl+small=65536,10`: a list; with `;`, commas belong to the values
* `1..64`: every whole number; `1..64+8`: every eighth from 1; `1..64*2`: doubled each time
* `8M..1G*2`, `100..400TFLOP/s+100`: numbers with a unit
* `0.5..2.0`: an interval, for `--sample` only; with whole ends, every whole number between
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from simreduce import units
from simreduce.errors import cut, quote
from simreduce.strategy import split_strategies

MOST_VALUES = 100_000
"""Values of the longest list."""
SIZES = ("size", "bytes")
"""Keys whose numbers are sizes."""
_STRATEGIES = ("strategy", "algo")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_RANGE = re.compile(
    rf"\s*({_NUMBER})\s*([A-Za-z/]*)\s*\.\.\s*({_NUMBER})\s*([A-Za-z/]*)\s*"
    rf"(?:([*+])\s*({_NUMBER})\s*([A-Za-z/]*))?\s*"
)


@dataclass(frozen=True, slots=True)
class Interval:
    """Any number from `low` to `high`, of a unit."""

    low: Fraction
    high: Fraction
    unit: str = ""

    def at(self, share: float) -> float | str:
        """The value at a share of the way, from 0 to 1."""
        value = float(self.low) + float(self.high - self.low) * share
        return f"{value!r}{self.unit}" if self.unit else value


Choices = tuple[Any, ...] | Interval
"""What a key may be."""


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
        if isinstance(part, Interval):
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


def _split(key: str, text: str) -> list[str]:
    if ";" in text:
        parts = text.split(";")
    elif key in _STRATEGIES:
        parts = split_strategies(text, "all_reduce")
    else:
        parts = text.split(",")
    parts = [part.strip() for part in parts]
    if "" in parts:
        raise ValueError(f"an empty value in {quote(text)}")
    return parts


def _parse(key: str, text: str) -> Choices:
    match = _RANGE.fullmatch(text)
    if match is None:
        return (parse_scalar(key, text),)
    low, unit, high, unit_high, sign, step, unit_step = match.groups()
    if key in SIZES:
        return _sizes(text, low + unit, high + unit_high, sign, (step or "") + (unit_step or ""))
    unit = unit or unit_high
    if unit_high not in ("", unit) or (unit_step or "") not in ("", unit):
        raise ValueError(f"{quote(text)}: both ends need the same unit")
    ends, whole = (Fraction(low), Fraction(high)), not unit and "." not in f"{low}{high}{step}"
    if sign is None and (unit or "." in low + high):
        _check(text, *ends)
        return Interval(*ends, unit)
    found = _steps(text, *ends, sign or "+", Fraction(step or 1))
    return tuple(
        (int(each) if whole else float(each)) if not unit else f"{_decimal(each)}{unit}"
        for each in found
    )


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


def _decimal(value: Fraction) -> str:
    return str(int(value)) if value.denominator == 1 else repr(float(value))


def parse_scalar(key: str, text: str) -> Any:
    """A number where the text is one, else the text; bytes for sizes."""
    if key in SIZES:
        return units.cli_size(text)
    if key in _STRATEGIES:
        return text
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,18}\.[0-9]{1,18}", text):
        return float(text)
    return text
