"""Readers of the value of a packer's option; every fault names an accepted value."""

from __future__ import annotations

from simreduce import units
from simreduce.errors import StrategyError

_DIGITS = 18
"""Digits of the largest number read; Python refuses thousands of them with an error of its own."""


def required(key: str, text: str | None, example: str) -> str:
    """Returns the text after `key=`; raises StrategyError without one."""
    if not text:
        raise StrategyError(f"{key}: needs a value, for example {key}={example}")
    return text


def whole(
    key: str, text: str | None, least: int, what: str, example: str, most: int | None = None
) -> int:
    """A whole number from `least`, to `most` if given; `what` names it in messages."""
    text = required(key, text, example)
    number = int(text) if text.isdecimal() and len(text) <= _DIGITS else least - 1
    if number < least or (most is not None and number > most):
        span = f"from {least}" if most is None else f"from {least} to {most}"
        raise StrategyError(
            f"{key}: {text!r}: {what} is a whole number {span}, for example {key}={example}"
        )
    return number


def nbytes(key: str, text: str | None, least: int, example: str) -> int:
    """A size of at least `least` bytes in the spelling of the command line: `25M`, `25MiB`,
    `26214400`.
    """
    text = required(key, text, example)
    try:
        size = units.cli_size(text)
    except ValueError as error:
        raise StrategyError(f"{key}: {error}") from None
    except OverflowError:
        raise StrategyError(
            f"{key}: {text!r} is too large for a size, as in {key}={example}"
        ) from None
    if size < least:
        raise StrategyError(
            f"{key}: {text!r}: the size must be {least} bytes or more, as in {key}={example}"
        )
    return size
