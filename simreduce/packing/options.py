"""Reading what stands after the `=` of a packer's option; every fault says what would be accepted."""

from __future__ import annotations

from simreduce import units
from simreduce.errors import StrategyError

_DIGITS = 18
"""Digits of the largest number read; Python refuses thousands of them with an error of its own."""


def required(key: str, text: str | None, example: str) -> str:
    """The text after `key=`, which may not be left out."""
    if not text:
        raise StrategyError(f"{key}: needs a value, for example {key}={example}")
    return text


def whole(key: str, text: str, least: int, what: str, example: str) -> int:
    """A whole number from `least`; `what` names it in messages."""
    if not text.isdecimal() or len(text) > _DIGITS or int(text) < least:
        raise StrategyError(
            f"{key}: {text!r}: {what} is a whole number from {least}, for example {key}={example}"
        )
    return int(text)


def nbytes(key: str, text: str, least: int, example: str) -> int:
    """A size of at least `least` bytes in the spelling of the command line: `25M`, `25MiB`, `26214400`."""
    try:
        size = units.cli_size(text)
    except ValueError as error:
        raise StrategyError(f"{key}: {error}") from None
    except OverflowError:
        raise StrategyError(f"{key}: {text!r} is too large for a size, as in {key}={example}") from None
    if size < least:
        raise StrategyError(f"{key}: {text!r}: the size must be {least} bytes or more, as in {key}={example}")
    return size
