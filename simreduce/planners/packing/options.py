"""Readers of the value of a packer's option; every fault names an accepted value."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce import dtypes, units
from simreduce.errors import StrategyError
from simreduce.workload import Gradient

FP16, BF16 = "fp16", "bf16"
"""The words for 16 bits on the wire."""

FLOAT16, BFLOAT16 = dtypes.code("float16"), dtypes.code("bfloat16")
_FLOATS = tuple(dtypes.code(name) for name in ("float32", "float16", "float64", "bfloat16"))

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


def half(key: str, text: str | None, example: str) -> tuple[str | None, bool]:
    """The value before `,fp16`, and whether that is there; without a value, None."""
    if text is None:
        return None, False
    number, comma, word = text.partition(",")
    if comma and word != FP16:
        raise StrategyError(
            f"{key}: unknown {word!r} after {number}; only fp16 is known, "
            f"as in {key}={example},fp16"
        )
    return number, bool(comma)


def wire_of(
    key: str, gradients: Sequence[Gradient], *, fp16: bool, bf16: bool = False
) -> int | None:
    """The dtype on the wire: one of 16 bits if asked for, which only floating-point gradients
    take.
    """
    if not (fp16 or bf16):
        return None
    if other := sorted({g.dtype for g in gradients} - set(_FLOATS)):
        raise StrategyError(
            f"{key}: {FP16 if fp16 else BF16} is for floating-point gradients, not for "
            f"{dtypes.NAMES[other[0]]}; leave it out"
        )
    return FLOAT16 if fp16 else BFLOAT16
